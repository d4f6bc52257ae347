"""The entry of a spawned worker: `enter`, which torchrunx calls in each worker process with one string."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shoal.errors import ShoalError
from shoal.files import folder_of
from shoal.launch.processes import life_file
from shoal.launch.rank import run_rank
from shoal.launch.reaper import lock_with_pid
from shoal.launch.rendezvous import open_file_store, open_tcp_rendezvous
from shoal.launch.status_store import StatusStore
from shoal.logs import configure_logging
from shoal.plan.ranks import Rank
from shoal.plan.spec import NodeSpec, WorkerSpec
from shoal.shell import TYPABLE
from shoal.signals import STOPPING, stop_requests

if TYPE_CHECKING:
    from torch.distributed import Store


def enter(worker_spec: str) -> None:
    """Run one rank of a spawned launch. Returns only after success.

    A rank that failed ends its process at once: torchrunx would keep one that raises alive until its peers' own
    time-outs, and would then report a peer.
    """
    # Read as plain data first: to make a `WorkerSpec` of it imports the task, which may be a user's file that fails.
    plain = json.loads(worker_spec)
    node = NodeSpec.from_plain(plain)
    local_rank = int(os.environ["LOCAL_RANK"])  # Set by torchrunx, whose launcher knows this node only.
    rank = Rank(
        rank=node.ranks[local_rank],
        local_rank=local_rank,
        world_size=node.world_size,
        local_world_size=len(node.ranks),
    )
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.world_size)}
    scratch = Path(node.scratch or "")

    def load() -> WorkerSpec:
        _write_output_to(node.log_file(rank.rank))
        lock_with_pid(life_file(scratch, rank.rank))
        configure_logging(rank=rank.rank)
        return WorkerSpec.from_json(worker_spec)

    def open_store() -> Store:
        if node.rendezvous is not None:
            return open_tcp_rendezvous(scratch, rank, node.rendezvous)
        return open_file_store(scratch / "rendezvous", rank)

    with stop_requests(insist=False) as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # The launching process has blocked them in its children.
        try:
            run_rank(
                load,
                StatusStore(node.run, rank, scratch),
                (plain["config"]["startup_timeout"], plain["config"]["stall_timeout"]),
                stop=stop,
                abort=_exit_with,
                store=open_store,
                network=node.nodes[0].network,
            )
        except BaseException as error:  # noqa: BLE001  This process ends, whatever it is.
            _exit_with(error)


def _exit_with(error: BaseException) -> NoReturn:
    """Write an error into this rank's output file, and end this process. Its exit record has been written."""
    is_ours = isinstance(error, ShoalError)
    try:
        sys.stderr.write((error.details or f"{error}\n") if is_ours else "".join(traceback.format_exception(error)))
        sys.stderr.flush()
    finally:
        os._exit(error.exit_code if is_ours else 1)


def _write_output_to(file: Path) -> None:
    """Redirect standard output and error to this rank's own file.

    torchrunx would carry both through its log stream, where one byte that is not UTF-8 fails the job.
    """
    with folder_of(file).open(file, "a") as output:
        for descriptor, stream in enumerate((sys.stdout, sys.stderr), 1):
            stream.flush()
            os.dup2(output.fileno(), descriptor)
    sys.stdout.reconfigure(line_buffering=True, errors=TYPABLE)  # pyright: ignore[reportAttributeAccessIssue]

"""The launch mode *elastic*: this command was typed on each of several nodes, and starts this node's workers.

torch's elastic launcher, called in this process, meets the others at node 0, starts the workers as *joined* ranks, and
starts all of them again when one is lost or a node joins. Its scratch directory, on each node, holds the workers'
configuration, and what they keep between attempts: the run, and a failure that would come again.
"""

import json
import logging
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from shoal import PYTHON
from shoal.config import TrainConfig
from shoal.config.machines import number_of_nodes
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import ShoalError, TrainingFailedError, UsageError, WorkerLostError
from shoal.files import write_whole
from shoal.launch.exit_records import ExitRecord, ended_at_once, failure_of, first_failure, read_exit_records
from shoal.launch.reaper import MARK, reaped_scratch
from shoal.launch.rendezvous import acknowledge
from shoal.launch.signed_store import SignedStore
from shoal.machine.network import addresses_by_interface, answers, route_to
from shoal.plan.launchers import STATE_DIR, launcher_of, state_dir
from shoal.plan.ranks import Rank, joined_rank
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.procfs import how_it_ended
from shoal.signals import ERRORS
from shoal.timing import (
    ELASTIC_MARGIN_S,
    ELASTIC_MORE_NODES_S,
    ELASTIC_POLL_S,
    ELASTIC_REFUSAL_S,
    ELASTIC_STOP_S,
    FOREVER_S,
    wait_for,
)

_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Makes the workers of each attempt open a store of their own. Through the agents' store, torch 2.15 does not tell a
node that comes later where it is: it waits for a key of its round that was set in the first one's."""
_REFUSAL = "shoal/refusal"  # Key of a launcher's refusal in the store of node 0.


def run_elastic(plan: TrainPlan, abort: Callable[[ShoalError], None]) -> None:
    """Run this node's workers, wait for them, and raise the error of how it ended here.

    `abort` ends this process from another thread: torch goes on waiting for a node 0 that is lost.
    """
    config = plan.config
    _refuse_wrong_address(config)
    with reaped_scratch() as scratch:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # We report a store that does not answer.
        least, most = number_of_nodes(config.nnodes or "1")
        if least == most:  # Otherwise the others may go on without the node that refuses.
            threading.Thread(target=_watch_refusals, args=(config, scratch, abort), daemon=True).start()
        if config.node_rank:
            timeout = config.startup_timeout or math.inf
            # torch would wait as long for every answer as for the first.
            if not wait_for(lambda: _reaches_node_0(config), timeout, ELASTIC_POLL_S):
                raise _not_met(config, f"machine 0 does not answer within {timeout:.0f} s")
            threading.Thread(target=_watch_node_0, args=(config, scratch, abort), daemon=True).start()
        os.environ |= {STATE_DIR: str(scratch), MARK: str(scratch), _OWN_STORE: "1"}
        os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(ELASTIC_STOP_S))
        try:
            _launch(plan, scratch)
        finally:
            for name in (STATE_DIR, MARK, _OWN_STORE):
                del os.environ[name]


def publish_elastic_refusal(config: TrainConfig, error: UsageError) -> None:
    """Publish why this node refuses: the launchers of the others would wait for it."""
    if config.nnodes is None or config.dry_run or launcher_of(os.environ) is not None:
        return
    is_first = config.node_rank == 0
    if not is_first and not wait_for(lambda: _reaches_node_0(config), ELASTIC_REFUSAL_S, ELASTIC_POLL_S):
        return
    message = f"Machine {config.node_rank} ({platform.node()}) refuses: {error}"
    with suppress(RuntimeError):  # Others are not there, or not yet.
        store = _store_of_node_0(config, is_master=is_first)
        store.set(_REFUSAL, message)
        _acknowledge_refusal(store, config)


def _watch_refusals(config: TrainConfig, scratch: Path, abort: Callable[[ShoalError], None]) -> None:
    """End this process when another launcher refuses before there is a run.

    The thread ends then, too: one that is inside torch's store while this process ends would abort it.
    """
    import torch.distributed  # noqa: F401  It takes longer than a node 0 that refuses waits.

    store: SignedStore | None = None
    while saved_run(scratch) is None:
        time.sleep(ELASTIC_POLL_S)
        try:
            store = store or (_store_of_node_0(config) if _reaches_node_0(config) else None)
            if store is None or not store.raw.check([_REFUSAL]) or saved_run(scratch) is not None:
                continue
            error = UsageError(store.get(_REFUSAL).decode())
            _acknowledge_refusal(store, config)
            abort(error)
        except RuntimeError:  # Node 0 is gone again.
            store = None


def _store_of_node_0(config: TrainConfig, *, is_master: bool = False) -> SignedStore:
    from torch.distributed import TCPStore

    address, timeout = config.master_addr or "", timedelta(seconds=ELASTIC_REFUSAL_S)
    store = TCPStore(address, config.master_port, is_master=is_master, wait_for_workers=False, timeout=timeout)
    return SignedStore(store, None)


def _acknowledge_refusal(store: SignedStore, config: TrainConfig) -> None:
    most = number_of_nodes(config.nnodes or "1")[1]
    node = Rank(rank=config.node_rank or 0, local_rank=0, world_size=most, local_world_size=1)
    acknowledge(store, node, "refusal")


def _refuse_wrong_address(config: TrainConfig) -> None:
    """Refuse an address of node 0 that leads nowhere, or that is not its own: the nodes would wait in vain."""
    address = config.master_addr or ""
    route = route_to(address)
    if route is None:
        raise UsageError(
            f"--master-addr {address} was passed, but it does not resolve on {platform.node()}, or no network "
            "interface leads there: pass an address of machine 0."
        )
    if config.node_rank == 0 and not route.is_local:
        own = ", ".join(each for addresses in addresses_by_interface().values() for each in addresses)
        raise UsageError(
            f"--node-rank 0 was passed on {platform.node()}, but --master-addr {address} is none of its addresses "
            f"({own}): pass one of them on all machines, or another --node-rank here."
        )


def _reaches_node_0(config: TrainConfig) -> bool:
    return answers(config.master_addr or "", config.master_port)


def _watch_node_0(config: TrainConfig, scratch: Path, abort: Callable[[ShoalError], None]) -> None:
    """End this process when node 0 has not answered for longer than its workers wait."""
    limit = (config.stall_timeout or math.inf) + ELASTIC_MARGIN_S
    answered = time.monotonic()
    while (silent := time.monotonic() - answered) <= limit:
        time.sleep(ELASTIC_POLL_S)
        if _reaches_node_0(config):
            answered = time.monotonic()
    cause = _cause_here(scratch)
    message = (
        f"Lost machine 0 from {platform.node()}: {config.master_addr}, port {config.master_port}, has not answered for "
        f"{silent:.0f} s. Look at it and at the network, and pass --resume to go on."
    )
    abort(WorkerLostError(message) if cause is None else failure_of(cause))


def _worker_arguments(config: TrainConfig, scratch: Path) -> list[str]:
    """Write the workers' configuration, and return Python's arguments. The launcher counts nodes and restarts."""
    file = scratch / "config.yaml"
    alone: dict[str, Any] = dict.fromkeys(("nnodes", "node_rank", "master_addr", "min_workers", "nproc_per_node"))
    plain = to_plain(replace(config, max_restarts=0, **alone))
    kept = {name: value for name, value in plain.items() if name not in NOT_REPEATED}
    file.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    arguments = [*PYTHON[1:], "-u", "-m", "shoal", "train", "--config", str(file)]
    for flag in ("resume", "checkpoint", "teacher", "interface"):
        if plain[flag] is not None:
            arguments += [f"--{flag}", *([plain[flag]] if isinstance(plain[flag], str) else plain[flag])]
    return arguments


def _launch(plan: TrainPlan, scratch: Path) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # We print its last line.
    arguments = _worker_arguments(plan.config, scratch)
    try:
        elastic_launch(_launch_config(plan), sys.executable)(*arguments)
    except (SignalException, ChildFailedError, RendezvousError) as error:
        final = final_failure(scratch) if isinstance(error, ChildFailedError) else None
        cause = final or _cause_here(scratch)
        if cause is not None:
            raise failure_of(cause) from None
        if isinstance(error, SignalException):
            raise ended_at_once(signal.Signals(error.sigval).name, saved_run(scratch) or RunDir(scratch)) from None
        if isinstance(error, RendezvousError):
            raise _not_met(plan.config, str(error.__cause__ or error)) from None
        rank, code = next((rank, each.exitcode) for rank, each in error.failures.items())
        message = f"Lost rank {rank} on {platform.node()}: {how_it_ended(code)}. Its own output, above, may tell more."
        raise (UsageError if code == UsageError.exit_code else WorkerLostError)(message) from None


def _not_met(config: TrainConfig, reason: str) -> WorkerLostError:
    return WorkerLostError(
        f"The machines of --nnodes {config.nnodes} did not meet at {config.master_addr}, port {config.master_port} "
        f"({reason}): see whether the others are there, and start all of them again. --startup-timeout waits longer."
    )


def _cause_here(scratch: Path) -> ExitRecord | None:
    """Return the first failure among the workers of this node."""
    run = saved_run(scratch)
    records = read_exit_records(run).values() if run is not None else ()
    return first_failure(record for record in records if record.host == platform.node())


def _launch_config(plan: TrainPlan) -> Any:  # noqa: ANN401  torch is imported late.
    from torch.distributed.launcher.api import LaunchConfig

    config = plan.config
    least, most = number_of_nodes(config.nnodes or "1")
    is_first, address = not config.node_rank, config.master_addr or ""
    timeout = round(config.startup_timeout) or FOREVER_S
    settings: dict[str, Any] = {
        "min_nodes": least,
        "max_nodes": most,
        "nproc_per_node": len(plan.devices),
        "run_id": f"shoal-{config.master_port}",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": f"[{address}]:{config.master_port}" if ":" in address else f"{address}:{config.master_port}",
        "rdzv_configs": {
            "is_host": is_first,
            "timeout": timeout,
            "join_timeout": timeout,
            "last_call_timeout": ELASTIC_MORE_NODES_S,
            "read_timeout": round(config.stall_timeout + ELASTIC_MARGIN_S) if config.stall_timeout else FOREVER_S,
        },
        "max_restarts": config.max_restarts,
        "monitor_interval": 0.1,
        # Nodes are ordered by this name. Node 0 has to be the first, and its name is the address of the workers' store.
        "local_addr": address if is_first else f"~{config.node_rank:05d}",
    }
    newer = {"signals_to_handle": ",".join(["SIGQUIT", *ERRORS]), "shutdown_timeout": ELASTIC_STOP_S}
    known = {each.name for each in fields(LaunchConfig)}
    return LaunchConfig(**settings, **{name: value for name, value in newer.items() if name in known})


# State that workers keep between attempts ----------------------------------------------------------------------------


def save_run(run: RunDir) -> None:
    """Let later attempts continue `run`."""
    directory = state_dir()
    if directory is not None:
        write_whole(directory / "run", str(run.path))


def saved_run(directory: Path | None) -> RunDir | None:
    """Return the run of earlier attempts; None before there is one."""
    file = directory / "run" if directory is not None else None
    return RunDir(Path(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None


@contextmanager
def final_failures() -> Iterator[None]:
    """Keep a failure of the body that would come again, an exception or a refusal, and raise it in later attempts."""
    directory = state_dir()
    final = final_failure(directory)
    if final is not None:
        raise failure_of(final)
    try:
        yield
    except (TrainingFailedError, UsageError) as error:
        if directory is not None:
            rank = joined_rank() or Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
            write_whole(directory / "final", json.dumps(asdict(ExitRecord.of_error(error, rank))))
        raise


def final_failure(directory: Path | None) -> ExitRecord | None:
    """Return the failure that ends all attempts; None without one."""
    file = directory / "final" if directory is not None else None
    return ExitRecord(**json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.exists() else None

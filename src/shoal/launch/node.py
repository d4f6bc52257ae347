"""A node of a launch: `LocalNode` starts this machine's ranks with a local torchrunx launcher, and has their status.

A local launch has one, in the launching process. With `--hosts` each node agent has one, and the launching process has
a `shoal.launch.remote.node.RemoteNode` for it.
"""

import logging
import platform
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.heartbeat import Beat, read_beat
from shoal.launch.exit_records import ExitRecord, read_exit_records
from shoal.launch.hang_detector import drop_empty_stacks, read_beats
from shoal.launch.processes import RankWatch, count_oom_kills, oom_verdict
from shoal.launch.reaper import marked, signal_all
from shoal.launch.rendezvous import read_rendezvous_port
from shoal.launch.tail import Tail
from shoal.launch.torchrunx_patch import Agent, patched_run
from shoal.launch.worker_entry import enter
from shoal.plan.spec import NodeSpec
from shoal.signals import STOPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """The status of a node at one moment, with rank 0's output since the status before."""

    launcher: str | None = None
    """How the torchrunx launcher or its agent ended: None while both run, empty after success, else the failure."""
    rendezvous_port: int | None = None
    """Port of rank 0's store, once it listens; on the node of rank 0 alone."""
    alive: tuple[int, ...] = ()
    unseen: tuple[int, ...] = ()
    """Ranks that have shown no sign of life yet."""
    ended: Mapping[int, str] = field(default_factory=dict[int, str])
    """How each rank ended that was alive before, in the order of their ends; empty where that is unknown."""
    places: Mapping[int, str] = field(default_factory=dict[int, str])
    """Phase and iteration in which they ended."""
    beats: tuple[Beat, ...] = ()
    exit_records: Mapping[int, ExitRecord] = field(default_factory=dict[int, ExitRecord])
    agent_output: str = ""
    """The end of the agent's output, while some ranks have not started."""
    oom: str = ""
    """Whether the kernel killed a process for want of memory, as a clause, once a rank has ended."""
    lines: tuple[str, ...] = ()
    """New output of rank 0."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """New metrics of rank 0."""


class LocalNode:
    """The node that this process runs on."""

    lost = None
    """As in `RemoteNode`."""

    def __init__(self, spec: NodeSpec, worker_spec: str) -> None:
        """Start nothing yet.

        `spec` has a scratch and a log directory; `worker_spec` is the `WorkerSpec` of this node's workers, as JSON.
        """
        self.name = platform.node()
        self.ranks = spec.ranks
        self._spec, self._worker_spec = spec, worker_spec
        self._run, self._scratch = spec.run, Path(spec.scratch or "")
        self._watch = RankWatch(self._scratch, self.ranks)
        self._oom_kills = count_oom_kills()
        self._places: dict[int, str] = {}
        self._output = Tail(spec.log_file(0)) if 0 in self.ranks else None
        self._metrics = Tail(self._run.metrics_jsonl, from_end=True)
        self._agent: Agent | None = None
        self._launcher: str | None = None  # As in `NodeStatus`, from the thread.
        self._stopping = self._is_closed = False
        # A thread of its own: `Launcher.run` does not survive a KeyboardInterrupt.
        self._thread = threading.Thread(target=self._run_torchrunx, name="torchrunx", daemon=True)

    def start(self) -> None:
        """Start the agent, which begins to import at once, and the launcher."""
        self._thread.start()

    def _run_torchrunx(self) -> None:
        # Child processes inherit the mask: a Ctrl-C must not make a half-started agent print its traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            forks = set(self._spec.nodes[0].devices) == {"cpu"}
            self._agent = Agent(self._scratch, forks=forks)
            import torchrunx

            # Workers open their process group themselves, after their graphs are captured.
            launcher = torchrunx.Launcher(hostnames=["127.0.0.1"], workers_per_host=[len(self.ranks)], backend=None)
            launcher.set_logging_handlers(None)
            logging.getLogger("torchrunx").setLevel(logging.WARNING)
            if not self._stopping:  # A signal may come while torch is imported, which takes seconds.
                patched_run(self._agent)(launcher, enter, self._worker_spec)
                self._launcher = ""
        except Exception as error:  # noqa: BLE001  Reported in the status; its frames, which hold sockets, are dropped.
            lines = str(error).strip().splitlines()
            self._launcher = lines[0].rstrip(".") if lines else type(error).__name__
        finally:
            if self._agent is not None:
                self._agent.close()

    def status(self) -> NodeStatus:
        """Read files and processes. After `close`, an unfinished line of rank 0's output counts too."""
        launcher = self._launcher  # Before the ranks: when it has ended well, so have they.
        if launcher is None and self._agent is not None and self._agent.process.poll() is not None:
            launcher = self._agent.how_it_ended()
        size = self._output.size() if self._output else 0  # Output after an exit record is not shown.
        self._watch.look()
        unseen = tuple(self._watch.unseen)
        records = read_exit_records(self._run, self.ranks, spare=self._scratch)  # After ranks, which may have ended.
        for rank in self._watch.ended.keys() - self._places.keys():
            beat = read_beat(self._scratch, rank)
            self._places[rank] = beat.place if beat else "startup"
        return NodeStatus(
            launcher=launcher,
            rendezvous_port=read_rendezvous_port(self._scratch) if self._output else None,
            alive=tuple(self._watch.alive),
            unseen=unseen,
            ended=dict(self._watch.ended),
            places=dict(self._places),
            beats=tuple(read_beats(self._scratch, self._watch.alive)),
            exit_records=records,
            agent_output=self._agent.output() if self._agent is not None and unseen else "",
            oom=oom_verdict(self._oom_kills) if self._watch.ended else "",
            lines=self._new_lines(size, records.get(0)),
            rows=tuple(self._metrics.rows()) if self._output else (),
        )

    def wait(self, seconds: float) -> None:
        """Return after this time, or as soon as a rank ends."""
        self._watch.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs."""
        self._stopping = True
        self._watch.signal(number)

    def is_busy(self) -> bool:
        """Whether the launcher or any process with the mark of this launch still runs."""
        return self._thread.is_alive() or bool(marked(self._scratch))

    def close(self) -> None:
        """End what is left with the mark of this launch, such as the agent."""
        self.signal(signal.SIGKILL)
        self._watch.close()
        if self._agent is not None:
            self._agent.close()
        signal_all(marked(self._scratch), signal.SIGKILL)
        drop_empty_stacks(self._run, self.ranks)
        if self._thread.ident is not None:
            self._thread.join(1)
        self._is_closed = True

    def _new_lines(self, size: int, record: ExitRecord | None) -> tuple[str, ...]:
        """Return new output of rank 0, without the traceback of a failure, which is shown at the end."""
        if self._output is None:
            return ()
        if record is not None and record.log_bytes is not None:
            size = min(size, record.log_bytes)
        return tuple(self._output.lines(size, unfinished=self._is_closed))

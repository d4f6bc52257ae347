"""One machine's part in a launch: its ranks, its torchrunx agent, and what is seen of them.

`LocalNode` looks at the files and processes of the machine that it is on, which may be the launching process's own or a
warden's. `shoal.launch.remote_node` shows a launching process, in the same words, what a warden sees.
"""

from __future__ import annotations

import os
import platform
import signal
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from shoal.heartbeat import Beat, place_of, read_beat
from shoal.launch.exit_records import ExitRecord, read_exit_records
from shoal.launch.hang_detector import drop_empty_stacks, read_beats
from shoal.launch.oom import MemoryWatch
from shoal.launch.processes import RankWatch
from shoal.launch.reaper import MARK, marked, signal_all
from shoal.launch.tail import Tail
from shoal.launch.torchrunx_patch import Agent
from shoal.launch.worker_entry import USUAL_TMPDIR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shoal.launch.torchrunx_patch import AgentChannel
    from shoal.plan.rundir import RunDir

_AGENT_LOG = "agent.log"
"""What torchrunx's agent says, in the scratch directory."""
_LAST_WORDS_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """What is known of a machine at one moment, and what rank 0 has shown since the one before."""

    alive: tuple[int, ...] = ()
    """Ranks that live."""
    unseen: tuple[int, ...] = ()
    """Ranks that have shown no sign of life yet."""
    ended: Mapping[int, str] = field(default_factory=dict[int, str])
    """How each rank ended that was alive before, in the order of their ends; empty where nobody can tell."""
    places: Mapping[int, str] = field(default_factory=dict[int, str])
    """Where they were when they ended."""
    beats: tuple[Beat, ...] = ()
    """Heartbeats of ranks that live."""
    notes: Mapping[int, ExitRecord] = field(default_factory=dict[int, ExitRecord])
    agent: str | None = None
    """How torchrunx's agent ended, if it has."""
    agent_said: str = ""
    """What it said last, while some of its ranks have not started."""
    memory: str = ""
    """What the kernel knows of a rank that was killed."""
    lines: tuple[str, ...] = ()
    """What rank 0 has printed."""
    rows: tuple[Mapping[str, Any], ...] = ()
    """Its metrics."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, told: Mapping[str, Any], *, ahead: float = 0.0) -> Self:
        """Return what `to_plain` has made plain, and JSON has carried.

        Args:
            told: The plain values.
            ahead: How far the other machine's clock is ahead of this one's [s].
        """
        notes = {int(rank): ExitRecord(**note) for rank, note in told["notes"].items()}
        return cls(
            alive=tuple(told["alive"]),
            unseen=tuple(told["unseen"]),
            ended={int(rank): how for rank, how in told["ended"].items()},
            places={int(rank): place for rank, place in told["places"].items()},
            beats=tuple(Beat(**beat) for beat in told["beats"]),
            notes={rank: replace(note, time=note.time - ahead) for rank, note in notes.items()},
            agent=told["agent"],
            agent_said=told["agent_said"],
            memory=told["memory"],
            lines=tuple(told["lines"]),
            rows=tuple(told["rows"]),
        )


class Node(Protocol):
    """A machine of a launch."""

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        ...

    @property
    def ranks(self) -> range:
        """Its ranks."""
        ...

    @property
    def lost(self) -> str | None:
        """How the connection to it was lost; None while it stands."""
        ...

    @property
    def end(self) -> AgentChannel:
        """The line to its agent."""
        ...

    def start(self) -> None:
        """Start its agent."""
        ...

    def look(self, *, last: bool = False) -> NodeStatus:
        """Look at everything. The last look shows what rank 0 has printed without an end of line, too."""
        ...

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as something happens there."""
        ...

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives."""
        ...

    def dismiss(self) -> None:
        """End its agent, if it has not ended."""
        ...

    def how_agent_ended(self) -> str:
        """Wait for the end of its agent, which has said that it ends, and say how it was."""
        ...

    def is_busy(self) -> bool:
        """Whether a process of the launch lives there."""
        ...

    def finish(self) -> None:
        """Have whatever is left there ended."""
        ...

    def close(self) -> None:
        """Wait until that is so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What one machine is told to do. Plain values: it crosses as JSON."""

    number: int
    """Which machine it is, from 0."""
    machines: int
    """How many there are."""
    ranks: tuple[int, int]
    """Its first rank, and the one behind its last."""
    devices: tuple[str, ...]
    """Device of each of its workers, by local rank."""
    log_files: tuple[str, ...]
    """The file that takes each one's output, by local rank."""

    @property
    def shows(self) -> bool:
        """Whether it has rank 0, whose output and metrics are shown."""
        return self.number == 0


class LocalNode:
    """The machine that this process is on."""

    lost: str | None = None

    def __init__(self, share: NodeSpec, run: RunDir, scratch: Path, environ: Mapping[str, str] | None = None) -> None:
        """Look at nothing yet.

        Args:
            share: What it does.
            run: The run's directory.
            scratch: The launch's directory on this machine.
            environ: Variables for its workers, besides all that this process has.
        """
        self.name = platform.node()
        self.ranks = range(*share.ranks)
        self._share = share
        self._run = run
        self._scratch = scratch
        self._environ = environ or {}
        self._watch = RankWatch(scratch, self.ranks)
        self._memory = MemoryWatch()
        self._agent: Agent | None = None
        self._places: dict[int, str] = {}
        self._output = Tail(run.path / share.log_files[0], from_end=True) if share.shows else None
        self._metrics = Tail(run.metrics_jsonl, from_end=True)

    @property
    def end(self) -> AgentChannel:
        """The line to its agent, which was started."""
        if self._agent is None:
            raise EOFError
        return self._agent.line

    def start(self) -> None:
        """Start its agent, which begins to import at once."""
        environ = {
            **self._environ,
            # torchrunx's agent leaves a temporary directory behind; its workers get the usual place back.
            "TMPDIR": str(self._scratch),
            USUAL_TMPDIR: os.environ.get("TMPDIR", ""),
            MARK: str(self._scratch),
        }
        self._agent = Agent(
            self._scratch / _AGENT_LOG,
            environ,
            forks=set(self._share.devices) == {"cpu"},
            number=self._share.number,
            agents=self._share.machines,
        )

    def look(self, *, last: bool = False) -> NodeStatus:
        """Look at everything."""
        size = self._output.size() if self._output else 0  # What was written after a note must not be shown.
        self._watch.look()
        notes = read_exit_records(
            self._run, self.ranks, spare=self._scratch
        )  # After the look: who left one may have ended.
        for rank in self._watch.ended.keys() - self._places.keys():
            beat = read_beat(self._scratch, rank)
            self._places[rank] = beat.place if beat else place_of("startup", 0)
        unseen = tuple(self._watch.unseen)
        return NodeStatus(
            alive=tuple(self._watch.alive),
            unseen=unseen,
            ended=dict(self._watch.ended),
            places=dict(self._places),
            beats=tuple(read_beats(self._scratch, self._watch.alive)),
            notes=notes,
            agent=self._agent.how_it_ended() if self._agent is not None and self._agent.has_ended() else None,
            agent_said=self._agents_last_words() if unseen else "",
            memory=self._memory.verdict() if self._watch.ended else "",
            lines=self._shown(size, notes.get(0), last=last),
            rows=tuple(self._metrics.rows()) if self._share.shows else (),
        )

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as a rank ends."""
        self._watch.wait(seconds)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives."""
        self._watch.tell(number)

    def how_agent_ended(self) -> str:
        """Wait for the end of its agent, and say how it was."""
        return self._agent.how_it_ended() if self._agent is not None else ""

    def is_busy(self) -> bool:
        """Whether a process of the launch lives here."""
        return bool(marked(self._scratch))

    def dismiss(self) -> None:
        """End its agent, if it has not ended."""
        if self._agent is not None:
            self._agent.close()

    def finish(self) -> None:
        """Begin nothing: `close` takes no time."""

    def close(self) -> None:
        """End what is left with the mark of this launch, such as its agent."""
        self._watch.tell(signal.SIGKILL)
        self._watch.close()
        self.dismiss()
        signal_all(marked(self._scratch), signal.SIGKILL)
        drop_empty_stacks(self._run, self.ranks)

    def _shown(self, size: int, note: ExitRecord | None, *, last: bool) -> tuple[str, ...]:
        """Return new output of rank 0; a failing rank's traceback is told at the end."""
        if self._output is None:
            return ()
        if note is not None and note.log_bytes is not None:
            size = min(size, note.log_bytes)
        return tuple(self._output.lines(size, unfinished=last))

    def _agents_last_words(self) -> str:
        log = self._scratch / _AGENT_LOG
        return log.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip() if log.exists() else ""


def shares(devices: Sequence[Sequence[str]], log_files: Sequence[Sequence[str]]) -> list[NodeSpec]:
    """Return what each machine does, ranks counted through them in their order."""
    told: list[NodeSpec] = []
    first = 0
    for number, (own, logs) in enumerate(zip(devices, log_files, strict=True)):
        last = first + len(own)
        told.append(
            NodeSpec(
                number=number,
                machines=len(devices),
                ranks=(first, last),
                devices=tuple(own),
                log_files=tuple(logs),
            )
        )
        first = last
    return told

"""One trial: ranks as those of a training, in processes of their own, that time all_reduce or are ended.

A rank that hangs, dies or sums wrongly is what the trial is for; the process that waits for it never hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from shoal.doctor.children import START_S, Child, how_it_ended, start_child
from shoal.doctor.steps import DONE, ELEMENTS, steps_of
from shoal.procfs import is_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "NCCL_DEBUG": "WARN"}

_GRACE_S = 5.0
"""How long a rank may take from its last word to its end [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One all_reduce that was timed."""

    size: int
    """Ranks that took part."""
    elements: int
    """Numbers that each gave."""
    seconds: float
    right: bool
    """Whether the sums were right."""


@dataclass(slots=True)
class Trial:
    """What a trial came to."""

    timings: list[Timing] = field(default_factory=list["Timing"])
    failure: str | None = None
    """What went wrong, as a clause. None when nothing did."""
    killed: bool = False
    """Whether a rank was killed from outside, as the kernel does when memory runs out."""

    @property
    def worked(self) -> bool:
        """Whether every rank came to its end, and every sum was right."""
        return self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who talks in a trial."""

    devices: Sequence[str]
    """Device of each rank."""
    backend: str
    """`nccl` or `gloo`."""
    sizes: Sequence[int]
    """Numbers of ranks; the first so many of them talk, for each in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long ranks may take without any progress."""

    start_s: float = START_S
    """Until all have imported torch [s]."""
    progress_s: float = 30.0
    """Between two steps of any of them [s]."""


def run_trial(
    ranks: Ranks,
    limits: Limits,
    *,
    environ: Mapping[str, str] | None = None,
    on_ready: Callable[[Sequence[int]], None] | None = None,
) -> Trial:
    """Time all_reduce among ranks.

    Args:
        ranks: Who talks.
        limits: How long to wait.
        environ: Settings to try, beside this process's own environment.
        on_ready: Called with the process ids of all ranks, once they have imported what they need.
    """
    scratch = Path(tempfile.mkdtemp(prefix="shoal-doctor-"))
    defaults = {name: value for name, value in _QUIET.items() if name not in os.environ}
    asked = {
        "world_size": len(ranks.devices),
        "backend": ranks.backend,
        "sizes": list(ranks.sizes),
        "elements": list(ELEMENTS),
        "store": str(scratch / "rendezvous"),
    }
    children: list[Child] = []
    try:
        for rank, device in enumerate(ranks.devices):
            mine = {**asked, "rank": rank, "device": device}
            children.append(start_child("rank", mine, {**defaults, **(environ or {})}))
        return _Watch(children, ranks.sizes, limits).run(on_ready)
    finally:
        for child in children:
            child.end()
        shutil.rmtree(scratch, ignore_errors=True)


class _Watch:
    """Follows the steps of all ranks until they are done, or one of them will not be."""

    def __init__(self, children: Sequence[Child], sizes: Sequence[int], limits: Limits) -> None:
        self.children = children
        self.limits = limits
        self.steps_of = steps_of(sizes)
        self.steps: list[list[str]] = [[] for _ in children]
        self.rests = [b""] * len(children)  # What each has begun to say.
        self.trial = Trial()
        self.selector = selectors.DefaultSelector()
        for rank, child in enumerate(children):
            self.selector.register(cast("IO[str]", child.process.stdout), selectors.EVENT_READ, rank)

    def run(self, on_ready: Callable[[Sequence[int]], None] | None) -> Trial:
        """Wait until all are ready, let them go together, and wait until all are done."""
        with self.selector:
            if not self._follow(lambda: all(self.steps), self.limits.start_s):
                return self.trial
            if on_ready is not None:
                on_ready([child.process.pid for child in self.children])
            for child in self.children:
                _let_go(child)
            self._follow(lambda: all(DONE in steps for steps in self.steps), self.limits.progress_s)
        wrong = next((timing for timing in self.trial.timings if not timing.right), None)
        if self.trial.worked and wrong is not None:
            self.trial.failure = f"sums of {wrong.elements} numbers among {wrong.size} ranks came out wrong"
        return self.trial

    def _follow(self, reached: Callable[[], bool], patience: float) -> bool:
        """Read what ranks say until a point is reached. Not reached, the trial has a failure."""
        deadline = time.monotonic() + patience
        while not reached():
            ready = self.selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                self.trial.failure = self._who_hangs(patience)
                return False
            for key, _ in ready:
                # Not by the stream: lines that it held back would not be selected.
                said = os.read(key.fd, 65536)
                if said:
                    self._take(key.data, said)
                    deadline = time.monotonic() + patience
                else:
                    self.selector.unregister(key.fileobj)
                    if DONE not in self.steps[key.data] and not self._ended_well(key.data):
                        return False
        return True

    def _take(self, rank: int, said: bytes) -> None:
        *lines, self.rests[rank] = (self.rests[rank] + said).split(b"\n")
        for line in lines:
            told: dict[str, Any] = json.loads(line)
            if "step" in told:
                self.steps[rank].append(told["step"])
            else:
                self.trial.timings.append(Timing(**told))

    def _ended_well(self, rank: int) -> bool:
        """Take notice of a rank that says no more: it has ended before it was done."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.children[rank].process.wait(_GRACE_S)
        # A peer of one that was killed ends too, and may be noticed first.
        codes = [child.process.poll() or 0 for child in self.children]
        first = next((each for each, code in enumerate(codes) if code < 0), rank)
        self.trial.killed = codes[first] == -signal.SIGKILL
        how = how_it_ended(self.children[first])
        self.trial.failure = f"rank {first} of {len(codes)} failed while {self.steps_of[self._place(first)]} ({how})"
        return False

    def _who_hangs(self, patience: float) -> str:
        """Name the ranks that lag behind the others; a stopped one is known by its state."""
        stopped = [rank for rank, child in enumerate(self.children) if is_stopped(child.process.pid)]
        places = [self._place(rank) for rank in range(len(self.children))]
        behind = stopped or [rank for rank, place in enumerate(places) if place == min(places)]
        who = f"rank {behind[0]}" if len(behind) == 1 else f"ranks {', '.join(map(str, behind))}"
        how = " (stopped by a signal)" if stopped else ""
        doing = self.steps_of[places[behind[0]]]
        return f"{who} of {len(places)}{how} made no progress for {patience:g} s while {doing}"

    def _place(self, rank: int) -> int:
        """Return how far a rank has come. One that takes no part in a group has come further than those that do."""
        return self.steps_of.index(self.steps[rank][-1]) if self.steps[rank] else 0


def _let_go(child: Child) -> None:
    stdin = cast("IO[str]", child.process.stdin)
    try:
        stdin.write("go\n")
        stdin.flush()
    except BrokenPipeError:
        return  # It has just ended, which its output tells.

"""A killer of ranks: waits for a phase of a running training, and kills a random rank in it, again and again."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.commands import wait_until

from shoal.launch.reaper import locked_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random

    from support.commands import Running

PHASES = ("start-up", "iteration", "checkpoint")
"""What a launch is doing when a rank is killed. Before all but the first there is a newer checkpoint."""

_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Kill:
    """What was done to one launch."""

    phase: str
    rank: int
    seconds: float
    """How long the launching process needed to end what was left of the launch [s]."""


class Killer:
    """Kills ranks of one training, which starts again each time."""

    def __init__(self, running: Running, ranks: int, rng: Random) -> None:
        self.running = running
        self.ranks = ranks
        self.rng = rng
        self.kills: list[Kill] = []

    def strike(self, phases: Sequence[str]) -> None:
        """Kill one random rank in each of these phases, each in a launch of its own."""
        for phase in phases:
            scratch = self._launch()
            self._wait_for(phase, scratch)
            rank = self.rng.randrange(self.ranks)
            os.kill(self._pid(scratch, rank), signal.SIGKILL)
            struck = time.monotonic()
            self._until(lambda gone=scratch: not gone.exists(), f"the launch in {phase} was not ended")
            self.kills.append(Kill(phase, rank, time.monotonic() - struck))

    def _launch(self) -> Path:
        """Return the scratch directory of the launch whose ranks have all come to life."""
        self._until(lambda: len(self._signs_of_life()) == self.ranks, "no launch came to life")
        return self._signs_of_life()[0].parent

    def _signs_of_life(self) -> list[Path]:
        files = sorted(self.running.temporary.glob("shoal-*/rank_*.life"))
        return [file for file in files if locked_by(file) is not None]

    def _wait_for(self, phase: str, scratch: Path) -> None:
        if phase == "start-up":
            time.sleep(self.rng.uniform(0, 2))
            return
        before = self._checkpoints()
        self._until(lambda: self._checkpoints() > before, "no checkpoint came")
        if phase == "checkpoint":
            self._until(lambda: any(self._runs("checkpoints/.unfinished-*")), "no second checkpoint came", pause=0)
        else:
            time.sleep(self.rng.uniform(0, 0.3))
        assert scratch.exists()

    def _pid(self, scratch: Path, rank: int) -> int:
        pid = locked_by(scratch / f"rank_{rank:05d}.life")
        assert pid is not None
        return pid

    def _checkpoints(self) -> int:
        return max((int(path.name) for path in self._runs("checkpoints/[0-9]*")), default=0)

    def _runs(self, pattern: str) -> list[Path]:
        return list(self.running.log_root.glob(f"*/*/{pattern}"))

    def _until(self, condition: Callable[[], bool], complaint: str, pause: float = 0.02) -> None:
        met = wait_until(lambda: condition() or self.running.process.poll() is not None, _PATIENCE_S, pause)
        assert met, complaint
        assert self.running.process.poll() is None, f"It ended before {complaint}: {self.running.end()}"

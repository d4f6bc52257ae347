"""Films of a training: rank 0 records environment 0 now and then, and another process draws what it recorded.

The training pays for a copy of one row a step while a clip is recorded, and for starting a process when it is full. A
film that cannot be made costs a warning, and never the training.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shoal.checks.film import choose_gl
from shoal.errors import UsageError
from shoal.sim.render.film import FilmProcess, unfinished
from shoal.sim.render.reel import Reel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shoal.config import TrainConfig
    from shoal.learn.groups import World
    from shoal.sim.kernel_task import KernelTask

logger = logging.getLogger(__name__)

FINISH_S = 60.0
"""How long the end of a run waits for the film that is being made [s]."""
_LOOK_S = 0.5
"""Time between two looks at it [s]."""
_NICE = 19
"""Everything else goes first."""


@contextmanager
def filming(
    task: KernelTask[Any], config: TrainConfig, videos: Path, world: World, *, hurry: Callable[[], bool]
) -> Iterator[Callable[[int], None] | None]:
    """Film a training for the time of the body, where that was asked for. The device must be the process's own.

    Args:
        task: What rank 0 simulates.
        config: What was asked.
        videos: Where films go.
        world: All ranks; only the first films.
        hurry: Whether the end must not wait for a film.

    Yields:
        What takes the number of each step, counted from 0 over the whole run, right after the step; None where nothing
        is filmed.

    Raises:
        UsageError: The task has no picture.
    """
    recorder = _recorder(task, config, videos, world) if config.video and world.is_first else None
    if recorder is None:
        yield None
        return
    try:
        yield recorder.on_step
        recorder.finish(world.beat.mark, hurry)
    finally:
        recorder.end()


def _recorder(task: KernelTask[Any], config: TrainConfig, videos: Path, world: World) -> _Recorder | None:
    """Return what films; None where it cannot, after a warning."""
    try:
        reel = Reel(task, config.video_length, config.video_size)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  The task's own code made the scene.
        _warn(f"{type(error).__name__}: {error}")
        return None
    for left in videos.glob(unfinished(videos / "*.mp4").name):  # By a run that was killed, and its film with it.
        left.unlink(missing_ok=True)
    return _Recorder(reel, videos, config.video_interval, choose_gl(world.device, os.environ))


def _warn(reason: str) -> None:
    logger.warning("A film could not be made (%s); training goes on.", reason)


class _Recorder:
    """Records a clip every `interval` steps, and has one after another drawn."""

    def __init__(self, reel: Reel, videos: Path, interval: int, gl: str) -> None:
        self._reel = reel
        self._videos = videos
        self._interval = interval
        self._gl = gl
        self._begun: int | None = None  # The first step of the clip that is being recorded.
        self._film: FilmProcess | None = None
        self._warned = False

    def on_step(self, step: int) -> None:
        """Record this step if it belongs to a clip."""
        if self._film is not None and self._film.is_done:
            self._see_out(self._film)
        if step % self._interval == 0:
            self._begun = step
        if self._begun is None:
            return
        self._reel.take()
        if self._reel.is_full:
            self._develop()

    def finish(self, still_here: Callable[[], None], hurry: Callable[[], bool]) -> None:
        """Wait for the film that is being made, and for that of a clip which the end of the run cut short."""
        patience = time.monotonic() + FINISH_S
        while not hurry() and (self._film is not None or self._begun is not None):
            still_here()
            if self._film is None:
                self._develop()
            elif self._film.wait(_LOOK_S):
                self._see_out(self._film)
            elif time.monotonic() > patience:
                self._warn(f"{self._film.target.name} took longer than {FINISH_S:.0f} s after the end of the run")
                return

    def end(self) -> None:
        """End the film that is being made."""
        if self._film is not None:
            self._film.end()
            self._film = None

    def _develop(self) -> None:
        """Have what is recorded drawn, unless a film is still being made."""
        target = self._videos / f"step_{self._begun}.mp4"
        clip = self._reel.cut()
        self._begun = None
        if self._film is not None:
            logger.info("%s is skipped: %s is still being made.", target.name, self._film.target.name)
            return
        try:
            self._film = FilmProcess(clip, target, self._gl, nice=_NICE)
        except OSError as error:
            self._warn(str(error))

    def _see_out(self, film: FilmProcess) -> None:
        """Take notice of a film that is done."""
        reason = film.why_failed()
        if reason is None:
            logger.info("Film: %s", film.target)
        else:
            self._warn(reason)
        self.end()

    def _warn(self, reason: str) -> None:
        """Tell the first failure; the next clip is tried all the same."""
        if not self._warned:
            _warn(reason)
        self._warned = True

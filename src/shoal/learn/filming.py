"""Videos of a training: rank 0 records clips of environment 0, and another process renders them.

The training pays for a copy of one row a step while a clip is recorded, and for starting a process when it is complete.
A video that cannot be made is logged as a warning.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.checks.film import choose_gl
from shoal.config import TrainConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import UsageError
from shoal.learn.groups import World
from shoal.plan.rundir import RunDir
from shoal.sim.render.film import FilmProcess, unfinished
from shoal.sim.render.reel import Reel

logger = logging.getLogger(__name__)

_WARNING = "A film could not be made (%s); training goes on."
FINISH_S = 60.0
"""How long the end of a run waits for the renderer [s]."""
_POLL_S = 0.5
_NICE = 19
"""Lowest priority of the renderer."""


@contextmanager
def filming(
    env: object, config: TrainConfig, run: RunDir, world: World, *, hurry: Callable[[], bool]
) -> Iterator[Callable[[int], None] | None]:
    """Film environment 0 of rank 0 during the body, with `--video`. The device must be the default one.

    Yields a function to call after each step with its number, counted from 0 over the whole run; None without filming.
    The end waits for the last video unless `hurry` returns True.

    Raises:
        UsageError: The environments have no picture.
    """
    reel = None
    if config.video and world.is_first:
        try:
            reel = Reel(capabilities_of(env).picture(), config.video_length, config.video_size)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  The task's own code made the scene.
            logger.warning(_WARNING, f"{type(error).__name__}: {error}")
    if reel is None:
        yield None
        return
    recorder = _Recorder(reel, run, config.video_interval, choose_gl(world.device, os.environ))
    try:
        yield recorder.on_step
        recorder.finish(world.beat.mark, hurry)
        for left in run.videos_dir.glob(unfinished(Path("*.mp4")).name):  # By a run that was killed with its renderer.
            run.folder.remove(left)
    finally:
        recorder.end()


class _Recorder:
    """Records a clip every `interval` steps, and starts a renderer for one at a time."""

    def __init__(self, reel: Reel, run: RunDir, interval: int, gl: str) -> None:
        self._reel = reel
        self._run = run
        self._interval = interval
        self._gl = gl
        self._first_step: int | None = None  # Of the clip that is being recorded.
        self._film: FilmProcess | None = None
        self._warned = False

    def on_step(self, step: int) -> None:
        """Record this step if it belongs to a clip."""
        if self._film is not None and self._film.is_done:
            self._report(self._film)
        if step % self._interval == 0:
            self._first_step = step
        if self._first_step is None:
            return
        self._reel.take()
        if self._reel.is_full:
            self._start_film()

    def finish(self, on_wait: Callable[[], None], hurry: Callable[[], bool]) -> None:
        """Wait for the renderer, and render the clip that the end of the run has cut short."""
        deadline = time.monotonic() + FINISH_S
        while not hurry() and (self._film is not None or self._first_step is not None):
            on_wait()
            if self._film is None:
                self._start_film()
            elif self._film.wait(_POLL_S):
                self._report(self._film)
            elif time.monotonic() > deadline:
                self._warn(f"{self._film.target.name} took longer than {FINISH_S:.0f} s after the end of the run")
                return

    def end(self) -> None:
        """End the renderer."""
        if self._film is not None:
            self._film.end()
            self._film = None

    def _start_film(self) -> None:
        """Start rendering the recorded clip, unless another one is still being rendered."""
        target = self._run.videos_dir / f"step_{self._first_step}.mp4"
        self._first_step = None
        try:
            clip = self._reel.cut()
        except Exception as error:  # noqa: BLE001  The task's own code makes the marks.
            self._warn(f"{type(error).__name__}: {error}")
            return
        if self._film is not None:
            logger.info("%s is skipped: %s is still being made.", target.name, self._film.target.name)
            return
        try:
            self._film = FilmProcess(clip, target, self._gl, self._run.folder, nice=_NICE)
        except OSError as error:
            self._warn(str(error))

    def _report(self, film: FilmProcess) -> None:
        """Log the result of a renderer that has ended."""
        reason = film.why_failed()
        if reason is None:
            logger.info("Film: %s", film.target)
        else:
            self._warn(reason)
        self.end()

    def _warn(self, reason: str) -> None:
        """Log the first failure only; later clips are tried all the same."""
        if not self._warned:
            logger.warning(_WARNING, reason)
        self._warned = True

"""Videos of a training: rank 0 records trajectories of environment 0, and another process renders them.

The training pays for a copy of one row a step while a trajectory is recorded, and for starting a process at its end.
A video that cannot be made is logged as a warning.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.checks.optional import choose_gl
from shoal.config import TrainConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import UsageError, reason_of
from shoal.learn.groups import World
from shoal.plan.rundir import RunDir
from shoal.sim.render.recorder import Recorder
from shoal.sim.render.video import VideoProcess, unfinished

logger = logging.getLogger(__name__)

_WARNING = "A video could not be made (%s); training goes on."
FINISH_S = 60.0
"""How long the end of a run waits for the renderer [s]."""
_POLL_S = 0.5
_SIZE = (1280, 720)
"""Width and height of a video [pixels]."""


@contextmanager
def recording(
    env: object, config: TrainConfig, run: RunDir, world: World, *, hurry: Callable[[], bool]
) -> Iterator[Callable[[int], None] | None]:
    """Record environment 0 of rank 0 during the body, with `--video`. The device must be the default one.

    Yields a function to call after each step with its number, counted from 0 over the whole run; None without video.
    The end waits for the last video unless `hurry` returns True.

    Raises:
        UsageError: The environments have no picture.
    """
    recorder = None
    if config.video and world.is_first:
        try:
            recorder = Recorder(capabilities_of(env).picture(), config.video_length, _SIZE)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  The task's own code made the scene.
            logger.warning(_WARNING, reason_of(error))
    if recorder is None:
        yield None
        return
    recorder = _Videos(recorder, run, config.video_interval, choose_gl(world.device, os.environ))
    try:
        yield recorder.on_step
        recorder.finish(world.beat.mark, hurry)
        for left in run.videos_dir.glob(unfinished(Path("*.mp4")).name):  # By a run that was killed with its renderer.
            run.folder.remove(left)
    finally:
        recorder.end()


class _Videos:
    """Records a trajectory every `interval` steps, and starts a renderer for one at a time."""

    def __init__(self, recorder: Recorder, run: RunDir, interval: int, gl: str) -> None:
        self._recorder, self._run, self._interval, self._gl = recorder, run, interval, gl
        self._first_step: int | None = None  # Of the trajectory that is being recorded.
        self._video: VideoProcess | None = None
        self._warned = False

    def on_step(self, step: int) -> None:
        """Record this step if it belongs to a trajectory."""
        if self._video is not None and self._video.is_done:
            self._report(self._video)
        if step % self._interval == 0:
            self._first_step = step
        if self._first_step is None:
            return
        self._recorder.take()
        if self._recorder.is_full:
            self._start_video()

    def finish(self, on_wait: Callable[[], None], hurry: Callable[[], bool]) -> None:
        """Wait for the renderer, and render the trajectory that the end of the run has cut short."""
        deadline = time.monotonic() + FINISH_S
        while not hurry() and (self._video is not None or self._first_step is not None):
            on_wait()
            if self._video is None:
                self._start_video()
            elif self._video.wait(_POLL_S):
                self._report(self._video)
            elif time.monotonic() > deadline:
                self._warn(f"{self._video.target.name} took longer than {FINISH_S:.0f} s after the end of the run")
                return

    def end(self) -> None:
        """End the renderer."""
        if self._video is not None:
            self._video.end()
            self._video = None

    def _start_video(self) -> None:
        """Start rendering the recorded trajectory, unless another one is still being rendered."""
        target = self._run.videos_dir / f"step_{self._first_step}.mp4"
        self._first_step = None
        try:
            trajectory = self._recorder.cut()
            if self._video is None:
                self._video = VideoProcess(trajectory, target, self._gl, self._run.folder, nice=19)
            else:
                logger.info("%s is skipped: %s is still being made.", target.name, self._video.target.name)
        except Exception as error:  # noqa: BLE001  The task's own code makes the marks.
            self._warn(str(error) if isinstance(error, OSError) else reason_of(error))

    def _report(self, video: VideoProcess) -> None:
        """Log the result of a renderer that has ended."""
        reason = video.why_failed()
        if reason is None:
            logger.info("Video: %s", video.target)
        else:
            self._warn(reason)
        self.end()

    def _warn(self, reason: str) -> None:
        """Log the first failure only; later trajectories are tried all the same."""
        if not self._warned:
            logger.warning(_WARNING, reason)
        self._warned = True

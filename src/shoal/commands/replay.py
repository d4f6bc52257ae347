"""`shoal replay`: step a diverged environment of a training again with MuJoCo C, and make a video."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.optional import choose_gl, refuse_no_video
from shoal.checks.probe import Probe
from shoal.config import ReplayConfig
from shoal.errors import UsageError
from shoal.plan.launch import refuse_unwritable_file
from shoal.text import columns

if TYPE_CHECKING:
    from shoal.sim.nan.dump import DivergedEnv, Dump, DumpInfo
    from shoal.sim.nan.replay import FirstFault, Replay

_MOST_S = 120.0
"""Time limit of a replay [s]. It usually takes seconds."""
_VIDEO_SIZE = (1280, 720)
_FRAMES_A_SECOND = 30
"""Of the video. Each physics step is a frame, as divergence takes milliseconds."""
_STEPS_SHOWN = 10
_ENGINES = {"mujoco": "MuJoCo C", "mjwarp": "MuJoCo Warp"}


def replay(config: ReplayConfig) -> Iterator[str]:
    """Step an environment that diverged again, in MuJoCo C, and find the first non-finite value.

    Yields the last steps, that value, the accuracy of the replay, and the video.

    Raises:
        UsageError: There is no such file or environment, or no video can be made here.
        ShoalError: The video could not be made.
    """
    file = Path(config.file)
    if not file.is_file():
        raise UsageError(
            f"{file} does not exist: pass what a training left when it stopped, <run>/ranks/rank_00000.diverged.npz."
        )
    if config.video_path is not None:
        refuse_unwritable_file("--video-path", Path(config.video_path), "video.mp4")
        refuse_no_video("cpu", os.environ)

    from shoal.sim.nan.dump import read_dump

    dump = read_dump(file)
    diverged = dump.find(config.env)
    result = _step_again(file, diverged)
    yield from _lines_of(dump, diverged, result)
    if config.video_path is not None:
        if not len(result.positions):
            raise UsageError(
                f"Environment {diverged.env} diverged before anything moved, so there is no video: leave --video-path "
                "out."
            )
        from shoal.sim.render.trajectory import Trajectory
        from shoal.sim.render.video import make_video

        trajectory = Trajectory(
            scene=dump.scene, positions=result.positions, step_dt=1 / _FRAMES_A_SECOND, size=_VIDEO_SIZE
        )
        make_video(trajectory, Path(config.video_path), choose_gl("cpu", os.environ))
        yield f"Video: {config.video_path}"


def _step_again(file: Path, diverged: DivergedEnv) -> Replay:
    """Replay in another process with a time limit, as a malicious file may crash or block it."""
    from shoal.sim.nan.replay import Replay

    found = Probe("shoal.sim.nan.replay:replay_file", [str(file), diverged.env]).result(_MOST_S)
    if isinstance(found, str):
        raise UsageError(
            f"{file} could not be replayed ({found}): copy it once more, and replay only files whose origin you know."
        )
    return Replay.from_plain(found)


def _lines_of(dump: Dump, diverged: DivergedEnv, replay: Replay) -> Iterator[str]:
    """Yield the last steps, the first non-finite value, and the accuracy of the replay."""
    about = dump.info
    yield (
        f"{about.task}, simulated by {_ENGINES[about.engine]}: environment {diverged.env} of rank {about.rank}, "
        f"{about.rank * about.num_envs + diverged.env} of all, diverged in step {diverged.step:,}, iteration "
        f"{about.iteration}."
    )
    if about.diverged > 1:
        others = ", ".join(str(each.env) for each in dump.envs)
        yield f"On that rank {about.diverged:,} environments diverged in that iteration; --env takes {others}."
    rows = [
        (
            f"{step.number:,}",
            *(f"{value:.3g}" for value in (step.qpos, step.qvel, step.qacc, step.ctrl)),
            str(step.contacts),
            f"{step.penetration:.3g}" if step.contacts else "-",
            step.fastest,
            " ".join(step.warnings),
        )
        for step in replay.steps[-_STEPS_SHOWN:]
    ]
    titles = ("step", "|qpos|", "|qvel|", "|qacc|", "|ctrl|", "contacts", "deepest [m]", "fastest", "warnings")
    yield from columns(titles, rows)
    yield _first_non_finite(about, diverged, replay.fault)
    yield _accuracy(replay, is_exact=about.engine == "mujoco")


def _first_non_finite(about: DumpInfo, diverged: DivergedEnv, wrong: FirstFault | None) -> str:
    """Return a sentence that names the first value that was not finite, and its step."""
    if wrong is None:
        return (
            f"Not diverged here: the numbers that MuJoCo Warp made of step {diverged.step:,} are not those of MuJoCo C."
        )
    when = f"after {wrong.physics_step} of its {about.decimation} physics steps"
    if not wrong.physics_step:
        when = "before its physics, as the task had set it"
    where = "in that step too" if wrong.step == diverged.step else f"before that step, in step {wrong.step:,}"
    return f"Diverged {where}: {wrong.what} is {wrong.value:.3g} {when}."


def _accuracy(replay: Replay, *, is_exact: bool) -> str:
    """Return a sentence that compares the replay with the recorded states."""
    if not replay.compared:
        return "There is no earlier step to compare with."
    of_all = f"{replay.compared:,} recorded states"
    if replay.differs_in is None:
        return f"All {of_all} come out {'to the last bit' if is_exact else f'within {replay.bound:g}, relatively'}."
    text = f"Step {replay.differs_in:,} is the first to lead elsewhere than recorded; the largest difference is "
    text += f"{replay.difference:.2g}, relatively, over {of_all}."
    return f"{text} Another processor may round otherwise." if is_exact else text

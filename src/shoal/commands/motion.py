"""`shoal motion`: what is in a motion file, and whether a robot can follow it; convert and cut it, make a video."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.optional import choose_gl, refuse_no_video
from shoal.config.commands import MotionConfig
from shoal.errors import UsageError
from shoal.plan.launch import refuse_unwritable_file

if TYPE_CHECKING:
    from shoal.tasks.humanoid.motion import Findings

_VIDEO_SIZE = (1280, 720)
_SHOWN = 5
"""Joints beyond their ranges that are named."""


def inspect_motion(config: MotionConfig) -> Iterator[str]:
    """Inspect a motion, and whether a robot can follow it; convert and cut it, make a video.

    Yields what is in the motion, what may keep the robot from following it, and the files that were written.

    Raises:
        UsageError: The motion cannot be read, is of another robot, or nothing is left of it; or nothing can be written.
        ShoalError: The video could not be made.
    """
    if config.video_path is not None:
        refuse_unwritable_file("--video-path", Path(config.video_path), "video.mp4")
        refuse_no_video("cpu", os.environ)
    if config.out is not None:
        refuse_unwritable_file("--out", Path(config.out), "motion.npz")
    from shoal.mdp.config import RobotConfig
    from shoal.mdp.robots import build_on_a_plane
    from shoal.tasks.humanoid.motion import cut, inspect, motion_file, read_motion, write_motion

    model = build_on_a_plane(RobotConfig(robot=config.robot))
    file = motion_file(config.file)
    motion = cut(read_motion(file, model, fps=config.fps, file_fps=config.file_fps), model, config.start, config.end)
    yield (
        f"{file}: {len(motion.qpos)} frames, {motion.fps:g} a second, {motion.seconds:.2f} s, of the robot "
        f"{config.robot} with {motion.qpos.shape[1] - 7} joints."
    )
    yield from _lines_of(inspect(motion, model))
    if config.out is not None:
        try:
            write_motion(Path(config.out), motion, model)
        except OSError as error:
            raise UsageError(f"--out {config.out} cannot be written: {error}.") from error
        yield f"Motion: {config.out}"
    if config.video_path is not None:
        from shoal.sim.render.trajectory import Trajectory, save_scene
        from shoal.sim.render.video import make_video

        trajectory = Trajectory(
            scene=save_scene(model), positions=motion.qpos, step_dt=1 / motion.fps, size=_VIDEO_SIZE
        )
        make_video(trajectory, Path(config.video_path), choose_gl("cpu", os.environ))
        yield f"Video: {config.video_path}"


def _lines_of(found: Findings) -> Iterator[str]:
    """Yield what may keep the robot from following a motion."""
    low, high = found.height
    yield f"Base: {low:.3f} to {high:.3f} m high, travels {found.travel:.2f} m."
    yield (
        f"Fastest joint: {found.fastest_joint}, {found.fastest_speed:.1f} rad/s. Largest change between two "
        f"frames: {found.largest_jump:.3f} rad."
    )
    where = "below" if found.deepest > 0 else "above"
    yield f"Lowest geom: {abs(found.deepest):.3f} m {where} the ground at most."
    beyond = sorted(found.joints_beyond.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name} by {value:.3f}" for name, value in beyond[:_SHOWN])
    more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
    yield f"Joints beyond their ranges [rad]: {named}{more}." if beyond else "All joints stay within their ranges."

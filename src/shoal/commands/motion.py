"""`shoal motion`: what is in a motion file, and whether a robot can follow it; convert, cut and film it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.film import choose_gl, refuse_no_film
from shoal.config.commands import MotionConfig
from shoal.errors import UsageError
from shoal.plan.launch import refuse_unwritable

if TYPE_CHECKING:
    from shoal.tasks.humanoid.motion import Findings, Motion

_FILM_SIZE = (1280, 720)


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedMotion:
    """A motion, and what was found."""

    file: Path
    motion: "Motion"
    findings: "Findings"


def inspect_motion(config: MotionConfig) -> InspectedMotion:
    """Read a motion, write what is asked for, and return what was found.

    Raises:
        UsageError: The motion cannot be read, is of another robot, or nothing is left of it; or nothing can be written.
        ShoalError: The film could not be made.
    """
    if config.video_path is not None:
        refuse_no_film("cpu", os.environ)
        refuse_unwritable("--video-path", Path(config.video_path).parent)
    if config.out is not None:
        refuse_unwritable("--out", Path(config.out).parent)
    from shoal.mdp.config import RobotConfig
    from shoal.mdp.robots import build_on_a_plane
    from shoal.tasks.humanoid.motion import cut, inspect, motion_file, read_motion, write_motion

    model = build_on_a_plane(RobotConfig(robot=config.robot))
    file = motion_file(config.file)
    motion = cut(read_motion(file, model, fps=config.fps, file_fps=config.file_fps), model, config.start, config.end)
    found = InspectedMotion(file=file, motion=motion, findings=inspect(motion, model))
    if config.out is not None:
        try:
            write_motion(Path(config.out), motion, model)
        except OSError as error:
            raise UsageError(f"--out {config.out} cannot be written: {error}.") from error
    if config.video_path is not None:
        from shoal.sim.render.clip import Clip, save_scene
        from shoal.sim.render.film import make_film

        clip = Clip(scene=save_scene(model), positions=motion.qpos, step_dt=1 / motion.fps, size=_FILM_SIZE)
        make_film(clip, Path(config.video_path), choose_gl("cpu", os.environ))
    return found

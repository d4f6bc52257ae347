"""The motion tracking tasks: the robot, the motion, and its frames."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import warp as wp

from shoal.mdp.robot_task import RobotTask
from shoal.sim.render.marks import Ghost, Mark
from shoal.tasks.humanoid.inverse_dynamics import targets_of
from shoal.tasks.humanoid.motion import Motion, motion_file, read_motion
from shoal.tasks.humanoid.terms import Reference, follow_failures
from shoal.tasks.humanoid.tracking import G1_TRACKING, HUMANOID, TrackingConfig


class Tracking(RobotTask[TrackingConfig]):
    """Imitate a motion."""

    config = HUMANOID
    capacities = (24, 64)
    followed: ClassVar[Mapping[str, Any]] = {"known_failure": follow_failures}

    @cached_property
    def motion(self) -> Motion:
        """The motion, at the rate of the actions."""
        return read_motion(motion_file(self.config.motion), self.model, fps=1.0 / self.step_dt)

    def home(self) -> np.ndarray:
        """Return the first pose of the motion: what action 0 asks for."""
        return self.motion.qpos[0]

    def own_state(self) -> dict[str, Any]:
        """Return the motion, and where in it each environment is."""
        motion = self.motion
        struct: Any = Reference
        reference = struct()
        reference.frames = len(motion.qpos)
        for name in ("qpos", "qvel", "body_pos", "body_quat", "body_lin_vel", "body_ang_vel"):
            values = getattr(motion, name)
            real_last = np.roll(values, -1, axis=-1) if name == "body_quat" else values
            dtype = struct.vars[name].type.dtype
            setattr(reference, name, wp.array(real_last, dtype=dtype, device=self.device))
        around = any(str(term.func).endswith("motion_joint_position") for term in self.config.terms("actions").values())
        targets = targets_of(self.model, motion) if around else np.zeros((1, self.model.nu))
        reference.targets = wp.array(targets, dtype=wp.float32, device=self.device)
        self.start_frame = self.array("start_frame", dtype=wp.int32)
        """Frame that each episode began in."""
        return {
            "reference": reference,
            "start_frame": self.start_frame,
            **{name: self.array(name, dtype=wp.int32) for name in ("last_frame", "own_failure", "known_failure")},
        }

    def marks(self, row: Mapping[str, np.ndarray]) -> list[Mark]:
        """Return the pose of the motion, too."""
        frame = min(row["start_frame"] + row["age"], len(self.motion.qpos) - 1)
        return [*super().marks(row), Ghost(self.motion.qpos[frame])]


class G1Tracking(Tracking):
    """Imitate a motion with a G1."""

    config = G1_TRACKING
    capacities = (96, 272)

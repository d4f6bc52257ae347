"""A task with a robot on a plane, which its user may replace."""

from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

import mujoco
import numpy as np

from shoal.mdp.actuators import acts_on_scalar_joint, kinds_of
from shoal.mdp.config import RobotConfig
from shoal.mdp.robots import Robot, build_on_a_plane, find_feet, read_robot
from shoal.mdp.task import TermsTask

ConfigT = TypeVar("ConfigT", bound=RobotConfig)


class RobotTask(TermsTask[ConfigT], Generic[ConfigT]):
    """A robot on a plane. Patterns of terms may contain ``{base}``, and the names of `RobotConfig.role_fields`."""

    @classmethod
    def build_model(cls, config: ConfigT) -> mujoco.MjModel:
        """Return the robot on a plane."""
        return build_on_a_plane(config)

    @cached_property
    def robot(self) -> Robot:
        """The robot's joints and numbers."""
        return read_robot(self.model, self.config)

    def home(self) -> np.ndarray:
        """Return the first pose, (nq,)."""
        return self.robot.start

    def keyframe(self) -> int:
        """Return the index of the keyframe that the configuration names; -1 with a pose."""
        return -1 if self.config.pose else self.model.key(self.config.keyframe).id

    def first_state(self) -> dict[str, np.ndarray]:
        """Return the same, with actuators that hold the first pose: a keyframe's controls may be those of motors."""
        model, targets = self.model, np.zeros(self.model.nu)
        for index in range(model.nu):
            if "position" in kinds_of(model, index) and acts_on_scalar_joint(model, index):
                place = model.jnt_qposadr[model.actuator_trnid[index, 0]]
                targets[index] = model.actuator_gear[index, 0] * self.home()[place]
        return super().first_state() | {"ctrl": targets}

    def roles(self) -> Mapping[str, str]:
        """Return the patterns that the configuration names, and that of the base."""
        config = self.config
        if config.feet:
            find_feet(self.model, config.feet)
        named = {name: getattr(config, name) for name in config.role_fields}
        return named | {"base": self.model.body(self.robot.base).name}

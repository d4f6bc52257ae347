"""A task with a robot on a plane, which its user may replace."""

from collections.abc import Mapping
from functools import cached_property
from typing import Generic, TypeVar

import mujoco
import numpy as np

from shoal.mdp.actuators import acts_on_scalar_joint, kinds_of
from shoal.mdp.config import RobotConfig
from shoal.mdp.patterns import is_of
from shoal.mdp.robots import Robot, build_on_a_plane, find_feet, read_robot, robot_on_a_plane
from shoal.mdp.task import TermsTask

ConfigT = TypeVar("ConfigT", bound=RobotConfig)


class RobotTask(TermsTask[ConfigT], Generic[ConfigT]):
    """A robot on a plane. Patterns of terms may contain ``{base}``, and the names of `RobotConfig.role_fields`."""

    @classmethod
    def build_spec(cls, config: ConfigT) -> mujoco.MjSpec:
        """Return the robot on a plane."""
        return robot_on_a_plane(config)

    @cached_property
    def robot(self) -> Robot:
        """The robot's joints and numbers, by itself."""
        return read_robot(build_on_a_plane(self.config) if self.config.terms("objects") else self.model, self.config)

    def home(self) -> np.ndarray:
        """Return the first pose, (nq,)."""
        pose, start = super().home(), self.robot.start
        pose[: len(start)] = start
        return pose

    def keyframe(self) -> int:
        """Return the index of the keyframe that the configuration names; -1 with a pose."""
        return -1 if self.config.pose else self.model.key(self.config.keyframe).id

    def first_state(self) -> dict[str, np.ndarray]:
        """Return the same, with actuators that hold the first pose: a keyframe's controls may be those of motors."""
        model, first = self.model, super().first_state()
        targets = first.get("ctrl", np.zeros(model.nu)).copy()
        for index in range(model.nu):
            if not is_of(model.actuator(index).name, self.config.terms("objects")):
                is_held = "position" in kinds_of(model, index) and acts_on_scalar_joint(model, index)
                address = model.jnt_qposadr[model.actuator_trnid[index, 0]]
                targets[index] = model.actuator_gear[index, 0] * self.home()[address] if is_held else 0.0
        return first | {"ctrl": targets}

    def roles(self) -> Mapping[str, str]:
        """Return the patterns that the configuration names, and that of the base."""
        config = self.config
        if config.feet:
            find_feet(self.model, config.feet)
        return config.named_roles() | {"base": self.model.body(self.robot.base).name}

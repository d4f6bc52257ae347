"""The velocity tasks: which kernels run, on what, with which numbers, for this robot or another one.

Here is what they share, and `Quadruped-Velocity-Flat`. `Quadruped-Velocity-Rough` is `shoal.tasks.quadruped.rough`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import warp as wp

from shoal.sim.command import Command
from shoal.sim.mujoco_task import MujocoTask
from shoal.tasks.quadruped import events, kernels
from shoal.tasks.quadruped.config import VelocityConfig
from shoal.tasks.quadruped.ground import Ground
from shoal.tasks.quadruped.robot import build_on_a_plane, read_robot

if TYPE_CHECKING:
    import mujoco


ConfigT = TypeVar("ConfigT", bound=VelocityConfig)


def _commands(config: VelocityConfig) -> dict[str, Command]:
    """Return what the robot is told, with the ranges that it is trained in."""
    return {
        "forwards": Command(low=-config.forward_speed, high=config.forward_speed, unit="m/s"),
        "to the left": Command(low=-config.sideways_speed, high=config.sideways_speed, unit="m/s"),
        "turning left": Command(low=-config.turning_speed, high=config.turning_speed, unit="rad/s"),
    }


class VelocityTask(MujocoTask[ConfigT], Generic[ConfigT]):
    """Walk as commanded, on whatever ground."""

    observations: ClassVar = {"policy": 48, "critic": 48}
    num_actions = 12
    reward_terms = kernels.TERMS
    commands: ClassVar = _commands(VelocityConfig())
    metrics = ("error_linear_velocity", "error_angular_velocity")

    def open(self) -> None:
        """Build the model, and count the robot's joints."""
        super().open()
        self.robot = read_robot(self.model, self.config)
        # Another robot, or another configuration, has other numbers than the class declares.
        self.commands = _commands(self.config)  # pyright: ignore[reportAttributeAccessIssue]
        joints = self.robot.num_joints
        self.num_actions = joints  # pyright: ignore[reportAttributeAccessIssue]
        self.observations = {"policy": 12 + 3 * joints, "critic": 12 + 3 * joints}  # pyright: ignore[reportAttributeAccessIssue]

    def allocate(self) -> None:
        """Ask for fields, and combine the configuration's numbers as the kernels take them."""
        config, robot = self.config, self.robot
        self.geom_xpos = self.data("geom_xpos")
        self.geom_friction = self.parameter("geom_friction")
        self.body_mass = self.parameter("body_mass")
        self.gainprm = self.parameter("actuator_gainprm")
        self.biasprm = self.parameter("actuator_biasprm")

        self.command_left = self.array("command_left")
        """Time until the next command [s]."""
        self.last_actions = self.array("last_actions", self.num_actions)
        self.last_speeds = self.array("last_speeds", self.num_actions)
        """Joint speeds after the step before [rad/s]."""
        self.last_feet = self.array("last_feet", len(robot.feet), dtype=wp.vec3)
        """Where the feet were after the step before [m]."""
        self.air_times = self.array("air_times", len(robot.feet))
        """How long each foot has been in the air [s]."""

        self.start = self.constant(robot.start)
        self.standing = self.constant(robot.start[7:])
        self.gains = self.constant(robot.gains)
        self.ground = Ground()
        self.survey()
        self.torque_limits = self.constant(robot.torque_limits)
        self.feet = wp.array(robot.feet, dtype=wp.int32, device=self.device)

        self.command_rules = events.Commands()
        self.command_rules.fastest = wp.vec3(config.forward_speed, config.sideways_speed, config.turning_speed)
        self.command_rules.interval_min = config.command_interval_min
        self.command_rules.interval_max = config.command_interval_max
        self.command_rules.standing_share = config.standing_share

        self.rules = kernels.Rules()
        self.rules.step_dt = self.step_dt
        self.rules.sigma = config.tracking_sigma
        self.rules.swing_time = config.swing_time
        self.rules.lowest_gravity = -math.cos(config.tilt_limit)
        self.rules.height_limit = config.height_limit
        self.rules.foot_radius = robot.foot_radius

        self.noise = kernels.Noise()
        self.noise.speed = config.noise_linear_velocity
        self.noise.turning = config.noise_angular_velocity
        self.noise.gravity = config.noise_gravity
        self.noise.angle = config.noise_joint_position
        self.noise.joint_speed = config.noise_joint_velocity

    @abstractmethod
    def survey(self) -> None:
        """Say in `self.ground` what the ground is like."""

    def constant(self, values: np.ndarray) -> wp.array:
        """Return numbers as an array that never changes."""
        return wp.array(values, dtype=wp.float32, device=self.device)

    def deployment(self) -> dict[str, Any]:
        """Return what a controller must know to act as this task does."""
        return super().deployment() | {
            "joint_names": list(self.robot.joint_names),
            "default_joint_pos": self.robot.start[7:].tolist(),
            "action_scale": self.config.action_scale,
            "stiffness": self.robot.gains[0].tolist(),
            "damping": self.robot.gains[1].tolist(),
            "command_names": list(self.commands),
        }

    def actuate(self) -> None:
        """Ask for joint angles."""
        self.launch(
            kernels.actuate,
            inputs=[self.actions, self.standing, self.config.action_scale],
            outputs=[self.ctrl],
            dim=self.actions.shape,
        )

    def judge(self) -> None:
        """Judge how the command was followed, and at what cost."""
        self.launch(
            kernels.judge_trunk,
            inputs=[self.rules, self.ground, self.qpos, self.qvel, self.command_array],
            outputs=[self.terms, self.terminated, self.measured],
        )
        self.launch(
            kernels.judge_joints,
            inputs=[
                *(self.rules, self.qpos, self.qvel, self.ctrl, self.actions),
                *(self.standing, self.gainprm, self.biasprm, self.torque_limits, self.command_array),
            ],
            outputs=[self.last_actions, self.last_speeds, self.terms],
        )
        self.launch(
            kernels.judge_feet,
            inputs=[self.rules, self.ground, self.geom_xpos, self.feet, self.command_array],
            outputs=[self.last_feet, self.air_times, self.terms],
        )

    def place(self) -> None:
        """Begin new episodes where done."""
        self.launch(
            events.place,
            inputs=[self.done, self.start, self.config.reset_joint_range, self.command_rules],
            outputs=[
                *(self.rng, self.qpos, self.qvel, self.ctrl, self.command_array, self.command_left),
                *(self.last_actions, self.last_speeds, self.air_times),
            ],
        )

    def disturb(self) -> None:
        """Give new commands, and push."""
        config = self.config
        chance = self.step_dt / config.push_interval if config.push_interval else 0.0
        self.launch(
            events.disturb,
            inputs=[self.done, self.command_rules, self.step_dt, chance, config.push_speed],
            outputs=[self.rng, self.qvel, self.moved, self.command_array, self.command_left],
        )

    def randomize(self) -> None:
        """Give each environment a floor, a load and motors of its own."""
        config, robot = self.config, self.robot
        self.launch(
            events.randomize,
            inputs=[
                wp.vec2(config.friction_min, config.friction_max),
                wp.vec2(config.added_mass_min, config.added_mass_max),
                *(config.gain_range, self.feet, robot.trunk, float(self.model.body_mass[robot.trunk]), self.gains),
            ],
            outputs=[self.rng, self.geom_friction, self.body_mass, self.gainprm, self.biasprm],
        )

    def observe(self) -> None:
        """Write the observations."""
        self.launch(
            kernels.observe,
            inputs=[self.noise, self.qpos, self.qvel, self.standing, self.command_array, self.last_actions],
            outputs=[self.rng, self.obs["policy"], self.obs["critic"]],
        )


class FlatVelocity(VelocityTask[VelocityConfig]):
    """Walk as commanded, on flat ground."""

    config = VelocityConfig()

    @classmethod
    def build_model(cls, config: VelocityConfig) -> mujoco.MjModel:
        """Return the robot on a plane."""
        return build_on_a_plane(config)

    def survey(self) -> None:
        """Say that it is a plane."""
        self.ground.heights = self.constant(np.zeros((1, 1)))

"""The base class of velocity tasks, and `Quadruped-Velocity-Flat`."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import mujoco
import numpy as np
import warp as wp

from shoal.mdp.ground import Ground
from shoal.sim.kernel_task import Command
from shoal.sim.mujoco_task import MujocoTask
from shoal.tasks.quadruped import events, kernels
from shoal.tasks.quadruped.config import VelocityConfig
from shoal.tasks.quadruped.robot import build_on_a_plane, read_robot

ConfigT = TypeVar("ConfigT", bound=VelocityConfig)


def _commands(config: VelocityConfig) -> dict[str, Command]:
    """Return the commands, with the ranges of training."""
    return {
        "lin_vel_x": Command(low=-config.forward_speed, high=config.forward_speed, unit="m/s"),
        "lin_vel_y": Command(low=-config.sideways_speed, high=config.sideways_speed, unit="m/s"),
        "ang_vel_z": Command(low=-config.turning_speed, high=config.turning_speed, unit="rad/s"),
    }


class VelocityTask(MujocoTask[ConfigT], Generic[ConfigT]):
    """Track a commanded velocity."""

    observations: ClassVar = {"policy": 48, "critic": 48}
    num_actions = 12
    reward_terms = kernels.TERMS
    commands: ClassVar = _commands(VelocityConfig())
    metrics = ("error_linear_velocity", "error_angular_velocity")

    def build(self) -> None:
        """Build the model, and read the robot's joints."""
        super().build()
        self.robot = read_robot(self.model, self.config)
        # Another robot, or another configuration, has other numbers than the class declares.
        self.commands = _commands(self.config)  # pyright: ignore[reportAttributeAccessIssue]
        joints = self.robot.num_joints
        self.num_actions = joints  # pyright: ignore[reportAttributeAccessIssue]
        self.observations = {"policy": 12 + 3 * joints, "critic": 12 + 3 * joints}  # pyright: ignore[reportAttributeAccessIssue]

    def allocate(self) -> None:
        """Make arrays, fields and the parameters of the kernels."""
        config, robot = self.config, self.robot
        self.geom_xpos = self.data("geom_xpos")
        self.geom_friction = self.parameter("geom_friction")
        self.body_mass = self.parameter("body_mass")
        self.gainprm = self.parameter("actuator_gainprm")
        self.biasprm = self.parameter("actuator_biasprm")

        self.command_left = self.array("command_left")
        """Time until the next command [s]."""
        self.last_actions = self.array("last_actions", self.num_actions)
        self.last_joint_vel = self.array("last_joint_vel", self.num_actions)
        """Joint velocities after the step before [rad/s]."""
        self.last_feet = self.array("last_feet", len(robot.feet), dtype=wp.vec3)
        """Positions of the feet after the step before [m]."""
        self.air_times = self.array("air_times", len(robot.feet))
        """Air time of each foot [s]."""

        self.start = self.constant(robot.start)
        self.default_joint_pos = self.constant(robot.start[7:])
        self.gains = self.constant(robot.gains)
        self.ground = Ground()
        self.build_terrain()
        self.torque_limits = self.constant(robot.torque_limits)
        self.feet = wp.array(robot.feet, dtype=wp.int32, device=self.device)

        self.command_distribution = events.CommandDistribution()
        self.command_distribution.limits = wp.vec3(config.forward_speed, config.sideways_speed, config.turning_speed)
        self.command_distribution.interval_min = config.command_interval_min
        self.command_distribution.interval_max = config.command_interval_max
        self.command_distribution.standing_share = config.standing_share

        self.reward_params = kernels.RewardParams()
        self.reward_params.step_dt = self.step_dt
        self.reward_params.sigma = config.tracking_sigma
        self.reward_params.swing_time = config.swing_time
        self.reward_params.lowest_gravity = -math.cos(config.tilt_limit)
        self.reward_params.height_limit = config.height_limit
        self.reward_params.foot_radius = robot.foot_radius

        self.noise = kernels.Noise()
        self.noise.lin_vel = config.noise_linear_velocity
        self.noise.ang_vel = config.noise_angular_velocity
        self.noise.gravity = config.noise_gravity
        self.noise.joint_pos = config.noise_joint_position
        self.noise.joint_vel = config.noise_joint_velocity

    @abstractmethod
    def build_terrain(self) -> None:
        """Fill in `self.ground`."""

    def constant(self, values: np.ndarray) -> wp.array:
        """Return a constant array."""
        return wp.array(values, dtype=wp.float32, device=self.device)

    def deployment(self) -> dict[str, Any]:
        """Return what a controller needs to act as this task does."""
        return super().deployment() | {
            "joint_names": list(self.robot.joint_names),
            "default_joint_pos": self.robot.start[7:].tolist(),
            "action_scale": self.config.action_scale,
            "stiffness": self.robot.gains[0].tolist(),
            "damping": self.robot.gains[1].tolist(),
            "command_names": list(self.commands),
        }

    def apply_actions(self) -> None:
        """Set joint position targets."""
        inputs = [self.actions, self.default_joint_pos, self.config.action_scale]
        self.launch(kernels.apply_actions, inputs, [self.ctrl], dim=self.actions.shape)

    def compute_rewards(self) -> None:
        """Compute rewards and terminations."""
        self.launch(
            kernels.compute_base_rewards,
            inputs=[self.reward_params, self.ground, self.qpos, self.qvel, self.command_array],
            outputs=[self.terms, self.terminated, self.metric_values],
        )
        self.launch(
            kernels.compute_joint_rewards,
            inputs=[
                *(self.reward_params, self.qpos, self.qvel, self.ctrl, self.actions),
                *(self.default_joint_pos, self.gainprm, self.biasprm, self.torque_limits, self.command_array),
            ],
            outputs=[self.last_actions, self.last_joint_vel, self.terms],
        )
        self.launch(
            kernels.compute_feet_rewards,
            inputs=[self.reward_params, self.ground, self.geom_xpos, self.feet, self.command_array],
            outputs=[self.last_feet, self.air_times, self.terms],
        )

    def reset_state(self) -> None:
        """Begin new episodes where done."""
        self.launch(
            events.reset_state,
            inputs=[self.done, self.start, self.config.reset_joint_range, self.command_distribution],
            outputs=[
                *(self.rng, self.qpos, self.qvel, self.ctrl, self.command_array, self.command_left),
                *(self.last_actions, self.last_joint_vel, self.air_times),
            ],
        )

    def interval_events(self) -> None:
        """New commands and pushes."""
        config = self.config
        chance = self.step_dt / config.push_interval if config.push_interval else 0.0
        self.launch(
            events.interval_events,
            inputs=[self.done, self.command_distribution, self.step_dt, chance, config.push_speed],
            outputs=[self.rng, self.qvel, self.moved, self.command_array, self.command_left],
        )

    def randomize(self) -> None:
        """Startup randomisation: foot friction, added base mass, PD gains."""
        config, robot = self.config, self.robot
        self.launch(
            events.randomize,
            inputs=[
                wp.vec2(config.friction_min, config.friction_max),
                wp.vec2(config.added_mass_min, config.added_mass_max),
                *(config.gain_range, self.feet, robot.base, float(self.model.body_mass[robot.base]), self.gains),
            ],
            outputs=[self.rng, self.geom_friction, self.body_mass, self.gainprm, self.biasprm],
        )

    def observe(self) -> None:
        """Write the observations."""
        self.launch(
            kernels.observe,
            inputs=[self.noise, self.qpos, self.qvel, self.default_joint_pos, self.command_array, self.last_actions],
            outputs=[self.rng, self.obs["policy"], self.obs["critic"]],
        )


class FlatVelocity(VelocityTask[VelocityConfig]):
    """Track a commanded velocity on flat ground."""

    config = VelocityConfig()

    @classmethod
    def build_model(cls, config: VelocityConfig) -> mujoco.MjModel:
        """Return the robot on a plane."""
        return build_on_a_plane(config)

    def build_terrain(self) -> None:
        """Set the ground to a plane."""
        self.ground.heights = self.constant(np.zeros((1, 1)))

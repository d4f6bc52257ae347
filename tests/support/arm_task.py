"""An arm of two joints, each of whose terms is a `wp.func` and a torch function at once; and a curriculum."""

# ruff: noqa: ARG001, ARG003

from __future__ import annotations

from typing import Any

import mujoco
import torch
import warp as wp

from shoal.config import RslRlConfig
from shoal.mdp.annotations import JointId, Joints, Memory, Numbers, SiteId
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.random import uniform
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Curriculum, Done, Event, Metric, Obs, Reward

MODEL = """
<mujoco>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.1"/>
      <geom name="upper" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.1"/>
        <geom name="lower" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
        <site name="tip" pos="0 0 -0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1"/>
    <position name="elbow" joint="elbow" kp="20" kv="1"/>
  </actuator>
</mujoco>
"""


@wp.func
def reach(  # noqa: PLR0917
    state: Any, env: int, site: SiteId, target: wp.vec2, std: float, joints: Joints
) -> float:
    """Return how near a site is to a target along x and z, less for joints that are far from home."""
    at = state.site_xpos[env, site]
    error = (at[0] - target[0]) * (at[0] - target[0]) + (at[2] - target[1]) * (at[2] - target[1])
    value = wp.exp(0.0 - error / (std * std))
    for i in range(joints.shape[0]):
        value -= 0.1 * wp.abs(state.qpos[env, joints[i].qpos] - joints[i].default_pos)
    return value


def reach_torch(state: Any, site: SiteId, target: torch.Tensor, std: torch.Tensor, joints: Joints) -> torch.Tensor:
    """Return the same for all environments."""
    error = (state.site_xpos[:, site, [0, 2]] - target).square().sum(dim=1)
    return (-error / std.square()).exp() - 0.1 * (state.qpos[:, joints.qpos] - joints.default_pos).abs().sum(dim=1)


@wp.func
def weighed(state: Any, env: int, joints: Joints, factors: Numbers) -> float:
    """Return the sum of joint positions, each with a factor."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        total += factors[i] * state.qpos[env, joints[i].qpos]
    return total


def weighed_torch(state: Any, joints: Joints, factors: Numbers) -> torch.Tensor:
    """Return the same for all environments."""
    return state.qpos[:, joints.qpos] @ factors


@wp.func
def spins(state: Any, env: int, joint: JointId, limit: float) -> bool:
    """Whether a joint has turned further than `limit` [rad]."""
    return wp.abs(state.qpos[env, joint]) > limit


def spins_torch(state: Any, joint: JointId, limit: torch.Tensor) -> torch.Tensor:
    """Return the same for all environments."""
    return state.qpos[:, joint].abs() > limit


@wp.func
def counted(state: Any, env: int, memory: Memory) -> float:
    """Return how often it was called since the episode began."""
    memory[env, 0] = memory[env, 0] + 1.0
    return memory[env, 0]


def counted_torch(state: Any, memory: Memory) -> torch.Tensor:
    """Return the same for all environments."""
    memory += 1.0
    return memory.clone()


@wp.func
def tip(state: Any, env: int, site: SiteId) -> wp.vec3:
    """Return the position of a site [m]."""
    return state.site_xpos[env, site]


def tip_torch(state: Any, site: SiteId) -> torch.Tensor:
    """Return the same for all environments."""
    return state.site_xpos[:, site]


@wp.func
def speeds(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the speed of a joint [rad/s]."""
    return state.qvel[env, joints[i].dof]


def speeds_torch(state: Any, joints: Joints) -> torch.Tensor:
    """Return the same for all joints and environments."""
    return state.qvel[:, joints.dof]


@wp.func
def start_near(state: Any, env: int, joints: Joints, spread: float) -> None:
    """Put joints near home."""
    for i in range(joints.shape[0]):
        state.qpos[env, joints[i].qpos] = uniform(state, env, -spread, spread)


def terms(*, torch: bool) -> dict[str, Any]:
    """Return the groups of terms, as functions of Warp or of torch."""

    def pick(function: Any) -> Any:
        return globals()[f"{function.key}_torch"] if torch else function

    xyz = {"columns": ("x", "y", "z")} if torch else {}
    near = {"site": "tip", "target": (0.3, 0.8), "std": 0.5, "joints": ".*"}
    return {
        "observations": {
            "policy": {
                "tip": Obs(pick(tip), site="tip", scale=2.0, history_length=2, **xyz),
                "speeds": Obs(pick(speeds), joints=".*", clip=3.0),
            }
        },
        "rewards": {
            "reach": Reward(pick(reach), 1.0, **near),
            "weighed": Reward(pick(weighed), -0.1, joints=".*", factors={"should.*": 1.0, "elbow": 2.0}),
            "counted": Reward(pick(counted), 0.01),
        },
        "terminations": {"spins": Done(pick(spins), joint="elbow", limit=0.4)},
        "metrics": {"reached": Metric(pick(reach), **near)},
    }


class Arm(TermsTask[TermsConfig]):
    """Reach with an arm of two joints."""

    config = task_config(
        TermsConfig,
        physics_dt=0.005,
        decimation=2,
        episode_length_s=0.4,
        actions={"targets": Action("joint_position", actuators=".*", scale=0.5)},
        events={"start": Event(start_near, "reset", joints=".*", spread=0.5)},
        curricula={
            "reach": Curriculum(
                "reward_curriculum", reward_name="reach", steps=(0, 20), weight=(0.5, 2.0), std=(1.0, 0.6)
            ),
            "spins": Curriculum("termination_curriculum", termination_name="spins", steps=(12,), limit=(0.35,)),
        },
        **terms(torch=False),
    )
    agent = RslRlConfig(num_steps_per_env=8)
    num_envs = 16

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        """Return the model."""
        return mujoco.MjModel.from_xml_string(MODEL)


class TorchArm(Arm):
    """The same with torch functions."""

    config = Arm.config.change(**terms(torch=True))

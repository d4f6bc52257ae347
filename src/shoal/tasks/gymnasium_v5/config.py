"""Gymnasium's MuJoCo tasks as terms. The numbers are those of Gymnasium 1.4; units are SI.

Time steps are those of the models: `episode_length_s` is the number of steps that Gymnasium registers, in seconds. The
rewards have the names of Gymnasium's `info`.
"""

import math
from typing import Any

from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.terms import Action, Done, DoneTerm, Event, EventTerm, Obs, ObsTerm, Reward

_ALL = ".*"
_OWN = "shoal.tasks.gymnasium_v5.terms:"
_BODIES = "(?!world).*"
_NO_LIMIT = math.inf


def _task(limit: float = 1.0, **groups: Any) -> TermsConfig:  # noqa: ANN401  As `task_config` takes them.
    """Return a task whose actions are the controls, within ± a limit."""
    actions = {"ctrl": Action("control", actuators=_ALL, scale=1.0, clip=limit)}
    groups["observations"] = {"policy": groups["observations"]}
    return task_config(TermsConfig, actions=actions, **groups)


def _noise(scale: float, *, normal_speeds: bool = False) -> dict[str, Any]:
    """Return the event that moves first positions by up to a scale, and draws speeds."""
    return {"noise": Event(f"{_OWN}reset_noise", "reset", reset_noise_scale=scale, normal_speeds=normal_speeds)}


def _arm_noise(joints: str, position: float) -> EventTerm:
    """Return the event that moves the joints of an arm by up to a distance [rad], and draws small speeds."""
    ranges: dict[str, Any] = {"position": (-position, position), "velocity": (-0.005, 0.005)}
    return Event("reset_joints_by_offset", "reset", joints=joints, **ranges)


def _joints(positions: str = _ALL, speeds: str = _ALL, clip: float = 0.0) -> dict[str, Any]:
    """Return the observations of positions of joints, and of speeds, within ± `clip`."""
    return {
        "position": Obs("joint_pos", joints=positions),
        "velocity": Obs("joint_vel_rel", joints=speeds, clip=clip),
    }


def _contacts(clip: float = 0.0) -> ObsTerm:
    """Return the observation of forces on bodies, within ± `clip`."""
    return Obs(f"{_OWN}cfrc_ext", bodies=_BODIES, clip=clip)


_FREE = {
    "height": Obs("base_height"),
    "orientation": Obs("root_quat_w"),
    "position": Obs("joint_pos", joints=_ALL),
    "lin_vel": Obs("root_lin_vel_w"),
    "ang_vel": Obs("base_ang_vel"),
    "velocity": Obs("joint_vel_rel", joints=_ALL),
}
"""Positions of a robot with a free joint but for x and y, and all speeds."""
_SURVIVE = Reward("is_alive", weight=1.0)
_CTRL = "action_l2"


def _run(velocity: str, forward: float, ctrl: float) -> dict[str, Any]:
    """Return the rewards of moving along x, and of little effort."""
    return {"reward_forward": Reward(f"{_OWN}{velocity}", weight=forward), "reward_ctrl": Reward(_CTRL, weight=-ctrl)}


INVERTED_PENDULUM = _task(
    3.0,
    decimation=2,
    episode_length_s=40.0,  # 1,000 steps of 0.04 s.
    observations=_joints(),
    rewards={"reward_survive": _SURVIVE},
    terminations={"fallen": Done("joint_pos_out_of_manual_limit", joints="hinge", bounds=(-0.2, 0.2))},
    events=_noise(0.01),
)
INVERTED_DOUBLE_PENDULUM = _task(
    decimation=5,
    episode_length_s=50.0,  # 1,000 steps of 0.05 s.
    observations={
        "position": Obs("joint_pos", joints="slider"),
        "sine": Obs("joint_pos_sin", joints="hinge.*"),
        "cosine": Obs("joint_pos_cos", joints="hinge.*"),
        "velocity": Obs("joint_vel_rel", joints=_ALL, clip=10.0),
        "constraint_force": Obs(f"{_OWN}qfrc_constraint", joints="slider", clip=10.0),
    },
    rewards={
        "reward_survive": Reward("is_alive", weight=10.0),
        "distance_penalty": Reward(f"{_OWN}distance_penalty", weight=-1.0, site="tip"),
        "velocity_penalty": Reward(f"{_OWN}velocity_penalty", weight=-1.0),
    },
    terminations={"fallen": Done(f"{_OWN}site_below_minimum", site="tip", minimum_height=1.0)},
    events=_noise(0.1, normal_speeds=True),
)
REACHER = _task(
    decimation=2,
    episode_length_s=1.0,  # 50 steps of 0.02 s.
    observations={
        "cosine": Obs("joint_pos_cos", joints="joint."),
        "sine": Obs("joint_pos_sin", joints="joint."),
        "target": Obs("joint_pos", joints="target_."),
        "velocity": Obs("joint_vel_rel", joints="joint."),
        "offset": Obs(f"{_OWN}body_offset", body="fingertip", to_body="target"),
    },
    rewards={
        "reward_dist": Reward(f"{_OWN}body_distance", weight=-1.0, body="fingertip", to_body="target"),
        "reward_ctrl": Reward(_CTRL, weight=-1.0),
    },
    events={
        "noise": _arm_noise("joint.", 0.1),
        "target": Event(
            f"{_OWN}reset_point", "reset", joints="target_.", x=(-0.2, 0.2), y=(-0.2, 0.2), distance=(-1.0, 0.2)
        ),
    },
)
PUSHER = _task(
    2.0,
    decimation=5,
    episode_length_s=5.0,  # 100 steps of 0.05 s.
    observations=_joints("r_.*", "r_.*")
    | {body: Obs(f"{_OWN}body_pos", body=body) for body in ("tips_arm", "object", "goal")},
    rewards={
        "reward_dist": Reward(f"{_OWN}body_distance", weight=-1.0, body="object", to_body="goal"),
        "reward_ctrl": Reward(_CTRL, weight=-0.1),
        "reward_near": Reward(f"{_OWN}body_distance", weight=-0.5, body="object", to_body="tips_arm"),
    },
    events={
        "noise": _arm_noise("r_.*", 0.0),
        "object": Event(
            f"{_OWN}reset_point",
            "reset",
            joints="obj_.*",
            x=(-0.3, 0.0),
            y=(-0.2, 0.2),
            distance=(0.17, 1.0),  # The rectangle ends before.
        ),
    },
)
HALF_CHEETAH = _task(
    decimation=5,
    episode_length_s=50.0,
    observations=_joints("(?!rootx).*"),
    rewards=_run("x_velocity", 1.0, 0.1),
    events=_noise(0.1, normal_speeds=True),
)
SWIMMER = _task(
    decimation=4,
    episode_length_s=40.0,
    observations=_joints("(?!slider).*"),
    rewards=_run("x_velocity", 1.0, 1e-4),
    events=_noise(0.1),
)


def _planar(z: float, top: float, lean: float, **more: DoneTerm) -> TermsConfig:
    """Return a robot in a plane that may fall: its torso is below or above a height [m], or leans too far [rad]."""
    limit = "joint_pos_out_of_manual_limit"
    return _task(
        decimation=4,
        episode_length_s=8.0,  # 1,000 steps of 0.008 s.
        observations=_joints("(?!rootx).*", clip=10.0),
        rewards=_run("x_velocity", 1.0, 1e-3) | {"reward_survive": _SURVIVE},
        terminations={
            "healthy_z": Done(limit, joints="rootz", bounds=(z, top)),
            "healthy_angle": Done(limit, joints="rooty", bounds=(-lean, lean)),
            **more,
        },
        events=_noise(5e-3),
    )


HOPPER = _planar(
    *(0.7, _NO_LIMIT, 0.2),
    healthy_state=Done("joint_pos_out_of_manual_limit", joints="(?!rootx|rootz).*", bounds=(-100.0, 100.0)),
    healthy_speed=Done("joint_vel_out_of_manual_limit", joints=_ALL, max_velocity=100.0),
)
WALKER2D = _planar(0.8, 2.0, 1.0)
ANT = _task(
    decimation=5,
    episode_length_s=50.0,
    observations=_FREE | {"contact_force": _contacts(clip=1.0)},
    rewards={
        **_run("torso_x_velocity", 1.0, 0.5),
        "reward_survive": _SURVIVE,
        "reward_contact": Reward(
            f"{_OWN}contact_cost", weight=-1.0, contact_cost_weight=5e-4, contact_force_range=(-1.0, 1.0)
        ),
    },
    terminations={"healthy_z": Done(f"{_OWN}root_height_out_of_limit", bounds=(0.2, 1.0))},
    events=_noise(0.1, normal_speeds=True),
)
_HUMANOID: dict[str, Any] = {
    "limit": 0.4,
    "decimation": 5,
    "episode_length_s": 15.0,  # 1,000 steps of 0.015 s.
    "observations": {
        **_FREE,
        "cinert": Obs(f"{_OWN}cinert", bodies=_BODIES),
        "cvel": Obs(f"{_OWN}cvel", bodies=_BODIES),
        "actuator_force": Obs(f"{_OWN}qfrc_actuator", joints=_ALL),
        "contact_force": _contacts(),
    },
    "events": _noise(0.01),
}
_IMPACT = Reward(f"{_OWN}contact_cost", weight=-1.0, contact_cost_weight=5e-7, contact_cost_range=(-_NO_LIMIT, 10.0))
HUMANOID = _task(
    **_HUMANOID,
    rewards={
        **_run("masses_x_velocity", 1.25, 0.1),
        "reward_survive": Reward("is_alive", weight=5.0),
        "reward_contact": _IMPACT,
    },
    terminations={"healthy_z": Done(f"{_OWN}root_height_out_of_limit", bounds=(1.0, 2.0))},
)
HUMANOID_STANDUP = _task(
    **_HUMANOID,
    rewards={
        # Gymnasium rewards the way up from the ground, as if it were that of one physics step of 0.003 s.
        "reward_linup": Reward("base_height", weight=1.0 / 0.003),
        "reward_quadctrl": Reward(_CTRL, weight=-0.1),
        "reward_impact": _IMPACT,
        "reward_survive": _SURVIVE,  # In every step: nothing ends an episode. Gymnasium has no name for it.
    },
)

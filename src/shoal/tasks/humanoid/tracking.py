"""The motion tracking tasks as terms. Units are SI: metres, radians, seconds.

Terms, weights and ranges are those of mjlab 1.6.0's `tracking_env_cfg.py`, which follow BeyondMimic (arXiv 2508.08241),
unless docs/tasks/humanoid.md says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.terms import Action, Done, Event, Metric, Obs, Reward
from shoal.mdp.velocity import ALL, pushes
from shoal.tasks.humanoid.velocity import G1, GROWING, SCALE, help_and_pushes

_OWN = "shoal.tasks.humanoid.terms:"
_ANCHOR: dict[str, Any] = {"anchor_body": "{anchor}"}
_BODIES: dict[str, Any] = {"bodies": "{bodies}", **_ANCHOR}
_NEVER = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class TrackingConfig(RobotConfig):
    """Imitate a motion."""

    role_fields: ClassVar[tuple[str, ...]] = ("anchor", "bodies", "ends")
    model_fields: ClassVar[tuple[str, ...]] = ("robot", "motion")

    robot: str = "humanoid"
    motion: str = "squats"
    """The motion: an .npz or .csv file, see `shoal motion`, or the name of one that ships, `squats`."""
    anchor: str = "torso"
    """Pattern of the body by which the motion is moved to where the robot is: `{anchor}` in the patterns of terms."""
    bodies: str = "pelvis|torso|(thigh|shin|foot|upper_arm|lower_arm|hand)_.*"
    """Pattern of the bodies that are tracked: `{bodies}`."""
    ends: str = "(foot|hand)_.*"
    """Pattern of the bodies whose heights must stay near the motion's: `{ends}`."""

    def in_play(self) -> Self:
        """Return the same without adaptive sampling: episodes begin anywhere in the motion."""
        return super().in_play().change(events={"start": {"uniform_ratio": 1.0}})

    def undisturbed(self) -> Self:
        """Return the same without noise and pushes, and with episodes that begin exactly on the motion."""
        still = dict.fromkeys(("position", "x", "y", "z", "roll", "pitch", "yaw"), _NEVER)
        return super().undisturbed().change(events={"start": still})


def _observed(*, noise: float) -> dict[str, Any]:
    """Return what is observed, with `noise` times the usual errors."""
    return {
        "motion_joint_pos": Obs(f"{_OWN}motion_joint_pos", joints=ALL),
        "motion_joint_vel": Obs(f"{_OWN}motion_joint_vel", joints=ALL),
        "motion_anchor_pos_b": Obs(f"{_OWN}motion_anchor_pos_b", **_ANCHOR, noise=0.25 * noise),
        "motion_anchor_ori_b": Obs(f"{_OWN}motion_anchor_ori_b", **_ANCHOR, noise=0.05 * noise),
        "base_lin_vel": Obs("base_lin_vel", noise=0.5 * noise),
        "base_ang_vel": Obs("base_ang_vel", noise=0.2 * noise),
        "joint_pos": Obs("joint_pos_rel", joints=ALL, noise=0.01 * noise),
        "joint_vel": Obs("joint_vel_rel", joints=ALL, noise=0.5 * noise),
        "actions": Obs("last_action", actuators=ALL),
    }


_PRIVILEGED = {
    "body_pos": Obs(f"{_OWN}robot_body_pos_b", **_BODIES),
    "body_ori": Obs(f"{_OWN}robot_body_ori_b", **_BODIES),
}

HUMANOID = task_config(
    TrackingConfig,
    pose={".*": 0.0},
    physics_dt=0.005,
    episode_length_s=10.0,
    actions={"joint_pos": Action("joint_position", actuators=ALL, scale=0.5)},
    observations={"policy": _observed(noise=1.0), "critic": _observed(noise=0.0) | _PRIVILEGED},
    rewards={
        "motion_global_root_pos": Reward(
            f"{_OWN}motion_global_anchor_position_error_exp", weight=0.5, **_ANCHOR, std=0.3
        ),
        "motion_global_root_ori": Reward(
            f"{_OWN}motion_global_anchor_orientation_error_exp", weight=0.5, **_ANCHOR, std=0.4
        ),
        "motion_body_pos": Reward(f"{_OWN}motion_relative_body_position_error_exp", weight=1.0, **_BODIES, std=0.3),
        "motion_body_ori": Reward(f"{_OWN}motion_relative_body_orientation_error_exp", weight=1.0, **_BODIES, std=0.4),
        "motion_body_lin_vel": Reward(
            f"{_OWN}motion_global_body_linear_velocity_error_exp", weight=1.0, bodies="{bodies}", std=1.0
        ),
        "motion_body_ang_vel": Reward(
            f"{_OWN}motion_global_body_angular_velocity_error_exp", weight=1.0, bodies="{bodies}", std=3.14
        ),
        "action_rate": Reward("action_rate_l2", weight=-0.1),
        "joint_limit": Reward("joint_pos_limits", weight=-10.0, joints=ALL),
    },
    terminations={
        "motion_ended": Done(f"{_OWN}motion_ended", time_out=True),
        "anchor_pos": Done(f"{_OWN}bad_anchor_pos_z_only", **_ANCHOR, threshold=0.25),
        "anchor_ori": Done(f"{_OWN}bad_anchor_ori", **_ANCHOR, threshold=0.8),
        "ee_body_pos": Done(f"{_OWN}bad_motion_body_pos_z_only", bodies="{ends}", **_ANCHOR, threshold=0.25),
    },
    events={
        "start": Event(
            f"{_OWN}start_on_motion",
            "reset",
            actuators=ALL,
            joints=ALL,
            uniform_ratio=0.1,
            before=1.0,
            from_start=False,
            position=(-0.1, 0.1),
            x=(-0.05, 0.05),
            y=(-0.05, 0.05),
            z=(-0.01, 0.01),
            roll=(-0.1, 0.1),
            pitch=(-0.1, 0.1),
            yaw=(-0.2, 0.2),
        ),
        **pushes(1.0, 3.0),
    },
    metrics={
        "failed_share": Metric(f"{_OWN}failed_share"),
        "error_body_pos": Metric(f"{_OWN}error_body_pos", **_BODIES),
        "error_joint_pos": Metric(f"{_OWN}error_joint_pos", joints=ALL),
    },
)


def follows(metrics: Mapping[str, float], failed: float = 0.4) -> float:
    """Return 1 or more where at most that share of the episodes fails, and bodies are near enough."""
    error = metrics.get("Metrics/error_body_pos", 9.0)
    return min(failed / max(metrics.get("Metrics/failed_share", 1.0), 0.01), 0.12 / max(error, 0.001))


def follows_alone(metrics: Mapping[str, float]) -> float:
    """Return 1 or more where fewer than that fail, and without assistance."""
    return follows(metrics, failed=0.3) if metrics.get("Curriculum/assistance/strength", 1.0) == 0.0 else 0.0


G1_TRACKING = HUMANOID.change(
    **G1,
    motion="sub3_largebox_003_mj",
    anchor="torso_link",
    bodies="pelvis|torso_link|.*_(hip_roll|knee|ankle_roll|shoulder_roll|elbow|wrist_yaw)_link",
    ends=".*_(ankle_roll|wrist_yaw)_link",
    actions={"joint_pos": Action(f"{_OWN}motion_joint_position", actuators=ALL, scale=SCALE)},
    events={
        "assistance": Event(
            f"{_OWN}apply_motion_assistance",
            "step",
            interval=(1.0, 1.0),
            body="{base}",
            strength=0.0,
            stiffness=2000.0,
            damping=150.0,
            upright=400.0,
            spin=8.0,
        )
    },
    curricula=help_and_pushes(follows, follows_alone, dict.fromkeys("xy", (-0.5, 0.5)), GROWING, first=0.25),
)
"""A G1, whose motion is one of the package holosoma. Actions are around the targets with which the joints would do what
the motion does; and it is held near the motion, as far as it does not follow without."""

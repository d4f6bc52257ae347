"""Mirror images of what a robot observes and does, by the names of joints; the oracle is MuJoCo's kinematics."""

# ruff: noqa: ARG003

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.mdp import symmetry
from shoal.mdp.cameras import Camera, RayCast
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.symmetry import mirror
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Obs, Reward

_LEG = """
<body name="{side}_hip" pos="0.05 {y} 0">
  <joint name="{side}_hip" axis="1 0 0"/><geom size="0.02"/>
  <body name="{side}_knee" pos="0.02 {y} -0.2">
    <joint name="{side}_knee" axis="0 1 0"/><geom name="{side}_shin" size="0.06"/>
    <body name="{side}_foot" pos="0.05 0 -0.2">
      <joint name="{side}_foot" type="slide" axis="0 1 0"/><geom name="{side}_toe" size="0.09"/>
    </body>
  </body>
</body>"""
_ACTUATED = ("right_knee", "left_knee", "right_foot", "right_hip", "left_hip", "left_foot")
"""Another order than that of the joints."""
MODEL = f"""
<mujoco><worldbody><body name="trunk" pos="0 0 1"><freejoint/><geom size="0.1"/>
  {_LEG.format(side="left", y=0.1)}{_LEG.format(side="right", y=-0.1)}
</body></worldbody>
<default><position kp="9" ctrlrange="-9 9"/></default>
<actuator>{"".join(f'<position name="{name}_motor" joint="{name}"/>' for name in _ACTUATED)}</actuator>
</mujoco>"""

_KNEES = ".*_knee_motor"
CONFIG = task_config(
    TermsConfig,
    actions={
        "knees": Action("joint_position", actuators=_KNEES, scale=0.5),
        "others": Action("joint_position", actuators=".*_(hip|foot)_motor", scale={".*hip.*": 0.5, ".*foot.*": 0.1}),
    },
    commands={
        "twist": Command(
            "uniform_velocity",
            columns=dict.fromkeys(("lin_vel_x", "lin_vel_y", "ang_vel_z"), ""),
            resampling_time=(1, 2),
            **dict.fromkeys(("lin_vel_x", "lin_vel_y", "ang_vel_z"), (-1, 1)),
            rel_standing_envs=0,
        )
    },
    observations={
        "policy": {
            "lin_vel": Obs("base_lin_vel"),
            "joint_pos": Obs("joint_pos_rel", joints=".*"),
            "knees": Obs("joint_vel_rel", joints=".*_knee", history_length=2),
            "command": Obs("velocity_command", command="twist"),
        }
    },
    rewards={"alive": Reward("is_alive", weight=1.0)},
)


class Biped(TermsTask[TermsConfig]):
    """Two legs."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(MODEL)


def env_of(**changes: Any) -> Any:
    task = Biped(CONFIG.change(**changes), num_envs=1, device="cpu", seed=1)
    return SimpleNamespace(unwrapped=SimpleNamespace(task=task))


@pytest.fixture(scope="module")
def env() -> Any:
    return env_of()


def mirrored(env: Any, rows: torch.Tensor) -> torch.Tensor:
    both, _ = mirror(env, TensorDict({"policy": rows}, batch_size=[len(rows)]), None)
    assert both is not None
    return both["policy"][len(rows) :]


def test_joints_in_the_mirror_put_the_bodies_in_the_mirror(env: Any) -> None:
    model = env.unwrapped.task.model
    joints = np.random.default_rng(0).uniform(-1.0, 1.0, model.nq - 7)
    observed = torch.zeros(1, 3 + 6 + 4 + 3)
    observed[0, 3:9] = torch.tensor(joints)
    places = []
    for angles in (joints, mirrored(env, observed)[0, 3:9].numpy()):
        data = mujoco.MjData(model)
        data.qpos[7:] = angles  # The columns are the joints in the model's order, which begin at 0.
        mujoco.mj_kinematics(model, data)
        places.append({model.body(body).name: data.xpos[body] * (1, 1 - 2 * len(places), 1) for body in range(8)})
    original, image = places
    for name, place in original.items():
        partner = name.replace("left", "?").replace("right", "left").replace("?", "right")
        np.testing.assert_allclose(image[partner], place, atol=1e-6, err_msg=name)


def test_columns_of_each_term_are_exchanged_by_their_names(env: Any) -> None:
    columns = torch.arange(1.0, 17.0)[None]
    image = mirrored(env, columns)[0].tolist()
    assert image[:3] == [1, -2, 3]
    assert image[9:13] == [11, 10, 13, 12]  # Left and right knee, of the step before and of this one.
    assert image[13:] == [14, -15, -16]


def test_actions_are_exchanged_by_the_joints_of_their_actuators(env: Any) -> None:
    names = [column for bound in env.unwrapped.task.bound.actions.values() for column in bound.columns]
    assert names == [
        f"{name}_motor" for name in ("right_knee", "left_knee", "right_foot", "right_hip", "left_hip", "left_foot")
    ]
    _, both = mirror(env, None, torch.tensor([[1.0, 2, 3, 4, 5, 6]]))
    assert both is not None
    # A knee turns about y, which the mirror keeps; a hip about x, and a foot slides along y, which it reverses.
    assert both[1].tolist() == [2, 1, -6, -5, -4, -3]


def test_the_mirror_is_computed_once(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, actions = torch.zeros(1, 16), torch.zeros(1, 6)
    mirrored(env, rows)
    mirror(env, None, actions)
    monkeypatch.setattr(symmetry, "mirrored_joints", None)
    mirrored(env, rows)
    mirror(env, None, actions)


def own_velocity(state: Any) -> torch.Tensor:
    """Return something along x, y and z."""
    return state.qvel[:, :3]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"observations": {"policy": {"mine": Obs(own_velocity, columns=("x", "y", "z"))}}},
            r"the mirror image of the observation mine \(own_velocity\), but does not",
        ),
        (
            {"observations": {"policy": {"left": Obs("joint_pos_rel", joints="left_hip")}}},
            r"the mirror image of the observation left \(joint_pos_rel of left_hip without its partner\), but does not",
        ),
        (
            {"commands": {"twist": Command(
                "uniform_velocity", columns=dict.fromkeys("xyz", "1"), resampling_time=(1, 2),
                **dict.fromkeys(("lin_vel_x", "lin_vel_y", "ang_vel_z"), (-1, 1)), rel_standing_envs=0,
            )}},
            r"the mirror image of the observation command \(velocity_command\), but does not",
        ),
        (
            {"actions": {"knees": Action("joint_position", actuators=_KNEES, scale={"left.*": 1, "right.*": 2})}},
            r"the mirror image of the action knees \(joint_position, whose scale differs between the sides\), but",
        ),
        (
            {"observations": {"policy": {"turn": Obs("base_ang_vel", clip=(-1.0, 2.0))}}},
            r"the mirror image of the observation turn \(base_ang_vel, whose clip differs between the sides\), but",
        ),
        (
            {"observations": {"policy": {"x": Obs("joint_vel_rel", joints=".*knee", clip={"left.*": 1, "r.*": 2})}}},
            r"the mirror image of the observation x \(joint_vel_rel, whose clip differs between the sides\), but",
        ),
        (
            {"actions": {"knees": Action("ema_joint_position_to_limits", actuators=_KNEES, alpha=0.5)}},
            r"the mirror image of the action knees \(ema_joint_position_to_limits\), but does not",
        ),
    ],
)  # fmt: skip
def test_what_has_no_known_mirror_image_is_refused(changes: dict[str, Any], said: str) -> None:
    env = env_of(**changes)
    rows = torch.zeros(1, env.unwrapped.task.observations["policy"])
    observed = TensorDict({"policy": rows}, batch_size=[1])
    with pytest.raises(UsageError, match=f"^--agent.algorithm.symmetry.enabled needs to know {said}"):
        mirror(env, observed, torch.zeros(1, env.unwrapped.task.num_actions))


AHEAD = (0.5, 0.5, -0.5, -0.5)
"""Orientation of a camera that looks along x."""
DOWN = (0.65, 0.27, -0.27, -0.65)
"""And of one that looks half down, at the legs."""
_HEAD = """<body name="head" pos="0.2 0 0.1"><joint name="turn" axis="0 0 1"/><joint name="nod" axis="0 1 0"/>
  <geom size="0.02"/><site name="face" quat="0.5 0.5 -0.5 -0.5"/><site name="askew" euler="0 0 30"/>
  <camera name="level" mode="track" quat="0.5 0.5 -0.5 -0.5"/>
  <camera name="crooked" sensorsize="0.02 0.02" focal="0.01 0.01" principal="0.004 0" resolution="9 6"
    quat="0.5 0.5 -0.5 -0.5"/></body></body>
<body name="ball" pos="1 0.4 1"><freejoint/><geom name="ball" size="0.3" rgba="0.9 0.4 0.2 1"/></body>
<geom name="hill" size="4" pos="0 0 -4" group="3" contype="0" conaffinity="0"/></worldbody>"""


class Looker(TermsTask[TermsConfig]):
    """Two legs and a head, which sees a ball."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL.replace("</body></worldbody>", _HEAD))


def looker(group: dict[str, Any], num_envs: int = 1, **sensors: Any) -> WarpVecEnv:
    config = CONFIG.change(sensors=sensors, observations={"seen": group}, fresh_observations=True, engine="mujoco")
    return WarpVecEnv(Looker(config, num_envs=num_envs, device="cpu", seed=1))


def observed_in_the_mirror(env: WarpVecEnv) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is observed of a scene and of its mirror image, and the first row with what `mirror` makes of it."""
    task: Any = env.task
    start = task.qpos.numpy().copy()
    start[:, :7] = [0.1, 0.2, 1.0, 0.9, 0.2, 0.3, -0.1]
    start[:, 7:13] = 0.2, 0.5, 0.03, 0.1, -0.3, 0.02  # Hip, knee and foot, first of the left leg.
    start[:, 13:15] = 0.2, 0.3  # The head turns and nods,
    start[:, 15:18] = 0.8, 0.5, 0.6  # and the ball is on its left.
    start[1, 7:13] = start[1, [10, 11, 12, 7, 8, 9]] * (-1, 1, -1, -1, 1, -1)
    start[1, [1, 4, 6, 13, 16]] *= -1  # In a mirror quaternions turn about x and z the other way.
    task.qpos.assign(start)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    env.step(torch.zeros(2, 6))
    seen = env.step(torch.zeros(2, 6))[0]["seen"]
    image, _ = mirror(env, TensorDict({"seen": seen[:1]}, batch_size=[1]), None)
    assert image is not None
    return seen, image["seen"]


def depth(**more: Any) -> Any:
    return Obs("camera_depth", sensor_name="eye", cutoff_distance=3.0, **more)


def test_the_mirror_image_of_an_image_is_what_the_camera_sees_of_the_mirrored_scene() -> None:
    group = {
        "depth": depth(history_length=2, scale=0.5),
        "colours": Obs("camera_rgb", sensor_name="eye"),
        "ball": Obs("camera_mask", sensor_name="eye", geoms="ball"),
        "legs": Obs("camera_mask", sensor_name="eye", geoms=".*_(shin|toe)"),
    }
    env = looker(group, 2, eye=Camera(parent_body="head", pos=(-0.3, 0, 0.4), quat=DOWN, fovy=80, width=25, height=18))
    images, image = observed_in_the_mirror(env)
    assert (images[0] != images[0].flip(-1)).any(dim=1).any(dim=1).all()
    apart = (image[1] - images[1]).abs().amax(dim=(1, 2))
    assert (apart <= torch.tensor([1e-5, 1e-5, 0.004, 0.004, 0.004, 0.0, 0.0])).all()  # Colours are bytes.


@pytest.mark.parametrize("function", ["ray_distances", "ray_normals"])
def test_the_mirror_image_of_rays_is_what_they_hit_in_the_mirrored_scene(function: str) -> None:
    more: Any = {"include_geom_groups": (0, 3), "max_distance": 3.0}
    sensors = {
        "scan": RayCast("grid", size=(1.0, 0.6), resolution=0.2, body="trunk", ray_alignment="yaw", **more),
        "rim": RayCast("ring", radius=0.3, num_samples=6, body="head", direction=(1.0, 0.0, -0.5), **more),
        "retina": RayCast("pinhole", width=9, height=6, site="face", **more),
        "feet": RayCast("grid", size=(0.1, 0.1), resolution=0.05, body=".*_foot", **more),
        "toes": RayCast("ring", geom=".*_toe", ray_alignment="world", direction=(0.5, 0.0, -1.0), **more),
    }
    env = looker({name: Obs(function, sensor_name=name) for name in sensors}, 2, **sensors)
    seen, image = observed_in_the_mirror(env)
    assert (seen[0] != seen[1]).float().mean() > 0.5
    torch.testing.assert_close(image[1], seen[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "camera",
    [
        {"parent_body": "head", "quat": AHEAD, "pos": (0.0, 0.05, 0.0)},
        {"parent_body": "head", "quat": (0.5**0.5, 0.0, -(0.5**0.5), 0.0)},
        {"quat": AHEAD},
        {"parent_body": "left_hip", "pos": (0.0, -0.1, 0.0), "quat": AHEAD},
        {"camera_name": "level"},
        {"camera_name": "crooked"},
    ],
    ids=["beside", "turned", "in the world", "on a leg", "always level", "off its axis"],
)
def test_images_of_a_camera_that_leaves_the_plane_of_symmetry_are_refused(camera: dict[str, Any]) -> None:
    env = looker({"depth": depth()}, eye=Camera(width=9, height=6, **camera))
    with pytest.raises(UsageError, match=r"depth \(camera_depth of eye, which is not in the plane of symmetry\), but"):
        mirror(env, env.get_observations(), None)


@pytest.mark.parametrize(
    ("term", "rays", "said"),
    [
        (Obs("camera_mask", sensor_name="eye", geoms="left_toe|ball"), {}, "camera_mask of left_toe without its"),
        (Obs("camera_segmentation", sensor_name="eye"), {}, "camera_segmentation"),
        (Obs("ray_distances", sensor_name="rays"), {"body": "left_foot"}, "ray_distances of left_foot 0 without its"),
        (Obs("ray_normals", sensor_name="rays"), {"body": "trunk", "direction": (0, 1, -1)}, "of trunk 0 without its"),
        (Obs("ray_distances", sensor_name="rays"), {"body": "ball"}, "ray_distances of ball 0 without its partner"),
        (Obs("ray_distances", sensor_name="rays"), {"site": "askew", "ray_alignment": "yaw"}, "of askew 0 without its"),
    ],
)  # fmt: skip
def test_a_mask_or_rays_that_are_not_their_own_mirror_image_are_refused(
    term: Any, rays: dict[str, Any], said: str
) -> None:
    sensors: dict[str, Any] = {"eye": Camera(parent_body="head", quat=AHEAD, width=9, height=6)}
    sensors |= {"rays": RayCast("ring", num_samples=12, **rays)} if rays else {}
    env = looker({"it": term}, **sensors)
    with pytest.raises(UsageError, match=rf"the mirror image of the observation it \(.*{said}.*\), but does not: pass"):
        mirror(env, env.get_observations(), None)

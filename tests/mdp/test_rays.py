"""Distances and normals of rays as observations, by MuJoCo's own rays."""

# ruff: noqa: ARG003

from __future__ import annotations

from copy import copy
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp as wp

from shoal import mdp
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError
from shoal.mdp import ray_patterns
from shoal.sim.engines.tracing import ALIGNMENTS, aligned

MODEL = """<mujoco><asset><mesh name="wedge" vertex="0 0 0 0.4 0 0 0 0.4 0 0 0 0.4"/></asset><worldbody>
  <geom name="floor" type="plane" size="0 0 1"/>
  <body name="trunk" pos="0 0 0.6"><joint name="yaw" axis="0 0 1"/><joint name="roll" axis="1 0 0"/>
    <joint name="pitch" axis="0 1 0"/><geom name="hull" type="box" size="0.2 0.1 0.05" mass="1"/>
    <site name="left" pos="0.2 0.1 0"/><body name="leg" pos="0.25 -0.15 0">
      <geom size="0.03" mass="0.1"/><site name="right" euler="0 90 20"/></body></body>
  <geom name="ball" size="0.2" pos="0.3 0.2 0.1"/><geom type="box" size="0.1 0.3 0.1" pos="-0.3 0 0.1"/>
  <geom type="mesh" mesh="wedge" pos="0.1 -0.5 0"/><geom type="cylinder" size="0.3 0.1" pos="1 0 0.4" group="4"/>
</worldbody><actuator><motor name="turn" joint="yaw"/></actuator></mujoco>"""


def two(height: float) -> tuple[Any, Any]:
    return [[0.0, 0.0, height], [0.1, 0.0, height]], [[0.0, 0.0, -2.0], [3.0, 0.0, -4.0]]


RAYS: dict[str, Any] = {
    "scan": mdp.RayCast("grid", size=(0.8, 0.4), resolution=0.4, body="trunk", ray_alignment="yaw", max_distance=0.6),
    "rim": mdp.RayCast("ring", radius=0.2, num_samples=4, site="left|right", direction=(0.0, 0.5, -1.0)),
    "eye": mdp.RayCast("pinhole", width=4, height=3, fovy=70, site="right", include_geom_groups=(0, 4)),
    "own": mdp.RayCast(two, height=0.2, geom="hull", ray_alignment="world", exclude_parent_body=False),
}
CONFIG = mdp.task_config(
    mdp.TermsConfig,
    decimation=3,
    episode_length_s=0.03,
    actions={"turn": mdp.Action("joint_effort", actuators="turn", scale=1.0)},
    sensors=RAYS | {"unseen": mdp.RayCast("grid", body="trunk")},
    observations={
        "policy": {name: mdp.Obs("ray_distances", sensor_name=name) for name in RAYS},
        "normals": {name: mdp.Obs("ray_normals", sensor_name=name) for name in RAYS},
    },
    events={
        "start": mdp.Event("reset_joints_by_offset", "reset", joints=".*", position=(-0.4, 0.4), velocity=(-1, 1)),
        "size": mdp.Event("geom_size", "startup", geoms="ball", ranges=(0.5, 1.5), operation="scale"),
    },
    rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
    fresh_observations=True,
)


class Feeling(mdp.TermsTask[mdp.TermsConfig]):
    """A trunk that turns above some shapes."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL)


ENVS = 3
OFFSETS = {
    "scan": [[x, y, 0.0] for x in (-0.4, 0.0, 0.4) for y in (-0.2, 0.2)],
    "rim": [[0, 0, 0], [0.2, 0, 0], [0, 0.2, 0], [-0.2, 0, 0], [0, -0.2, 0]],
    "eye": [[0.0, 0.0, 0.0]] * 12,
    "own": two(0.2)[0],
}
STEEP = np.tan(np.deg2rad(35)) / 1.5
DIRECTIONS = {
    "scan": [[0, 0, -1]] * 6,
    "rim": [[0, 0.5, -1]] * 5,
    "eye": [[STEEP * x, STEEP * y, -1] for y in (1, 0, -1) for x in (-1.5, -0.5, 0.5, 1.5)],
    "own": two(0.2)[1],
}
FRAMES = {
    "scan": ("body", ["trunk"]),
    "rim": ("site", ["left", "right"]),
    "eye": ("site", ["right"]),
    "own": ("geom", ["hull"]),
}


def hits(task: Any, env: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and normals of what MuJoCo's rays hit. Shapes (n,) and (n, 3)."""
    model, term = copy(task.model), RAYS[name]
    model.geom_size[:] = task.parameter("geom_size").numpy()[env]
    data = mujoco.MjData(model)
    data.qpos[:] = task.qpos.numpy()[env]
    mujoco.mj_forward(model, data)
    groups = np.array([group in term.include_geom_groups for group in range(6)], dtype=np.uint8)
    kind, frames = FRAMES[name]
    found: list[tuple[float, np.ndarray]] = []
    for frame in (getattr(data, kind)(each) for each in frames):
        bodies = {"body": np.arange(model.nbody), "site": model.site_bodyid, "geom": model.geom_bodyid}
        turn, body = frame.xmat.reshape(3, 3), int(bodies[kind][frame.id]) if term.exclude_parent_body else -1
        if term.ray_alignment == "yaw":
            ahead = np.array([turn[0, 0], turn[1, 0], 0.0]) / np.hypot(turn[0, 0], turn[1, 0])
            turn = np.stack([ahead, np.cross([0, 0, 1], ahead), [0, 0, 1]], axis=1)
        elif term.ray_alignment == "world":
            turn = np.eye(3)
        for offset, direction in zip(OFFSETS[name], DIRECTIONS[name], strict=True):
            ray, normal, hit = turn @ direction / np.linalg.norm(direction), np.zeros(3), np.zeros(1, dtype=np.int32)
            distance = mujoco.mj_ray(model, data, frame.xpos + turn @ offset, ray, groups, 1, body, hit, normal)
            is_hit = 0.0 <= distance <= term.max_distance
            found.append((distance if is_hit else term.max_distance, normal if is_hit else np.zeros(3)))
    distances, normals = zip(*found, strict=True)
    return np.array(distances), np.array(normals)


@pytest.fixture(scope="module", params=["mujoco", "mjwarp"])
def env(request: pytest.FixtureRequest) -> WarpVecEnv:
    return WarpVecEnv(Feeling(CONFIG.change(engine=request.param), num_envs=ENVS, device="cpu", seed=0))


def test_rays_hit_what_those_of_mujoco_hit_in_every_pattern_and_alignment(env: WarpVecEnv) -> None:
    observations = env.reset(seed=1)
    for _ in range(7):  # Episodes of five steps begin anew.
        for row in range(ENVS):
            found = [hits(env.task, row, name) for name in RAYS]
            distances, normals = (np.concatenate(each) for each in zip(*found, strict=True))
            np.testing.assert_allclose(observations["policy"][row], distances, rtol=0, atol=1e-5)
            np.testing.assert_allclose(observations["normals"][row].reshape(-1, 3), normals, rtol=0, atol=1e-4)
            missed = (normals == 0.0).all(axis=1)
            assert 0 < missed.sum() < missed.size / 2
        observations, _, _, _ = env.step(torch.ones(ENVS, 1))


@wp.kernel
def align(turns: wp.array[wp.mat33], alignment: int, found: wp.array[wp.mat33]) -> None:
    found[wp.tid()] = aligned(turns[wp.tid()], alignment)


@pytest.mark.parametrize(("pitch", "roll"), [(0.6, -0.4), (-1.2, 0.7), (np.pi / 2, 0.0), (-np.pi / 2, 0.0)])
def test_a_pattern_is_turned_by_the_yaw_of_its_frame_even_where_that_looks_straight_up_or_down(
    pitch: float, roll: float
) -> None:
    yaws, turn = np.linspace(-3.0, 3.0, 7), np.zeros(9)
    turns, expected = [], []
    for yaw in yaws:
        for angles, kept in (((yaw, pitch, roll), turns), ((yaw, 0.0, 0.0), expected)):
            quat = np.zeros(4)
            mujoco.mju_euler2Quat(quat, np.array(angles), "zyx")
            mujoco.mju_quat2Mat(turn, quat)
            kept.append(turn.reshape(3, 3).copy())
    found = wp.zeros(len(yaws), dtype=wp.mat33, device="cpu")
    inputs = [wp.array(np.array(turns), dtype=wp.mat33, device="cpu"), ALIGNMENTS.index("yaw")]
    wp.launch(align, dim=len(yaws), inputs=inputs, outputs=[found], device="cpu")
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def tracers(task: Any) -> list[Any]:
    """Return what casts rays, without what fits trees of geoms to where they are."""
    return [trace.__self__ for trace in task.tracers if hasattr(trace.__self__, "trace")]


def test_rays_that_no_term_observes_are_not_cast(env: WarpVecEnv) -> None:
    assert len(tracers(env.task)) == len(RAYS)


def test_rays_are_cast_when_an_episode_begins_and_then_in_each_period() -> None:
    slow = {"scan": {"update_period": 0.012}, "eye": {"update_period": 0.013}}  # Two steps of 6 ms.
    task: Any = Feeling(CONFIG.change(engine="mujoco", sensors=slow), num_envs=ENVS, device="cpu", seed=0)
    env = WarpVecEnv(task)
    observations = env.reset(seed=1)
    task.episode_length.assign(np.arange(ENVS))  # Episodes begin anew in different steps.
    cast, at = 0, 0
    columns = {name: slice(at, at := at + count) for name, count in task.observation_terms["policy"].items()}
    for _ in range(8):
        before = observations["policy"]
        observations, _, _, _ = env.step(torch.ones(ENVS, 1))
        for row, age in enumerate(task.age.numpy()):
            is_due = age % 2 == 0
            found = [any(each._found.numpy()[row] >= 0.0) for each in tracers(task)]
            assert found == [is_due, True, is_due, True]
            for name, part in columns.items():
                seen = observations["policy"][row, part]
                if is_due or name not in slow:
                    np.testing.assert_allclose(seen, hits(task, row, name)[0], rtol=0, atol=1e-5)
                else:
                    torch.testing.assert_close(seen, before[row, part], rtol=0, atol=0)
            cast += is_due
    assert cast == 4 + 4 + 5  # Their ages are 1 2 3 4 0 1 2 3, 1 2 3 0 1 2 3 4 and 1 2 0 1 2 3 4 0.


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no frame": ({"body": ""}, "sensors.scan has nothing that its rays begin at: give one pattern of them."),
    "two kinds of frames": ({"site": "left"}, "sensors.scan has body and site: give one pattern of them."),
    "a body that does not exist": ({"body": "trunck"}, r"matches no body of the model. Did you mean 'trunk'\?"),
    "no distance between rays": (
        {"resolution": 0.0},
        "sensors.scan cannot be made: resolution is 0, but must be above 0",
    ),
    "no length": ({"max_distance": 0.0}, "sensors.scan.max_distance is 0.0, but must be above 0"),
    "an alignment that does not exist": (
        {"ray_alignment": "roll"},
        "sensors.scan.ray_alignment is 'roll', but must be",
    ),
    "a parameter that the pattern lacks": ({"radius": 1.0}, "sensors.scan cannot be made: grid.. got an unexpected"),
    "groups without geoms": ({"include_geom_groups": (5, 9)}, r"are in the groups \[0, 4\]: name one of them"),
    "no rays": ({"size": (-1.0, 1.0)}, "sensors.scan has a pattern that returns no rays: it must return their offsets"),
    "no direction": ({"direction": (0.0, 0.0, 0.0)}, "sensors.scan has a pattern that returns no rays"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rays_are_refused_in_one_sentence_when_the_task_is_built(wrong: str) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(ShoalError, match=message):
        Feeling(CONFIG.change(engine="mujoco", sensors={"scan": change}), num_envs=1, device="cpu", seed=0)


@pytest.mark.parametrize(
    "returned", [None, [[0.0, 0.0, 0.0]], ([[0.0] * 3], [[1.0] * 3] * 2), ([["x"] * 3], [["y"] * 3])]
)
def test_a_pattern_that_returns_no_rays_is_refused(returned: Any) -> None:
    own = {"own": mdp.RayCast(lambda: returned, body="trunk")}
    with pytest.raises(ShoalError, match=r"sensors\.own has a pattern that returns no rays"):
        Feeling(CONFIG.change(engine="mujoco", sensors=own), num_envs=1, device="cpu", seed=0)


def test_an_observation_of_rays_that_are_not_declared_is_refused() -> None:
    scan = {"scan": mdp.Obs("ray_distances", sensor_name="scam")}
    with pytest.raises(ShoalError, match=r"does not declare rays of that name. Did you mean 'scan'\?"):
        Feeling(CONFIG.change(engine="mujoco", observations={"policy": scan}), num_envs=1, device="cpu", seed=0)


def test_a_pattern_of_an_impossible_angle_is_refused() -> None:
    for fovy in (0.0, 180.0):
        with pytest.raises(ValueError, match=r"fovy is .*, but must be above 0 and below 180"):
            ray_patterns.pinhole(fovy=fovy)

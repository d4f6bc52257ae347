"""Images as observations, by MuJoCo's own rays from the same camera."""

# ruff: noqa: ARG003

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import mujoco
import numpy as np
import pytest
import torch
from support.documented import ROOT
from support.videos import draws

from shoal import mdp
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODEL = """<mujoco><asset><mesh name="wedge" vertex="0 0 0 0.4 0 0 0 0.4 0 0 0 0.4"/></asset>
  <visual><headlight ambient="0.2 0.2 0.2" diffuse="0.3 0.3 0.3" specular="0 0 0"/></visual><worldbody>
  <light name="sun" type="directional" dir="0.6 0 -0.8" diffuse="0.4 0.4 0.2" ambient="0.1 0 0" specular="0 0 0"/>
  <geom name="floor" type="plane" size="0 0 1" rgba="0.2 0.5 0.8 1"/>
  <camera name="fixed" pos="-1.2 0.2 0.6" xyaxes="0 -1 0 0.4 0 1"/>
  <body name="cart" pos="0 0 0.3"><joint name="slide" type="slide" axis="1 0 0"/>
    <joint name="turn" axis="0 0 1" damping="1"/><geom type="box" size="0.1 0.05 0.1" mass="1" rgba="0.9 0.2 0.1 1"/>
    <body name="head" pos="0 0 0.2"><joint name="nod" axis="0 1 0" damping="1"/>
      <geom size="0.02" mass="0.1" group="3" contype="0"/></body></body>
  <geom name="ball" type="sphere" size="0.2" pos="0.9 0.2 0.4"/><geom type="capsule" size="0.1 0.2" pos="1 -0.3 0.3"/>
  <geom type="cylinder" size="0.1 0.2" pos="1.2 0.6 0.2"/><geom type="mesh" mesh="wedge" pos="0.7 -0.7 0.1"/>
  <geom type="box" size="0.1 0.1 0.1" pos="0.6 0 0.05" group="4"/>
</worldbody><actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""

EYES = {
    "eye": mdp.Camera(
        parent_body="head", pos=(0.03, 0.0, 0.0), quat=(0.5, 0.5, -0.5, -0.5), fovy=70, width=12, height=9
    ),
    "watch": mdp.Camera(camera_name="fixed", width=8, height=8, enabled_geom_groups=(0, 4)),
}
FAR = 4.0


def depth(name: str, **more: Any) -> Any:
    return mdp.Obs("camera_depth", sensor_name=name, cutoff_distance=FAR, **more)


CONFIG = mdp.task_config(
    mdp.TermsConfig,
    decimation=3,
    episode_length_s=0.03,
    actions={"turn": mdp.Action("joint_effort", actuators="turn", scale=3.0)},
    sensors=EYES,
    observations={
        "policy": {"position": mdp.Obs("joint_pos", joints=".*")},
        "image": {"now": depth("eye"), "last": depth("eye", history_length=2)},
        "watch": {"depth": depth("watch"), "rgb": mdp.Obs("camera_rgb", sensor_name="watch")},
        "parts": {
            "seen": mdp.Obs("camera_segmentation", sensor_name="watch"),
            "mask": mdp.Obs("camera_mask", sensor_name="watch", geoms="ball|floor"),
        },
    },
    events={
        "start": mdp.Event("reset_joints_by_offset", "reset", joints=".*", position=(-0.3, 0.3), velocity=(-1, 1)),
        "lens": mdp.Event("cam_fovy", "startup", cameras="eye", ranges=(0.7, 1.2), operation="scale"),
        "mount": mdp.Event("cam_pos", "startup", cameras="eye", ranges=(-0.05, 0.05), operation="add"),
        "paint": mdp.Event("geom_rgba", "startup", geoms="ball", ranges=(0.0, 1.0), axes=(0, 1, 2), operation="abs"),
        "lamp": mdp.Event("light_diffuse", "startup", lights="sun", ranges=(0.5, 1.5), operation="scale"),
        "size": mdp.Event("geom_size", "startup", geoms="ball", ranges=(0.5, 1.5), operation="scale"),
    },
    rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
    fresh_observations=True,
)


class Looking(mdp.TermsTask[mdp.TermsConfig]):
    """A cart with a turning head, among shapes."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL)


ENVS = 3


@pytest.fixture(scope="module", params=["mujoco", "mjwarp"])
def env(request: pytest.FixtureRequest) -> WarpVecEnv:
    return WarpVecEnv(Looking(CONFIG.change(engine=request.param), num_envs=ENVS, device="cpu", seed=0))


class Seen(NamedTuple):
    """What MuJoCo's rays hit in each pixel of a camera. Shapes (height, width) and (height, width, 3)."""

    model: mujoco.MjModel
    data: mujoco.MjData
    depth: np.ndarray
    """0 where they hit nothing [m]."""
    geom: np.ndarray
    """Index, -1 for none."""
    normal: np.ndarray
    ahead: np.ndarray
    """The camera's direction. Shape (3,)."""


def seen(task: Looking, env: int, camera: str, term: Any) -> Seen:
    """Return what a camera sees in an environment by MuJoCo's rays."""
    model = copy(task.model)
    for name in ("cam_fovy", "cam_pos", "geom_size", "geom_rgba", "light_diffuse"):
        getattr(model, name)[:] = task.parameter(name).numpy()[env].reshape(getattr(model, name).shape)
    data = mujoco.MjData(model)
    data.qpos[:] = task.qpos.numpy()[env]
    mujoco.mj_forward(model, data)
    up = np.tan(np.deg2rad(model.camera(camera).fovy[0]) / 2)
    rows, columns = np.mgrid[: term.height, : term.width]
    x = ((columns + 0.5) / term.width * 2 - 1) * up * term.width / term.height
    y = (1 - (rows + 0.5) / term.height * 2) * up
    rays = np.stack([x, y, -np.ones_like(x)], axis=-1).reshape(-1, 3)
    lengths = np.linalg.norm(rays, axis=1)
    world = (rays / lengths[:, None]) @ data.camera(camera).xmat.reshape(3, 3).T
    groups = np.array([group in term.enabled_geom_groups for group in range(6)], dtype=np.uint8)
    distances, geoms, normals = np.empty(len(rays)), np.empty(len(rays), dtype=int), np.empty((len(rays), 3))
    for at, ray in enumerate(world):
        hit = np.zeros(1, dtype=np.int32)
        distances[at] = mujoco.mj_ray(model, data, data.camera(camera).xpos, ray, groups, 1, -1, hit, normals[at])
        geoms[at] = hit[0]
    depths, shape = np.where(distances < 0.0, 0.0, distances / lengths), (term.height, term.width)
    ahead = -data.camera(camera).xmat.reshape(3, 3)[:, 2]
    return Seen(model, data, depths.reshape(shape), geoms.reshape(shape), normals.reshape(*shape, 3), ahead)


def colours(view: Seen) -> np.ndarray:
    """Return the colour of each pixel by Lambert's law, with the two lights of the model. Shape (3, height, width)."""
    model, dark = view.model, np.zeros(3)
    light = model.vis.headlight.ambient + model.light_ambient[0]
    for diffuse, direction in ((model.vis.headlight.diffuse, view.ahead), (model.light_diffuse[0], model.light_dir[0])):
        light = light + diffuse * np.maximum(0.0, -view.normal @ direction)[..., None]
    seen_colour = np.where(view.geom[..., None] < 0, dark, model.geom_rgba[view.geom, :3] * light)
    return np.clip(seen_colour, 0.0, 1.0).transpose(2, 0, 1)


def compare(env: WarpVecEnv, observations: Mapping[str, torch.Tensor]) -> None:
    """Compare the present images of all environments with those of their present positions, to 1e-5 m."""
    images: list[Any] = [observations["image"][:, 0], observations["image"][:, 2], observations["watch"][:, 0]]
    task: Any = env.task
    for row in range(ENVS):
        eye, watch = seen(task, row, "eye", EYES["eye"]), seen(task, row, "fixed", EYES["watch"])
        assert eye.depth.std() > 0.2  # There is something to see.
        for image, truth in zip(images, (eye, eye, watch), strict=True):
            np.testing.assert_allclose(image[row] * FAR, np.clip(truth.depth, 0.01, FAR), rtol=0, atol=1e-5)
        geoms = watch.geom
        mask = np.isin(geoms, [task.model.geom(name).id for name in ("floor", "ball")])
        types = np.where(geoms < 0, -1, int(mujoco.mjtObj.mjOBJ_GEOM))
        np.testing.assert_array_equal(observations["parts"][row], np.stack([geoms, types, mask]))
        assert 0 < mask.sum() < mask.size
        # Ground without a material is a chequer of 214 and 255. Bytes are rounded down.
        seen_colours, light, is_floor = observations["watch"][row, 1:].numpy(), colours(watch), geoms == 0
        chequer = [np.where(is_floor, each / 255, 1.0) * light - 0.5 / 255 for each in (214, 255)]
        apart = np.abs(np.stack(chequer) - seen_colours)
        assert apart.min(axis=0).max() < 0.51 / 255
        assert 0.3 < (apart[0] < apart[1])[:, is_floor].mean() < 0.7


def test_images_are_the_depths_and_colours_of_what_mujocos_rays_hit_from_the_same_camera(env: WarpVecEnv) -> None:
    observations = env.reset(seed=1)
    assert observations["image"].shape == (ENVS, 3, 9, 12)
    assert observations["watch"].shape == (ENVS, 4, 8, 8)
    for at in range(8):  # Episodes of five steps begin anew.
        compare(env, observations)
        before = observations["image"][:, 2].clone()
        observations, _, dones, _ = env.step(torch.full((ENVS, 1), 1.0))
        assert dones.all() == (at == 4)
        if not dones.any():  # The stack has the image before, and then the present one.
            torch.testing.assert_close(observations["image"][:, 1], before, rtol=0, atol=0)
            assert (observations["image"][:, 2] != before).any()


RENDER = """
import sys, mujoco, numpy as np
model = mujoco.MjModel.from_binary_path("model.mjb")
data, option = mujoco.MjData(model), mujoco.MjvOption()
data.qpos[:] = np.load("qpos.npy")
mujoco.mj_forward(model, data)
option.geomgroup[:] = [1, 0, 0, 0, 1, 0]
with mujoco.Renderer(model, int(sys.argv[1]), int(sys.argv[1])) as renderer:
    renderer.update_scene(data, "fixed", option)
    renderer.enable_depth_rendering()
    np.save("depths.npy", renderer.render())
    renderer.disable_depth_rendering()
    renderer.enable_segmentation_rendering()
    np.save("geoms.npy", renderer.render()[..., 0])
"""


@draws
def test_depth_and_segmentation_are_those_of_mujocos_renderer(env: WarpVecEnv, tmp_path: Path) -> None:
    task: Any = env.task
    observations, view, fine = env.reset(seed=1), seen(task, 0, "fixed", EYES["watch"]), 5
    quality = view.model.vis.quality
    quality.offsamples, quality.numslices, quality.numstacks = 0, 128, 128  # Round shapes are polyhedra there.
    mujoco.mj_saveModel(view.model, str(tmp_path / "model.mjb"), None)
    np.save(tmp_path / "qpos.npy", view.data.qpos)
    command = [sys.executable, "-c", RENDER, str(8 * fine)]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "MUJOCO_GL": "osmesa"})
    depths, geoms = np.load(tmp_path / "depths.npy"), np.load(tmp_path / "geoms.npy")
    # The middle of each block of pixels is that of one of the camera's. A block that has several geoms has an edge.
    blocks = geoms.reshape(8, fine, 8, fine).swapaxes(1, 2).reshape(8, 8, -1)
    whole, middle = (blocks == blocks[..., :1]).all(axis=-1), slice(fine // 2, None, fine)
    assert whole.mean() > 0.5
    np.testing.assert_array_equal(observations["parts"][0, 0][whole], geoms[middle, middle][whole])
    near = whole & (depths[middle, middle] < FAR)
    np.testing.assert_allclose(observations["watch"][0, 0][near] * FAR, depths[middle, middle][near], rtol=0, atol=1e-3)
    assert len({*geoms[middle, middle][near]}) > 2


def colours_in(spec: mujoco.MjSpec, sensors: dict[str, Any], num_envs: int = 1, **config: Any) -> tuple[Any, Any]:
    """Return a task of a scene with a joint `turn`, and what each camera sees, (num_envs, 3, height, width)."""

    class Scene(Looking):
        @classmethod
        def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
            return spec.copy()

    built = mdp.task_config(
        mdp.TermsConfig,
        engine="mujoco",
        actions=CONFIG.terms("actions"),
        sensors=sensors,
        observations={name: {"rgb": mdp.Obs("camera_rgb", sensor_name=name)} for name in sensors},
        rewards=CONFIG.terms("rewards"),
        **config,
    )
    task = Scene(built, num_envs=num_envs, device="cpu", seed=0)
    return task, WarpVecEnv(task).get_observations()


DARK = """<mujoco><visual><headlight active="{}" ambient="0.1 0.2 0.1" diffuse="0.4 0.3 0.2" specular="0 0 0"/></visual>
  <worldbody><camera name="eye" quat="0.5 0.5 -0.5 -0.5"/><body><joint name="turn"/>
  <geom type="box" pos="2 0 0" size="1 9 9" rgba="0.9 0.6 0.3 1"/></body></worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""


@pytest.mark.parametrize(("active", "light"), [(1, (0.5, 0.5, 0.3)), (0, (0.3, 0.3, 0.3))])
def test_a_scene_without_lights_is_lit_by_the_headlight_and_without_it_by_three_tenths(
    active: int, light: tuple[float, ...]
) -> None:
    eye = mdp.Camera(camera_name="eye", width=4, height=3)
    _, images = colours_in(mujoco.MjSpec.from_string(DARK.format(active)), {"eye": eye})
    wanted = np.multiply(light, (0.9, 0.6, 0.3))[:, None, None] * np.ones((3, 3, 4))  # The light falls straight on it.
    np.testing.assert_allclose(images["eye"][0], wanted, rtol=0, atol=1.01 / 255)


PAINTED = """<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual><asset>
  <texture name="sky" type="skybox" builtin="flat" rgb1="0.2 0.4 0.6" width="8" height="8"/>
  <texture name="paint" type="2d" builtin="flat" rgb1="0.2 0.8 0.4" width="8" height="8"/>
  <material name="painted" texture="paint" rgba="1 0.5 1 1"/></asset><worldbody>
  <camera name="eye" quat="0.5 0.5 -0.5 -0.5"/><body><joint name="turn"/>
  <geom type="box" pos="2 2 0" size="1 2 9" material="painted"/></body></worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""


def test_a_camera_has_the_textures_of_materials_and_the_sky_unless_it_is_declared_without() -> None:
    eye = mdp.Camera(camera_name="eye", width=2, height=1)  # A wall to the left, and the sky.
    sensors = {"eye": eye, "plain": replace(eye, use_textures=False)}
    _, images = colours_in(mujoco.MjSpec.from_string(PAINTED), sensors)
    seen_colours = {name: images[name][0, :, 0].T for name in ("eye", "plain")}
    np.testing.assert_allclose(seen_colours["eye"], [(0.2, 0.4, 0.4), (0.2, 0.4, 0.6)], rtol=0, atol=1.01 / 255)
    np.testing.assert_allclose(seen_colours["plain"], [(1.0, 0.5, 1.0), (0.0, 0.0, 0.0)], rtol=0, atol=1.01 / 255)


SPOT = """<mujoco><visual><headlight active="0"/></visual><asset>
  <texture name="chequer" type="2d" builtin="checker" rgb1="0.2 0.8 0.4" rgb2="0.9 0.3 0.6" width="64" height="64"/>
  <material name="paint" texture="chequer"/></asset><worldbody><light name="lamp" type="spot" pos="1 0 0" dir="1 0 0"/>
  <camera name="eye" quat="0.5 0.5 -0.5 -0.5" fovy="60"/><body><joint name="turn"/>
  <geom type="box" pos="3 0 0" size="1 2 2" material="paint"/></body></worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""

DRAWN = {
    **{f"light_{name}": (0.2, 0.6) for name in ("ambient", "diffuse", "specular")},
    "light_attenuation": (0.1, 0.2),
    "light_cutoff": (20.0, 40.0),
    "light_exponent": (2.0, 20.0),
    **{f"mat_{name}": (0.2, 0.6) for name in ("emission", "shininess", "specular", "rgba")},
    "mat_texrepeat": (1.0, 4.0),
}


def test_what_events_draw_of_lights_and_materials_is_seen_as_if_the_model_had_it() -> None:
    eye = {"eye": mdp.Camera(camera_name="eye", width=12, height=9)}
    of = {"light": {"lights": "lamp"}, "mat": {"materials": "paint"}}
    events = {
        name: mdp.Event(name, "startup", ranges=ranges, operation="abs", **of[name.partition("_")[0]])
        for name, ranges in DRAWN.items()
    }
    task, images = colours_in(mujoco.MjSpec.from_string(SPOT), eye, num_envs=2, events=events)
    for env, image in enumerate(images["eye"]):
        spec = mujoco.MjSpec.from_string(SPOT)
        for path in DRAWN:
            kind, _, name = path.partition("_")
            values = task.parameter(path).numpy()[env, 0]
            setattr(spec.lights[0] if kind == "light" else spec.materials[0], name, values)
        np.testing.assert_allclose(image, colours_in(spec, eye)[1]["eye"][0], rtol=0, atol=1.01 / 255)


LAMP = """<mujoco><visual><headlight active="0"/></visual><worldbody>
  <light name="lamp" type="point" pos="0 0.4 0.3" diffuse="0.9 0.9 0.9" ambient="0 0 0" specular="0 0 0"/>
  <camera name="eye" quat="0.5 0.5 -0.5 -0.5" fovy="80"/><geom size="0.2" pos="0.6 0.2 0.2"/>
  <body><joint name="turn"/><geom name="wall" type="box" pos="2 0 0" size="1 9 9" rgba="1 1 1 1"/></body></worldbody>
  <actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""


def test_a_lamp_fades_by_the_attenuation_of_each_environment_and_casts_shadows_when_asked() -> None:
    eye = mdp.Camera(camera_name="eye", width=12, height=9)
    fading = mdp.Event("light_attenuation", "startup", lights="lamp", ranges=(0.4, 1.0), operation="abs")
    sensors = {"eye": eye, "shaded": replace(eye, use_shadows=True)}
    task, images = colours_in(mujoco.MjSpec.from_string(LAMP), sensors, num_envs=2, events={"fading": fading})
    model, data, wall = task.model, mujoco.MjData(task.model), task.model.geom("wall").id
    mujoco.mj_forward(model, data)
    up, hit = np.tan(np.deg2rad(40)), np.zeros(1, dtype=np.int32)
    attenuations, shadows = task.parameter("light_attenuation").numpy()[:, 0], 0
    assert np.abs(attenuations[0] - attenuations[1]).min() > 0.02
    for row, column in np.ndindex(9, 12):
        ray = np.array([1.0, (0.5 - (column + 0.5) / 12) * 2 * up * 12 / 9, (0.5 - (row + 0.5) / 9) * 2 * up])
        mujoco.mj_ray(model, data, np.zeros(3), ray, None, 1, -1, hit, None)
        if hit[0] != wall:
            continue
        way = data.light_xpos[0] - ray  # The wall is 1 m ahead.
        far = np.linalg.norm(way)
        mujoco.mj_ray(model, data, data.light_xpos[0], -way, None, 1, -1, hit, None)
        shadows += hit[0] != wall
        for env, attenuation in enumerate(attenuations):
            light = 0.9 * -way[0] / far / (attenuation @ (1.0, far, far * far))  # Lambert's law; MuJoCo's attenuation.
            shaded = light if hit[0] == wall else 0.3 * light  # What MuJoCo Warp leaves of it.
            for name, expected in (("eye", light), ("shaded", shaded)):
                np.testing.assert_allclose(images[name][env, :, row, column], expected, rtol=0, atol=1.01 / 255)
    assert 2 < shadows < 20


def test_an_image_is_drawn_when_an_episode_begins_and_then_in_each_period() -> None:
    slow = {"eye": {"update_period": 0.011}, "watch": {"update_period": 0.013}}  # Nearest to two steps of 6 ms.
    task: Any = Looking(CONFIG.change(engine="mujoco", sensors=slow), num_envs=ENVS, device="cpu", seed=0)
    cameras = [trace.__self__ for trace in task.tracers if hasattr(trace.__self__, "trace")]
    env, traced = WarpVecEnv(task), [camera._context.depth_data for camera in cameras]
    observations = env.reset(seed=1)
    task.episode_length.assign(np.arange(ENVS))  # Episodes begin anew in different steps.
    drawn = 0
    for _ in range(8):
        before = observations
        observations, _, _, _ = env.step(torch.ones(ENVS, 1))
        for row, age in enumerate(task.age.numpy()):
            is_due = age % 2 == 0
            assert [images.numpy()[row].any() for images in traced] == [is_due, is_due]
            if is_due:
                watch, image = seen(task, row, "fixed", EYES["watch"]), observations["watch"][row, 0] * FAR
                np.testing.assert_allclose(image, np.clip(watch.depth, 0.01, FAR), rtol=0, atol=1e-5)
                np.testing.assert_array_equal(observations["parts"][row, 0], watch.geom)
                drawn += 1
            else:
                for name in ("watch", "parts"):
                    torch.testing.assert_close(observations[name][row], before[name][row], rtol=0, atol=0)
    # Their ages are 1 2 3 4 0 1 2 3, 1 2 3 0 1 2 3 4 and 1 2 0 1 2 3 4 0.
    assert drawn == 4 + 4 + 5
    rows = {name: values.clone() for name, values in env.rows().items()}
    after, again = list[Any](), list[Any]()
    for found in (after, again):
        env.put_rows(rows)
        found += [env.step(torch.ones(ENVS, 1))[0].clone() for _ in range(3)]
    assert all((one == other).all() for one, other in zip(after, again, strict=True))


def test_cameras_and_rays_of_the_same_geoms_share_a_tree_that_is_fitted_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    along = (0.8, 0.0, -0.6)
    one: Any = {"size": (0.0, 0.0), "direction": along, "body": "head", "ray_alignment": "world"}
    ray = mdp.RayCast("grid", **one, include_geom_groups=(0, 5))
    deep = replace(ray, include_geom_groups=(0, 4))  # The box before it, which hides the floor.
    changes: Any = {"watch": {"enabled_geom_groups": (0, 1)}, "ray": ray, "deep": deep}  # 1, 2 and 5 have no geom.
    rays = {name: mdp.Obs("ray_distances", sensor_name=name) for name in ("ray", "deep")}
    observed = {"policy": {"position": None, **rays}}
    config = CONFIG.change(engine="mujoco", sensors=changes, observations=observed)
    task, fitted = Looking(config, num_envs=ENVS, device="cpu", seed=0), list[Any]()
    env = WarpVecEnv(task)
    env.reset(seed=1)
    tracing = import_module("shoal.sim.engines.tracing")
    refit = tracing.mjw.refit_bvh
    monkeypatch.setattr(tracing.mjw, "refit_bvh", lambda *given: fitted.append(refit(*given)))
    for trace in task.tracers:
        trace()
    assert len(fitted) == 2, "one of the group 0, and one of 0 and 4"
    observations, hidden = env.step(torch.ones(ENVS, 1))[0], 0
    for row in range(ENVS):
        views = seen(task, row, "eye", EYES["eye"]), seen(task, row, "fixed", config.terms("sensors")["watch"])
        for image, view in zip((observations["image"][row, 0], observations["watch"][row, 0]), views, strict=True):
            np.testing.assert_allclose(image * FAR, np.clip(view.depth, 0.01, FAR), rtol=0, atol=1e-5)
        model, data, head = views[0].model, views[0].data, views[0].data.body("head")
        distances = list[float]()
        for kept in ((1, 0, 0, 0, 0, 0), (1, 0, 0, 0, 1, 0)):
            groups, hit = np.array(kept, dtype=np.uint8), np.zeros(1, dtype=np.int32)
            distances.append(mujoco.mj_ray(model, data, head.xpos, along, groups, 1, head.id, hit, None))
        hidden += distances[1] < distances[0] - 0.1
        np.testing.assert_allclose(observations["policy"][row], distances, rtol=0, atol=1e-5)
    assert hidden


def test_the_last_image_of_an_episode_is_that_before_the_reset() -> None:
    task = Looking(CONFIG.change(engine="mujoco"), num_envs=ENVS, device="cpu", seed=0)
    env = WarpVecEnv(task)
    env.keep_final_observations()
    env.reset(seed=1)
    for _ in range(4):
        env.step(torch.zeros(ENVS, 1))
    observations, _, dones, extras = env.step(torch.zeros(ENVS, 1))
    assert dones.all()
    final = extras["final_observation"]
    assert final["image"].shape == observations["image"].shape
    assert (final["image"][:, 0] != observations["image"][:, 0]).any()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a camera that does not exist": (
        {"sensors": {"eye": mdp.Camera(camera_name="fixd")}, "events": {"lens": None, "mount": None}},
        r"sensors.eye.camera_name is 'fixd', which matches no camera of the model. Did you mean 'fixed'\?",
    ),
    "a body that does not exist": (
        {"sensors": {"eye": mdp.Camera(parent_body="haed")}},
        r"sensors.eye.parent_body is 'haed', which matches no body of the model. Did you mean 'head'\?",
    ),
    "several bodies": (
        {"sensors": {"eye": mdp.Camera(parent_body="cart|head")}},
        r"which matches more than one body \(cart, head\): name one.",
    ),
    "a place of a camera that the model has": (
        {"sensors": {"eye": mdp.Camera(camera_name="fixed", fovy=60.0)}},
        "sensors.eye has camera_name, and fovy of a new camera: give one of them.",
    ),
    "a parameter that no camera has": (
        {"sensors": {"eye": mdp.Camera(fov=60.0)}},
        r"sensors.eye.fov is given, but a camera has no such parameter. Did you mean 'fovy'\?",
    ),
    "a width of 0": ({"sensors": {"eye": {"width": 0}}}, "sensors.eye.width is 0, but must be at least 1."),
    "a flat angle": ({"sensors": {"eye": {"fovy": 180}}}, "sensors.eye.fovy is 180, but must be above 0 and below"),
    "groups without geoms": (
        {"sensors": {"eye": {"enabled_geom_groups": (5,)}}},
        r"sensors.eye.enabled_geom_groups is \(5,\), but the model's geoms are in the groups \[0, 3, 4\]: name one",
    ),
    "a sensor that is no camera": (
        {"observations": {"image": {"now": depth("ear")}}},
        "observations.image.now.sensor_name is 'ear', but the task does not declare a camera of that name.",
    ),
    "images of two sizes in a group": (
        {"observations": {"image": {"now": depth("watch")}}},
        "observations.image has the image 'now' and 'last', which is none of its size: give images of one size a group",
    ),
    "a number beside an image": (
        {"observations": {"image": {"speed": mdp.Obs("joint_vel_rel", joints="turn")}}},
        "observations.image has the image 'now' and 'speed', which is none of its size",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_camera_is_refused_in_one_sentence_when_the_task_is_built(wrong: str) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(ShoalError, match=message):
        Looking(CONFIG.change(engine="mujoco", **change), num_envs=1, device="cpu", seed=0)


def test_the_camera_of_the_guide_looks_ahead_and_down() -> None:
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "camera.py"))
    task = example["Seeing"](example["Seeing"].config.change(engine="mujoco"), num_envs=1, device="cpu", seed=0)
    env = WarpVecEnv(task)
    image = env.reset(seed=0)["image"][0, 0]
    assert image.shape == (16, 24)
    # The ground is nearer in lower rows, and level from left to right.
    rows = image.median(dim=1).values
    assert (rows[8:].diff() < 0.0).all()
    ahead = task.model.cam_quat[task.model.camera("eye").id]
    direction = np.empty(3)
    mujoco.mju_rotVecQuat(direction, np.array([0.0, 0.0, -1.0]), ahead)
    np.testing.assert_allclose(direction, [np.cos(np.pi / 6), 0.0, -0.5], atol=0.01)

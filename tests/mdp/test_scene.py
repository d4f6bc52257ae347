"""Scenes of a robot and objects, by MuJoCo's own compilation of the same scene as one file."""

# ruff: noqa: ARG003

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from shoal import mdp
from shoal.config.plain import from_plain, to_plain
from shoal.errors import ShoalError, UsageError

ROBOT = """<body name="base" pos="0 0 0.3">{joint}<geom name="base" size="0.1" mass="2"/>
  <body name="arm" pos="0 0 0.1"><joint name="hinge" axis="0 1 0" range="-2 2"/>
  <geom name="arm" type="capsule" fromto="0 0 0 0.3 0 0" size="0.02" mass="0.5"/><site name="tip" pos="0.3 0 0"/>
  </body></body>"""
SCENE = """<mujoco><option timestep="0.004" integrator="implicitfast"/><worldbody>
  <geom name="floor" type="plane" size="0 0 1"/>{bodies}</worldbody>
  <actuator><position name="hinge" joint="hinge" kp="5" kv="1"/></actuator>
  {more}</mujoco>"""
KEY = '<keyframe><key name="home" qpos="{}"/></keyframe>'
FREE = SCENE.format(bodies=ROBOT.format(joint='<freejoint name="root"/>'), more=KEY.format("0 0 0.5 1 0 0 0 0.2"))
FIXED = SCENE.format(bodies=ROBOT.format(joint=""), more="")
CUBE = mdp.Object("geom", type="box", size=(0.05, 0.04, 0.03), mass=0.2, pos=(0.5, 0.1, 0.4), quat=(0.6, 0.0, 0.0, 0.8))
DOOR = """<mujoco><option gravity="0 0 3"/><worldbody><body name="frame" pos="0 0 0.2"><geom size="0.02"/>
  <body name="leaf"><joint name="turn" axis="0 0 1"/><geom type="box" size="0.2 0.01 0.2" pos="0.2 0 0" mass="1"/>
  </body></body>
  </worldbody><actuator><motor name="turn" joint="turn"/></actuator>
  <keyframe><key name="open" qpos="0.7" ctrl="0.05"/></keyframe></mujoco>"""


def door() -> mujoco.MjSpec:
    """Return a door that begins open."""
    return mujoco.MjSpec.from_string(DOOR)


def marker() -> mujoco.MjSpec:
    """Return two bodies."""
    return mujoco.MjSpec.from_string("<mujoco><worldbody><body/><body/></worldbody></mujoco>")


CONFIG = mdp.task_config(
    mdp.TermsConfig,
    decimation=2,
    actions={"hinge": mdp.Action("joint_position", actuators=".*", scale=0.5)},
    observations={"policy": {"joints": mdp.Obs("joint_pos_rel", joints=".*")}},
    rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
)


class Fixed(mdp.TermsTask[mdp.TermsConfig]):
    """An arm that is fixed to the world."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(FIXED)


class Free(Fixed):
    """An arm on a free base."""

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(FREE)


def build(task: Any = Free, num_envs: int = 2, **changes: Any) -> Any:
    return task(CONFIG.change(**changes), num_envs=num_envs, device="cpu", seed=0)


def stepped(model: mujoco.MjModel, qpos: np.ndarray, steps: int) -> np.ndarray:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_step(model, data, steps)
    return data.qpos


def test_a_robot_with_a_cube_moves_as_the_same_scene_in_one_file() -> None:
    cube = """<body name="b" pos="0.5 0.1 0.4" quat="0.6 0 0 0.8"><freejoint/>
      <geom type="box" size="0.05 0.04 0.03" mass="0.2"/></body>"""
    one = SCENE.format(bodies=ROBOT.format(joint="<freejoint/>") + cube, more="")
    model = Free.build_model(CONFIG.change(objects={"cube": CUBE}))
    np.testing.assert_array_equal(model.key_qpos[0], [0, 0, 0.5, 1, 0, 0, 0, 0.2, 0.5, 0.1, 0.4, 0.6, 0, 0, 0.8])
    pose = model.key_qpos[0]
    np.testing.assert_allclose(
        stepped(model, pose, 200), stepped(mujoco.MjModel.from_xml_string(one), pose, 200), rtol=0
    )


def test_patterns_without_a_slash_select_the_robot_and_those_with_a_prefix_the_object() -> None:
    task = build(objects={"cube": CUBE, "door": mdp.Object(door, base="fixed", pos=(1.0, 0.0, 0.0))})
    names = task.binder.names
    assert [names.names("joint")[each] for each in names.select("joint", ".*", "p")] == ["hinge"]
    assert [names.names("joint")[each] for each in names.select("joint", "door/.*", "p")] == ["door/turn"]
    assert [names.names("geom")[each] for each in names.select("geom", (".*", "cube/.*"), "p")] == [
        *("floor", "base", "arm", "cube/geom"),
    ]
    assert task.num_actions == 1
    assert task.observation_terms == {"policy": {"joints": 1}}


def test_the_default_state_is_that_of_the_robot_and_of_all_objects() -> None:
    objects = {"cube": CUBE, "door": mdp.Object(door, base="fixed", pos=(1.0, 0.0, 0.0))}
    for task, own in (
        (build(Free, objects=objects), [0, 0, 0.5, 1, 0, 0, 0, 0.2]),
        (build(Fixed, objects=objects), [0]),
    ):
        expected = [*own, 0.5, 0.1, 0.4, 0.6, 0, 0, 0.8, 0.7]
        np.testing.assert_allclose(task.home(), expected)
        np.testing.assert_allclose(task.qpos.numpy(), [expected] * 2, rtol=1e-6)
        np.testing.assert_allclose(task.first_state()["ctrl"], [0.0, 0.05])
        assert task.model.opt.gravity[2] == -9.81


def test_an_object_is_free_fixed_or_moved_by_the_task() -> None:
    kinds = {
        base: mdp.Object("geom", type="sphere", size=(0.1,), pos=(2.0, 0.0, 1.0), base=base)
        for base in ("free", "fixed", "mocap")
    }
    model = Fixed.build_model(CONFIG.change(objects=kinds))
    data = mujoco.MjData(model)
    data.mocap_pos[0] = 3.0, 0.0, 1.0
    mujoco.mj_step(model, data, 20)
    places = np.array([data.body(f"{base}/body").xpos for base in kinds])
    assert places[0, 2] < 0.98
    np.testing.assert_allclose(places[1:], [[2.0, 0.0, 1.0], [3.0, 0.0, 1.0]])


def test_an_object_of_a_file_and_its_place_are_flags(tmp_path: Path) -> None:
    file = tmp_path / "door.xml"
    file.write_text(DOOR, encoding="utf-8")
    config = CONFIG.change(objects={"door": mdp.Object("mjcf", file="none", base="fixed")})
    config = from_plain(config, {"objects": {"door": {"file": str(file), "pos": [1.0, 2.0, 0.0]}}})
    assert config.model_files() == {"objects.door.file": str(file)}
    assert to_plain(config)["objects"]["door"]["pos"] == [1.0, 2.0, 0.0]
    model = Fixed.build_model(config)
    np.testing.assert_allclose(model.body("door/frame").pos, [1.0, 2.0, 0.2])


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (mdp.Object(marker), r"^env\.objects\.x has 2 bodies in its world, but a base that is free is one: pass fixed"),
        (
            mdp.Object(lambda: mujoco.MjSpec.from_string(DOOR.replace("<geom size", "<joint/><geom size"))),
            "has a joint at its base",
        ),
        (mdp.Object("geom", type="cube"), r"^env\.objects\.x cannot be made: The type of a geom is 'cube'"),
        (mdp.Object("geom", type="box", sizee=(0.1, 0.1, 0.1)), r"'sizee' is no attribute .* Did you mean 'size'\?"),
        (mdp.Object("box"), r"^env\.objects\.x is 'box', which is no function of shoal\.mdp\.objects"),
        (mdp.Object("mjcf", file="nothing.xml"), r"^env\.objects\.x cannot be made: .*nothing\.xml"),
        (
            mdp.Object("geom", type="box", size=(0.0, 0.1, 0.1)),
            r"^The model of Fixed \(see line .* does not compile: .*size",
        ),
    ],
)
def test_an_object_that_cannot_be_is_refused(declared: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Fixed.build_model(CONFIG.change(objects={"x": declared}))


def test_a_body_that_is_not_mocap_is_no_mocap_body() -> None:
    event = mdp.Event("reset_mocap_pose_uniform", "reset", body="cube/body")
    with pytest.raises(UsageError, match=r"events\.x\.body selects cube/body, which the task does not move: give its"):
        build(objects={"cube": CUBE}, events={"x": event})


def test_a_task_without_a_model_is_refused() -> None:
    with pytest.raises(
        ShoalError, match=r"^None_ has no model: return its robot and ground as an MjSpec in build_spec"
    ):
        type("None_", (mdp.TermsTask,), {"config": CONFIG})(CONFIG, num_envs=1, device="cpu", seed=0)


def test_roles_of_the_configuration_stand_in_patterns() -> None:
    task = build(
        roles={"links": "arm|hinge"}, observations={"policy": {"joints": mdp.Obs("joint_pos_rel", joints="{links}")}}
    )
    assert task.observation_terms == {"policy": {"joints": 1}}


SPREAD: dict[str, Any] = {
    "x": (-0.3, 0.3),
    "y": (0.1, 0.2),
    "z": (0.0, 0.1),
    "yaw": (-1.0, 1.0),
    "velocity_x": (1.0, 2.0),
}
POSES = {
    "pos": mdp.Obs("root_pos_w", root_body="cube/body"),
    "quat": mdp.Obs("root_quat_w", root_body="cube/body"),
    "lin_vel": mdp.Obs("root_lin_vel_w", root_body="cube/body"),
    "ang_vel": mdp.Obs("root_ang_vel_w", root_body="cube/body"),
    "pos_b": mdp.Obs("body_pos_b", body="cube/body"),
    "quat_b": mdp.Obs("body_quat_b", body="cube/body"),
    "to_tip": mdp.Obs("ee_to_object_distance", site="tip", object_body="cube/body"),
    "tip": mdp.Obs("site_pos_w", sites="tip"),
}


def test_an_object_begins_near_its_place_and_is_observed_as_mujoco_has_it() -> None:
    spin = SPREAD | {"velocity_yaw": (3.0, 3.0), "roll": (0.5, 0.5)}
    base = mdp.Event("reset_root_state_uniform", "reset", x=(5.0, 5.0), pitch=(0.4, 0.4), yaw=(1.0, 1.0))
    events = {"cube": mdp.Event("reset_root_state_uniform", "reset", root_body="cube/body", **spin), "base": base}
    task = build(num_envs=64, objects={"cube": CUBE}, events=events, observations={"policy": {"joints": None} | POSES})
    task.restart(1)
    cube, drawn = task.qpos.numpy()[:, 8:], task.qpos.numpy()[:, 8:11] - task.home()[8:11]
    assert (drawn.min(axis=0) >= [-0.3, 0.1, 0.0]).all()
    assert (drawn.max(axis=0) <= [0.3, 0.2, 0.1]).all()
    assert np.ptp(drawn[:, 0]) > 0.5
    assert (task.qpos.numpy()[:, 0] == 5.0).all()
    observed = task.obs["policy"].numpy()
    data, found = mujoco.MjData(task.model), np.zeros(6)
    for env in range(64):
        data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(task.model, data)
        body, base_body, tip = data.body("cube/body"), data.body("base"), data.site("tip").xpos
        mujoco.mj_objectVelocity(task.model, data, mujoco.mjtObj.mjOBJ_XBODY, body.id, found, 0)
        to_base, turn = base_body.xmat.reshape(3, 3).T, np.zeros(4)
        mujoco.mju_negQuat(turn, base_body.xquat)
        mujoco.mju_mulQuat(turn, turn.copy(), body.xquat)
        expected = [body.xpos, body.xquat, found[3:], found[:3], to_base @ (body.xpos - base_body.xpos), turn]
        expected += [body.xpos - tip, tip]
        np.testing.assert_allclose(found[:3], [0.0, 0.0, 3.0], atol=1e-5)
        np.testing.assert_allclose(observed[env], np.concatenate(expected), atol=2e-5)
    assert cube.shape == (64, 7)


def test_a_push_of_an_object_leaves_the_robot_alone() -> None:
    still, every = (0.0, 0.0), {"interval": (0.001, 0.001), "root_body": "cube/.*"}
    push = mdp.Event("push_by_setting_velocity", "interval", x=(1.0, 1.0), y=still, **every)
    task = build(objects={"cube": CUBE}, events={"push": push})
    task.step()
    np.testing.assert_allclose(task.qvel.numpy()[:, 7], 1.0, atol=1e-5)
    np.testing.assert_allclose(task.qvel.numpy()[:, 0], 0.0, atol=0.05)


def test_a_mocap_object_is_put_near_its_place() -> None:
    ball = mdp.Object("geom", type="sphere", size=(0.1,), pos=(2.0, 0.0, 1.0), quat=(0.0, 1.0, 0.0, 0.0), base="mocap")
    event = mdp.Event("reset_mocap_pose_uniform", "reset", body="ball/body", x=(0.5, 0.5), yaw=(np.pi / 2, np.pi / 2))
    for task in (
        build(Fixed, objects={"ball": ball}, events={"ball": event}, engine=engine) for engine in ("mujoco", "mjwarp")
    ):
        np.testing.assert_allclose(task.data("mocap_pos").numpy()[:, 0], [[2.5, 0.0, 1.0]] * 2)
        half = np.sqrt(0.5)
        np.testing.assert_allclose(task.data("mocap_quat").numpy()[:, 0], [[0.0, half, -half, 0.0]] * 2, atol=1e-6)


def test_a_root_without_a_free_joint_is_refused() -> None:
    event = mdp.Event("reset_root_state_uniform", "reset", root_body="door/frame")
    with pytest.raises(ShoalError, match=r"needs a root_body with a free joint: use another"):
        build(objects={"door": mdp.Object(door, base="fixed")}, events={"x": event})


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
@pytest.mark.parametrize("fresh", [False, True])
def test_observations_are_of_the_end_of_a_step_where_they_are_asked_to_be(engine: Any, fresh: bool) -> None:
    shown = {"joints": None, "to_tip": POSES["to_tip"]}
    task = build(objects={"cube": CUBE}, observations={"policy": shown}, engine=engine, fresh_observations=fresh)
    for _ in range(3):
        task.actions.fill_(5.0)
        task.step()
    data = mujoco.MjData(task.model)
    data.qpos[:] = task.qpos.numpy()[0]
    mujoco.mj_kinematics(task.model, data)
    error = data.body("cube/body").xpos - data.site("tip").xpos - task.obs["policy"].numpy()[0]
    assert (float(np.abs(error).max()) < 1e-5) == fresh
    assert np.abs(error).max() < 0.1


@pytest.mark.parametrize(
    "declared",
    [
        {"objects": {"x": CUBE}},
        {"sensors": {"x": mdp.Sensor("clock")}},
        {"contacts": {"x": mdp.Contact(bodies="arm")}},
    ],
    ids=lambda declared: next(iter(declared)),
)
def test_a_task_that_builds_the_whole_model_itself_is_refused_without_what_is_declared(declared: Any) -> None:
    class Whole(Fixed):
        @classmethod
        def build_model(cls, config: mdp.TermsConfig) -> mujoco.MjModel:
            return mujoco.MjModel.from_xml_string(FIXED)

    with pytest.raises(
        ShoalError, match=r"^\w+\.x is declared, but the model does not have it: return robot and ground"
    ):
        build(Whole, **declared)

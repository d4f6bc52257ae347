"""Actuators: DC motors, whose torque falls with the speed, delayed actions, and velocities and torques as actions."""

# ruff: noqa: ARG003

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import UsageError
from shoal.mdp.annotations import ActuatorIds
from shoal.mdp.config import RobotConfig, TermsConfig, task_config
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.robots import build_spec
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Event, Obs, Reward

WHEEL = """
<mujoco>
  <option timestep="0.002" gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.05" mass="1e4"/>
      <body name="wheel" pos="0 0 0.2">
        <joint name="wheel" axis="0 0 1"/>
        <geom type="cylinder" size="0.1 0.01" mass="20"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="wheel" joint="wheel" kp="100" kv="2" forcerange="-20 20"/></actuator>
</mujoco>
"""
STALL, NO_LOAD, LIMIT, KP, KD = 30.0, 10.0, 20.0, 100.0, 2.0


@wp.func
def acting_torque(state: Any, env: int) -> float:
    """Return the torque of the last physics step."""
    return state.actuator_force[env, 0]


def curve(target: float, angle: float, speed: float) -> float:
    """Return the torque of a DC motor, limited as by mjlab's `dc_motor_clip` [N m]."""
    top = min(STALL * (1.0 - speed / NO_LOAD), LIMIT)
    bottom = max(STALL * (-1.0 - speed / NO_LOAD), -LIMIT)
    return min(max(KP * (target - angle) - KD * speed, min(bottom, LIMIT)), max(top, -LIMIT))


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """A wheel with a servo on a heavy base."""
    path = tmp_path / "wheel.xml"
    path.write_text(WHEEL, encoding="utf-8")
    return str(path)


def task_of(robot: str, engine: str, action: Any, *, num_envs: int = 8, **fields: Any) -> RobotTask[RobotConfig]:
    """Build environments whose wheels turn at up to 15 rad/s, observed as angle, speed and torque."""
    config = task_config(
        RobotConfig,
        robot=robot,
        engine=engine,
        pose={".*": 0.0},
        decimation=1,
        actions={"target": action},
        observations={
            "policy": {
                "angle": Obs("joint_pos_rel", joints="wheel"),
                "speed": Obs("joint_vel_rel", joints="wheel"),
                "torque": Obs(acting_torque),
            }
        },
        rewards={"torques": Reward("joint_torques_l2", weight=1.0, actuators="wheel")},
        events={
            "base": Event("reset_root_state_uniform", "reset", x=(0.0, 0.0), y=(0.0, 0.0), yaw=(0.0, 0.0)),
            "wheel": Event(
                "reset_joints_by_offset", "reset", joints="wheel", position=(-0.1, 0.1), velocity=(-15.0, 15.0)
            ),
        },
        **fields,
    )
    return RobotTask(config, num_envs=num_envs, device="cpu", seed=0)


def act(task: TermsTask[Any], actions: Any) -> np.ndarray:
    """Step, and return the observations. Shape (num_envs, 3)."""
    task.actions.assign(np.broadcast_to(np.float32(actions), task.actions.shape))
    task.step()
    wp.synchronize()
    return task.obs["policy"].numpy().copy()


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_a_dc_motor_has_less_torque_the_faster_it_turns(wheel: str, engine: Any) -> None:
    limits: dict[str, Any] = {"saturation_effort": {".*": STALL}, "velocity_limit": {".*": NO_LOAD}}
    task = task_of(wheel, engine, Action("joint_position", actuators="wheel", scale=1.0), **limits)
    before, kinds = task.obs["policy"].numpy().copy(), set[str]()
    for target in (0.0, 0.05, 3.0, -3.0):
        after = act(task, target)
        # The reward is of the torques that acted.
        np.testing.assert_allclose(task.terms.numpy()[:, 0], after[:, 2] ** 2, rtol=1e-4, atol=1e-2)
        for (angle, speed, _), (_, _, torque) in zip(before, after, strict=True):
            wanted = curve(target, angle, speed)
            assert torque == pytest.approx(wanted, abs=1e-3)
            is_position_actuator = wanted == KP * (target - angle) - KD * speed
            kinds.add("servo" if is_position_actuator else "limit" if abs(wanted) == LIMIT else "curve")
        before = after
    assert kinds == {"servo", "limit", "curve"}


def test_half_of_a_torque_speed_curve_is_refused(wheel: str) -> None:
    with pytest.raises(
        UsageError, match=r"^The joint wheel has --env.saturation-effort 30.0 and --env.velocity-limit N"
    ):
        build_spec(RobotConfig(robot=wheel, saturation_effort={"wheel": 30.0}))


def test_gains_of_dc_motors_are_scaled_and_nothing_else_of_them(wheel: str) -> None:
    limits: dict[str, Any] = {"saturation_effort": {".*": STALL}, "velocity_limit": {".*": NO_LOAD}}
    config = task_of(wheel, "mujoco", Action("joint_position", actuators="wheel", scale=1.0), **limits).config
    gains = Event("pd_gains", "startup", actuators="wheel", kp=(0.5, 0.5), kd=(3.0, 3.0))
    task = RobotTask(config.change(events={"gains": gains}), num_envs=2, device="cpu", seed=0)
    task.restart(seed=1)
    rows = task.parameter("actuator_gainprm").numpy()[:, 0]
    np.testing.assert_allclose(rows, [[NO_LOAD / STALL, 1, 0, 0, KP / 2, 0, 3 * KD, NO_LOAD, 0, 0]] * 2, rtol=1e-6)
    described = task.deployment()
    assert (described["joint_stiffness"], described["joint_damping"]) == ([KP], [KD])


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_a_delayed_action_acts_steps_later_and_is_zero_before_the_first(wheel: str, engine: Any) -> None:
    action = Action("joint_position", actuators="wheel", scale=0.01, delay_max_lag=2, delay_hold_prob=1.0)
    task = task_of(wheel, engine, action, num_envs=16)
    sent = [0.5, 1.0, -0.5, -1.0, 0.25]
    for _ in range(2):  # The second episode remembers nothing of the first.
        task.restart(seed=1)
        targets = np.array([(act(task, value), task.ctrl.numpy()[:, 0].copy())[1] for value in sent]) / 0.01
        lags = task.arrays["lags"].numpy()[:, 0]
        assert set(lags) == {0, 1, 2}
        for env, lag in enumerate(lags):
            np.testing.assert_allclose(targets[:, env], [*[0.0] * lag, *sent][: len(sent)], rtol=1e-5)
    assert task.config.undisturbed().terms("actions")["target"].delay_max_lag == 0


@pytest.mark.parametrize(
    ("function", "actuator"),
    [
        ("joint_velocity", '<velocity name="wheel" joint="wheel" kv="3"/>'),
        ("joint_effort", '<motor joint="wheel" name="wheel"/>'),
        ("joint_effort", '<general joint="wheel" name="wheel" gear="-5" gainprm="2"/>'),
        ("joint_velocity", '<velocity name="wheel" joint="wheel" kv="3" gear="-5"/>'),
    ],
)
def test_speeds_and_torques_are_actions_too(function: str, actuator: str) -> None:
    text = WHEEL[: WHEEL.index("<position")] + actuator + WHEEL[WHEEL.index("</actuator>") :]

    class Wheel(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            engine="mujoco",
            actions={"wheel": Action(function, actuators="wheel", scale=2.0, clip=4.0)},
            observations={"policy": {"speed": Obs("joint_vel_rel", joints="wheel")}},
            rewards={"none": Reward("lin_vel_z_l2", weight=0.0)},
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            return mujoco.MjModel.from_xml_string(text)

    task = Wheel(Wheel.config, num_envs=1, device="cpu", seed=0)
    act(task, 5.0)
    data = mujoco.MjData(task.model)
    data.ctrl[:] = task.ctrl.numpy()[0]
    mujoco.mj_forward(task.model, data)  # At rest, the servo asks for kv gear² times the speed.
    per_unit = 1.0 if function == "joint_effort" else 3.0 * task.model.actuator_gear[0, 0] ** 2
    assert data.qfrc_actuator[6] == pytest.approx(8.0 * per_unit)
    described = task.deployment()
    assert (described["action_scale"], described["actions"]["wheel"]["clip"]) == ([2.0], 4.0)


def model_of(actuators: str, joint: str = "", tendon: str = "") -> mujoco.MjModel:
    """Return the wheel with other actuators, another joint, and another element."""
    text = WHEEL.replace('<joint name="wheel" axis="0 0 1"/>', f'<joint name="wheel" axis="0 0 1" {joint}/>')
    start, end = text.index("<position"), text.index("</actuator>")
    return mujoco.MjModel.from_xml_string(
        f"{text[:start]}{actuators}{text[end:]}".replace("<actuator>", f"{tendon}<actuator>")
    )


def terms_on(model: mujoco.MjModel, **groups: Any) -> TermsTask[TermsConfig]:
    """Build two environments of a model, with these terms beside those that every task needs."""

    class Own(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            **{
                "engine": "mujoco",
                "decimation": 1,
                "actions": {"target": Action("joint_position", actuators="wheel", scale=0.5)},
                "observations": {"policy": {"speed": Obs("joint_vel_rel", joints="wheel")}},
                "rewards": {"alive": Reward("is_alive", weight=1.0)},
            }
            | groups,
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            return model

    return Own(Own.config, num_envs=2, device="cpu", seed=0)


GEARED = '<position name="wheel" joint="wheel" kp="10" kv="0.4" gear="-2" ctrlrange="-1.2 0.6" forcerange="-1 2"/>'


def test_a_position_is_reached_through_a_gear_and_a_controller_gets_the_joints_own_numbers() -> None:
    model = model_of(GEARED, 'actuatorfrcrange="-3 5" actuatorfrclimited="true"')
    task = terms_on(model)
    act(task, 0.5)  # A target of 0.25 rad.
    data = mujoco.MjData(model)
    data.ctrl[:], data.qpos[7] = task.ctrl.numpy()[0], 0.25
    mujoco.mj_forward(model, data)
    assert data.qfrc_actuator[6] == pytest.approx(0.0, abs=1e-6)
    described = task.deployment()
    # kp gear² and kd gear², as MuJoCo's own torques say.
    data.qpos[7], data.qvel[6] = 0.25 + 1e-3, 0.0
    mujoco.mj_forward(model, data)
    assert described["joint_stiffness"] == [pytest.approx(-data.qfrc_actuator[6] / 1e-3, rel=1e-6)] == [40.0]
    data.qpos[7], data.qvel[6] = 0.25, 1e-3
    mujoco.mj_forward(model, data)
    assert described["joint_damping"] == [pytest.approx(-data.qfrc_actuator[6] / 1e-3, rel=1e-6)]
    extremes = []
    for angle in (9.0, -9.0):
        data.qpos[7] = angle
        mujoco.mj_forward(model, data)
        extremes.append(data.qfrc_actuator[6])
    assert described["joint_torque_limits"] == [extremes] == [[-3.0, 2.0]]
    assert described["joint_target_limits"] == [[pytest.approx(-0.3), pytest.approx(0.6)]]


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_torques_that_are_rewarded_are_those_of_mujoco_with_all_limits_and_each_joint_once(engine: str) -> None:
    both = GEARED + '<velocity name="brake" joint="wheel" kv="0.5" ctrlrange="-1 1"/>'
    model = model_of(both, 'actuatorfrcrange="-3 5" actuatorfrclimited="true"')
    rewards = {
        "torques": Reward("joint_torques_l2", weight=1.0, actuators=".*"),
        "power": Reward("electrical_power_cost", weight=1.0, actuators=".*"),
    }
    start = {
        "wheel": Event("reset_joints_by_offset", "reset", joints="wheel", position=(-1, 1.0), velocity=(-9.0, 9.0))
    }
    task = terms_on(model, engine=engine, rewards=rewards, events=start)
    for action in (0.5, 4.0, -4.0):
        before = task.qpos.numpy().copy(), task.qvel.numpy().copy()
        act(task, action)
        for env in range(2):
            data = mujoco.MjData(model)
            data.qpos[:], data.qvel[:], data.ctrl[:] = before[0][env], before[1][env], task.ctrl.numpy()[env]
            mujoco.mj_step(model, data)
            torque = data.qfrc_actuator[6]
            expected = [torque**2, max(0.0, torque * data.qvel[6])]
            np.testing.assert_allclose(task.terms.numpy()[env], expected, rtol=1e-4, atol=1e-5)


FIXED = '<tendon><fixed name="rope"><joint joint="wheel" coef="1"/></fixed></tendon>'
ROPE = '<motor name="rope" tendon="rope"/>'
MOTOR = '<motor name="wheel" joint="wheel"/>'
FILTERED = '<position name="wheel" joint="wheel" kp="10" timeconst="0.1"/>'
SPEED = '<intvelocity name="wheel" joint="wheel" kp="10" actrange="-1 1"/>'
FREE = '<position name="wheel" joint="wheel" kp="10"/>'
TO_LIMITS = Action("ema_joint_position_to_limits", actuators="wheel", alpha=1.0)
STRENGTH = Event("effort_limits", "startup", actuators="wheel", ranges=(0.5, 1.0))


@pytest.mark.parametrize(
    ("actuators", "groups", "said"),
    [
        (
            ROPE,
            {"actions": {"x": Action("joint_effort", actuators="rope", scale=1.0)}},
            "rope, which acts on no hinge or slide joint",
        ),
        (
            ROPE + FREE,
            {"rewards": {"x": Reward("joint_torques_l2", 1.0, actuators=".*")}},
            "rope, which acts on no hinge",
        ),
        (MOTOR, {}, "wheel, but the term needs position actuators without a time constant: select others"),
        (FILTERED, {}, "wheel, but the term needs position actuators without a time constant"),
        (SPEED, {}, "wheel, but the term needs position actuators without a time constant"),
        (FREE, {"actions": {"x": Action("joint_velocity", actuators="wheel", scale=1.0)}}, "needs velocity actuators"),
        (FREE, {"actions": {"x": Action("joint_effort", actuators="wheel", scale=1.0)}}, "needs motors"),
        (FREE, {"actions": {"x": TO_LIMITS}}, "needs actuators with a ctrlrange"),
        (FREE, {"events": {"x": STRENGTH}}, "needs actuators with a forcerange"),
        (
            MOTOR,
            {"actions": {}, "events": {"x": Event("hold_default_pose", "reset", actuators="wheel")}},
            "needs position",
        ),
    ],
)
def test_an_actuator_that_a_term_cannot_drive_is_refused(actuators: str, groups: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        terms_on(model_of(actuators, tendon=FIXED), **groups)


@wp.func
def pull(state: Any, env: int, i: int, action: float, actuators: ActuatorIds) -> None:
    """Set the control of any actuator."""
    state.ctrl[env, actuators[i]] = action


def test_any_actuator_can_be_driven_by_its_control() -> None:
    observed = {"policy": {"last": Obs("last_action", actuators=".*")}}
    task = terms_on(
        model_of(ROPE + MOTOR, tendon=FIXED), actions={"x": Action(pull, actuators=".*")}, observations=observed
    )
    task.actions.assign(np.array([[0.25, -0.5]] * 2, dtype=np.float32))
    task.step()
    np.testing.assert_array_equal(task.ctrl.numpy(), [[0.25, -0.5]] * 2)
    np.testing.assert_array_equal(task.obs["policy"].numpy(), [[0.25, -0.5]] * 2)
    assert task.deployment()["joint_names"] == ["wheel"]  # The rope has no joint of its own.


def test_drawn_strengths_and_gains_are_those_of_the_joint() -> None:
    events = {
        "strength": Event("effort_limits", "startup", actuators="wheel", ranges=(0.5, 0.5), operation="scale"),
        "gains": Event("pd_gains", "startup", actuators="wheel", kp=(8.0, 8.0), kd=(0.4, 0.4), operation="abs"),
    }
    task = terms_on(model_of(GEARED), events=events)
    np.testing.assert_allclose(task.parameter("actuator_forcerange").numpy()[0, 0], [-0.5, 1.0])
    assert task.parameter("actuator_gainprm").numpy()[0, 0, 0] == pytest.approx(8.0 / 4.0)
    assert task.parameter("actuator_biasprm").numpy()[0, 0, 2] == pytest.approx(-0.4 / 4.0)


def test_a_position_and_a_speed_are_followed_by_two_actuators_of_one_joint_with_an_action_for_each() -> None:
    speed = '<velocity name="speed" joint="wheel" kv="0.4"/>'
    actions = {
        "target": Action("joint_position", actuators="wheel", scale=0.5),
        "speed": Action("joint_velocity", actuators="speed", scale=2.0),
    }
    task = terms_on(model_of(FREE + speed, 'actuatorfrcrange="-9 9"'), actions=actions)
    for sent in (0.25, -0.5, 4.0):
        position, velocity = (each.numpy()[0, at] for each, at in ((task.qpos, 7), (task.qvel, 6)))
        act(task, sent)
        data = mujoco.MjData(task.model)
        data.qpos[7], data.qvel[6], data.ctrl[:] = position, velocity, task.ctrl.numpy()[0]
        mujoco.mj_forward(task.model, data)
        pd = 10.0 * (0.5 * sent - position) + 0.4 * (2.0 * sent - velocity)
        assert data.qfrc_actuator[6] == pytest.approx(np.clip(pd, -9.0, 9.0), abs=1e-5)

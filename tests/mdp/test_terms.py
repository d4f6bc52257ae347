"""Terms on random states: each function against numpy and MuJoCo's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.mdp.annotations import BodyIds
from shoal.mdp.base import body_lin_vel_w
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Contact, Done, Event, Metric, Obs, Reward

MODEL = """
<mujoco>
  <option integrator="implicitfast"/>
  <default><joint armature="0.01"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="trunk" pos="0 0 0.42">
      <freejoint/>
      <geom name="trunk" type="box" size="0.1 0.15 0.05" pos="0.02 0.01 0" mass="4"/>
      <body name="left" pos="0 0.1 -0.05" euler="5 0 0">
        <joint name="left_hip" axis="0 1 0" range="-60 60" damping="0.1"/>
        <geom name="left_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02"/>
        <body name="left_foot" pos="0 0 -0.3">
          <joint name="left_ankle" axis="1 0 0" range="-30 30"/>
          <geom name="left_sole" type="sphere" size="0.05" mass="0.2"/>
        </body>
      </body>
      <body name="right" pos="0 -0.1 -0.05">
        <joint name="right_hip" axis="0 1 0" range="-60 60"/>
        <geom name="right_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02"/>
        <body name="right_foot" pos="0 0.14 -0.3">
          <joint name="right_ankle" axis="1 0 0" range="-30 30"/>
          <geom name="right_sole" type="sphere" size="0.05" mass="0.2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="left_hip" joint="left_hip" kp="20" kv="1" forcerange="-5 5"/>
    <position name="left_ankle" joint="left_ankle" kp="20" kv="1"/>
    <motor name="right_hip" joint="right_hip" gear="1" forcerange="-5 5"/>
    <position name="right_ankle" joint="right_ankle" kp="20" kv="1"/>
  </actuator>
  <sensor><subtreeangmom name="angmom" body="trunk"/></sensor>
</mujoco>
"""
ALL, FEET = ".*", ".*_foot"
COMMAND = Command(
    "uniform_velocity",
    columns={"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"},
    resampling_time=(100.0, 100.0),
    lin_vel_x=(-1.0, 1.0),
    lin_vel_y=(-1.0, 1.0),
    ang_vel_z=(-1.0, 1.0),
    rel_standing_envs=0.2,
)
TWIST: dict[str, Any] = {"command": "twist"}

Oracle = Callable[["State"], Any]


class State:
    """One environment's state in MuJoCo, with what is no part of it."""

    def __init__(self, task: Any, env: int) -> None:
        self.model, self.data = task.model, mujoco.MjData(task.model)
        self.data.qpos[:], self.data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        self.data.ctrl[:] = task.ctrl.numpy()[env]
        mujoco.mj_forward(self.model, self.data)
        self.command = task.command_array.numpy()[env]
        self.joints, self.speeds = self.data.qpos[7:], self.data.qvel[6:]
        self.rotation = self.data.body("trunk").xmat.reshape(3, 3)
        self.lin_vel, self.ang_vel = self.rotation.T @ self.data.qvel[:3], self.data.qvel[3:6]
        self.gravity = -self.rotation[2]
        self.terminated = self.data.qpos[2] < LOWEST
        self.torques = self.data.qfrc_actuator[6:]

    def speed(self) -> float:
        return float(np.linalg.norm(self.command[:2]) + abs(self.command[2]))

    def contact_force(self, body: str) -> np.ndarray:
        """Return the sum of the forces on a body, in the world."""
        total, force = np.zeros(3), np.zeros(6)
        for index, contact in enumerate(self.data.contact):
            mujoco.mj_contactForce(self.model, self.data, index, force)
            in_world = contact.frame.reshape(3, 3).T @ force[:3]
            bodies = [self.model.body(self.model.geom_bodyid[geom]).name for geom in contact.geom]
            total += in_world * ((bodies[1] == body) - (bodies[0] == body) * 1.0)
        return total

    def touches_itself(self) -> bool:
        force = np.zeros(6)
        found = False
        for index, contact in enumerate(self.data.contact):
            mujoco.mj_contactForce(self.model, self.data, index, force)
            found |= 0 not in contact.geom and float(np.linalg.norm(force[:3])) > 2.0
        return found

    def body_velocity(self, body: str) -> np.ndarray:
        """Return the angular velocity of a body in the world."""
        velocity = np.zeros(6)
        kind = mujoco.mjtObj.mjOBJ_XBODY
        mujoco.mj_objectVelocity(self.model, self.data, kind, self.model.body(body).id, velocity, 0)
        return velocity[:3]

    def momentum(self) -> np.ndarray:
        mujoco.mj_subtreeVel(self.model, self.data)
        return self.data.subtree_angmom[1]


LOWEST = 0.4
STDS = {"left.*": 0.3, "right.*": 0.5}
STD = np.array([0.3, 0.3, 0.5, 0.5])


def posture(state: State, std: np.ndarray) -> float:
    return float(np.exp(-np.mean((state.joints / std) ** 2)))


def limits(state: State) -> float:
    low, high = state.model.jnt_range[1:].T
    middle, half = (low + high) / 2, 0.45 * (high - low)
    return float(np.clip(np.abs(state.joints - middle) - half, 0.0, None).sum())


REWARDS: dict[str, tuple[dict[str, Any], Oracle]] = {
    "is_alive": ({}, lambda s: 1.0 - s.terminated),
    "is_terminated": ({}, lambda s: 1.0 * s.terminated),
    "track_linear_velocity": (
        {**TWIST, "std": 0.5},
        lambda s: np.exp(-np.sum((np.append(s.command[:2], 0.0) - s.lin_vel) ** 2) / 0.25),
    ),
    "track_angular_velocity": (
        {**TWIST, "std": 0.7},
        lambda s: np.exp(-np.sum((np.append([0.0, 0.0], s.command[2]) - s.ang_vel) ** 2) / 0.49),
    ),
    "track_lin_vel_xy_exp": (
        {**TWIST, "std": 0.5},
        lambda s: np.exp(-np.sum((s.command[:2] - s.lin_vel[:2]) ** 2) / 0.25),
    ),
    "track_ang_vel_z_exp": ({**TWIST, "std": 0.5}, lambda s: np.exp(-((s.command[2] - s.ang_vel[2]) ** 2) / 0.25)),
    "lin_vel_z_l2": ({}, lambda s: s.lin_vel[2] ** 2),
    "ang_vel_xy_l2": ({}, lambda s: np.sum(s.ang_vel[:2] ** 2)),
    "flat_orientation_l2": ({}, lambda s: np.sum(s.gravity[:2] ** 2)),
    "upright": (
        {"body": "left", "std": 0.5},
        lambda s: np.exp(-np.sum(s.data.body("left").xmat.reshape(3, 3)[2, :2] ** 2) / 0.25),
    ),
    "body_angular_velocity_penalty": ({"body": "left"}, lambda s: np.sum(s.body_velocity("left")[:2] ** 2)),
    "angular_momentum_penalty": ({"sensor": "angmom"}, lambda s: np.sum(s.momentum() ** 2)),
    "self_collision_cost": ({"contact": "itself"}, lambda s: 1.0 * s.touches_itself()),
    "joint_pos_limits": ({"joints": ALL}, limits),
    "posture": ({"joints": ALL, "std": STDS}, lambda s: posture(s, STD)),
    "variable_posture": (
        {"joints": ALL, **TWIST, "std_standing": 0.1, "std_walking": STDS, "std_running": 1.0}
        | {"walking_threshold": 0.3, "running_threshold": 1.0},
        lambda s: posture(s, np.full(4, 0.1) if s.speed() < 0.3 else STD if s.speed() < 1.0 else np.ones(4)),
    ),
    "joint_torques_l2": ({"actuators": ALL}, lambda s: np.sum(s.torques**2)),
    "electrical_power_cost": ({"actuators": ALL}, lambda s: np.clip(s.torques * s.speeds, 0.0, None).sum()),
    "joint_vel_l2": ({"joints": ALL}, lambda s: np.sum(s.speeds**2)),
    "base_height_l2": ({"target_height": 0.4}, lambda s: (s.data.qpos[2] - 0.4) ** 2),
    "joint_deviation_l1": ({"joints": ALL}, lambda s: np.abs(s.joints).sum()),
    "stand_still": (
        {"joints": ALL, **TWIST, "command_threshold": 0.9},
        lambda s: np.abs(s.joints).sum() * (s.speed() <= 0.9),
    ),
    "undesired_contacts": (
        {"contact": "feet", "threshold": 5.0},
        lambda s: sum(np.linalg.norm(s.contact_force(f"{side}_foot")) > 5.0 for side in ("left", "right")),
    ),
}
OBSERVATIONS: dict[str, tuple[dict[str, Any], Oracle]] = {
    "base_lin_vel": ({}, lambda s: s.lin_vel),
    "base_ang_vel": ({}, lambda s: s.ang_vel),
    "projected_gravity": ({}, lambda s: s.gravity),
    "joint_pos_rel": ({"joints": ALL}, lambda s: s.joints),
    "joint_vel_rel": ({"joints": ALL}, lambda s: s.speeds),
    "velocity_command": (TWIST, lambda s: s.command),
    "contact_forces": ({"contact": "feet"}, lambda s: [s.contact_force("left_foot"), s.contact_force("right_foot")]),
    "foot_contact_forces": (
        {"contact": "feet"},
        lambda s: [np.sign(f) * np.log1p(np.abs(f)) for f in map(s.contact_force, ("left_foot", "right_foot"))],
    ),
    "builtin_sensor": ({"sensors": "angmom"}, lambda s: s.momentum()),
    "base_height": ({}, lambda s: s.data.qpos[2]),
    "root_pos_w": ({}, lambda s: s.data.qpos[:3]),
    "root_quat_w": ({}, lambda s: s.data.body("trunk").xquat),
    "root_lin_vel_w": ({}, lambda s: s.data.qvel[:3]),
    "root_ang_vel_w": ({}, lambda s: s.body_velocity("trunk")),
    "joint_pos": ({"joints": ALL}, lambda s: s.joints),
    "generated_commands": (TWIST, lambda s: s.command),
}
TERMINATIONS: dict[str, tuple[dict[str, Any], Oracle]] = {
    "bad_orientation": ({"limit_angle": 0.5, "time_out": True}, lambda s: np.arccos(-s.gravity[2]) > 0.5),
    "root_height_below_minimum": ({"minimum_height": LOWEST}, lambda s: s.terminated),
    "illegal_contact": (
        {"contact": "feet", "force_threshold": 8.0, "time_out": True},
        lambda s: any(np.linalg.norm(s.contact_force(f"{side}_foot")) > 8.0 for side in ("left", "right")),
    ),
}
CONFIG = task_config(
    TermsConfig,
    actions={
        "targets": Action("joint_position", actuators=("left_.*", "right_ankle"), scale=0.5),
        "torque": Action("joint_effort", actuators="right_hip", scale=1.0),
    },
    commands={"twist": COMMAND},
    contacts={
        "feet": Contact(bodies=FEET),
        "itself": Contact(subtrees="trunk", secondary_subtree="trunk", reduce="maxforce", force_threshold=2.0),
    },
    observations={"policy": {name: Obs(name, **params) for name, (params, _) in OBSERVATIONS.items()}},
    rewards={name: Reward(name, weight=1.0, **params) for name, (params, _) in REWARDS.items()}
    | {"action_acc_l2": Reward("action_acc_l2", weight=1.0, actuators=ALL)},
    terminations={name: Done(name, **params) for name, (params, _) in TERMINATIONS.items()},
)
NUM_ENVS = 48


class Biped(TermsTask[TermsConfig]):
    """Two legs on a free base."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: TermsConfig) -> mujoco.MjSpec:  # noqa: ARG003
        return mujoco.MjSpec.from_string(MODEL)


def random_biped() -> Biped:
    """Return environments in random states, with the terms of these states."""
    task = Biped(CONFIG, num_envs=NUM_ENVS, device="cpu", seed=0)
    rng = np.random.default_rng(0)
    turns = rng.normal(size=(NUM_ENVS, 4)) * 0.2 + [1.0, 0.0, 0.0, 0.0]
    task.qpos.numpy()[:, 2] += rng.uniform(-0.05, 0.03, NUM_ENVS)
    task.qpos.numpy()[:, 3:7] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
    task.qpos.numpy()[:, 7:] = rng.uniform(-0.6, 0.6, (NUM_ENVS, 4))
    task.qvel.numpy()[:] = rng.normal(size=(NUM_ENVS, task.model.nv))
    task.ctrl.numpy()[:] = rng.uniform(-1.0, 1.0, (NUM_ENVS, 4))
    task.moved.numpy()[:] = True
    task.engine.forward(task.done, task.moved)
    task.run("reward")
    task.run("observe")
    return task


@pytest.fixture(scope="module")
def biped() -> Biped:
    """Environments in random states."""
    return random_biped()


@pytest.fixture(scope="module")
def states(biped: Biped) -> list[State]:
    """The same states in MuJoCo."""
    return [State(biped, env) for env in range(NUM_ENVS)]


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_what_numpy_and_mujoco_compute(name: str, biped: Biped, states: list[State]) -> None:
    expected = np.array([REWARDS[name][1](state) for state in states], dtype=float)
    assert len({*expected.tolist()}) > 1  # The states tell a difference.
    np.testing.assert_allclose(biped.terms.numpy()[:, list(REWARDS).index(name)], expected, rtol=2e-4, atol=2e-5)


def test_observations_are_what_numpy_and_mujoco_compute(biped: Biped, states: list[State]) -> None:
    expected = [np.concatenate([np.ravel(oracle(s)) for _, oracle in OBSERVATIONS.values()]) for s in states]
    np.testing.assert_allclose(biped.obs["policy"].numpy(), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", TERMINATIONS)
def test_a_termination_is_what_numpy_and_mujoco_compute(name: str, biped: Biped, states: list[State]) -> None:
    expected = [bool(TERMINATIONS[name][1](state)) for state in states]
    assert len({*expected}) == 2
    assert biped.done_terms.numpy()[:, list(TERMINATIONS).index(name)].tolist() == expected


def test_action_accelerations_are_second_differences_from_zero() -> None:
    calm = CONFIG.change(terminations=dict.fromkeys(TERMINATIONS))
    task = Biped(calm, num_envs=2, device="cpu", seed=0)
    rng = np.random.default_rng(0)
    actions: list[Any] = [np.zeros((2, 4)), np.zeros((2, 4))]
    for _ in range(4):
        actions.append(rng.uniform(-1, 1, (2, 4)).astype(np.float32))
        task.actions.assign(actions[-1])
        task.step()
        expected = ((actions[-1] - 2 * actions[-2] + actions[-3]) ** 2).sum(axis=1)
        np.testing.assert_allclose(task.terms.numpy()[:, -1], expected, rtol=1e-4)


def test_an_averaged_error_of_turning_is_the_exponential_average_of_the_signed_errors() -> None:
    calm = CONFIG.change(
        rewards=dict.fromkeys(CONFIG.terms("rewards"))
        | {"turns": Reward("track_average_ang_vel_z_exp", weight=1.0, **TWIST, std=0.4, time=0.3)},
        metrics={"error": Metric("average_error_ang_vel", **TWIST, time=0.3)},
        terminations=dict.fromkeys(TERMINATIONS),
    )
    task = Biped(calm, num_envs=8, device="cpu", seed=0)
    rng, average = np.random.default_rng(0), np.zeros(8)
    share = 1.0 - np.exp(-task.step_dt / 0.3)
    for _ in range(20):
        task.actions.assign(rng.uniform(-2, 2, (8, 4)).astype(np.float32))
        task.step()
        states = [State(task, env) for env in range(8)]
        average += share * (np.array([s.command[2] - s.ang_vel[2] for s in states]) - average)
        np.testing.assert_allclose(task.metric_values.numpy()[:, 0], np.abs(average), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(task.terms.numpy()[:, 0], np.exp(-((average / 0.4) ** 2)), rtol=1e-3, atol=1e-5)
    assert np.abs(average).max() > 0.1


def test_feet_are_rewarded_where_they_touch_by_the_clock_of_their_gait() -> None:
    gait: dict[str, Any] = {"period": 0.33, "threshold": 0.6, "offset": {"left.*": 0.0, "right.*": 0.3}}
    reward = Reward("feet_gait", weight=1.0, contact="feet", **TWIST, command_threshold=0.9, **gait)
    calm = CONFIG.change(
        observations={"policy": {"clock": Obs("gait_phase", period=0.33)}},
        rewards=dict.fromkeys(CONFIG.terms("rewards")) | {"gait": reward},
        terminations=dict.fromkeys(TERMINATIONS),
    )
    task = Biped(calm, num_envs=16, device="cpu", seed=0)
    rng, command = np.random.default_rng(0), task.command_array.numpy()
    speed = np.linalg.norm(command[:, :2], axis=1) + np.abs(command[:, 2])
    np.testing.assert_allclose(task.obs["policy"].numpy()[:, -2:], [[0.0, 1.0]] * 16, atol=1e-6)
    seen = set[float]()
    for step in range(1, 60):
        task.actions.assign(rng.uniform(-2, 2, (16, 4)).astype(np.float32))
        task.step()
        phases = step * task.step_dt / 0.33 + np.array([0.0, 0.3])
        stands = phases % 1.0 < 0.6
        expected = (task.arrays["contacts/feet/found"].numpy() == stands).sum(axis=1) * (speed > 0.9)
        np.testing.assert_array_equal(task.terms.numpy()[:, 0], expected)
        clock = [np.sin(2 * np.pi * phases[0]), np.cos(2 * np.pi * phases[0])]
        np.testing.assert_allclose(task.obs["policy"].numpy()[0, -2:], clock, atol=1e-4)
        seen |= {*expected.tolist()}
    assert seen == {0, 1, 2}


def test_legs_step_by_a_clock_where_a_speed_is_commanded_and_actions_correct_them() -> None:
    gait: dict[str, Any] = {"period": 0.33, "swing": {"left_hip": -0.4, ".*ankle": 0.2}}
    stepping = Action(
        "gait_joint_position",
        actuators=("left_hip", "left_ankle", "right_ankle"),
        scale=0.5,
        shift={"left.*": 0.0, "right.*": 0.3},
        **gait,
        **TWIST,
        command_threshold=0.9,
    )
    calm = CONFIG.change(
        actions=dict.fromkeys(CONFIG.terms("actions")) | {"step": stepping},
        rewards=dict.fromkeys(CONFIG.terms("rewards")) | {"none": Reward("lin_vel_z_l2", weight=0.0)},
        terminations=dict.fromkeys(TERMINATIONS),
        events={"errors": Event("encoder_bias", "startup", joints=".*", ranges=(-0.1, 0.2))},
    )
    task = Biped(calm, num_envs=16, device="cpu", seed=0)
    rng, command, home = np.random.default_rng(0), task.command_array.numpy(), task.home()[7:]
    walks = (np.linalg.norm(command[:, :2], axis=1) + np.abs(command[:, 2]) > 0.9)[:, None]
    assert {*walks.ravel().tolist()} == {True, False}
    names = ["left_hip", "left_ankle", "right_ankle"]
    targets = [task.model.actuator(name).id for name in names]
    poses = np.array([home[task.model.joint(name).qposadr[0] - 7] for name in names])
    poses = poses - task.arrays["encoder_bias"].numpy()[:, [task.model.joint(name).dofadr[0] for name in names]]
    for step in range(40):
        actions = rng.uniform(-2, 2, (16, 3)).astype(np.float32)
        task.actions.assign(actions)
        task.step()
        phases = (step + 1) * task.step_dt / 0.33 + np.array([0.0, 0.0, 0.3])  # At the end of the step.
        lifted = np.array([-0.4, 0.2, 0.2]) * np.maximum(0.0, np.sin(2 * np.pi * (phases - 0.5))) ** 2
        np.testing.assert_allclose(task.ctrl.numpy()[:, targets], poses + walks * lifted + 0.5 * actions, atol=2e-5)


def test_a_new_episode_begins_in_the_ranges_and_a_push_changes_the_velocity_in_the_world() -> None:
    pose = dict(zip(("x", "y", "z", "roll", "pitch", "yaw"), [(at, at + 0.1) for at in np.arange(6) / 10], strict=True))
    speed = {f"velocity_{name}": (low - 0.3, high - 0.3) for name, (low, high) in pose.items()}
    events = {
        "base": Event("reset_root_state_uniform", "reset", **pose, **speed),
        "joints": Event("reset_joints_by_offset", "reset", joints=ALL, position=(-2.0, 2.0), velocity=(-1.0, 1.0)),
        "push": Event("push_by_setting_velocity", "interval", interval=(1.0, 1.0), **pose),
        "wrench": Event("apply_external_force_torque", "reset", bodies="trunk", force=(1.0, 2.0), torque=(3.0, 4.0)),
    }
    task = Biped(
        CONFIG.change(events=events, terminations=dict.fromkeys(TERMINATIONS)), num_envs=64, device="cpu", seed=0
    )
    low = np.arange(6) / 10
    qpos, qvel = task.qpos.numpy(), task.qvel.numpy()
    assert within(qpos[:, :3] - [0.0, 0.0, 0.42], low[:3])
    rotations = np.stack([matrix(quat) for quat in qpos[:, 3:7]])
    euler = [
        np.arctan2(rotations[:, 2, 1], rotations[:, 2, 2]),
        -np.arcsin(rotations[:, 2, 0]),
        np.arctan2(rotations[:, 1, 0], rotations[:, 0, 0]),
    ]
    assert within(np.stack(euler, axis=1), low[3:])
    in_world = np.einsum("nij,nj->ni", rotations, qvel[:, 3:6])
    assert within(qvel[:, :3], low[:3] - 0.3)
    assert within(in_world, low[3:] - 0.3)
    ranges = task.model.jnt_range[1:].astype(np.float32)
    assert (qpos[:, 7:] >= ranges[:, 0]).all()
    assert (qpos[:, 7:] <= ranges[:, 1]).all()
    wrench = task.data("xfrc_applied").numpy()[:, 1]
    assert within(wrench[:, :3], np.ones(3), 1.0)
    assert within(wrench[:, 3:], np.full(3, 3.0), 1.0)
    before = qvel.copy()
    task.arrays["event_left"].fill_(0.0)
    task.done.zero_()
    task.run("interval")
    assert within(qvel[:, :3] - before[:, :3], low[:3])
    assert within(np.einsum("nij,nj->ni", rotations, qvel[:, 3:6]) - in_world, low[3:])


def test_assistance_turns_the_base_upright_and_drives_it_as_commanded() -> None:
    numbers = {"strength": 0.5, "upright": 30.0, "damping": 2.0, "drive": 20.0, "turn": 3.0, "lift": 10.0}
    where = {"interval": (1.0, 1.0), "body": "trunk", "command": "twist"}
    start = Event(
        "reset_root_state_uniform", "reset", x=(0, 0), y=(0, 0), yaw=(-3, 3), roll=(-0.5, 0.5), pitch=(-0.5, 0.5)
    )
    events = {"start": start, "held": Event("apply_assistance", "step", **where, **numbers)}
    task = Biped(
        CONFIG.change(events=events, terminations=dict.fromkeys(TERMINATIONS)), num_envs=16, device="cpu", seed=0
    )
    for _ in range(3):
        task.step()
    wrench, command = task.data("xfrc_applied").numpy()[:, 1], task.command_array.numpy()
    for env, (qpos, qvel) in enumerate(zip(task.qpos.numpy(), task.qvel.numpy(), strict=True)):
        base = matrix(qpos[3:7])
        axis, tilt = np.cross(base[:, 2], [0, 0, 1]), np.arccos(base[2, 2])
        torque = 30.0 * np.sin(tilt) * axis / np.linalg.norm(axis) - 2.0 * base @ qvel[3:6]
        torque[2] = 3.0 * (command[env, 2] - (base @ qvel[3:6])[2])
        yaw = np.arctan2(base[1, 0], base[0, 0])
        wanted = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]]) @ command[env, :2]
        force = [*(20.0 * (wanted - qvel[:2])), 10.0]
        np.testing.assert_allclose(wrench[env], 0.5 * np.concatenate([force, torque]), atol=1e-4)
        assert np.cross(axis, base[:, 2])[2] > 0  # Turned about this axis the base's z axis goes up.


def within(values: np.ndarray, low: np.ndarray, width: float = 0.1) -> bool:
    """Whether each column lies in a range, and fills most of it."""
    inside = (values >= low - 1e-5) & (values <= low + width + 1e-5)
    return bool(inside.all() and (np.ptp(values, axis=0) > 0.7 * width).all())


def matrix(quat: np.ndarray) -> np.ndarray:
    found = np.zeros(9)
    mujoco.mju_quat2Mat(found, quat.astype(float))
    return found.reshape(3, 3)


TWO_TREES = """
<mujoco>
  <worldbody>
    <body name="table"><geom type="box" size="0.5 0.5 0.1"/></body>
    <body name="robot" pos="0 0 1"><freejoint/><geom size="0.1"/>
      <body name="arm" pos="0.3 0 0"><joint name="arm" axis="0 1 0"/><geom size="0.05" pos="0.2 0 0"/></body>
    </body>
    <body name="cube" pos="1 0 1"><freejoint/><geom type="box" size="0.1 0.1 0.1" pos="0.05 0 0"/></body>
  </worldbody>
  <actuator><position name="arm" joint="arm"/></actuator>
</mujoco>
"""


@wp.func
def speed_of(state: Any, env: int, i: int, bodies: BodyIds) -> wp.vec3:
    """Return the velocity of a body [m/s]."""
    return body_lin_vel_w(state, env, bodies[i])


def test_the_velocity_of_a_body_is_mujocos_wherever_its_tree_begins() -> None:
    class Trees(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            engine="mujoco",
            actions={"arm": Action("joint_position", actuators="arm", scale=0.5)},
            observations={"policy": {"speeds": Obs(speed_of, bodies=".*")}},
            rewards={"alive": Reward("is_alive", weight=1.0)},
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:  # noqa: ARG003
            return mujoco.MjModel.from_xml_string(TWO_TREES)

    task = Trees(Trees.config, num_envs=4, device="cpu", seed=0)
    task.qvel.numpy()[:] = np.random.default_rng(0).normal(size=(4, task.model.nv))
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.run("observe")
    data, velocity = mujoco.MjData(task.model), np.zeros(6)
    for env, observed in enumerate(task.obs["policy"].numpy()):
        data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(task.model, data)
        names = [name for name in task.binder.names.names("body") if name != "world"]
        for name, at in zip(names, observed[-3 * len(names) :].reshape(-1, 3), strict=True):
            body = task.model.body(name).id
            mujoco.mj_objectVelocity(task.model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
            np.testing.assert_allclose(at, velocity[3:], atol=1e-5, err_msg=name)

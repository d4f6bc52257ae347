"""Motion tracking: the terms on the motion and beside it, where episodes begin, and how they end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from support.stories import plan_of

from shoal.cli.parse import parse_train
from shoal.config.plain import from_plain
from shoal.mdp.terms import Action, Done, Event, Object, Obs, Reward
from shoal.run_record import make_run_dir, record_launch
from shoal.tasks.humanoid.inverse_dynamics import targets_of
from shoal.tasks.humanoid.motion import motion_file
from shoal.tasks.humanoid.tracking import G1_TRACKING, HUMANOID, TrackingConfig, follows, follows_alone
from shoal.tasks.humanoid.tracking_task import Tracking

ENVS = 32
OWN = "shoal.tasks.humanoid.terms:"
EXACT = HUMANOID.undisturbed().in_play()
_TERMS = {name: at for at, name in enumerate(HUMANOID.terms("rewards"))}


def begun(**changes: Any) -> Tracking:
    """Return environments at the beginning of their episodes."""
    task = Tracking(from_plain(EXACT, changes), num_envs=ENVS, device="cpu", seed=3)
    task.restart(7)
    return task


@pytest.fixture(scope="module")
def task() -> Tracking:
    return begun()


def rewards(task: Tracking) -> dict[str, np.ndarray]:
    """Return the terms for the present state, as if it were that after a step."""
    task.run("reward")
    task.terminated.zero_()
    task.truncated.zero_()
    return dict(zip(task.reward_terms, task.terms.numpy().T.copy(), strict=True))


def rotated(vector: np.ndarray, quat: np.ndarray) -> np.ndarray:
    found = np.zeros(3)
    mujoco.mju_rotVecQuat(found, vector.astype(float), quat.astype(float))
    return found


def test_an_episode_begins_on_the_motion_where_all_errors_are_zero(task: Tracking) -> None:
    frames: Any = task.start_frame.numpy()
    np.testing.assert_allclose(task.qpos.numpy(), task.motion.qpos[frames], atol=1e-6)
    np.testing.assert_allclose(task.qvel.numpy(), task.motion.qvel[frames], atol=1e-5)
    assert len(np.unique(frames)) > ENVS / 2
    terms = rewards(task)
    for name in ("root_pos", "root_ori", "body_pos", "body_ori", "body_lin_vel", "body_ang_vel"):
        own = f"motion_{'global_' if 'root' in name else ''}{name}"
        np.testing.assert_allclose(terms[own], 1.0, atol=1e-4, err_msg=own)
    assert not task.done_terms.numpy()[:, 1:].any()


def test_the_policy_observes_the_next_frame(task: Tracking) -> None:
    frame = task.start_frame.numpy() + 1
    observed = task.obs["policy"].numpy()
    joints = task.model.nq - 7
    np.testing.assert_allclose(observed[:, :joints], task.motion.qpos[frame, 7:], atol=1e-6)
    np.testing.assert_allclose(observed[:, joints : 2 * joints], task.motion.qvel[frame, 6:], atol=1e-5)
    anchor = task.model.body("torso").id
    offset = task.motion.body_pos[frame, anchor] - task.state_values["xpos"].numpy()[:, anchor]
    back = task.state_values["xquat"].numpy()[:, anchor] * [1, -1, -1, -1]
    in_anchor = [rotated(*each) for each in zip(offset, back, strict=True)]
    np.testing.assert_allclose(observed[:, 2 * joints : 2 * joints + 3], in_anchor, atol=1e-5)


def test_an_object_of_the_motion_is_observed_rewarded_and_begins_where_the_robot_begins(tmp_path: Path) -> None:
    arrays: dict[str, Any] = dict(np.load(motion_file("squats")))
    frames = len(arrays["joint_pos"])
    wave = np.sin(np.arange(frames) / 20)
    poses = {"pos": np.stack([0.5 + 0 * wave, 0.1 * wave, 1.0 + 0.2 * wave], axis=1)}
    poses["quat"] = np.stack([np.cos(wave / 2), 0 * wave, 0 * wave, np.sin(wave / 2)], axis=1)
    arrays |= {f"object_{name}_w": each for name, each in poses.items()}
    np.savez(tmp_path / "carries.npz", **arrays)
    own: str = "shoal.tasks.humanoid.terms:"
    box: dict[str, Any] = {"anchor_body": "box/body"}
    config = EXACT.change(
        objects={"box": Object("geom", type="box", size=(0.1, 0.1, 0.1), mass=1.0)},
        rewards={
            "box_pos": Reward(f"{own}motion_global_anchor_position_error_exp", weight=1.0, **box, std=0.3),
            "box_ori": Reward(f"{own}motion_global_anchor_orientation_error_exp", weight=1.0, **box, std=0.4),
        },
        observations={
            "object": {
                "error": Obs(f"{own}motion_anchor_pos_b", **box),
                "place": Obs(f"{own}robot_body_pos_b", bodies="box/body", anchor_body="{anchor}"),
            }
        },
        terminations={"dropped": Done(f"{own}bad_anchor_pos", **box, threshold=0.2)},
        motion=str(tmp_path / "carries.npz"),
    )
    task = Tracking(config, num_envs=ENVS, device="cpu", seed=3)
    task.restart(7)
    begins: Any = task.start_frame.numpy()
    pos, quat = task.motion.qpos[:, -7:-4], task.motion.qpos[:, -4:]
    np.testing.assert_allclose(pos[:, 1:], poses["pos"][:, 1:], atol=1e-6)  # It has the rate of the actions.
    np.testing.assert_allclose(task.qpos.numpy()[:, -7:], task.motion.qpos[begins, -7:], atol=1e-6)
    np.testing.assert_allclose(task.qvel.numpy()[:, -6:], task.motion.qvel[begins, -6:], atol=1e-5)
    body, anchor = task.model.body("box/body").id, task.model.body("torso").id
    xpos, xquat = (task.state_values[name].numpy().astype(float) for name in ("xpos", "xquat"))
    following = np.minimum(begins + 1, len(pos) - 1)
    observed, turned, back = task.obs["object"].numpy(), np.zeros(3), np.zeros(4)
    for env in range(ENVS):
        error = pos[following[env]] - xpos[env, body]
        for at, (of, offset) in enumerate(((body, error), (anchor, xpos[env, body] - xpos[env, anchor]))):
            mujoco.mju_negQuat(back, xquat[env, of])
            mujoco.mju_rotVecQuat(turned, offset, back)
            np.testing.assert_allclose(observed[env, 3 * at : 3 * at + 3], turned, atol=1e-5)
    for _ in range(6):
        task.step()
    now = np.minimum(task.start_frame.numpy() + task.arrays["age"].numpy(), len(pos) - 1)
    state, alive = task.qpos.numpy()[:, -7:], ~task.done.numpy()
    data = task.state_values["xpos"].numpy()[:, body]
    error = np.linalg.norm(pos[now] - data, axis=1)
    terms = dict(zip(task.reward_terms, task.terms.numpy().T, strict=True))
    np.testing.assert_allclose(terms["box_pos"][alive], np.exp(-((error / 0.3) ** 2))[alive], rtol=1e-3)
    angle = 2 * np.arccos(np.clip(np.abs((quat[now] * state[:, 3:]).sum(axis=1)), 0, 1))
    np.testing.assert_allclose(terms["box_ori"][alive], np.exp(-((angle / 0.4) ** 2))[alive], atol=0.02)
    assert error[alive].max() > 0.01  # It falls.


def test_a_robot_that_does_what_the_motion_does_elsewhere_has_no_error_of_its_bodies() -> None:
    shifted = {"x": [0.3, 0.3], "y": [-0.2, -0.2], "yaw": [0.5, 0.5]}
    terms = rewards(begun(events={"start": shifted}))
    for name in ("motion_body_pos", "motion_body_ori"):
        np.testing.assert_allclose(terms[name], 1.0, atol=1e-4, err_msg=name)
    np.testing.assert_allclose(terms["motion_global_root_ori"], np.exp(-(0.5**2) / 0.4**2), rtol=1e-3)
    # The base is moved, and the torso that hangs on it turns about the base's z.
    assert (terms["motion_global_root_pos"] < np.exp(-(0.3**2) / 0.3**2)).all()


def test_actions_are_around_the_targets_of_the_pose_after_the_step_less_what_encoders_err() -> None:
    action = Action(f"{OWN}motion_joint_position", actuators=".*", scale=0.5)
    errors = Event("encoder_bias", "startup", joints=".*", ranges=(-0.1, 0.2))
    config = EXACT.change(actions={"joint_pos": action}, events={"errors": errors})
    task = Tracking(config, num_envs=ENVS, device="cpu", seed=3)
    task.actions.fill_(0.2)
    task.step()
    frame, model = task.start_frame.numpy() + 1, task.model
    bias = task.arrays["encoder_bias"].numpy()[:, model.jnt_dofadr[model.actuator_trnid[:, 0]]]
    target = targets_of(model, task.motion)[frame] + 0.5 * 0.2 - bias
    np.testing.assert_allclose(task.data("ctrl").numpy(), model.actuator_gear[:, 0] * target, atol=1e-5)


def test_assistance_draws_a_body_to_its_pose_and_velocity_in_the_motion() -> None:
    numbers = {"strength": 0.5, "stiffness": 100.0, "damping": 10.0, "upright": 30.0, "spin": 2.0}
    held = Event(f"{OWN}apply_motion_assistance", "step", interval=(1.0, 1.0), body="torso", **numbers)
    start = {"x": (-0.2, 0.2), "roll": (-0.1, 0.1), "yaw": (-4.5, 4.5)}  # The shorter way is sometimes the other.
    config = EXACT.change(events={"held": held, "start": start})
    task = Tracking(config, num_envs=ENVS, device="cpu", seed=3)
    for _ in range(3):
        task.step()
    body, data, going = task.model.body("torso").id, mujoco.MjData(task.model), ~task.done.numpy().astype(bool)
    assert going.sum() > ENVS / 2
    turn, velocity = np.zeros(3), np.zeros(6)
    for env in np.flatnonzero(going):
        for name in ("xpos", "xquat", "cvel", "subtree_com"):
            getattr(data, name)[:] = task.state_values[name].numpy()[env].reshape(getattr(data, name).shape)
        mujoco.mj_objectVelocity(task.model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity, 0)
        frame, motion = task.start_frame.numpy()[env] + task.age.numpy()[env], task.motion
        # The difference of two orientations is in the frame of the second.
        mujoco.mju_subQuat(turn, motion.body_quat[frame, body].astype(float), data.xquat[body])
        angle, axis = np.linalg.norm(turn), rotated(turn, data.xquat[body])
        torque = 30.0 * 2.0 * np.sin(angle / 2) * axis / angle
        torque += 2.0 * (motion.body_ang_vel[frame, body] - velocity[:3])
        force = 100.0 * (motion.body_pos[frame, body] - data.xpos[body])
        force += 10.0 * (motion.body_lin_vel[frame, body] - velocity[3:])
        wrench = task.data("xfrc_applied").numpy()[env, body]
        np.testing.assert_allclose(wrench, 0.5 * np.concatenate([force, torque]), rtol=2e-3, atol=0.02)


@pytest.mark.parametrize(
    ("failed", "error", "goes_on"),
    [(0.4, 0.12, True), (0.41, 0.05, False), (0.1, 0.13, False), (0.3, 0.05, True), (0.0, 0.0, True)],
)
def test_help_becomes_weaker_where_few_episodes_fail_and_bodies_are_near(
    failed: float, error: float, *, goes_on: bool
) -> None:
    metrics = {"Metrics/failed_share": failed, "Metrics/error_body_pos": error}
    assert (follows(metrics) >= 1.0) == goes_on
    assert follows({}) < 1.0
    alone = {"Curriculum/assistance/strength": 0.0}
    assert (follows_alone(metrics | alone) >= 1.0) == (goes_on and failed <= 0.3)
    for helped in ({}, {"Curriculum/assistance/strength": 0.1}):
        assert follows_alone(metrics | helped) == 0.0


def test_the_help_of_the_g1_begins_at_a_quarter_and_ends_at_nothing() -> None:
    assistance: Any = G1_TRACKING.terms("curricula")["assistance"]
    assert (assistance.strength[0], assistance.strength[-1]) == (0.25, 0.0)
    assert len(assistance.above) == len(assistance.strength)


def test_a_robot_that_leaves_the_motion_is_terminated_by_its_distance_or_only_its_height() -> None:
    own, near = OWN, {"anchor_body": "{anchor}", "threshold": 0.2}
    ends = {
        "anchor": Done(f"{own}bad_anchor_pos", **near),
        "bodies": Done(f"{own}bad_motion_body_pos", bodies="{bodies}", **near),
        "height": Done(f"{own}bad_anchor_pos_z_only", **near),
        "heights": Done(f"{own}bad_motion_body_pos_z_only", bodies="{bodies}", **near),
    }
    config = EXACT.change(terminations=dict.fromkeys(EXACT.terms("terminations")) | ends)
    for moved, expected in (
        ({}, [False] * 4),
        ({"x": [0.21, 0.21]}, [True, False, False, False]),  # Bodies are compared where the robot is.
        ({"x": [0.15, 0.15], "y": [0.15, 0.15]}, [True, False, False, False]),
        ({"z": [0.21, 0.21]}, [True] * 4),
    ):
        task = Tracking(from_plain(config, {"events": {"start": moved}}), num_envs=4, device="cpu", seed=3)
        task.run("reward")
        assert task.done_terms.numpy().tolist() == [expected] * 4


def test_a_robot_that_falls_is_terminated_and_a_motion_that_ends_is_a_time_out() -> None:
    task = begun(events={"start": {"pitch": [1.6, 1.6]}})
    rewards(task)
    names = list(task.config.terms("terminations"))
    assert task.done_terms.numpy()[:, names.index("anchor_ori")].all()
    far = {"threshold": 1e6}
    short = begun(terminations={"anchor_pos": far, "anchor_ori": far, "ee_body_pos": far})
    last = len(short.motion.qpos) - 2
    short.start_frame.fill_(last)
    short.step()
    assert short.time_out.numpy().all()


def test_new_episodes_begin_where_others_failed() -> None:
    adaptive = Tracking(
        from_plain(EXACT, {"events": {"start": {"uniform_ratio": 0.0, "before": 0.2}}}),
        num_envs=256,
        device="cpu",
        seed=0,
    )
    adaptive.restart(0)
    arrays = adaptive.state_values
    arrays["known_failure"].fill_(100)
    adaptive.done.fill_(value=True)
    adaptive.time_out.fill_(value=True)
    adaptive.run("reset", "derive")
    frames = adaptive.start_frame.numpy()
    assert 90 <= frames.min() < frames.max() <= 100
    arrays["known_failure"].fill_(0)  # Nobody has failed: anywhere.
    adaptive.run("reset", "derive")
    assert len(np.unique(adaptive.start_frame.numpy())) > 100


def test_where_others_failed_is_known_without_a_metric() -> None:
    config = HUMANOID.change(metrics=dict.fromkeys(HUMANOID.terms("metrics")))
    task = Tracking(config, num_envs=2, device="cpu", seed=1)
    task.arrays["own_failure"].fill_(7)
    task.run("reward")
    assert task.state_values["known_failure"].numpy().tolist() == [7, 7]
    assert task.state_values["last_frame"].numpy().tolist() == task.state_values["start_frame"].numpy().tolist()


def test_a_failure_is_known_to_the_others_until_the_episode_after_it_does_not_fail() -> None:
    task = begun(events={"start": {"pitch": [1.6, 1.6]}})
    task.step()  # All fall at once, and begin again in the same pose.
    assert (task.state_values["own_failure"].numpy() > 0).all()
    task.step()
    assert (task.state_values["known_failure"].numpy() > 0).all()
    names = list(task.metrics)
    assert task.metric_values.numpy()[:, names.index("failed_share")].tolist() == [1.0] * ENVS
    task.done.fill_(value=True)
    task.time_out.fill_(value=True)
    task.run("reset", "derive")
    assert not task.state_values["own_failure"].numpy().any()


@pytest.mark.parametrize("motion", ["squats", "own.npz"])
def test_a_run_keeps_its_robot_and_its_motion(motion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(motion_file("squats"), tmp_path / "own.npz")
    plan = plan_of(tmp_path / "logs", "Humanoid-Tracking-Flat", "--env.motion", motion)
    run = make_run_dir(plan)
    record_launch(run, plan)
    (tmp_path / "own.npz").unlink()
    monkeypatch.chdir(run.path)
    again = parse_train(["--config", str(run.train_yaml)]).env
    assert isinstance(again, TrackingConfig)
    assert str(run.models_dir) in again.robot
    task = Tracking(again, num_envs=1, device="cpu", seed=0)
    assert (len(task.motion.qpos), task.motion.fps) == (401, 50.0)

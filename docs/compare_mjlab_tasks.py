"""Compare terms of histories, contacts, motions and objects with mjlab's, see `compare_mjlab_terms.py`."""

# ruff: noqa: ANN401  mjlab is not installed where this is checked.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch
from compare_mjlab_terms import Biped, configured, difference, random_biped, tensor
from mdp.test_terms import CONFIG, NUM_ENVS, TERMINATIONS, State

from shoal.mdp.terms import Command, Curriculum, Done, Event, Metric, Obs, Reward
from shoal.mdp.terrain import BORDER
from shoal.mdp.values import grid_points
from shoal.tasks.humanoid.tracking import HUMANOID
from shoal.tasks.humanoid.tracking_task import Tracking
from shoal.tasks.manipulation.config import LIFT_CUBE
from shoal.tasks.manipulation.task import LiftCube
from shoal.tasks.quadruped.config import ROUGH
from shoal.tasks.quadruped.task import RoughVelocity

RANGES = dict(zip(("x", "y", "z", "roll", "pitch", "yaw"), (0.1, -0.2, 0.3, 0.4, -0.5, 0.6), strict=True))
"""Ranges of one number."""
FIXED = {name: (value, value) for name, value in RANGES.items()}
SPEED = {f"velocity_{name}": (-value, -value) for name, value in RANGES.items()}
ABOVE = 5.0
"""Where rays begin, above all ground [m]; one that hits nothing ends above it."""
ARM: dict[str, Any] = {"site": "grasp", "object_body": "cube/body", "command": "goal"}
STDS: dict[str, Any] = {"reaching_std": 0.2, "bringing_std": 0.3}


def calm(**groups: Any) -> Biped:
    """Build bipeds that never end their episodes, with other terms."""
    config = CONFIG.change(rewards=dict.fromkeys(CONFIG.terms("rewards")), terminations=dict.fromkeys(TERMINATIONS))
    return Biped(config.change(**groups), num_envs=NUM_ENVS, device="cpu", seed=0)


def compare_history(mjlab: Any) -> dict[str, float]:
    """Compare terms of the last actions, and of feet, while the robot moves; mjlab's get contacts as tracked here.

    Forces are those on the feet: MuJoCo's sensors have those of the feet on the ground.
    """
    observed = {
        "foot_height": Obs("foot_height", contact="feet"),
        "foot_air_time": Obs("foot_air_time", contact="feet"),
        "foot_contact": Obs("foot_contact", contact="feet"),
        "foot_contact_forces": Obs("foot_contact_forces", contact="feet"),
        "last_action": Obs("last_actions"),
        "builtin_sensor": Obs("builtin_sensor", sensors="angmom"),
        "projected_gravity_from_sensor": Obs("builtin_sensor", sensors="angmom", scale=-1.0),
    }
    own = dict.fromkeys(CONFIG.terms("observations")["policy"].__dataclass_fields__) | observed
    task = calm(
        observations={"policy": own},
        rewards={
            "action_rate_l2": Reward("action_rate_l2", weight=1.0),
            "action_acc_l2": Reward("action_acc_l2", weight=1.0, actuators=".*"),
        },
        metrics={"mean_action_acc": Metric("mean_action_acc", actuators=".*")},
    )
    from mjlab.sensor.terrain_height_sensor import TerrainHeightSensor

    kind: Any = type("Heights", (TerrainHeightSensor,), {"data": None, "__init__": lambda _: None})
    heights, actions = kind(), [torch.zeros(NUM_ENVS, 4)] * 3
    names = (*observed, "action_rate_l2", "action_acc_l2", "mean_action_acc")
    found, rng = dict.fromkeys(names, 0.0), np.random.default_rng(0)
    for _ in range(100):
        sent = rng.uniform(-1, 1, (NUM_ENVS, 4)).astype(np.float32)
        task.actions.assign(sent)
        task.step()
        actions = [torch.tensor(sent), *actions[:2]]
        contact = {name: task.arrays[f"contacts/feet/{name}"].numpy() for name in ("found", "position", "air_time")}
        forces = task.data("sensordata").numpy()
        heights.data = SimpleNamespace(heights=tensor(contact["position"][..., 2]))
        data = SimpleNamespace(found=torch.tensor(contact["found"]), current_air_time=tensor(contact["air_time"]))
        data.force = tensor(-forces[:, [4, 5, 6, 8, 9, 10]].reshape(NUM_ENVS, 2, 3))
        sensors = {"heights": heights, "feet": SimpleNamespace(data=data), "angmom": SimpleNamespace()}
        sensors["angmom"].data = tensor(forces[:, :3])
        last = SimpleNamespace(action=actions[0], prev_action=actions[1], prev_prev_action=actions[2])
        env = SimpleNamespace(scene=sensors, action_manager=last)
        theirs = [
            mjlab.foot_height(env, "heights"),
            *(getattr(mjlab, name)(env, "feet") for name in ("foot_air_time", "foot_contact", "foot_contact_forces")),
            mjlab.last_action(env),
            _sensor(mjlab.builtin_sensor, env),
            _sensor(mjlab.projected_gravity_from_sensor, env),
            *(getattr(mjlab, name)(env)[:, None] for name in ("action_rate_l2", "action_acc_l2", "mean_action_acc")),
        ]
        ours = np.concatenate([_observed(task, observed), task.terms.numpy(), task.metric_values.numpy()], axis=1)
        column = 0
        for name, their in zip(names, theirs, strict=True):
            found[name] = max(found[name], difference(their, ours[:, column : column + their.shape[1]]))
            column += their.shape[1]
    return found


def _observed(task: Any, names: Iterable[str]) -> np.ndarray:
    """Return the columns of some terms that the policy observes, in the order of the names."""
    widths = task.observation_terms["policy"]
    ends = dict(zip(widths, np.cumsum([*widths.values()]), strict=True))
    return np.concatenate(
        [task.obs["policy"].numpy()[:, ends[each] - widths[each] : ends[each]] for each in names], axis=1
    )


def _sensor(function: Any, env: Any) -> torch.Tensor:
    """Call a function that asks for mjlab's sensor class, with the numbers of a sensor."""
    kind = function.__globals__["BuiltinSensor"]
    sensor: Any = type("Numbers", (kind,), {"data": env.scene["angmom"].data, "__init__": lambda _: None})()
    return function(SimpleNamespace(scene={"angmom": sensor}), "angmom")


def compare_contact(mjlab: Any) -> dict[str, float]:
    """Compare the termination by forces on random states."""
    task = random_biped()
    states = [State(task, index) for index in range(NUM_ENVS)]
    forces = tensor([[[state.contact_force(f"{side}_foot")] for side in ("left", "right")] for state in states])
    env = SimpleNamespace(scene={"feet": SimpleNamespace(data=SimpleNamespace(force_history=forces))})
    ours = task.done_terms.numpy()[:, list(TERMINATIONS).index("illegal_contact")]
    return {"illegal_contact": difference(mjlab.illegal_contact(env, "feet", 8.0).float(), ours)}


def compare_events(mjlab: Any) -> dict[str, float]:
    """Compare events that write the state, with ranges of one number."""
    joints = {
        "joints": Event("reset_joints_by_offset", "reset", joints=".*", position=(0.1, 0.1), velocity=(-0.3, -0.3))
    }
    base = {"base": Event("reset_root_state_uniform", "reset", **FIXED, **SPEED)}
    force = {
        "wrench": Event("apply_external_force_torque", "reset", bodies="trunk", force=(2.0, 2.0), torque=(-3.0, -3.0))
    }
    push = {"push": Event("push_by_setting_velocity", "interval", interval=(1.0, 1.0), **FIXED)}
    task = calm(events=joints | base | force | push)
    model, written = task.model, dict[str, Any]()
    zeros, home = torch.zeros(NUM_ENVS, 4), tensor([*task.home()[:7], *np.zeros(6)]).expand(NUM_ENVS, 13)
    limits = tensor(model.jnt_range[1:]).expand(NUM_ENVS, 4, 2)
    rotations = np.stack([State(task, env).rotation for env in range(NUM_ENVS)])

    def velocity() -> torch.Tensor:
        """Return the velocity and angular velocity of the base in the world. Shape (num_envs, 6)."""
        qvel = task.qvel.numpy()
        return tensor(np.concatenate([qvel[:, :3], np.einsum("nij,nj->ni", rotations, qvel[:, 3:6])], axis=1))

    robot = SimpleNamespace(is_fixed_base=False, num_bodies=1)
    robot.data = SimpleNamespace(
        default_root_state=home,
        default_joint_pos=zeros,
        default_joint_vel=zeros,
        soft_joint_pos_limits=limits,
        root_link_vel_w=velocity(),
    )
    robot.write_root_link_pose_to_sim = lambda pose, env_ids: written.update(pose=pose)  # noqa: ARG005
    robot.write_root_link_velocity_to_sim = lambda value, env_ids: written.update(velocity=value)  # noqa: ARG005
    robot.write_joint_state_to_sim = lambda position, speed, **_: written.update(joints=torch.cat([position, speed], 1))
    robot.write_external_wrench_to_sim = lambda force, torque, **_: written.update(wrench=torch.cat([force, torque], 2))

    class Scene(dict[str, Any]):
        """A scene without a grid of environments."""

        env_origins = torch.zeros(NUM_ENVS, 3)

    env = SimpleNamespace(num_envs=NUM_ENVS, device="cpu", scene=Scene(robot=robot))
    every = configured(body_ids=[0])
    backwards = {name: (-value, -value) for name, value in RANGES.items()}
    mjlab.reset_root_state_uniform(env, None, FIXED, backwards, every)
    found = {
        "reset_root_state_uniform": max(
            difference(written["pose"], task.qpos.numpy()[:, :7]), difference(written["velocity"], velocity().numpy())
        )
    }
    mjlab.reset_joints_by_offset(env, None, (0.1, 0.1), (-0.3, -0.3), every)
    ours = np.concatenate([task.qpos.numpy()[:, 7:], task.qvel.numpy()[:, 6:]], axis=1)
    found["reset_joints_by_offset"] = difference(written["joints"], ours)
    mjlab.apply_external_force_torque(env, None, (2.0, 2.0), (-3.0, -3.0), every)
    wrench = task.data("xfrc_applied").numpy()[:, 1:2]
    found["apply_external_force_torque"] = difference(written["wrench"], wrench)
    task.arrays["event_left"].fill_(0.0)
    task.done.zero_()
    mjlab.push_by_setting_velocity(env, None, FIXED, every)
    task.run("interval")
    found["push_by_setting_velocity"] = difference(written["velocity"], velocity().numpy())
    return found


def compare_impulse(mjlab: Any) -> dict[str, float]:
    """Compare when an impulse of a fixed length acts in intervals of a fixed length, and how much."""
    own = Event(
        "apply_body_impulse",
        "step",
        bodies="trunk",
        force=(2.0, 2.0),
        torque=(-3.0, -3.0),
        duration=(0.01, 0.01),
        interval=(0.015, 0.015),
    )
    task, written = calm(events={"impulse": own}), {"wrench": torch.zeros(NUM_ENVS, 1, 6)}
    robot = SimpleNamespace(num_bodies=1)
    robot.write_external_wrench_to_sim = lambda force, torque, **_: written.update(wrench=torch.cat([force, torque], 2))
    # mjlab counts the step in which an interval begins.
    params = {"asset_cfg": configured(body_ids=[0]), "cooldown_s": (0.015 + task.step_dt,) * 2}
    env = SimpleNamespace(num_envs=NUM_ENVS, device="cpu", scene={"robot": robot}, step_dt=task.step_dt)
    term, found = mjlab.apply_body_impulse(SimpleNamespace(params=params), env), 0.0
    for _ in range(40):
        task.step()
        term(env, None, (2.0, 2.0), (-3.0, -3.0), (0.01, 0.01), **params)
        found = max(found, difference(written["wrench"], task.data("xfrc_applied").numpy()[:, 1:2]))
    return {"apply_body_impulse": found}


def compare_curricula(mjlab: Any) -> dict[str, float]:
    """Compare numbers that change at steps of a training."""
    steps = (2, 4)
    ranges: Any = {"lin_vel_x": ((-0.5, 0.5), (-2.0, 2.0)), "ang_vel_z": ((-0.1, 0.1), (-0.7, 0.7))}
    curricula = {
        "reward": Curriculum("reward_curriculum", reward_name="up", steps=steps, weight=(0.5, 2.0), std=(0.3, 0.9)),
        "end": Curriculum("termination_curriculum", termination_name="low", steps=steps, minimum_height=(-1.0, -2.0)),
        "speed": Curriculum("commands_vel", command_name="twist", steps=steps, **ranges),
    }
    up, low = (
        Reward("upright", weight=1.0, body="trunk", std=0.5),
        Done("root_height_below_minimum", minimum_height=-9.0),
    )
    task = calm(curricula=curricula, rewards={"up": up}, terminations={"low": low})
    reward = SimpleNamespace(weight=1.0, params={"std": 0.5}, func=None)
    end = SimpleNamespace(params={"minimum_height": -9.0}, func=None)
    speed = SimpleNamespace(lin_vel_x=(-1.0, 1.0), lin_vel_y=(-1.0, 1.0), ang_vel_z=(-1.0, 1.0))
    env = SimpleNamespace(
        common_step_counter=0,
        reward_manager=SimpleNamespace(get_term_cfg=lambda _: reward),
        termination_manager=SimpleNamespace(get_term_cfg=lambda _: end),
        command_manager=SimpleNamespace(get_term=lambda _: SimpleNamespace(cfg=SimpleNamespace(ranges=speed))),
    )
    stages: dict[str, list[dict[str, Any]]] = {
        "reward": [
            {"step": step, "weight": w, "params": {"std": s}}
            for step, w, s in zip(steps, (0.5, 2.0), (0.3, 0.9), strict=True)
        ],
        "end": [
            {"step": step, "params": {"minimum_height": height}}
            for step, height in zip(steps, (-1.0, -2.0), strict=True)
        ],
        "speed": [{"step": steps[at]} | {name: each[at] for name, each in ranges.items()} for at in (0, 1)],
    }
    called: dict[str, dict[str, Any]] = {
        "reward_curriculum": {"reward_name": "up", "stages": stages["reward"]},
        "termination_curriculum": {"termination_name": "low", "stages": stages["end"]},
    }
    functions = {name: getattr(mjlab, name)(SimpleNamespace(params=params), env) for name, params in called.items()} | {
        "commands_vel": mjlab.commands_vel
    }
    called["commands_vel"] = {"command_name": "twist", "velocity_stages": stages["speed"]}
    found = dict.fromkeys(functions, 0.0)
    for env.common_step_counter in range(6):
        task.step()
        numbers, positions = task.numbers.numpy(), task.binder.positions
        for name, function in functions.items():
            function(env, None, **called[name])
        weight = task.weights.numpy()[0] / task.per_step
        ours = {
            "reward_curriculum": [weight, numbers[positions["rewards.up.std"]]],
            "termination_curriculum": [numbers[positions["terminations.low.minimum_height"]]],
            "commands_vel": [
                numbers[positions[f"commands.twist.{name}.{at}"]] for name in vars(speed) for at in (0, 1)
            ],
        }
        theirs = {
            "reward_curriculum": [reward.weight, reward.params["std"]],
            "termination_curriculum": [end.params["minimum_height"]],
            "commands_vel": [number for pair in vars(speed).values() for number in pair],
        }
        for name, their in theirs.items():
            found[name] = max(found[name], difference(tensor(their), np.array(ours[name])))
    return found


def compare_terrain(mjlab: Any) -> dict[str, float]:
    """Compare terms on rough terrain. mjlab's get what MuJoCo's rays find."""
    config = ROUGH.undisturbed().change(terminations={"edge": Done("terrain_edge_reached", time_out=True)})
    task = RoughVelocity(config, num_envs=NUM_ENVS, device="cpu", seed=0)
    rng, edge = np.random.default_rng(0), -np.array(task.terrain.corner)
    task.qpos.numpy()[:, :2] = rng.uniform(-edge + 0.9, edge - 0.9, (NUM_ENVS, 2))
    task.qpos.numpy()[:4, 0] = edge[0] - np.array([0.5, 1.9, 2.1, 3.9])
    levels, kinds = task.levels.numpy(), np.arange(NUM_ENVS) % task.terrain.centers.shape[1]
    middles = task.terrain.centers[levels, kinds]
    task.qpos.numpy()[4::2, :2] = middles[4::2] + rng.uniform(-4.2, 4.2, (len(middles[4::2]), 2))
    task.age.assign(np.arange(NUM_ENVS) % 6)
    task.run("reward")
    task.run("observe")
    scanned: Any = ROUGH.observations
    points, places = grid_points(*scanned.policy.height_scan.grid), task.qpos.numpy()
    hits = np.zeros((NUM_ENVS, len(points), 3))
    data, down, floor = mujoco.MjData(task.model), np.array([0.0, 0.0, -1.0]), task.model.geom("floor").id
    mujoco.mj_forward(task.model, data)
    for env, place in enumerate(places):
        w, x, y, z = place[3:7]
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        for at, point in enumerate(points):
            start = np.append(place[:2] + turn @ point, ABOVE)
            hits[env, at] = start + down * mujoco.mj_rayHfield(task.model, data, floor, start, down)
    sensor = SimpleNamespace(cfg=SimpleNamespace(max_distance=9.0), num_frames=1, num_rays_per_frame=len(points))
    sensor.data = SimpleNamespace(distances=torch.ones(NUM_ENVS, len(points)), hit_pos_w=tensor(hits))
    sensor.data.frame_pos_w = tensor(places[:, None, :3])
    generator = SimpleNamespace(size=(ROUGH.sub_terrain_size, ROUGH.sub_terrain_size), border_width=BORDER)
    terrain = SimpleNamespace(terrain_origins=torch.zeros(*task.terrain.centers.shape[:2], 3))
    terrain.cfg = SimpleNamespace(terrain_type="generator", terrain_generator=generator)

    class Scene(dict[str, Any]):
        """A scene with a terrain."""

    scene = Scene(scan=sensor, robot=SimpleNamespace(data=SimpleNamespace(root_link_pos_w=tensor(places[:, :3]))))
    scene.terrain = terrain  # pyright: ignore[reportAttributeAccessIssue]
    scene.env_origins = tensor(middles)  # pyright: ignore[reportAttributeAccessIssue]
    env = SimpleNamespace(scene=scene, num_envs=NUM_ENVS, device="cpu")
    env.episode_length_buf = torch.tensor(task.age.numpy())
    ends = list(config.terms("terminations"))
    beyond, at_edge = (task.done_terms.numpy()[:, ends.index(name)] for name in ("out_of_terrain", "edge"))
    theirs = mjlab.out_of_terrain_bounds(env, BORDER / 2, configured())
    scan, over = mjlab.height_scan(env, "scan", offset=float(task.home()[2])), hits[..., 2].max(axis=1) < ABOVE
    return {
        "height_scan": difference(scan[over], _observed(task, ["height_scan"])[over]),
        "out_of_terrain_bounds": difference(theirs.float(), beyond),
        "terrain_edge_reached": difference(mjlab.terrain_edge_reached(env, asset_cfg=configured()).float(), at_edge),
    }


def compare_tracking(mjlab: Any) -> dict[str, float]:  # noqa: PLR0915  One state for many terms.
    """Compare terms of a motion, for robots that have left it; mjlab's command moves the motion to the robot."""
    own = "shoal.tasks.humanoid.terms:"
    near = {"anchor_body": "{anchor}", "threshold": 0.2}
    more = {
        "anchor": Done(f"{own}bad_anchor_pos", **near),
        "bodies": Done(f"{own}bad_motion_body_pos", bodies="{bodies}", **near),
    }
    config = HUMANOID.undisturbed().in_play().change(terminations=more)
    task = Tracking(config, num_envs=NUM_ENVS, device="cpu", seed=3)
    task.restart(7)
    rng = np.random.default_rng(0)
    task.qpos.numpy()[:, :3] += rng.uniform(-0.2, 0.2, (NUM_ENVS, 3))
    turns = task.qpos.numpy()[:, 3:7] + rng.normal(size=(NUM_ENVS, 4)) * 0.2
    task.qpos.numpy()[:, 3:7] = turns / np.linalg.norm(turns, axis=1, keepdims=True)
    task.qpos.numpy()[:, 7:] += rng.uniform(-0.2, 0.2, (NUM_ENVS, task.model.nq - 7))
    task.qvel.numpy()[:] += rng.normal(size=task.qvel.shape) * 0.5
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.run("reward")
    task.run("observe")
    model, motion, names = task.model, task.motion, task.binder.names
    roles = task.roles()
    bodies, ends = (names.select("body", roles[name], "") for name in ("bodies", "ends"))
    anchor = model.body(roles["anchor"]).id

    def command_at(frames: np.ndarray) -> Any:
        """Return mjlab's command, with the motion at some frames."""
        quats, places = tensor(task.data("xquat").numpy()), tensor(task.data("xpos").numpy())
        motions = {key: tensor(getattr(motion, key)[frames]) for key in ("body_pos", "body_quat", "body_lin_vel")}
        motions["body_ang_vel"] = tensor(motion.body_ang_vel[frames])
        speeds = np.zeros((NUM_ENVS, model.nbody, 6))
        for env in range(NUM_ENVS):
            data = mujoco.MjData(model)
            data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
            mujoco.mj_forward(model, data)
            for body in range(model.nbody):
                mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, speeds[env, body], 0)
        command = SimpleNamespace(
            cfg=SimpleNamespace(body_names=[model.body(each).name for each in bodies]),
            num_envs=NUM_ENVS,
            anchor_pos_w=motions["body_pos"][:, anchor],
            anchor_quat_w=motions["body_quat"][:, anchor],
            robot_anchor_pos_w=places[:, anchor],
            robot_anchor_quat_w=quats[:, anchor],
            robot_body_pos_w=places[:, bodies],
            robot_body_quat_w=quats[:, bodies],
            robot_body_lin_vel_w=tensor(speeds[:, bodies, 3:]),
            robot_body_ang_vel_w=tensor(speeds[:, bodies, :3]),
            **{f"{key}_w": value[:, bodies] for key, value in motions.items()},
        )
        mjlab.MotionCommand.update_relative_body_poses(command)
        return command

    start: Any = task.start_frame.numpy()
    age = task.age.numpy()
    now, later = command_at(start + age), command_at(start + age + 1)
    robot = SimpleNamespace(data=SimpleNamespace(gravity_vec_w=tensor([[0.0, 0.0, -1.0]]).expand(NUM_ENVS, 3)))
    env, ahead = (
        SimpleNamespace(
            num_envs=NUM_ENVS, scene={"robot": robot}, command_manager=SimpleNamespace(get_term=lambda _, own=own: own)
        )
        for own in (now, later)
    )
    found: dict[str, float] = {}
    for at, term in enumerate(config.terms("rewards").values()):
        name = str(term.func).rpartition(":")[2]
        if name.startswith("motion_"):
            found[name] = difference(getattr(mjlab, name)(env, "", term.std), task.terms.numpy()[:, at])
    only = {"body_names": [model.body(each).name for each in ends]}
    for at, term in enumerate(config.terms("terminations").values()):
        name = str(term.func).rpartition(":")[2]
        if name.startswith("bad_"):
            extra: dict[str, Any] = only if name == "bad_motion_body_pos_z_only" else {}
            extra |= {"asset_cfg": configured()} if name == "bad_anchor_ori" else {}
            theirs = getattr(mjlab, name)(env, command_name="", threshold=term.threshold, **extra)
            found[name] = difference(theirs.float(), task.done_terms.numpy()[:, at])
    column, critic = 0, task.obs["critic"].numpy()
    for key, width in task.observation_terms["critic"].items():
        name = str(getattr(config.observations, "critic").__dict__[key].func).rpartition(":")[2]  # noqa: B009
        if name in {"motion_anchor_pos_b", "motion_anchor_ori_b", "robot_body_pos_b", "robot_body_ori_b"}:
            found[name] = difference(getattr(mjlab, name)(ahead, ""), critic[:, column : column + width])
        column += width
    metrics = dict(zip(task.metrics, task.metric_values.numpy().T, strict=True))
    found["compute_root_relative_mpkpe"] = difference(mjlab.compute_root_relative_mpkpe(now), metrics["error_body_pos"])
    return found


def compare_manipulation(mjlab: Any) -> dict[str, float]:
    """Compare terms of the arm and its cube on random states. The right finger stands for a second cube."""
    own = "shoal.tasks.manipulation.terms:"
    multi: dict[str, Any] = {"site": "grasp", "object_bodies": "(cube/body|.*right_finger.*)", "command": "several"}
    places: dict[str, Any] = dict.fromkeys("xyz", (0.1, 0.4))
    several = Command(
        f"{own}multi_cube_lifting",
        columns={"to_x": "m", "to_y": "m", "to_z": "m", "object": ""},
        resampling_time=(9.0, 9.0),
        object_bodies=multi["object_bodies"],
        **places,
    )
    rewards = {
        "multi_cube_staged_position_reward": Reward(f"{own}multi_cube_staged_position_reward", 1.0, **multi, **STDS),
        "multi_cube_bring_object_reward": Reward(
            f"{own}multi_cube_bring_object_reward",
            1.0,
            std=0.3,
            command="several",
            object_bodies=multi["object_bodies"],
        ),
        "staged_position_reward": Reward(f"{own}staged_position_reward", 1.0, **ARM, **STDS),
        "bring_object_reward": Reward(
            f"{own}bring_object_reward", 1.0, object_body="cube/body", command="goal", std=0.3
        ),
        "joint_velocity_hinge_penalty": Reward(f"{own}joint_velocity_hinge_penalty", 1.0, joints=".*", max_vel=0.5),
    }
    observed = {
        "ee_to_object_distance": Obs("ee_to_object_distance", site="grasp", object_body="cube/body"),
        "object_to_goal_distance": Obs("object_to_goal_distance", object_body="cube/body", command="goal"),
        "ee_velocity": Obs(f"{own}ee_velocity", site="grasp"),
        "target_position": Obs(f"{own}target_position", site="grasp", command="goal"),
    }
    config = LIFT_CUBE.change(
        commands={"several": several},
        rewards=dict.fromkeys(LIFT_CUBE.terms("rewards")) | rewards,
        observations={
            "policy": dict.fromkeys(LIFT_CUBE.observations.__dict__["policy"].__dataclass_fields__) | observed
        },
    )
    task = LiftCube(config, num_envs=NUM_ENVS, device="cpu", seed=0)
    rng, model = np.random.default_rng(0), task.model
    task.qpos.numpy()[:, :-7] += rng.uniform(-0.3, 0.3, (NUM_ENVS, model.nq - 7))
    task.qvel.numpy()[:] = rng.normal(size=task.qvel.shape)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.run("reward")
    task.run("observe")
    site, cube = model.site("grasp").id, model.body("cube/body").id
    positions, velocities, turns = (np.zeros((NUM_ENVS, size)) for size in (3, 6, 4))
    for env in range(NUM_ENVS):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(model, data)
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, site, velocity, 0)
        positions[env], velocities[env] = data.site_xpos[site], np.roll(velocity, 3)
        mujoco.mju_mat2Quat(turns[env], data.site_xmat[site])
    fixed = tensor([[1.0, 0.0, 0.0, 0.0]]).expand(NUM_ENVS, 4)
    robot = SimpleNamespace(data=SimpleNamespace(root_link_quat_w=fixed, joint_vel=tensor(task.qvel.numpy()[:, :-6])))
    robot.data.site_pos_w, robot.data.site_vel_w = tensor(positions[:, None]), tensor(velocities[:, None])
    robot.data.site_quat_w = tensor(turns[:, None])
    scene = {"robot": robot, "cube": SimpleNamespace()}
    places_of = task.data("xpos").numpy()
    scene["cube"].data = SimpleNamespace(root_link_pos_w=tensor(places_of[:, cube]))
    commands = task.command_array.numpy()
    goals = {"goal": commands[:, :3], "several": commands[:, 3:6]}
    lifting, many = (
        type(name, (getattr(mjlab, name),), {"__init__": lambda _: None})()
        for name in ("LiftingCommand", "MultiCubeLiftingCommand")
    )
    lifting.target_pos, many.target_pos = tensor(goals["goal"]), tensor(goals["several"])
    chosen = np.array(task.binder.names.select("body", multi["object_bodies"], ""))[commands[:, 6].astype(int)]
    many._cached_target_obj_pos = tensor(places_of[np.arange(NUM_ENVS), chosen])  # noqa: SLF001
    terms = {"goal": lifting, "several": many}
    env = SimpleNamespace(scene=scene, command_manager=SimpleNamespace(get_term=terms.__getitem__))
    at, every = configured(site_ids=[0]), configured()
    theirs = {
        "multi_cube_staged_position_reward": mjlab.multi_cube_staged_position_reward(env, "several", 0.2, 0.3, at),
        "multi_cube_bring_object_reward": mjlab.multi_cube_bring_object_reward(env, "several", 0.3),
        "staged_position_reward": mjlab.staged_position_reward(env, "goal", "cube", 0.2, 0.3, at),
        "bring_object_reward": mjlab.bring_object_reward(env, "goal", "cube", 0.3),
        "joint_velocity_hinge_penalty": mjlab.joint_velocity_hinge_penalty(env, 0.5, every),
    }
    found = {name: difference(value, task.terms.numpy()[:, i]) for i, (name, value) in enumerate(theirs.items())}
    seen = {
        "ee_to_object_distance": mjlab.ee_to_object_distance(env, "cube", at),
        "object_to_goal_distance": mjlab.object_to_goal_distance(env, "cube", "goal", at),
        "ee_velocity": mjlab.ee_velocity(env, at),
        "target_position": mjlab.target_position(env, "goal", at),
    }
    for column, (name, value) in enumerate(seen.items()):
        found[name] = difference(value, task.obs["policy"].numpy()[:, 3 * column : 3 * column + 3])
    return found

"""Compare terms with mjlab's functions on the same random states: the largest difference of each.

    pip install --target DIR --no-deps mjlab==1.6.0
    python docs/compare_mjlab_terms.py DIR

mjlab's functions get what MuJoCo computes of each state. Packages that mjlab imports for its viewer and videos are
replaced by empty ones.
"""

# ruff: noqa: ANN401  mjlab is not installed where this is checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping, MutableSequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import mujoco
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from mdp import test_actions, test_commands
from mdp.test_randomization import EVERY, INERTIAL, Drawn, Hopper, build, model_of, moments, rows
from mdp.test_terms import CONFIG, LOWEST, NUM_ENVS, STDS, TERMINATIONS, Biped, State, random_biped

from shoal.mdp.terms import Action, Event, Reward

TIMES = {"current_air_time": "air_time", "current_contact_time": "contact_time", "last_air_time": "last_air_time"}
"""mjlab's names of times of a contact, and ours."""
SENSORS = [4, 5, 6, 8, 9, 10]
"""Forces on the feet, behind the angular momentum."""
COMMANDS: dict[str, dict[str, Any]] = {
    "heading": {"heading_command": True, "heading": (0.7, 0.7), "ang_vel_z": (-0.6, 0.4)},
    "world": {"rel_world_envs": 1.0},
    "forward": {"rel_forward_envs": 1.0},
    "standing": {"rel_standing_envs": 1.0},
    "initial": {"init_velocity_prob": 1.0},
}
"""Kinds of velocity commands, with ranges of one number for what is drawn."""
JOINTS = ("pan", "tilt", "elbow", "slide", "roll")
ACTUATORS = {
    "joint_velocity": ("wheel",),
    "joint_effort": ("twist",),
    "tendon_length": ("cable",),
    "tendon_velocity": ("cable",),
    "tendon_effort": ("cable",),
    "site_effort": ("thruster",),
}
"""Those that an action acts on, if not the position actuators of `JOINTS`."""
SCALED: dict[str, Any] = {"scale": {"pan|tilt|elbow": 0.5, "slide|roll": 0.2}, "offset": 0.05}
ACTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "joint_position": (SCALED, {"use_default_offset": False}),
    "relative_joint_position": ({"scale": SCALED["scale"]}, {}),
    "joint_velocity": ({"scale": 0.5, "offset": 0.05}, {"use_default_offset": False}),
    "joint_effort": ({"scale": 0.5, "offset": 0.05}, {}),
    "tendon_length": ({"scale": 0.5, "offset": 0.05}, {}),
    "tendon_velocity": ({"scale": 0.5, "offset": 0.05}, {}),
    "tendon_effort": ({"scale": 0.5, "offset": 0.05}, {}),
    "site_effort": ({"scale": 0.5, "offset": 0.05}, {}),
}
"""Actions of joints, a tendon and a site: parameters that both have, and more of mjlab's."""


class Absent(ModuleType):
    """A package that is not installed, and not needed to call the functions of terms."""

    __path__: MutableSequence[str] = []  # noqa: RUF012  An instance sets none.

    def __getattr__(self, name: str) -> Any:
        """Return an empty class of any name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda *_, **__: None})


def import_mjlab(directory: str, *names: str) -> list[Any]:
    """Import modules of mjlab, without what they import and do not need here."""
    sys.path.append(directory)
    while True:
        try:
            return [importlib.import_module(name) for name in names]
        except ModuleNotFoundError as error:
            sys.modules[str(error.name)] = Absent(str(error.name))
            for name in [name for name in sys.modules if name.startswith("mjlab")]:
                del sys.modules[name]


def tensor(rows: Any) -> torch.Tensor:
    """Return rows as a tensor of 32-bit numbers."""
    return torch.tensor(np.array(rows), dtype=torch.float32)


def robot_of(task: Biped, states: list[State]) -> Any:
    """Return what mjlab's terms read of a robot."""
    model = task.model
    low, high = tensor(model.jnt_range[1:]).T
    middle, half = (low + high) / 2, 0.9 * (high - low) / 2
    names = [model.joint(index).name for index in range(1, model.njnt)]
    data = SimpleNamespace(
        root_link_pos_w=tensor([s.data.qpos[:3] for s in states]),
        root_link_lin_vel_b=tensor([s.lin_vel for s in states]),
        root_link_ang_vel_b=tensor([s.ang_vel for s in states]),
        projected_gravity_b=tensor([s.gravity for s in states]),
        gravity_vec_w=torch.tensor([[0.0, 0.0, -1.0]]).expand(len(states), 3),
        body_link_quat_w=tensor([s.data.xquat for s in states]),
        body_link_ang_vel_w=tensor([[s.body_velocity(model.body(i).name) for i in range(model.nbody)] for s in states]),
        joint_pos=tensor([s.joints for s in states]),
        joint_vel=tensor([s.speeds for s in states]),
        default_joint_pos=torch.zeros(len(states), 4),
        default_joint_vel=torch.zeros(len(states), 4),
        soft_joint_pos_limits=torch.stack([middle - half, middle + half], dim=-1).expand(len(states), 4, 2),
        actuator_force=tensor([s.data.actuator_force for s in states]),
        qfrc_actuator=tensor([s.data.qfrc_actuator[6:] for s in states]),
    )
    return SimpleNamespace(data=data, find_joints=lambda _: (list(range(len(names))), names))


def environment(task: Biped, states: list[State]) -> Any:
    """Return what mjlab's terms read of an environment."""
    command = tensor([s.command for s in states])
    return SimpleNamespace(
        num_envs=len(states),
        device="cpu",
        step_dt=task.step_dt,
        extras={"log": {}},
        command_manager=SimpleNamespace(get_command=lambda _: command),
        termination_manager=SimpleNamespace(terminated=torch.tensor([bool(s.terminated) for s in states])),
        scene={
            "robot": robot_of(task, states),
            "angmom": SimpleNamespace(data=tensor([s.momentum() for s in states])),
        },
    )


def configured(**fields: Any) -> Any:
    """Return a selection of a robot's parts."""
    parts = {"name": "robot", "joint_ids": slice(None), "actuator_ids": slice(None), "joint_names": ".*"}
    return SimpleNamespace(**parts, **fields)


def compare_states(mjlab: Any) -> dict[str, float]:
    """Compare rewards, observations and terminations that follow from one state."""
    task = random_biped()
    env = environment(task, [State(task, index) for index in range(NUM_ENVS)])
    left, every = configured(body_ids=[task.model.body("left").id]), configured(body_ids=[])
    twist = {"command_name": "twist"}
    walk = {"std_standing": {".*": 0.1}, "std_walking": STDS, "std_running": {".*": 1.0}}
    walk |= {"walking_threshold": 0.3, "running_threshold": 1.0, "asset_cfg": every}
    kept = {"asset_cfg": every, "std": STDS}
    rewards = {
        "is_alive": {},
        "is_terminated": {},
        "track_linear_velocity": twist | {"std": 0.5},
        "track_angular_velocity": twist | {"std": 0.7},
        "flat_orientation_l2": {},
        "upright": {"std": 0.5, "asset_cfg": left},
        "body_angular_velocity_penalty": {"asset_cfg": left},
        "angular_momentum_penalty": {"sensor_name": "angmom"},
        "joint_pos_limits": {"asset_cfg": every},
        "posture": kept,
        "variable_posture": walk | twist,
        "joint_torques_l2": {"asset_cfg": every},
        "electrical_power_cost": {"asset_cfg": every},
        "joint_vel_l2": {"asset_cfg": every},
    }
    found: dict[str, float] = {}
    for name, params in rewards.items():
        function = getattr(mjlab, name)
        if isinstance(function, type):
            function = function(SimpleNamespace(params=params), env)
        found[name] = difference(function(env, **params), task.terms.numpy()[:, task.reward_terms.index(name)])
    column = 0
    for name, params in {
        "base_lin_vel": {},
        "base_ang_vel": {},
        "projected_gravity": {},
        "joint_pos_rel": {"asset_cfg": every},
        "joint_vel_rel": {"asset_cfg": every},
        "generated_commands": twist,
    }.items():
        expected = getattr(mjlab, name)(env, **params)
        ours = task.obs["policy"].numpy()[:, column : column + expected.shape[1]]
        column += expected.shape[1]
        found[name] = difference(expected, ours)
    for name, limit in {"bad_orientation": 0.5, "root_height_below_minimum": LOWEST}.items():
        ours = task.done_terms.numpy()[:, list(TERMINATIONS).index(name)]
        found[name] = difference(getattr(mjlab, name)(env, limit).float(), ours)
    return found


def compare_feet(mjlab: Any) -> dict[str, float]:
    """Compare rewards of feet while the robot moves, and the times that mjlab's sensor tracks by physics steps.

    mjlab's functions get heights as tracked here. In `feet_swing_height` feet land after a time in the air. In
    `feet_slip` feet are in contact since more than a step.
    """
    from mjlab.sensor.terrain_height_sensor import TerrainHeightSensor

    kind: Any = type("Heights", (TerrainHeightSensor,), {"data": None, "num_frames": 2, "__init__": lambda _: None})
    heights = kind()
    both = {"contact": "feet", "command": "twist", "command_threshold": 0.3}
    feet = {
        "feet_air_time": both | {"threshold_min": 0.01, "threshold_max": 0.2},
        "feet_clearance": both | {"target_height": 0.1},
        "feet_swing_height": both | {"target_height": 0.1},
        "feet_slip": both,
        "soft_landing": both,
    }
    rewards = dict.fromkeys(CONFIG.terms("rewards")) | {k: Reward(k, weight=1.0, **p) for k, p in feet.items()}
    config = CONFIG.change(
        rewards=rewards,
        terminations=dict.fromkeys(TERMINATIONS),
        contacts={"feet": {"track_air_time": True}},
        decimation=4,
    )
    task = Biped(config, num_envs=NUM_ENVS, device="cpu", seed=0)
    tracker, first = contact_sensor(2), task.binder.structs["feet"].sensors.numpy()
    sensors = {"sensor_name": "feet", "command_name": "twist", "command_threshold": 0.3}
    high = sensors | {"height_sensor_name": "heights", "target_height": 0.1}
    sites = {"asset_cfg": configured(site_ids=slice(None))}
    clearance = {name: value for name, value in high.items() if name != "sensor_name"}
    env = environment(task, [State(task, index) for index in range(NUM_ENVS)])
    swing: Any = None
    calls = {
        "feet_air_time": lambda: mjlab.feet_air_time(env, **sensors, threshold_min=0.01, threshold_max=0.2),
        "feet_clearance": lambda: mjlab.feet_clearance(env, **clearance, **sites),
        "feet_swing_height": lambda: swing(env, **high),
        "feet_slip": lambda: mjlab.feet_slip(env, **sensors | {"sensor_name": "old"}, **sites),
        "soft_landing": lambda: mjlab.soft_landing(env, **sensors | {"sensor_name": "first"}),
    }
    found, rng = dict.fromkeys((*calls, *TIMES), 0.0), np.random.default_rng(0)
    for _ in range(100):
        task.actions.assign(rng.uniform(-2, 2, (NUM_ENVS, 4)).astype(np.float32))
        task.step()
        seen = {name: task.arrays[f"contacts/feet/{name}"].numpy() for name in ("found", "position", "velocity")}
        for each in np.split(task.arrays["sensor_history"].numpy()[:, :, None], config.decimation, axis=1):
            tracker._extract_sensor_data = lambda: SimpleNamespace(found=tensor(each[:, first, 0]))  # noqa: B023, SLF001
            tracker._update_air_time_tracking(task.step_dt / config.decimation)  # noqa: SLF001
        times = vars(tracker._air_time_state)  # noqa: SLF001
        # The sensors have the force on the floor: of each body its number of contacts, and three numbers.
        forces = tensor(task.data("sensordata").numpy()[:, SENSORS].reshape(NUM_ENVS, 2, 3))
        new = tracker.compute_first_contact(task.step_dt)
        landed = new & (times["last_air_time"] > 0.0)
        data = SimpleNamespace(found=torch.tensor(seen["found"]), force=forces, **times)
        env.scene["feet"] = SimpleNamespace(data=data, compute_first_contact=lambda **_: landed)  # noqa: B023
        kind.data = SimpleNamespace(heights=tensor(seen["position"][..., 2]))
        env.scene["heights"] = heights
        env.scene["first"] = SimpleNamespace(data=data, compute_first_contact=lambda **_: new)  # noqa: B023
        env.scene["old"] = SimpleNamespace(data=SimpleNamespace(found=torch.tensor(seen["found"]) & ~new))
        env.scene["robot"].data.site_lin_vel_w = tensor(seen["velocity"])
        swing = swing or mjlab.feet_swing_height(SimpleNamespace(params=high), env)
        for column, (name, call) in enumerate(calls.items()):
            found[name] = max(found[name], difference(call(), task.terms.numpy()[:, column]))
        for name, ours in TIMES.items():
            found[name] = max(found[name], difference(times[name], task.arrays[f"contacts/feet/{ours}"].numpy()))
    return found


def contact_sensor(count: int) -> Any:
    """Return mjlab's sensor of so many bodies, which tracks times."""
    from mjlab.sensor import contact_sensor as theirs

    made: Any = object.__new__(theirs.ContactSensor)
    made.cfg = SimpleNamespace(name="feet", fields=("found",), num_slots=1)
    made._air_time_state = theirs._AirTimeState(*(torch.zeros(NUM_ENVS, count) for _ in range(4)))  # noqa: SLF001
    return made


def difference(theirs: torch.Tensor, ours: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value where that is above 1."""
    return float(np.abs(theirs.numpy() - ours).max() / max(1.0, np.abs(ours).max()))


def compare_commands(mjlab: Any) -> dict[str, float]:
    """Compare velocity commands of each kind while bodies turn."""
    found: dict[str, float] = {}
    for name, settings in COMMANDS.items():
        ranges: dict[str, Any] = {"lin_vel_x": (0.2, 0.2), "lin_vel_y": (-0.4, -0.4), "ang_vel_z": (0.3, 0.3)}
        ranges |= settings
        shared = {key: ranges.pop(key) for key in settings if key not in ("ang_vel_z", "heading")}
        task = test_commands.build(num_envs=NUM_ENVS, **ranges, **shared)
        begun: list[torch.Tensor] = []
        robot = SimpleNamespace(
            data=SimpleNamespace(),
            write_root_link_velocity_b_to_sim=lambda velocity, env_ids: begun.append(velocity),  # noqa: ARG005, B023
        )
        config = mjlab.UniformVelocityCommandCfg(
            entity_name="robot",
            resampling_time_range=(9.0, 9.0),
            ranges=mjlab.UniformVelocityCommandCfg.Ranges(**ranges),
            **shared,
        )
        term = config.build(
            SimpleNamespace(num_envs=NUM_ENVS, device="cpu", step_dt=task.step_dt, scene={"robot": robot})
        )
        term.reset(torch.arange(NUM_ENVS))
        largest = 0.0
        if begun:
            turns = [np.linalg.inv(rotation) for rotation in test_commands.rotations(task)]
            qvel = task.qvel.numpy()
            linear = np.einsum("nij,nj->ni", turns, qvel[:, :3])
            largest = difference(begun[0], np.concatenate([linear, qvel[:, 3:6]], axis=1))
        for _ in range(50):
            robot.data.heading_w = tensor(test_commands.yaws(task))
            term._update_command()  # noqa: SLF001
            largest = max(largest, difference(term.command, task.command_array.numpy()))
            task.step()
        found[f"uniform_velocity_command, {name}"] = largest
    return found


def actions_of(function: str, actuators: tuple[str, ...], **parameters: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a task, random actions, and the controls that follow in it."""
    task = test_actions.build("mujoco", action=Action(function, actuators=actuators, **parameters))
    sent = np.random.default_rng(0).uniform(-2.0, 2.0, (test_actions.NUM_ENVS, task.num_actions)).astype(np.float32)
    controls = test_actions.controls(task, sent)
    return task, sent, np.stack([controls[name] for name in actuators], axis=1)


def acted(config: Any, task: Any, joints: tuple[str, ...], sent: np.ndarray, kind: Any = None) -> torch.Tensor:
    """Return what an action of mjlab sets."""
    targets: list[torch.Tensor] = []
    count, model, qpos = len(sent), task.model, task.qpos.numpy()
    indices, selected = list(range(len(joints))), lambda *_, **__: (indices, list(joints))
    positions = qpos[:, [int(model.joint(name).qposadr[0]) if name in JOINTS else 0 for name in joints]]
    zeros, limits = torch.zeros(count, len(joints)), torch.zeros(count, len(joints), 2)
    site = model.site("tip").id
    entity = SimpleNamespace(
        find_joints_by_actuator_names=selected,
        find_tendons=selected,
        find_sites=selected if kind is None else lambda _: ([0], ["tip"]),
        indexing=SimpleNamespace(
            joint_v_adr=torch.tensor([int(model.joint(name).dofadr[0]) for name in joints if name in JOINTS]),
            site_ids=torch.tensor([site]),
        ),
        data=SimpleNamespace(
            joint_pos=tensor(positions), encoder_bias=zeros, default_joint_pos=zeros, soft_joint_pos_limits=limits
        ),
    )
    for name in (
        "joint_position",
        "joint_velocity",
        "joint_effort",
        "tendon_len",
        "tendon_vel",
        "tendon_effort",
        "site_effort",
    ):
        setattr(entity, f"set_{name}_target", lambda target, **_: targets.append(target))
    states = [mujoco.MjData(model) for _ in sent]
    for data, row in zip(states, qpos, strict=True):
        data.qpos[:] = row
        mujoco.mj_forward(model, data)
    fields = {name: tensor([getattr(data, name) for data in states]) for name in ("site_xpos", "site_xmat")}
    fields["site_xmat"] = fields["site_xmat"].reshape(count, -1, 3, 3)
    sim = SimpleNamespace(mj_model=model, wp_device="cpu", data=SimpleNamespace(**fields))
    env = SimpleNamespace(num_envs=count, device="cpu", scene={"robot": entity}, sim=sim)
    term = config.build(env) if kind is None else kind(config, env)
    term.states = states
    term.process_actions(torch.tensor(sent))
    term.apply_actions()
    return targets[0]


def compare_actions(mjlab: Any) -> dict[str, float]:
    """Compare what actions set at the first physics step. mjlab's inverse kinematics get MuJoCo's Jacobians."""
    found: dict[str, float] = {}
    for name, (parameters, more) in ACTIONS.items():
        names = ACTUATORS.get(name, JOINTS)
        task, sent, ours = actions_of(name, names, **parameters, lower=-0.3, upper=0.4)
        kind = getattr(mjlab, "".join(each.title() for each in name.split("_")) + "ActionCfg")
        config = kind(entity_name="robot", actuator_names=names, clip={".*": (-0.3, 0.4)}, **{**parameters, **more})
        found[name] = difference(acted(config, task, names, sent), ours)

    class Action6(mjlab.DifferentialIKAction):
        """Inverse kinematics with MuJoCo's Jacobians."""

        def _compute_jacobian(self) -> None:
            for env, data in enumerate(self.states):
                jacobian = np.zeros((2, 3, data.model.nv))
                mujoco.mj_jacSite(data.model, data, *jacobian, data.model.site("tip").id)
                self._jacp_torch[env], self._jacr_torch[env] = torch.tensor(jacobian)

    scaled: dict[str, Any] = {"delta_pos_scale": 0.1, "damping": 0.1, "max_dq": 0.15}
    for name, orientation in {"differential_ik": 0.5, "differential_ik_position": 0.0}.items():
        own = {"delta_ori_scale": 0.4, "orientation_weight": orientation} if orientation else {}
        task, sent, ours = actions_of(name, JOINTS, site="tip", **scaled, **own)
        config = mjlab.DifferentialIKActionCfg(
            entity_name="robot",
            actuator_names=JOINTS,
            frame_type="site",
            frame_name="tip",
            **scaled,
            **(own or {"orientation_weight": 0.0}),
        )
        found[name] = difference(acted(config, task, JOINTS, sent, Action6), ours)
    return found


def compare_inertia(mjlab: Any) -> dict[str, float]:
    """Compare `pseudo_inertia` with numbers that are not drawn: ranges of one number."""
    names = ("alpha", "d1", "d2", "d3", "s12", "s13", "s23", "t1", "t2", "t3")
    numbers = dict(zip(names, np.random.default_rng(0).uniform(-0.3, 0.3, 10).tolist(), strict=True))
    fixed = {name: (value, value) for name, value in numbers.items()}
    task: Hopper = build(num_envs=1, events={"x": Event("pseudo_inertia", "startup", bodies="leg", **fixed)})
    body = task.model.body("leg").id
    default = {name: tensor(getattr(task.model, name)) for name in INERTIAL}
    model = SimpleNamespace(**{name: value[None].clone() for name, value in default.items()})
    sim = SimpleNamespace(model=model, get_default_field=default.__getitem__, per_world_default_fields=())
    robot = SimpleNamespace(indexing=SimpleNamespace(body_ids=torch.arange(task.model.nbody, dtype=torch.int32)))
    env = SimpleNamespace(num_envs=1, device="cpu", scene={"robot": robot}, sim=sim)
    ranges = {f"{name}_range": value for name, value in fixed.items()}
    mjlab.dr.pseudo_inertia(env, None, **ranges, asset_cfg=SimpleNamespace(name="robot", body_ids=[body]))
    theirs = moments(*(getattr(model, name)[0, body].numpy() for name in INERTIAL))
    ours = moments(*(task.parameter(name).numpy()[0, body] for name in INERTIAL))
    return {"pseudo_inertia": max(difference(tensor(a), np.asarray(b)) for a, b in zip(theirs, ours, strict=True))}


CALLED = {"effort_limits": "effort_limit_range"}
"""mjlab's name of `ranges`."""
KINDS = {"bodies": "body"}
"""What mjlab calls selected objects, but for an s."""


class Fields:
    """Fields of a model as tensors with one row for each environment, of which there is one."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> torch.Tensor:
        """Return a field. Shape (1, rows, ...)."""
        made = tensor(getattr(self._model, name))[None].clone()
        setattr(self, name, made.reshape(1, -1, 2, 3) if name == "geom_aabb" else made)
        return getattr(self, name)


def position_actuator(index: int) -> Any:
    """Return mjlab's object for a position actuator of the model."""
    from mjlab.actuator.xml_actuator import XmlActuator

    kind: Any = type("Position", (XmlActuator,), {"command_field": "position", "__init__": lambda _: None})
    made = kind()
    made._global_ctrl_ids = torch.tensor([index])  # noqa: SLF001
    return made


def compare_randomization(mjlab: Any) -> dict[str, float]:
    """Compare events that draw a field of the model, with ranges of one number; Isaac Lab's `gravity` is not mjlab's.

    All are of one task. mjlab's functions change one model, which begins as MuJoCo's, with a robot that is all of it.
    """
    more = Drawn("geom_friction", {"geoms": "sole"}, (rows("geom_friction", "sole", slice(1, 3)),), (0.7, 0.7), "scale")
    more.params["axes"] = (1, 2)
    compared = [more, *(each for each in EVERY if each.func not in {"pseudo_inertia", "gravity"})]
    # The last number of each range.
    numbers: list[dict[str, Any]] = [
        {name: value if name == "axes" else (value[1], value[1]) for name, value in cast("Any", each.params).items()}
        | ({"ranges": (each.ranges[1], each.ranges[1])} if each.ranges else {})
        | ({} if each.operation == "turn" else {"operation": each.operation})
        for each in compared
    ]
    events = {
        f"event_{at}": Event(each.func, "startup", **each.objects, **numbers[at]) for at, each in enumerate(compared)
    }
    events["bias"] = Event("encoder_bias", "startup", joints="hip", ranges=(0.05, 0.05))
    task: Hopper = build(num_envs=1, events=events)
    model, default = task.model, Fields(task.model)
    sim = SimpleNamespace(model=Fields(model), get_default_field=lambda name: getattr(default, name)[0])
    sim.per_world_default_fields, sim.model.geom_type = (), torch.tensor(model.geom_type)
    counts = {"geom": model.ngeom, "body": model.nbody, "site": model.nsite, "tendon": model.ntendon, "cam": model.ncam}
    counts |= {"light": model.nlight, "mat": model.nmat, "pair": model.npair, "joint": model.njnt}
    indexing = SimpleNamespace(
        **{f"{name}_ids": torch.arange(count, dtype=torch.int32) for name, count in counts.items()}
    )
    indexing.joint_v_adr, indexing.joint_q_adr = torch.tensor(model.jnt_dofadr), torch.tensor(model.jnt_qposadr)
    robot = SimpleNamespace(indexing=indexing, data=SimpleNamespace(encoder_bias=torch.zeros(1, model.njnt)))
    robot.actuators = [position_actuator(index) for index in range(model.nu)]
    env = SimpleNamespace(num_envs=1, device="cpu", scene={"robot": robot}, sim=sim)

    def selected(objects: Mapping[str, Any]) -> Any:
        kinds = {KINDS.get(name, name.removesuffix("s")): pattern for name, pattern in objects.items()}
        found = {f"{kind}_ids": task.binder.names.select(kind, pattern, "") for kind, pattern in kinds.items()}
        return SimpleNamespace(name="robot", **found)

    for each, own in zip(compared, numbers, strict=True):
        words: dict[str, Any] = {
            name if name in {"axes", "operation"} else f"{name}_range": value for name, value in own.items()
        }
        words["axes"] = list(words.pop("axes", ())) or None
        if "ranges_range" in words:
            words[CALLED.get(each.func, "ranges")] = words.pop("ranges_range")
        if each.func == "body_com_offset":
            words["ranges"] = {axis: words.pop(f"{name}_range") for axis, name in enumerate("xyz")}
        function = getattr(mjlab.dr, each.func)
        known = {name: word for name, word in words.items() if name != "axes" or word}
        function(env, None, **known, asset_cfg=selected(each.objects))
    mjlab.dr.encoder_bias(env, None, (0.05, 0.05), asset_cfg=selected({"joints": "hip"}))
    theirs, found = mujoco.MjModel.from_xml_string(task.xml), dict[str, float]()
    changed = {name for name in task.engine.parameters if name in vars(sim.model)} | {"geom_rbound", "geom_aabb"}
    for name in changed:
        value = getattr(theirs, name)
        value[...] = getattr(sim.model, name).numpy().reshape(value.shape)
    ours = model_of(task, 0)
    mujoco.mj_setConst(ours, mujoco.MjData(ours))
    for each in compared:
        parts = [(tensor(part(theirs)), part(ours), part(model)) for part in each.parts]
        if any(np.array_equal(after, before) for _, after, before in parts):
            raise RuntimeError(f"{each.func} changes nothing.")
        found[each.func] = max(found.get(each.func, 0.0), *(difference(their, our) for their, our, _ in parts))
    bias = task.arrays["encoder_bias"].numpy()[:, model.jnt_dofadr]
    found["encoder_bias"] = difference(robot.data.encoder_bias, bias)
    rest = max(difference(tensor(getattr(theirs, name)), getattr(ours, name)) for name in changed)
    return found | {"all fields, and bounds of geoms": rest}


ELSEWHERE = {
    *("camera_depth", "camera_rgb", "camera_segmentation", "camera_target_cube_mask", "geom_matid", "mat_texid"),
    *("nan_detection", "time_out", "randomize_terrain", "reset_root_state_from_flat_patches"),
    *("joint_acc_l2", "self_collision_cost", "reset_scene_to_default"),
    *("terrain_levels_vel", "compute_ee_orientation_error", "compute_ee_position_error", "compute_mpkpe"),
    *("compute_joint_velocity_error", "fit_terrain_normal", "terrain_normal_from_sensors", "resolve_env_ids"),
    *("dof_armature", "dof_damping", "dof_frictionloss", "jnt_range", "jnt_stiffness", "qpos0", "tendon_frictionloss"),
}
"""Functions of mjlab that are not compared: docs/reference/mjlab_terms.md says why. The last are second names."""


def main() -> None:
    """Print the table."""
    import compare_mjlab_tasks as tasks

    parts = ("tasks.manipulation.mdp", "tasks.tracking.mdp", "tasks.tracking.mdp.metrics", "tasks.velocity.mdp")
    names = ("envs.mdp.dr", *parts, "envs.mdp", "envs.mdp.actions")
    modules = import_mjlab(sys.argv[1], *(f"mjlab.{name}" for name in names))
    mjlab = SimpleNamespace(**{name: value for each in modules[1:] for name, value in vars(each).items()})
    mjlab.dr = modules[0]
    warnings.simplefilter("ignore", UserWarning)  # That of `body_mass`, which our docstring has too.
    sys.stdout.write("| term | largest difference |\n| --- | --- |\n")
    compared = (compare_states, compare_feet, tasks.compare_history, tasks.compare_contact, compare_commands)
    compared += (tasks.compare_curricula, tasks.compare_events, tasks.compare_impulse, tasks.compare_terrain)
    compared += (tasks.compare_tracking, tasks.compare_manipulation)
    compared += (compare_actions, compare_inertia, compare_randomization)
    shown = set[str]()
    for compare in compared:
        for name, value in compare(mjlab).items():
            sys.stdout.write(f"| `{name}` | {value:.1e} |\n")
            shown.add(name)
    theirs = {name for each in modules for name, value in vars(each).items() if is_term(value)}
    sys.stdout.write(f"\nOf mjlab's {len(theirs)} functions not compared: {sorted(theirs - shown - ELSEWHERE)}\n")


def is_term(value: Any) -> bool:
    """Return whether a value of a module of mjlab's is the function of a term."""
    parts = str(getattr(value, "__module__", "")).split(".")
    is_public = getattr(value, "__name__", "_")[0].islower()
    return callable(value) and is_public and parts[0] == "mjlab" and "mdp" in parts and "_types" not in parts


if __name__ == "__main__":
    main()

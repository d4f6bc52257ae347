"""Domain randomization: what is drawn, in which mode, and that both engines simulate with it."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from shoal.errors import ShoalError, UsageError
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Done, Event, Obs, Reward, Value

MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom name="trunk" type="box" size="0.1 0.15 0.05" pos="0.02 0.01 0" mass="4"/>
      <body name="leg" pos="0 0.1 -0.05" euler="10 20 30">
        <joint name="hip" axis="0 1 0" range="-60 60" damping="0.1" armature="0.01" frictionloss="0.02"/>
        <geom name="leg" type="capsule" fromto="0 0 0 0 0.05 -0.3" size="0.02"/>
        <body name="foot" pos="0 0.05 -0.3">
          <joint name="ankle" axis="0 1 0" damping="0.1" armature="0.01" frictionloss="0.02"/>
          <geom name="sole" type="sphere" size="0.03" mass="0.2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="hip" joint="hip" kp="20" kv="1" forcerange="-5 5"/>
    <position name="ankle" joint="ankle" kp="20" kv="1"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
  </sensor>
</mujoco>
""".replace('<geom name="trunk"', '<site name="imu"/><geom name="trunk"')

CONFIG = task_config(
    TermsConfig,
    decimation=2,
    actions={"targets": Action("joint_position", actuators=".*", scale=0.5)},
    observations={"policy": {"joint_pos": Obs("joint_pos_rel", joints=".*")}},
    rewards={"alive": Reward("is_alive", weight=1.0)},
)
NUM_ENVS = 512


class Hopper(TermsTask[TermsConfig]):
    """A leg on a free base."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        del config
        return mujoco.MjModel.from_xml_string(MODEL)


def build(num_envs: int = NUM_ENVS, **changes: Any) -> Hopper:
    return Hopper(CONFIG.change(**changes), num_envs=num_envs, device="cpu", seed=1)


EVERY_PARAMETER: dict[str, tuple[str, dict[str, Value], str]] = {
    "friction": ("geom_friction", {"geoms": "sole", "ranges": (0.4, 1.2)}, "geom_friction"),
    "mass": ("body_mass", {"bodies": "foot", "ranges": (0.5, 2.0)}, "body_mass"),
    "com": (
        "body_com_offset",
        {"bodies": "trunk", "x": (-0.05, 0.05), "y": (-0.05, 0.05), "z": (0.0, 0.1)},
        "body_ipos",
    ),
    "inertia": ("pseudo_inertia", {"bodies": "leg", "alpha": (-0.3, 0.3), "s12": (-0.2, 0.2)}, "body_inertia"),
    "damping": ("joint_damping", {"joints": ".*", "ranges": (0.5, 2.0)}, "dof_damping"),
    "armature": ("joint_armature", {"joints": ".*", "ranges": (0.5, 2.0), "operation": "scale"}, "dof_armature"),
    "dry": ("joint_friction", {"joints": ".*", "ranges": (0.0, 0.1), "operation": "add"}, "dof_frictionloss"),
    "gains": ("pd_gains", {"actuators": ".*", "kp": (0.5, 1.5), "kd": (0.5, 1.5)}, "actuator_gainprm"),
    "strength": ("effort_limits", {"actuators": "hip", "ranges": (0.2, 1.0)}, "actuator_forcerange"),
    "gravity": ("gravity", {"x": (0.0, 0.0), "y": (0.0, 0.0), "z": (-1.0, 1.0)}, "opt.gravity"),
}


MODES = ("startup", "reset", "interval")


def events() -> dict[str, Any]:
    """Return an event for each parameter, of all three modes in turn."""
    made: dict[str, Any] = {}
    for at, (name, (func, params, _)) in enumerate(EVERY_PARAMETER.items()):
        times = {"interval": (0.01, 0.01)} if MODES[at % 3] == "interval" else {}
        made[name] = Event(func, MODES[at % 3], **params, **times)
    return made


def model_of(task: Hopper, env: int) -> mujoco.MjModel:
    """Return MuJoCo's model with the parameters of one environment."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    for name, array in task.engine.parameters.items():
        holder, _, field = name.rpartition(".")
        value = getattr(model.opt if holder else model, field)
        value[...] = array.numpy()[env].reshape(value.shape)
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def constant(task: Hopper, name: str) -> np.ndarray:
    """Return a constant that an engine derives, as it has it. Shape (num_envs, ...)."""
    engine: Any = task.engine
    return engine._batch.expanded(name) if task.config.engine == "native" else getattr(engine._model, name).numpy()


@pytest.mark.parametrize("engine", ["native", "warp"])
def test_both_engines_simulate_with_what_was_drawn_in_each_mode(engine: Any) -> None:
    ends = {"low": Done("root_height_below_minimum", minimum_height=0.95)}
    task = build(num_envs=3, engine=engine, events=events(), terminations=ends)
    task.qpos.numpy()[0, 2] = 0.9  # This environment ends, and begins again with other parameters.
    task.moved.numpy()[0] = True
    task.engine.forward(task.done, task.moved)
    rng, seen = np.random.default_rng(0), list[dict[str, np.ndarray]]()
    for _ in range(3):
        seen.append({name: array.numpy().copy() for name, array in task.engine.parameters.items()})
        task.actions.assign(rng.uniform(-1, 1, (3, 2)).astype(np.float32))
        models, before = [model_of(task, env) for env in range(3)], (task.qpos.numpy().copy(), task.qvel.numpy().copy())
        task.apply_actions()
        task.engine.step()
        for env, model in enumerate(models):
            data = mujoco.MjData(model)
            data.qpos[:], data.qvel[:], data.ctrl[:] = before[0][env], before[1][env], task.ctrl.numpy()[env]
            mujoco.mj_step(model, data, 2)
            np.testing.assert_allclose(task.qpos.numpy()[env], data.qpos, atol=2e-5)
            np.testing.assert_allclose(task.qvel.numpy()[env], data.qvel, atol=2e-3)
            for name in ("dof_invweight0", "body_subtreemass", "body_invweight0"):
                np.testing.assert_allclose(constant(task, name)[env], getattr(model, name), rtol=1e-4)
        task.step()
    for at, (_, _, field) in enumerate(EVERY_PARAMETER.values()):
        drawn = np.stack([each[field].reshape(3, -1) for each in seen])
        differs = (drawn[1:] != drawn[:-1]).any(axis=(0, 2)).tolist()
        assert (drawn[-1, 1] != drawn[-1, 2]).any(), field  # Each environment has its own.
        assert differs == {"startup": [False] * 3, "reset": [True, False, False], "interval": [True] * 3}[MODES[at % 3]]


@pytest.mark.parametrize(
    ("operation", "distribution", "ranges", "mean", "std"),
    [
        ("abs", "uniform", (0.5, 1.5), 1.0, 1 / 12**0.5),
        ("scale", "uniform", (0.5, 1.5), 0.1, 0.1 / 12**0.5),
        ("add", "gaussian", (1.0, 0.2), 1.1, 0.2),
        ("abs", "log_uniform", (0.1, 10.0), (10.0 - 0.1) / np.log(100.0), None),
    ],
)
def test_operation_and_distribution_are_those_that_were_asked_for(
    operation: str, distribution: str, ranges: tuple[float, float], mean: float, std: float | None
) -> None:
    drawn = Event(
        "joint_damping", "startup", joints=".*", ranges=ranges, operation=operation, distribution=distribution
    )
    damping = build(events={"x": drawn}).parameter("dof_damping").numpy()
    assert (damping[:, :6] == 0.0).all()
    values: Any = damping[:, 6:]
    assert values.mean() == pytest.approx(mean, rel=0.1)
    assert std is None or values.std() == pytest.approx(std, rel=0.1)
    if distribution == "log_uniform":
        assert np.log10(values).mean() == pytest.approx(0.0, abs=0.08)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.2


def test_pseudo_inertia_is_that_of_the_moved_points_of_the_body() -> None:
    """Points with masses, with the body's mass, centre and inertia, are moved as the parameters say."""
    drawn = dict.fromkeys(("alpha", "d1", "d2", "d3", "s12", "s13", "s23", "t1", "t2", "t3"), (-0.2, 0.3))
    task = build(num_envs=2, events={"x": Event("pseudo_inertia", "startup", bodies="leg", **drawn)})
    body = task.model.body("leg").id
    mass, center, spread = moments(*(getattr(task.model, name)[body] for name in INERTIAL))
    for env in range(2):
        new = moments(*(task.parameter(name).numpy()[env, body].astype(float) for name in INERTIAL))
        usual, changed = (
            np.block([[s + m * np.outer(c, c), m * c[:, None]], [m * c[None], np.full((1, 1), m)]])
            for m, c, s in ((mass, center, spread), new)
        )
        # J' = U J Uᵀ: for a positive definite J' there is one such upper triangular U.
        flip = np.eye(4)[::-1]
        factors = [flip @ np.linalg.cholesky(flip @ each @ flip) @ flip for each in (usual, changed)]
        upper = factors[1] @ np.linalg.inv(factors[0])
        np.testing.assert_allclose(np.tril(upper, -1), 0.0, atol=1e-4)
        alpha, inner = np.log(upper[3, 3]), upper / upper[3, 3]
        for value in (alpha, *np.log(np.diag(inner)[:3]), *inner[:3, 3], inner[0, 1], inner[0, 2], inner[1, 2]):
            assert -0.2 - 1e-3 < value < 0.3 + 1e-3


INERTIAL = ("body_mass", "body_ipos", "body_inertia", "body_iquat")


def moments(mass: Any, center: Any, inertia: Any, quat: Any) -> tuple[float, np.ndarray, np.ndarray]:
    """Return mass, centre, and second moments about it."""
    axes = np.zeros(9)
    mujoco.mju_quat2Mat(axes, np.asarray(quat, dtype=float))
    axes = axes.reshape(3, 3)
    return float(mass), center, axes @ np.diag(inertia.sum() / 2 - inertia) @ axes.T


def test_an_encoder_that_errs_is_seen_by_the_policy_and_by_the_servo() -> None:
    observed = {"policy": {"joint_pos": Obs("joint_pos_rel", joints=".*", biased=True)}}
    task = build(observations=observed, events={"x": Event("encoder_bias", "startup", joints=".*", ranges=(-0.1, 0.2))})
    bias = task.arrays["encoder_bias"].numpy()[:, 6:]
    assert (bias.min(), bias.max()) == pytest.approx((-0.1, 0.2), abs=0.01)
    np.testing.assert_allclose(task.obs["policy"].numpy(), task.qpos.numpy()[:, 7:] + bias, atol=1e-6)
    task.actions.fill_(1.0)
    task.step()
    np.testing.assert_allclose(task.ctrl.numpy(), 0.5 - bias, atol=1e-6)


def test_names_share_a_number_where_asked() -> None:
    shared = Event("joint_armature", "startup", joints=".*", ranges=(0.1, 0.2), shared_random=True)
    armature = build(events={"x": shared}).parameter("dof_armature").numpy()[:, 6:]
    assert (armature[:, 0] == armature[:, 1]).all()
    assert armature.std() > 0.02


def test_ranges_are_refused_by_their_distribution() -> None:
    kinds = {"joints": ".*", "ranges": (1.0, 0.1)}
    CONFIG.change(events={"x": Event("joint_damping", "startup", distribution="gaussian", **kinds)})
    with pytest.raises(UsageError, match=r"^env\.events\.x\.ranges is \(1\.0, 0\.1\), but must be finite, the smaller"):
        CONFIG.change(events={"x": Event("joint_damping", "startup", distribution="uniform", **kinds)})
    with pytest.raises(
        UsageError, match=r"^env\.events\.x\.ranges is \(0\.0, 0\.1\), but must be above 0, the smaller"
    ):
        CONFIG.change(
            events={
                "x": Event("joint_damping", "startup", distribution="log_uniform", **kinds | {"ranges": (0.0, 0.1)})
            }
        )
    with pytest.raises(UsageError, match=r"^env\.events\.x\.operation is 'times', but must be one of"):
        CONFIG.change(
            events={"x": Event("joint_damping", "startup", operation="times", **kinds | {"ranges": (0.0, 0.1)})}
        )


def test_impulses_come_after_an_interval_and_end_after_their_duration() -> None:
    impulse = Event(
        "apply_body_impulse",
        "step",
        bodies="trunk",
        force=(5.0, 9.0),
        torque=(0.0, 0.0),
        duration=(0.02, 0.02),
        interval=(0.03, 0.05),
    )
    observed = {"policy": {"joint_pos": None, "gyro": Obs("builtin_sensor", sensors="gyro")}}
    task = build(num_envs=64, events={"x": impulse}, observations=observed)
    wrenches = []
    for _ in range(40):
        task.step()
        wrenches.append(task.data("xfrc_applied").numpy()[:, 1].copy())
    np.testing.assert_array_equal(task.obs["policy"].numpy(), task.data("sensordata").numpy())  # By its name.
    forces = np.stack(wrenches)
    assert (forces[:, :, 3:] == 0.0).all()
    acts = forces[:, :, 0] != 0.0
    assert ((forces[acts][:, :3] >= 5.0) & (forces[acts][:, :3] <= 9.0)).all()
    assert not acts[:3].any()
    for column in acts.T:
        edges = np.flatnonzero(np.diff(column.astype(int)))
        lengths = np.diff(edges)
        assert {*lengths[0::2].tolist()} <= {2}
        assert {*lengths[1::2].tolist()} <= {3, 4, 5, 6}
    calm = CONFIG.change(events={"x": impulse}).undisturbed()
    task = Hopper(calm, num_envs=2, device="cpu", seed=1)
    for _ in range(10):
        task.step()
    assert (task.data("xfrc_applied").numpy() == 0.0).all()


def test_frames_without_mass_stay_without_and_others_are_drawn() -> None:
    drawn = dict.fromkeys(("alpha", "d1", "s12", "t1"), (-0.2, 0.3))
    framed = MODEL.replace('<body name="leg"', '<body name="frame" pos="0 0 0.1"/><body name="leg"')

    class Framed(Hopper):
        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            del config
            return mujoco.MjModel.from_xml_string(framed)

    event = Event("pseudo_inertia", "startup", bodies=".*", **drawn)
    task = Framed(CONFIG.change(events={"x": event}), num_envs=4, device="cpu", seed=1)
    frame = task.model.body("frame").id
    inertia = task.parameter("body_inertia").numpy()
    assert np.isfinite(inertia).all()
    assert (inertia[:, frame] == 0.0).all()
    assert (np.ptp(inertia[:, task.model.body("leg").id], axis=0) > 0.0).all()
    task.step()
    assert np.isfinite(task.qvel.numpy()).all()


def test_a_task_all_of_whose_environments_diverge_is_refused() -> None:
    heavy = Event("body_mass", "startup", bodies="trunk", ranges=(1e30, 1e30), operation="abs")
    light = Event("joint_damping", "startup", joints=".*", ranges=(-1e6, -1e6))
    with pytest.raises(
        ShoalError, match=r"^All environments of Hopper have diverged after the first step: look at the"
    ):
        build(num_envs=2, events={"x": light, "y": heavy})

"""Domain randomization: what is drawn, in which mode, and that both engines simulate with it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError, UsageError
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.random import uniform
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Done, Event, Obs, Reward, Value

MODEL = """
<mujoco>
  <option timestep="0.005" integrator="implicitfast"/>
  <asset><material name="paint" rgba="0.2 0.4 0.6 1"/></asset>
  <worldbody>
    <light name="lamp" pos="0 0 3" dir="0 0 -1"/>
    <geom name="floor" type="plane" size="0 0 1" pos="0 0 0.69"/>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <camera name="eye" pos="0.1 0 0"/>
      <site name="imu" pos="0.01 0 0"/>
      <geom name="trunk" type="box" size="0.1 0.15 0.05" pos="0.02 0.01 0" mass="4" material="paint"/>
      <body name="leg" pos="0 0.1 -0.05" euler="10 20 30">
        <joint name="hip" axis="0 1 0" range="-60 60" damping="0.1" armature="0.01" frictionloss="0.02" stiffness="1"/>
        <geom name="leg" type="capsule" fromto="0 0 0 0 0.05 -0.3" size="0.02"/>
        <body name="foot" pos="0 0.05 -0.3">
          <joint name="ankle" axis="0 1 0" damping="0.1" armature="0.01" frictionloss="0.02"/>
          <geom name="sole" type="sphere" size="0.03" mass="0.2"/>
          <geom name="toe" type="sphere" size="0.03" pos="0.05 0 0" mass="0.1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <contact><pair name="tip" geom1="floor" geom2="toe" condim="6"/></contact>
  <tendon>
    <fixed name="cable" stiffness="5" damping="0.1" frictionloss="0.02" armature="0.01" springlength="0.01">
      <joint joint="hip" coef="0.1"/>
    </fixed>
  </tendon>
  <actuator>
    <position name="hip" joint="hip" kp="20" kv="1" forcerange="-5 5"/>
    <position name="ankle" joint="ankle" kp="20" kv="1"/>
    <motor name="muscle" tendon="cable"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
  </sensor>
</mujoco>
"""

CONFIG = task_config(
    TermsConfig,
    decimation=2,
    actions={"targets": Action("joint_position", actuators="hip|ankle", scale=0.5)},
    observations={"policy": {"joint_pos": Obs("joint_pos_rel", joints=".*")}},
    rewards={"alive": Reward("is_alive", weight=1.0)},
)
NUM_ENVS = 512


class Hopper(TermsTask[TermsConfig]):
    """A leg on a free base."""

    config = CONFIG
    xml: ClassVar[str] = MODEL

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        del config
        return mujoco.MjModel.from_xml_string(cls.xml)


HopperT = TypeVar("HopperT", bound=Hopper)


def build(kind: type[HopperT] = Hopper, num_envs: int = NUM_ENVS, **changes: Any) -> HopperT:
    return kind(CONFIG.change(**changes), num_envs=num_envs, device="cpu", seed=1)


Part = Callable[[Any], np.ndarray]
"""Returns what an event draws of a model: a view, without the model's access to it."""


def rows(field: str, name: str, numbers: slice = slice(None)) -> Part:
    """Return a part: the row of an object in a field, or some of its numbers."""
    first = field.partition("_")[0]
    kind = {"dof": "joint", "jnt": "joint", "qpos0": "joint", "cam": "camera", "mat": "material"}.get(first, first)

    def part(model: Any) -> np.ndarray:
        found = getattr(model, kind)(name)
        row = int({"dof": lambda: found.dofadr[0], "qpos0": lambda: found.qposadr[0]}.get(first, lambda: found.id)())
        return getattr(model, field)[row : row + 1, ...].reshape(-1)[numbers]

    return part


@dataclass(frozen=True)
class Drawn:
    """An event that draws a field for one object, and what it draws."""

    func: str
    objects: dict[str, Value]
    parts: tuple[Part, ...]
    ranges: tuple[float, float] | None = (0.5, 1.5)
    operation: str = "scale"
    params: dict[str, Value] = field(default_factory=dict[str, Value])

    def event(self, mode: str, **times: Any) -> Any:
        words = {"ranges": self.ranges, "operation": self.operation} if self.ranges else {}
        return Event(self.func, mode, **self.objects, **words, **self.params, **times)


def turned(func: str, objects: str, name: str) -> Drawn:
    """Return an event that turns an object by a number about x, then by 0.2 about y and -0.3 about z."""
    turns: dict[str, Value] = {"roll": (-0.1, 0.1), "pitch": (0.2, 0.2), "yaw": (-0.3, -0.3)}
    return Drawn(func, {objects: name}, (rows(func, name),), None, "turn", turns)


def number(func: str, objects: str, name: str, *drawn: Any, of: str = "") -> Drawn:
    """Return an event that draws all numbers of an object in a field, of its own name or of another.

    `drawn` are lowest and highest number, and the operation.
    """
    low, high, operation = drawn
    return Drawn(func, {objects: name}, (rows(of or func, name),), (low, high), operation)


AXES: dict[str, Value] = {"x": (-0.02, 0.02), "y": (-0.02, 0.02), "z": (-0.02, 0.02)}
EVERY: tuple[Drawn, ...] = (
    Drawn("geom_friction", {"geoms": "sole"}, (rows("geom_friction", "sole", slice(1)),), (0.4, 1.2), "abs"),
    number("geom_pos", "geoms", "sole", -0.02, 0.02, "add"),
    turned("geom_quat", "geoms", "leg"),
    number("geom_size", "geoms", "toe", 0.8, 1.2, "scale"),
    number("geom_rgba", "geoms", "sole", 0.0, 1.0, "abs"),
    number("body_mass", "bodies", "foot", 0.5, 1.5, "scale"),
    number("body_ipos", "bodies", "foot", -0.02, 0.02, "add"),
    Drawn("body_com_offset", {"bodies": "trunk"}, (rows("body_ipos", "trunk"),), None, "add", AXES),
    number("body_pos", "bodies", "leg", -0.02, 0.02, "add"),
    turned("body_quat", "bodies", "foot"),
    Drawn(
        "pseudo_inertia",
        {"bodies": "leg"},
        tuple(rows(name, "leg") for name in ("body_mass", "body_ipos", "body_inertia", "body_iquat")),
        None,
        "pseudo",
        {"alpha": (-0.3, 0.3), "s12": (-0.2, 0.2)},
    ),
    number("joint_damping", "joints", "hip", 0.5, 2.0, "abs", of="dof_damping"),
    number("joint_armature", "joints", "hip", 0.5, 2.0, "scale", of="dof_armature"),
    number("joint_friction", "joints", "hip", 0.0, 0.1, "add", of="dof_frictionloss"),
    number("joint_stiffness", "joints", "hip", 0.5, 2.0, "abs", of="jnt_stiffness"),
    Drawn("joint_limits", {"joints": "hip"}, (rows("jnt_range", "hip", slice(1)),), (-0.1, 0.1), "add", {"axes": (0,)}),
    number("joint_default_pos", "joints", "hip", -0.02, 0.02, "add", of="qpos0"),
    number("site_pos", "sites", "imu", -0.02, 0.02, "add"),
    turned("site_quat", "sites", "imu"),
    number("tendon_damping", "tendons", "cable", 0.5, 1.5, "scale"),
    number("tendon_stiffness", "tendons", "cable", 0.5, 1.5, "scale"),
    number("tendon_friction", "tendons", "cable", 0.5, 1.5, "scale", of="tendon_frictionloss"),
    number("tendon_armature", "tendons", "cable", 0.5, 1.5, "scale"),
    Drawn("pair_friction", {"pairs": "tip"}, (rows("pair_friction", "tip", slice(3)),), params={"axes": (0, 1, 2)}),
    number("cam_pos", "cameras", "eye", -0.02, 0.02, "add"),
    turned("cam_quat", "cameras", "eye"),
    number("cam_fovy", "cameras", "eye", 0.5, 1.5, "scale"),
    number("cam_intrinsic", "cameras", "eye", 0.5, 1.5, "scale"),
    *(
        number(f"light_{name}", "lights", "lamp", -0.02, 0.02, "add")
        for name in ("pos", "dir", "ambient", "attenuation", "cutoff", "diffuse", "exponent", "specular")
    ),
    *(
        number(f"mat_{name}", "materials", "paint", 0.5, 1.5, "abs")
        for name in ("emission", "rgba", "shininess", "specular", "texrepeat")
    ),
    Drawn(
        "pd_gains",
        {"actuators": "hip|ankle"},
        tuple(
            rows(f"actuator_{name}prm", joint, numbers)
            for name, numbers in (("gain", slice(1)), ("bias", slice(1, 3)))
            for joint in ("hip", "ankle")
        ),
        None,
        "scale",
        {"kp": (0.5, 1.5), "kd": (0.5, 1.5)},
    ),
    number("effort_limits", "actuators", "hip", 0.2, 0.9, "scale", of="actuator_forcerange"),
    Drawn("gravity", {}, (lambda model: model.opt.gravity,), None, "add", AXES),
)
"""Every event that draws a field of the model, but for other names of the same."""


MODES = ("startup", "reset", "interval")


def events() -> dict[str, Any]:
    """Return every event, of all three modes in turn."""
    made: dict[str, Any] = {}
    for at, drawn in enumerate(EVERY):
        times = {"interval": (0.01, 0.01)} if MODES[at % 3] == "interval" else {}
        made[f"event_{at}"] = drawn.event(MODES[at % 3], **times)
    return made


def model_of(task: Hopper, env: int) -> mujoco.MjModel:
    """Return MuJoCo's model with the parameters of one environment."""
    model = mujoco.MjModel.from_xml_string(task.xml)
    for name, array in task.engine.parameters.items():
        holder, _, field = name.rpartition(".")
        value = getattr(model.opt if holder else model, field)
        value[...] = array.numpy()[env].reshape(value.shape)
    return model


def number_of(drawn: Drawn, value: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Return what was drawn, from a value and the model's."""
    if drawn.operation == "turn":
        turn, inverse, both = np.zeros(4), np.zeros(4), np.zeros(4)
        mujoco.mju_negQuat(inverse, usual.astype(float))
        mujoco.mju_mulQuat(both, value.astype(float), inverse)
        mujoco.mju_euler2Quat(turn, np.array([0.0, 0.2, -0.3]), "XYZ")
        mujoco.mju_negQuat(inverse, turn)
        mujoco.mju_mulQuat(turn, inverse, both)
        np.testing.assert_allclose(turn[2:], 0.0, atol=1e-6)
        return 2 * np.arctan2(turn[1:2], turn[:1])
    return {"abs": lambda: value, "add": lambda: value - usual, "scale": lambda: value[usual != 0] / usual[usual != 0]}[
        drawn.operation
    ]()


def constant(task: Hopper, name: str) -> np.ndarray:
    """Return a constant that an engine derives, as it has it. Shape (num_envs, ...)."""
    engine: Any = task.engine
    return engine._batch.expanded(name) if task.config.engine == "mujoco" else getattr(engine._model, name).numpy()


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_both_engines_simulate_with_what_was_drawn_in_each_mode(engine: Any) -> None:
    ends = {"low": Done("root_height_below_minimum", minimum_height=0.95)}
    task = build(num_envs=3, engine=engine, events=events(), terminations=ends)
    task.qpos.numpy()[0, 2] = 0.9  # This environment ends, and begins again with other parameters.
    task.moved.numpy()[0] = True
    task.engine.forward(task.done, task.moved)
    rng, seen, touching = np.random.default_rng(0), list[Any](), set[int]()
    for _ in range(3):
        task.actions.assign(rng.uniform(-1, 1, (3, 2)).astype(np.float32))
        models, before = [model_of(task, env) for env in range(3)], (task.qpos.numpy().copy(), task.qvel.numpy().copy())
        seen.append([[np.concatenate([part(model) for part in each.parts]) for model in models] for each in EVERY])
        task.run("act")
        task.engine.step()
        for env, model in enumerate(models):
            data = mujoco.MjData(model)
            mujoco.mj_setConst(model, data)
            data.qpos[:], data.qvel[:], data.ctrl[:] = before[0][env], before[1][env], task.ctrl.numpy()[env]
            mujoco.mj_step(model, data, 2)
            touching |= {*data.contact.geom2.tolist()}
            np.testing.assert_allclose(task.qpos.numpy()[env], data.qpos, atol=2e-5)
            np.testing.assert_allclose(task.qvel.numpy()[env], data.qvel, atol=2e-3)
            for name in ("dof_invweight0", "body_subtreemass", "body_invweight0", "geom_rbound", "geom_aabb"):
                expected = getattr(model, name)
                np.testing.assert_allclose(constant(task, name)[env].reshape(expected.shape), expected, 1e-4, 1e-6)
        task.step()
    usual, seen = mujoco.MjModel.from_xml_string(MODEL), np.array(seen, dtype=object).swapaxes(0, 1)
    assert touching >= {usual.geom(name).id for name in ("sole", "toe")}
    for at, (each, (first, second, third)) in enumerate(zip(EVERY, seen, strict=True)):
        assert (third[1] != third[2]).any(), each.func  # Each environment has its own.
        changes = [(second[env] != first[env]).any() or (third[env] != second[env]).any() for env in range(3)]
        assert changes == {"startup": [False] * 3, "reset": [True, False, False], "interval": [True] * 3}[MODES[at % 3]]
        if each.operation != "pseudo":
            params: Any = each.params
            low, high = each.ranges or params.get("roll") or params.get("x") or params["kp"]
            numbers = number_of(each, third[1], np.concatenate([part(usual) for part in each.parts]))
            assert (low - 1e-5 < numbers).all(), each.func
            assert (numbers < high + 1e-5).all(), each.func
    model = model_of(task, 1)
    for part in (part for each in EVERY for part in each.parts):
        part(model)[...] = part(usual)
    for name in task.engine.parameters:
        np.testing.assert_allclose(attrgetter(name)(model), attrgetter(name)(usual), rtol=1e-6, err_msg=name)


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
    np.testing.assert_allclose(task.ctrl.numpy()[:, :2], 0.5 - bias, atol=1e-6)


def test_a_field_is_drawn_by_the_name_of_mujoco_too() -> None:
    twice = {"joints": "hip", "ranges": (0.7, 0.7)}
    task = build(
        num_envs=1, events={"x": Event("dof_damping", "startup", **twice), "y": Event("qpos0", "startup", **twice)}
    )
    assert task.parameter("dof_damping").numpy()[0, 6] == task.parameter("qpos0").numpy()[0, 7] == np.float32(0.7)


def test_a_pair_with_isotropic_friction_has_the_same_in_both_directions() -> None:
    friction = {"pairs": "tip", "axes": (0, 3), "operation": "abs", "ranges": (0.1, 0.2)}
    drawn = build(num_envs=4, events={"x": Event("pair_friction", "startup", isotropic=True, **friction)})
    values = drawn.parameter("pair_friction").numpy()[:, 0]
    assert len({*values[:, 0].tolist(), *values[:, 3].tolist()}) == 8
    np.testing.assert_array_equal(values[:, 1], values[:, 0])
    np.testing.assert_array_equal(values[:, 4], values[:, 3])
    assert (values[:, 2] == np.float32(drawn.model.pair_friction[0, 2])).all()


REFUSED: dict[str, tuple[str, dict[str, Value], str]] = {
    "axis": ("geom_friction", {"geoms": "sole", "axes": (1, 3)}, r"axes is \(1, 3\), but must be numbers from 0 to 2"),
    "plane": ("geom_size", {"geoms": "floor|sole"}, r"geoms selects floor, but the term needs spheres"),
    "limits": ("joint_limits", {"joints": ".*"}, r"joints selects ankle, but the term needs limits"),
    "motor": ("pd_gains", {"actuators": ".*", "kp": (1.0, 1.0), "kd": (1.0, 1.0)}, r"actuators selects muscle, "),
    "none": ("tendon_stiffness", {"tendons": "rope"}, r"tendons is 'rope', which matches no tendon of the model\. It"),
}


@pytest.mark.parametrize(("func", "params", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_drawn_is_refused(func: str, params: dict[str, Value], words: str) -> None:
    ranges = {} if func == "pd_gains" else {"ranges": (0.1, 0.2)}
    with pytest.raises(UsageError, match=rf"^events\.x\.{words}"):
        build(num_envs=1, events={"x": Event(func, "startup", **params, **ranges)})


BESIDE = """
  <body name="table" pos="0 0 0.6"><geom name="top" type="sphere" size="0.1" contype="0" conaffinity="0"/></body>
  <body name="cube" pos="0.3 0 0.8">
    <freejoint/><geom name="cube" type="box" size="0.1 0.1 0.1" contype="0" conaffinity="0"/>
  </body>
</worldbody>
<equality><joint joint1="hip" joint2="ankle" polycoef="0 1 0 0 0"/></equality>
"""


class Beside(Hopper):
    """The leg beside a cube on a table, which a term may observe."""

    xml = MODEL.replace("</worldbody>", BESIDE)

    def allocate(self) -> None:
        self.poses = {name: self.data(name) for name in ("xpos", "geom_xpos")}
        super().allocate()


@wp.func
def soften(state: Any, env: int) -> None:
    """Draw fields of five, of two and of twelve numbers."""
    state.geom_solimp[env, 0][0] = uniform(state, env, 0.5, 0.9)
    state.geom_solref[env, 0][1] = uniform(state, env, 0.5, 0.9)
    state.eq_data[env, 0][1] = uniform(state, env, 0.5, 0.9)


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_a_term_of_a_task_draws_any_field_of_numbers(engine: Any) -> None:
    drawn = {"x": Event(soften, "startup")}
    task = build(Beside, num_envs=2, engine=engine, events=drawn)
    task.engine.step()
    for env in range(2):
        model = model_of(task, env)
        data = mujoco.MjData(model)
        data.ctrl[:] = task.ctrl.numpy()[env]
        mujoco.mj_setConst(model, data)
        mujoco.mj_step(model, data, 2)
        np.testing.assert_allclose(task.qvel.numpy()[env], data.qvel, atol=2e-3)
    values = task.parameter("geom_solimp").numpy()[:, 0, 0], task.parameter("eq_data").numpy()[:, 0, 1]
    assert len({*np.concatenate(values).tolist()}) == 4


@wp.func
def paint(state: Any, env: int) -> None:
    """Draw a field that holds whole numbers."""
    state.geom_matid[env, 0] = 0


@wp.func
def press(state: Any, env: int) -> None:
    """Draw an option that MuJoCo Warp has in another form."""
    state.impratio[env] = 2.0


@pytest.mark.parametrize(
    ("engine", "event", "words"),
    [
        ("mujoco", Event(paint, "startup"), "The field 'geom_matid' was asked for, but holds no floating-point"),
        ("mjwarp", Event(press, "startup"), "the field 'opt.impratio' of the model, of which MuJoCo Warp has one"),
        (
            "mjwarp",
            Event("body_pos", "startup", bodies="table", ranges=(0.0, 0.1)),
            "table, but MuJoCo Warp",
        ),
        ("mjwarp", Event("geom_quat", "startup", geoms=".*"), "geoms selects floor, top, but MuJoCo Warp has one pose"),
        (
            "mujoco",
            Event("pseudo_inertia", "startup", bodies="leg|cube"),
            "selects cube, but MuJoCo has",
        ),
        (
            "mjwarp",
            Event("body_ipos", "startup", bodies="cube", ranges=(0.0, 0.1)),
            "selects cube, but MuJoCo has",
        ),
    ],
)
def test_what_an_engine_cannot_let_differ_is_refused(engine: Any, event: Any, words: str) -> None:
    with pytest.raises(ShoalError, match=re.escape(words)):
        build(Beside, num_envs=1, engine=engine, events={"x": event})


def test_on_the_cpu_environments_have_tables_of_different_heights() -> None:
    raised = Event("body_pos", "startup", bodies="table", axes=(2,), ranges=(-0.1, 0.1))
    task = build(Beside, num_envs=3, engine="mujoco", events={"x": raised})
    heights = task.parameter("body_pos").numpy()[:, task.model.body("table").id, 2]
    top = task.poses["geom_xpos"].numpy()[:, task.model.geom("top").id, 2]
    assert len({*heights.tolist()}) == 3
    np.testing.assert_allclose(top, heights, atol=1e-6)


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_an_episode_begins_in_the_state_of_the_model_and_changes_no_other(engine: Any) -> None:
    ends = {"low": Done("root_height_below_minimum", minimum_height=0.95)}
    offset = Event("joint_default_pos", "reset", joints="hip", ranges=(0.1, 0.2))
    task = build(Beside, num_envs=2, engine=engine, events={"x": offset}, terminations=ends)
    task.qpos.numpy()[0, 2] = 0.9
    task.moved.numpy()[0] = True
    task.engine.forward(task.done, task.moved)
    model, data = model_of(task, 1), mujoco.MjData(task.model)
    mujoco.mj_setConst(model, data)
    data.qpos[:], data.qvel[:] = task.qpos.numpy()[1], task.qvel.numpy()[1]
    task.step()
    data.ctrl[:] = task.ctrl.numpy()[1]
    mujoco.mj_step(model, data, 2)
    assert task.done.numpy().tolist() == [True, False]
    np.testing.assert_array_equal(task.qpos.numpy()[0], task.model.qpos0.astype(np.float32))
    # Poses are those before the last physics step, as MuJoCo has them.
    np.testing.assert_allclose(task.poses["xpos"].numpy()[1], data.xpos, atol=1e-5)


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

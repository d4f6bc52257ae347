"""Contacts and sensors that a configuration declares, by MuJoCo's own list of contacts and its own functions."""

# ruff: noqa: ARG003
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import itertools
from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal import mdp
from shoal.errors import ShoalError, UsageError
from shoal.mdp.contacts import (
    contact_dist,
    contact_force,
    contact_normal,
    contact_pos,
    contact_tangent,
    contact_torque,
)

MODEL = """<mujoco><option timestep="0.002" integrator="implicitfast" cone="elliptic"/><worldbody>
  <geom name="floor" type="plane" size="0 0 1" condim="4"/><site name="mark" pos="0.3 0.2 0.1" euler="20 30 40"/>
  <body name="trunk" pos="0 0 0.12"><freejoint/><geom name="trunk" type="box" size="0.2 0.1 0.1" mass="3" condim="4"/>
    <site name="imu" pos="0.1 0.02 0.03" euler="10 20 30"/>
    <body name="arm" pos="0 0 0.15"><joint name="arm" axis="0 1 0" damping="0.1"/>
      <geom size="0.01" mass="0.1" contype="0"/><body name="hand"><joint name="hand" axis="0 1 0" damping="0.1"/>
      <geom name="arm" type="capsule" fromto="0 0 0 0.3 0 0" size="0.03" mass="0.5"/></body></body></body>
  <body name="ball" pos="0.4 0 0.05"><freejoint/><geom name="ball" size="0.05" mass="0.4"/></body>
</worldbody><actuator><motor name="arm" joint="arm"/></actuator></mujoco>"""


def vectors(name: str) -> Any:
    """Return an observation of one field of a slot."""
    functions = {
        "force": contact_force,
        "torque": contact_torque,
        "pos": contact_pos,
        "normal": contact_normal,
        "tangent": contact_tangent,
    }
    read = functions[name]

    @wp.func
    def observe(state: Any, env: int, i: int, contact: mdp.Contacts, slot: int) -> wp.vec3:
        return read(state, env, contact, i, slot)

    return observe


@wp.func
def distance(state: Any, env: int, i: int, contact: mdp.Contacts, slot: int) -> float:
    return contact_dist(state, env, contact, i, slot)


FIELDS = ("force", "torque", "pos", "normal", "tangent")
EVERY: dict[str, Any] = {"fields": ("found", *FIELDS, "dist")}
CONTACTS = {
    "net": mdp.Contact(bodies="trunk|ball"),
    "deep": mdp.Contact(geoms="trunk", secondary_geom="floor", reduce="mindist", num_slots=2, **EVERY),
    "itself": mdp.Contact(
        subtrees="trunk", secondary_subtree="trunk", reduce="maxforce", force_threshold=0.5, sites="imu"
    ),
    "strong": mdp.Contact(bodies="ball", secondary_body="trunk", reduce="maxforce", **EVERY),
}
SLOTS = {f"{field}_{slot}": mdp.Obs(vectors(field), contact="deep", slot=slot) for field in FIELDS for slot in (0, 1)}
SLOTS |= {f"dist_{slot}": mdp.Obs(distance, contact="deep", slot=slot) for slot in (0, 1)}
CONFIG = mdp.task_config(
    mdp.TermsConfig,
    decimation=1,
    contacts=CONTACTS,
    actions={"arm": mdp.Action("joint_effort", actuators="arm", scale=1.0)},
    observations={
        "policy": {
            "net": mdp.Obs("contact_forces", contact="net"),
            "strong": mdp.Obs(vectors("force"), contact="strong", slot=0),
            **{f"found_{name}": mdp.Obs("foot_contact", contact=name) for name in CONTACTS},
        },
        "slots": SLOTS,
    },
    rewards={"many": mdp.Reward("undesired_contacts", weight=1.0, contact="net", threshold=8.0)},
)


class Trunk(mdp.TermsTask[mdp.TermsConfig]):
    """A box on the floor with an arm, and a ball beside it."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL)


ENVS = 16


def placed(engine: Any, config: Any = CONFIG) -> Trunk:
    """Return environments in random states, most of them in contact."""
    task = Trunk(config.change(engine=engine), num_envs=ENVS, device="cpu", seed=0)
    rng = np.random.default_rng(1)
    qpos = np.tile(task.home(), (ENVS, 1))
    qpos[:, 2] = rng.uniform(0.08, 0.1, ENVS)
    qpos[:, 7] = rng.uniform(-0.5, 0.5, ENVS)  # The arm leans to the trunk, and into it.
    qpos[:, 9] = rng.uniform(0.235, 0.255, ENVS)
    qpos[:, 11] = rng.uniform(0.04, 0.055, ENVS)
    qpos[:, 3:7] += rng.normal(size=(ENVS, 4)) * 0.03
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    task.qpos.assign(qpos.astype(np.float32))
    task.qvel.assign((rng.normal(size=(ENVS, task.model.nv)) * 0.2).astype(np.float32))
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.run("reward")
    task.run("observe")
    wp.synchronize()
    return task


class Truth:
    """MuJoCo's contacts in one environment."""

    def __init__(self, task: Trunk, env: int) -> None:
        self.model, self.data = task.model, mujoco.MjData(task.model)
        self.data.qpos[:], self.data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(self.model, self.data)
        self.measure()

    def measure(self) -> None:
        self.wrenches = np.zeros((self.data.ncon, 6))
        for at in range(self.data.ncon):
            mujoco.mj_contactForce(self.model, self.data, at, self.wrenches[at])

    def begin(self) -> None:
        """Let the first physics step solve for its forces as those of a task that was placed do."""
        self.data.qacc_warmstart[:] = 0.0

    def step(self) -> None:
        mujoco.mj_step(self.model, self.data)
        self.measure()

    def touches_itself(self) -> bool:
        return any(np.linalg.norm(wrench[:3]) > 0.5 for _, wrench, _ in self.between("arm", {"trunk"}))

    def name(self, geom: int) -> str:
        return self.model.geom(geom).name

    def between(self, one: str, others: set[str]) -> list[tuple[Any, np.ndarray, float]]:
        """Return the contacts of a geom with others, each with its wrench, and 1 where the geom is its first."""
        found = []
        for contact, wrench in zip(self.data.contact, self.wrenches, strict=True):
            names = [self.name(geom) for geom in contact.geom]
            if one in names and {*names} - {one} <= others:
                found.append((contact, wrench, 1.0 if names[0] == one else -1.0))
        return found

    def net(self, geom: str) -> np.ndarray:
        """Return the sum of all forces on a geom in the world."""
        each = self.between(geom, {"floor", "trunk", "arm", "ball"})
        return sum((-sign * contact.frame.reshape(3, 3).T @ wrench[:3] for contact, wrench, sign in each), np.zeros(3))


@pytest.fixture(scope="module", params=["mujoco", pytest.param("mjwarp", marks=pytest.mark.soak)])
def task(request: pytest.FixtureRequest) -> Trunk:
    return placed(request.param)


def observed(task: Trunk, group: str) -> dict[str, np.ndarray]:
    rows, at, found = task.obs[group].numpy(), 0, {}
    for name, count in task.observation_terms[group].items():
        found[name], at = rows[:, at : at + count], at + count
    return found


def test_contacts_are_those_of_mujocos_list(task: Trunk) -> None:
    seen = observed(task, "policy")
    count = 0.0
    for env in range(ENVS):
        truth = Truth(task, env)
        forces = [truth.net("trunk"), truth.net("ball")]
        np.testing.assert_allclose(seen["net"][env], np.concatenate(forces), rtol=2e-2, atol=2e-2)
        found = [
            *(bool(truth.between(geom, {"floor", "trunk", "arm", "ball"})) for geom in ("trunk", "ball")),
            bool(truth.between("trunk", {"floor"})),
            truth.touches_itself(),
            bool(truth.between("ball", {"trunk"})),
        ]
        names = ("found_net", "found_deep", "found_itself", "found_strong")
        assert np.concatenate([seen[name][env] for name in names]).tolist() == found
        expected = sum(np.linalg.norm(force) > 8.0 for force in forces)
        assert task.terms.numpy()[env, 0] == expected
        count += expected
    assert 0.0 < count < 2.0 * ENVS
    assert 0.0 < seen["found_itself"].sum() < ENVS


def test_a_contact_is_where_its_body_or_its_site_is(task: Trunk) -> None:
    for env in range(ENVS):
        data = Truth(task, env).data
        for contact, expected in (("net", data.xpos[[1, 4]]), ("itself", [data.site("imu").xpos])):
            position = task.arrays[f"contacts/{contact}/position"].numpy()[env]
            np.testing.assert_allclose(position, expected, atol=1e-5)


def test_a_contact_with_sites_has_one_for_each_body() -> None:
    config = CONFIG.change(contacts={"net": mdp.Contact(bodies="trunk|ball", sites="imu")})
    with pytest.raises(UsageError, match=r"^contacts\.net\.sites selects 1 sites for 2 bodies: give each one"):
        Trunk(config, num_envs=1, device="cpu", seed=0)


def test_a_slot_has_all_fields_of_its_contact(task: Trunk) -> None:
    seen = observed(task, "slots")
    checked = 0
    for env in range(ENVS):
        contacts = sorted(Truth(task, env).between("trunk", {"floor"}), key=lambda each: each[0].dist)
        for slot, (contact, wrench, sign) in enumerate(contacts[:2]):
            frame = contact.frame.reshape(3, 3)
            np.testing.assert_allclose(seen[f"dist_{slot}"][env], contact.dist, atol=1e-5)
            np.testing.assert_allclose(seen[f"normal_{slot}"][env], sign * frame[0], atol=1e-4)
            np.testing.assert_allclose(seen[f"pos_{slot}"][env], contact.pos, atol=1e-4)
            force = seen[f"force_{slot}"][env]
            np.testing.assert_allclose(np.linalg.norm(force), np.linalg.norm(wrench[:3]), rtol=2e-2, atol=1e-2)
            np.testing.assert_allclose(force[0], wrench[0], rtol=2e-2, atol=1e-2)
            torque = np.linalg.norm(seen[f"torque_{slot}"][env])
            np.testing.assert_allclose(torque, np.linalg.norm(wrench[3:]), rtol=5e-2, atol=1e-3)
            np.testing.assert_allclose(seen[f"tangent_{slot}"][env] @ frame[0], 0.0, atol=1e-5)
            checked += 1
    assert checked > ENVS


@pytest.mark.parametrize("engine", ["mujoco", pytest.param("mjwarp", marks=pytest.mark.soak)])
def test_contacts_of_each_physics_step_are_counted(engine: Any) -> None:
    counted = mdp.Reward("self_collision_substeps", weight=1.0, contact="itself", force_threshold=0.5)
    task = placed(engine, CONFIG.change(decimation=5, rewards={"itself": counted}))
    column, total = task.reward_terms.index("itself"), 0
    for _ in range(4):
        truths = [Truth(task, env) for env in range(ENVS)]
        task.step()
        for env, truth in enumerate(truths):
            truth.begin()
            count = 0
            for _ in range(5):
                truth.step()
                count += truth.touches_itself()
            assert abs(task.terms.numpy()[env, column] - count) <= (engine == "mjwarp"), env
            total += 0 < count < 5
    assert total > 0


def test_times_in_contact_and_without_are_counted_by_physics_steps_where_that_is_declared() -> None:
    tracked = {"net": {"track_air_time": True}, "itself": {"track_air_time": True}}
    task = placed("mujoco", CONFIG.change(decimation=5, contacts=tracked))
    times = {name: np.zeros((ENVS, 3)) for name in ("air_time", "contact_time", "last_air_time")}
    for name, contact in itertools.product(times, tracked):
        task.arrays[f"contacts/{contact}/{name}"].zero_()
    truths = [Truth(task, env) for env in range(ENVS)]
    landed = 0
    for truth in truths:
        truth.begin()
    for _ in range(12):
        task.step()
        for (env, truth), _ in itertools.product(enumerate(truths), range(5)):
            truth.step()
            others = {"floor", "trunk", "arm", "ball"}
            touches = [bool(truth.between(one, others)) for one in ("trunk", "ball")] + [truth.touches_itself()]
            lands = touches & (times["air_time"][env] > 0.0)
            landed += lands.sum()
            # As mjlab's: until the physics step that finds the contact.
            times["last_air_time"][env, lands] = times["air_time"][env, lands] + 0.002
            times["air_time"][env] = np.where(touches, 0.0, times["air_time"][env] + 0.002)
            times["contact_time"][env] = np.where(touches, times["contact_time"][env] + 0.002, 0.0)
        for name, expected in times.items():
            ours = [task.arrays[f"contacts/{contact}/{name}"].numpy() for contact in tracked]
            np.testing.assert_allclose(np.concatenate(ours, axis=1), expected, atol=1e-6)
    assert landed > ENVS / 2


def test_a_contact_that_is_found_by_a_function_has_no_times_by_physics_steps() -> None:
    feet = mdp.Contact("near_ground", geoms="ball", tolerance=0.01, track_air_time=True)
    with pytest.raises(UsageError, match=r"^contacts\.ball\.track_air_time needs MuJoCo's sensor"):
        Trunk(CONFIG.change(contacts={"ball": feet}), num_envs=1, device="cpu", seed=0)


@pytest.mark.parametrize(
    ("contact", "message"),
    [
        (mdp.Contact(), r"^contacts\.x has no contacts: give bodies, geoms or subtrees"),
        (mdp.Contact(bodies="trunk", geoms="trunk"), r"^contacts\.x has both bodies and geoms: give one"),
        (
            mdp.Contact(bodies="trunks"),
            r"^contacts\.x\.bodies is 'trunks', which matches no body .* Did you mean 'trunk'",
        ),
        (
            mdp.Contact(bodies="trunk", secondary_geom=".*"),
            r"^contacts\.x\.secondary_geom is '\.\*', which matches more than one .*, but a sensor of MuJoCo's",
        ),
        (mdp.Contact(bodies="trunk", secondary="floor"), r"^contacts\.x\.secondary is given, but a sensor has no such"),
        (
            mdp.Contact(bodies="trunk", fields=("forces",)),
            r"^contacts\.x\.fields has 'forces': choose from found, force",
        ),
        (
            mdp.Contact(bodies="trunk", fields=("found",), force_threshold=1.0),
            r"lacks 'force', which its force_threshold",
        ),
    ],
)
def test_contacts_that_cannot_be_are_refused(contact: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Trunk.build_model(CONFIG.change(contacts={"x": contact}))


def test_a_term_of_a_field_that_the_contact_does_not_have_is_refused() -> None:
    config = CONFIG.change(contacts={"net": {"fields": ("found",)}})
    with pytest.raises(
        ShoalError, match=r"^rewards\.many calls undesired_contacts\(\), which needs a contact with 'force'"
    ):
        Trunk(config, num_envs=1, device="cpu", seed=0)


SENSORS = {
    "gyro": mdp.Sensor("gyro", site="imu"),
    "accelerometer": mdp.Sensor("accelerometer", site="imu"),
    "orientation": mdp.Sensor("framequat", site="imu"),
    "place": mdp.Sensor("framepos", body="ball", reference_site="mark"),
    "velocity": mdp.Sensor("framelinvel", geom="arm", reference_body="trunk"),
    "momentum": mdp.Sensor("subtreeangmom", subtree="trunk"),
    "angle": mdp.Sensor("jointpos", joint="arm"),
    "effort": mdp.Sensor("jointactuatorfrc", joint="arm"),
    "capped": mdp.Sensor("framepos", body="ball", cutoff=0.2),
}
IN_XML = """<sensor><gyro site="imu"/><accelerometer site="imu"/><framequat objtype="site" objname="imu"/>
  <framepos objtype="xbody" objname="ball" reftype="site" refname="mark"/>
  <framelinvel objtype="geom" objname="arm" reftype="xbody" refname="trunk"/>
  <subtreeangmom body="trunk"/><jointpos joint="arm"/><jointactuatorfrc joint="arm"/>
  <framepos objtype="xbody" objname="ball" cutoff="0.2"/></sensor></mujoco>"""


@pytest.mark.parametrize("engine", ["mujoco", pytest.param("mjwarp", marks=pytest.mark.soak)])
def test_declared_sensors_are_those_of_mjcf(engine: Any) -> None:
    shown = {"policy": dict.fromkeys(CONFIG.terms("observations")["policy"].__dataclass_fields__), "slots": None}
    shown["policy"] |= {name: mdp.Obs("builtin_sensor", sensors=name) for name in SENSORS}
    config = CONFIG.change(
        sensors=SENSORS, contacts=dict.fromkeys(CONTACTS), observations=shown, rewards={"many": None}
    )
    task = placed(engine, config)
    model = mujoco.MjModel.from_xml_string(MODEL.replace("</mujoco>", IN_XML))
    data = mujoco.MjData(model)
    for env in range(ENVS):
        data.qpos[:], data.qvel[:] = task.qpos.numpy()[env], task.qvel.numpy()[env]
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(task.obs["policy"].numpy()[env], data.sensordata, rtol=1e-3, atol=1e-4)
    assert list(task.observation_terms["policy"].values()) == model.sensor_dim.tolist()


@pytest.mark.parametrize(
    ("sensor", "message"),
    [
        (
            mdp.Sensor("giro", site="imu"),
            r"^sensors\.x is 'giro', which is no sensor of MuJoCo's\. Did you mean 'gyro'",
        ),
        (mdp.Sensor("gyro", sites="imu"), r"^sensors\.x\.sites is given, but a sensor has no such parameter.* 'site'"),
        (mdp.Sensor("gyro", site="i"), r"^sensors\.x\.site is 'i', which matches no site"),
        (mdp.Sensor("framepos", body=".*"), r"^sensors\.x\.body is '\.\*', which matches more than one"),
        (mdp.Sensor("gyro", body="trunk"), r"^The model of Trunk \(see line .* does not compile: .*site"),
    ],
)
def test_a_sensor_that_cannot_be_is_refused(sensor: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Trunk.build_model(CONFIG.change(sensors={"x": sensor}))

"""What the page draws of a model: every kind of geom, its colour, and where it stands."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from shoal.sim.render.instances import Drawing, Instances, Kind
from shoal.sim.render.marks import GHOST, Arrow, Ghost, Mark, Sphere
from shoal.sim.render.surfaces import surface_of
from shoal.sim.render.surroundings import extent
from shoal.user_code import load

ARM = f"{Path(__file__).parents[3] / 'docs' / 'examples' / 'arm.py'}:Arm"

SQUARE = "-1 -1 0  1 -1 0  1 1 0  -1 1 0  0 0 1"  # The corners of a pyramid.
ALL_KINDS = f"""
<mujoco>
  <asset>
    <mesh name="pyramid" vertex="{SQUARE}"/>
    <hfield name="hill" nrow="3" ncol="4" size="3 2 0.5 0.1" elevation="0 0 0 0  0 1 1 0  0 0 0 0"/>
    <texture name="check" type="2d" builtin="flat" width="4" height="4" rgb1="1 0 0"/>
    <material name="red" rgba="1 1 1 0.5" texture="check"/>
    <material name="green" rgba="0 1 0 1"/>
  </asset>
  <worldbody>
    <geom name="ground" type="plane" size="0 0 1" rgba="0.1 0.2 0.3 1" pos="0.5 0.5 0.25"/>
    <geom name="table" type="plane" size="2 3 1"/>
    <geom name="terrain" type="hfield" hfield="hill" contype="0"/>
    <body name="trunk" pos="0 0 9">
      <freejoint/>
      <geom name="box" type="box" size="1 2 3" material="green"/>
      <geom name="ball" type="sphere" size="1.5" material="red"/>
      <geom name="egg" type="ellipsoid" size="1 2 3" rgba="1 0 0 1" material="green"/>
      <site name="tip" type="cylinder" pos="0 0 5" size="0.2 0.3" rgba="1 1 0 1"/>
      <body name="leg" pos="1 0 0" euler="0 90 0">
        <joint type="hinge" axis="1 0 0"/>
        <geom name="rod" type="capsule" size="0.5 2" pos="0 1 0" euler="0 0 30"/>
        <geom name="same rod" type="capsule" size="0.5 2" rgba="0 0 1 1"/>
        <geom name="can" type="cylinder" size="0.5 2"/>
        <geom name="spike" type="mesh" mesh="pyramid"/>
        <geom name="bumper" type="sphere" size="1" group="3"/>
        <geom name="glass" type="sphere" size="2" rgba="1 1 1 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
Drawn = dict[tuple[Kind, bool], Instances]


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    """A model with every kind of geom."""
    return mujoco.MjModel.from_xml_string(ALL_KINDS)


def draw(model: mujoco.MjModel, *marks: Mark, moving: bool = True, hidden: bool = False, num_envs: int = 1) -> Drawn:
    """What is drawn of environments that stand 100 m apart along x, with marks in the first."""
    drawing = Drawing(model, moving=moving, hidden=hidden)
    offsets = np.outer(np.arange(num_envs), [100.0, 0.0, 0.0])
    return drawing.instances(np.tile(model.qpos0, (num_envs, 1)), offsets, [marks, *[()] * (num_envs - 1)])


def find(model: mujoco.MjModel, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vertices [m] and triangles of a geom in its own frame, and its colour; it is known by its place and turn."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    geom = model.geom(name)
    alike = {mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_HFIELD, mujoco.mjtGeom.mjGEOM_PLANE}
    for (kind, _), each in (draw(model, moving=False) | draw(model)).items():
        surface = surface_of(model, *kind)
        if kind[0] != geom.type[0] or surface is None:
            continue
        for position, turn, scale, colour in zip(each.positions, each.turns, each.scales, each.colours, strict=True):
            is_here = np.allclose(position, data.geom(name).xpos, atol=1e-6)
            if is_here and np.allclose(turn.ravel(), data.geom(name).xmat, atol=1e-6):
                assert (scale == 1).all() or geom.type[0] not in alike
                return surface[0] * scale, surface[1], colour
    raise AssertionError(name)


def volume(vertices: np.ndarray, triangles: np.ndarray) -> float:
    """What a surface encloses; negative where its triangles face inwards."""
    a, b, c = (vertices[triangles[:, corner]].astype(float) for corner in range(3))
    return float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6)


@pytest.mark.parametrize(
    ("name", "encloses"),
    [
        ("box", 48.0),
        ("ball", 4 / 3 * np.pi * 1.5**3),
        ("egg", 8 * np.pi),
        ("rod", np.pi + np.pi / 6),
        ("can", np.pi),
        ("spike", 4 / 3),
    ],
)
def test_a_surface_encloses_what_its_geom_does_and_reaches_as_far(
    model: mujoco.MjModel, name: str, encloses: float
) -> None:
    vertices, triangles, _ = find(model, name)
    assert volume(vertices, triangles) == pytest.approx(
        encloses, rel=0.04
    )  # Circles have 24 corners, that lie on them.
    middle, half = np.split(model.geom_aabb[model.geom(name).id], 2)
    np.testing.assert_allclose(vertices.max(axis=0), middle + half, atol=1e-6)
    np.testing.assert_allclose(vertices.min(axis=0), middle - half, atol=1e-6)


def test_a_height_field_has_its_heights_row_by_row(model: mujoco.MjModel) -> None:
    vertices, triangles, _ = find(model, "terrain")
    assert vertices[:, 2].reshape(3, 4).tolist() == [[0, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]]
    assert vertices[5].tolist() == [-1, 0, 0.5]  # The second of four columns from -3 to 3, the second row.
    upwards = np.cross(*(np.diff(vertices[triangles], axis=1)).transpose(1, 0, 2))
    assert (upwards[:, 2] > 0).all()


@pytest.mark.parametrize(
    ("name", "colour"),
    [
        ("egg", [1, 0, 0, 1]),  # Its own, and not its material's.
        ("box", [0, 1, 0, 1]),
        ("can", [0.5, 0.5, 0.5, 1]),
        ("ball", [1, 0, 0, 0.5]),  # The mean of its texture.
    ],
)
def test_a_geom_has_the_colour_that_mujoco_gives_it(model: mujoco.MjModel, name: str, colour: list[float]) -> None:
    assert find(model, name)[2] == pytest.approx(colour)


def test_geoms_of_one_size_share_a_surface_in_all_environments(model: mujoco.MjModel) -> None:
    drawn = draw(model, num_envs=2)
    rods = drawn[(int(mujoco.mjtGeom.mjGEOM_CAPSULE), 0.5, 2.0), False]
    assert rods.positions[:, 0] // 100 == pytest.approx([0, 0, 1, 1])
    assert sum(len(each.positions) for each in drawn.values()) == 2 * 8  # Seven geoms and the site.


def test_collision_geoms_are_drawn_where_asked_and_transparent_ones_never(model: mujoco.MjModel) -> None:
    sphere = int(mujoco.mjtGeom.mjGEOM_SPHERE)
    assert [*draw(model, hidden=False)[(sphere,), True].scales[:, 0]] == [1.5]  # The ball.
    assert ((sphere,), False) not in draw(model, hidden=False)
    assert [*draw(model, hidden=True)[(sphere,), False].scales[:, 0]] == [1.0]  # The bumper, and not the glass.


def test_what_does_not_move_is_drawn_apart_and_a_plane_without_an_end_has_no_surface(model: mujoco.MjModel) -> None:
    fixed = draw(model, moving=False)
    surfaces = {kind: surface_of(model, *kind) for kind, _ in fixed}
    (ground,) = (kind for kind, surface in surfaces.items() if surface is None)
    assert fixed[ground, False].colours.tolist() == [pytest.approx([0.1, 0.2, 0.3, 1])]
    assert fixed[ground, False].positions[0, 2] == 0.25
    assert len(fixed) == 3  # With the table and the terrain.


def test_sites_tendons_and_contacts_are_drawn() -> None:
    xml = """<mujoco><worldbody><geom type="plane" size="0 0 1"/><site name="nail" pos="0 0 2" size="0.01"/>
      <body pos="0 0 0.09"><freejoint/><geom size="0.1"/><site name="eye" type="box" size="0.01 0.02 0.03"/></body>
      </worldbody><tendon><spatial width="0.005"><site site="nail"/><site site="eye"/></spatial></tendon></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    drawn = {key[0][0]: each for key, each in draw(model).items()}
    assert drawn[mujoco.mjtGeom.mjGEOM_BOX].scales.tolist() == [pytest.approx([0.01, 0.02, 0.03])]
    tendon, contact = drawn[mujoco.mjtGeom.mjGEOM_CYLINDER].positions  # Both are cylinders.
    assert tendon == pytest.approx([0, 0, (2 + 0.09) / 2])
    assert drawn[mujoco.mjtGeom.mjGEOM_CYLINDER].scales[0] == pytest.approx([0.005, 0.005, (2 - 0.09) / 2])
    assert contact == pytest.approx([0, 0, -0.005])  # Half of how deep the ball is in the ground.


def test_an_arrow_reaches_from_its_start_to_its_tip(model: mujoco.MjModel) -> None:
    drawn = draw(model, Arrow((1.0, 2.0, 3.0), (0.0, 4.0, 0.0), (1.0, 0.0, 0.0, 1.0), 0.1), num_envs=2)
    kind = (int(mujoco.mjtGeom.mjGEOM_ARROW),)
    arrow, surface = drawn[kind, False], surface_of(model, *kind)
    assert surface is not None
    (turn,), (scale,) = arrow.turns, arrow.scales
    vertices = arrow.positions + (surface[0] * scale) @ turn.T
    assert vertices[:, 1].min() == pytest.approx(2)
    assert vertices[:, 1].max() == pytest.approx(6)
    assert vertices[:, 0].max() == pytest.approx(1.2)  # The head is twice as wide as the shaft.
    assert volume(*surface) > 0


def test_a_ghost_of_one_body_is_drawn_in_its_own_colour_in_its_environment() -> None:
    xml = """<mujoco><worldbody>
      <body name="red"><joint type="slide"/><geom size="0.1" rgba="1 0 0 1"/></body>
      <body name="blue"><joint type="slide"/><geom size="0.2" rgba="0 0 1 1"/></body></worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    drawing, offsets = Drawing(model, moving=True), np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    marks = [[Ghost([1.0, 2.0], None, body="blue")], [Ghost([3.0, 4.0]), Sphere((0, 0, 9), 0.3, (0, 1, 0, 1))]]
    drawn = drawing.instances(np.zeros((2, 2)), offsets, marks)
    sphere = (int(mujoco.mjtGeom.mjGEOM_SPHERE),)
    solid, transparent = drawn[sphere, False], drawn[sphere, True]
    ghost = solid.positions[2], solid.colours[2]
    assert [each.tolist() for each in ghost] == [[0, 0, 2], [0, 0, 1, 1]]
    assert transparent.positions.tolist() == [[5, 0, 3], [5, 0, 4]]
    assert transparent.colours.tolist() == [pytest.approx(GHOST)] * 2
    assert solid.positions[-1].tolist() == [5, 0, 9]


def test_a_robot_without_a_free_base_draws_its_own_marks_only() -> None:
    arm = load(ARM)
    task = arm(arm.config, num_envs=2, device="cpu", seed=0)
    (goal,) = task.marks({"commands": np.array([0.1, 0.2])})
    assert np.allclose(goal.position, [0.1, 0.2, 0.0])


def test_the_extent_is_that_of_the_turned_geoms() -> None:
    xml = """
    <mujoco><worldbody>
      <geom type="plane" size="50 50 1"/>
      <body pos="1 0 2"><joint type="hinge" axis="0 0 1"/><geom type="box" size="1 2 3"/></body>
    </worldbody></mujoco>
    """
    low, high = extent(mujoco.MjModel.from_xml_string(xml), np.array([np.pi / 2]))  # It swaps the sides along x and y.
    assert (*low, *high) == pytest.approx((-1, -1, -1, 3, 1, 5))


def test_a_model_without_solid_things_has_an_extent_too() -> None:
    xml = '<mujoco><worldbody><geom type="plane" size="1 1 1"/></worldbody></mujoco>'
    low, high = extent(mujoco.MjModel.from_xml_string(xml), np.zeros(0))
    assert (high > low).all()

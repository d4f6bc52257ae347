"""What can be seen of a model: every kind of geom, its colour, and where it stands."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from shoal.sim.render.shapes import SceneGeometry, Shape

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
    <geom name="ground" type="plane" size="0 0 1" rgba="0.1 0.2 0.3 1"/>
    <geom name="table" type="plane" size="2 3 1"/>
    <geom name="terrain" type="hfield" hfield="hill"/>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom name="box" type="box" size="1 2 3" material="green"/>
      <geom name="ball" type="sphere" size="1" material="red"/>
      <geom name="egg" type="ellipsoid" size="1 2 3" rgba="1 0 0 1" material="green"/>
      <body name="leg" pos="1 0 0" euler="0 90 0">
        <joint type="hinge" axis="1 0 0"/>
        <geom name="rod" type="capsule" size="0.5 2" pos="0 1 0" euler="0 0 30"/>
        <geom name="same rod" type="capsule" size="0.5 2" rgba="0 0 1 1"/>
        <geom name="can" type="cylinder" size="0.5 2"/>
        <geom name="spike" type="mesh" mesh="pyramid"/>
        <geom name="bumper" type="sphere" size="1" group="3"/>
        <geom name="ghost" type="sphere" size="2" rgba="1 1 1 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    """A model with every kind of geom."""
    return mujoco.MjModel.from_xml_string(ALL_KINDS)


@pytest.fixture(scope="module")
def look(model: mujoco.MjModel) -> SceneGeometry:
    """What can be seen of it."""
    return SceneGeometry(model)


def shape_of(model: mujoco.MjModel, look: SceneGeometry, name: str) -> tuple[Shape, list[float]]:
    """The shape of a geom, and the geom's colour."""
    geom = model.geom(name).id
    (shape,) = (shape for shape in look.shapes if geom in shape.geoms)
    return shape, shape.colours[shape.geoms.tolist().index(geom)].tolist()


def volume(shape: Shape) -> float:
    """What a surface encloses; negative where its triangles face inwards."""
    a, b, c = (shape.vertices[shape.triangles[:, corner]].astype(float) for corner in range(3))
    return float(np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6)


@pytest.mark.parametrize(
    ("name", "encloses"),
    [
        ("box", 48.0),
        ("ball", 4 / 3 * np.pi),
        ("egg", 8 * np.pi),
        ("rod", np.pi + np.pi / 6),
        ("can", np.pi),
        ("spike", 4 / 3),
    ],
)
def test_a_surface_encloses_what_its_geom_does(
    model: mujoco.MjModel, look: SceneGeometry, name: str, encloses: float
) -> None:
    shape, _ = shape_of(model, look, name)
    assert volume(shape) == pytest.approx(encloses, rel=0.04)  # Circles have 24 corners, which lie on them.
    assert shape.triangles.max() == len(shape.vertices) - 1


def test_a_surface_reaches_as_far_as_its_geom(model: mujoco.MjModel, look: SceneGeometry) -> None:
    for name in ("box", "ball", "egg", "rod", "can", "spike", "terrain"):
        shape, _ = shape_of(model, look, name)
        middle, half = np.split(model.geom_aabb[model.geom(name).id], 2)
        # The box around a height field goes down to its base, which is not drawn.
        lowest = -0.0 if name == "terrain" else (middle - half)[2]
        np.testing.assert_allclose(shape.vertices.max(axis=0), middle + half, atol=1e-6)
        np.testing.assert_allclose(shape.vertices.min(axis=0), [*(middle - half)[:2], lowest], atol=1e-6)


def test_a_height_field_has_its_heights_row_by_row(model: mujoco.MjModel, look: SceneGeometry) -> None:
    shape, _ = shape_of(model, look, "terrain")
    assert shape.vertices[:, 2].reshape(3, 4).tolist() == [[0, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 0]]
    assert shape.vertices[5].tolist() == [-1, 0, 0.5]  # The second of four columns from -3 to 3, the second row.
    upwards = np.cross(*(np.diff(shape.vertices[shape.triangles], axis=1)).transpose(1, 0, 2))
    assert (upwards[:, 2] > 0).all()


def test_geoms_that_look_alike_share_a_surface(model: mujoco.MjModel, look: SceneGeometry) -> None:
    shape, colour = shape_of(model, look, "same rod")
    assert shape.geoms.tolist() == [model.geom("rod").id, model.geom("same rod").id]
    assert colour == [0, 0, 1, 1]
    assert len(look.shapes) == 9


def test_a_geom_s_own_colour_wins_over_its_material_s(model: mujoco.MjModel, look: SceneGeometry) -> None:
    assert shape_of(model, look, "egg")[1] == [1, 0, 0, 1]
    assert shape_of(model, look, "box")[1] == [0, 1, 0, 1]
    assert shape_of(model, look, "can")[1] == [0.5, 0.5, 0.5, 1]


def test_a_texture_is_shown_by_its_mean_colour(model: mujoco.MjModel, look: SceneGeometry) -> None:
    assert shape_of(model, look, "ball")[1] == pytest.approx([1, 0, 0, 0.5])


def test_what_is_for_collisions_is_marked(model: mujoco.MjModel, look: SceneGeometry) -> None:
    hidden = [shape.geoms.tolist() for shape in look.shapes if shape.hidden]
    assert hidden == [[model.geom("bumper").id]]  # And not with the ball, which is as large.


def test_what_is_transparent_is_left_out(model: mujoco.MjModel, look: SceneGeometry) -> None:
    shown = {geom for shape in look.shapes for geom in shape.geoms.tolist()}
    assert {model.geom(geom).name for geom in range(model.ngeom)} - {model.geom(geom).name for geom in shown} == {
        "ground",
        "ghost",
    }


def test_a_plane_without_an_end_is_a_ground(model: mujoco.MjModel, look: SceneGeometry) -> None:
    (ground,) = look.grounds
    assert ground.geom == model.geom("ground").id
    assert ground.colour == pytest.approx((0.1, 0.2, 0.3, 1))


def test_only_what_hangs_on_joints_moves(model: mujoco.MjModel, look: SceneGeometry) -> None:
    fixed = [model.geom(int(geom)).name for geom in np.flatnonzero(~look.moves)]
    assert fixed == ["ground", "table", "terrain"]
    assert look.has_free_joint


def test_geoms_stand_where_mujoco_has_them(model: mujoco.MjModel, look: SceneGeometry) -> None:
    rng = np.random.default_rng(1)
    positions = np.tile(model.qpos0, (3, 1)) + rng.normal(size=(3, model.nq))
    positions[:, 3:7] /= np.linalg.norm(positions[:, 3:7], axis=1, keepdims=True)
    places, rotations = look.poses(positions)
    data = mujoco.MjData(model)
    for env, row in enumerate(positions):
        data.qpos[:] = row
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(places[env], data.geom_xpos, atol=1e-5)
        for geom in range(model.ngeom):
            turn = np.empty(9)
            mujoco.mju_quat2Mat(turn, rotations[env, geom].astype(float))
            np.testing.assert_allclose(turn, data.geom_xmat[geom], atol=1e-5)


def test_the_extent_is_that_of_the_turned_geoms() -> None:
    xml = """
    <mujoco><worldbody>
      <geom type="plane" size="50 50 1"/>
      <body pos="1 0 2"><joint type="hinge" axis="0 0 1"/><geom type="box" size="1 2 3"/></body>
    </worldbody></mujoco>
    """
    look = SceneGeometry(mujoco.MjModel.from_xml_string(xml))
    low, high = look.extent(np.array([np.pi / 2]))  # A quarter turn swaps the sides along x and y.
    assert (*low, *high) == pytest.approx((-1, -1, -1, 3, 1, 5))


def test_a_model_without_solid_things_has_an_extent_too() -> None:
    look = SceneGeometry(
        mujoco.MjModel.from_xml_string('<mujoco><worldbody><geom type="plane" size="1 1 1"/></worldbody></mujoco>')
    )
    low, high = look.extent(np.zeros(0))
    assert (high > low).all()

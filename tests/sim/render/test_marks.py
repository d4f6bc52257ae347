"""Ghosts: all that moves, or one body of it, in one colour or in their own."""

from __future__ import annotations

import mujoco
import pytest

from shoal.sim.render.marks import GHOST, Ghost, Pen

TWO = """<mujoco><worldbody>
  <geom name="post" size="0.1"/>
  <body name="red"><joint name="a" type="slide"/><geom size="0.1" rgba="1 0 0 1"/></body>
  <body name="blue"><joint name="b" type="slide"/><geom size="0.1" rgba="0 0 1 1"/></body></worldbody></mujoco>"""


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(TWO)


@pytest.mark.parametrize(
    ("ghost", "drawn"),
    [
        (Ghost([1.0, 2.0]), [(1.0, GHOST), (2.0, GHOST)]),
        (Ghost([1.0, 2.0], body="blue"), [(2.0, GHOST)]),
        (Ghost([1.0, 2.0], None, body="red"), [(1.0, (1.0, 0.0, 0.0, 1.0))]),
    ],
)
def test_a_ghost_is_of_all_that_moves_or_of_one_body(
    model: mujoco.MjModel, ghost: Ghost, drawn: list[tuple[float, tuple[float, ...]]]
) -> None:
    scene = mujoco.MjvScene(model, maxgeom=20)
    Pen(model).draw([ghost], scene)
    found = scene.geoms[: scene.ngeom]
    assert [(geom.pos[2], tuple(geom.rgba)) for geom in found] == [(z, pytest.approx(rgba)) for z, rgba in drawn]

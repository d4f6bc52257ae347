"""What a page is told to draw: environments side by side, or in their places on one ground."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
import viser

from shoal.sim.render.shapes import SceneGeometry
from shoal.viewer.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

BALL = '<body name="ball" pos="0 0 1"><freejoint/><geom name="ball" type="sphere" size="0.1"/></body>'
HILL = '<asset><hfield name="hill" nrow="3" ncol="3" size="9 9 1 1" elevation="0 0 0 0 1 0 0 0 0"/></asset>'
ON_A_PLANE = f'<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1"/>{BALL}</worldbody></mujoco>'
ON_A_HILL = f'<mujoco>{HILL}<worldbody><geom name="floor" type="hfield" hfield="hill"/>{BALL}</worldbody></mujoco>'
POSITIONS = np.array([[0.0, 0, 1, 1, 0, 0, 0], [5.0, -3, 2, 1, 0, 0, 0]])
"""Of two environments."""


@pytest.fixture
def server() -> Iterator[viser.ViserServer]:
    """A page that nobody visits."""
    made = viser.ViserServer("127.0.0.1", port=0, verbose=False)
    yield made
    made.stop()


def drawn(stage: Stage) -> list[np.ndarray]:
    """Where the stage has put each of its shapes. Shapes (instances, 3)."""
    return [np.asarray(batch.batched_positions) for _, batch in stage._batches]


def test_environments_on_a_plane_stand_apart(server: viser.ViserServer) -> None:
    stage = Stage(server, SceneGeometry(mujoco.MjModel.from_xml_string(ON_A_PLANE)), POSITIONS * [0, 0, 1, 1, 1, 1, 1])
    (balls,) = drawn(stage)
    assert np.linalg.norm(balls[0, :2] - balls[1, :2]) > 0.2


def test_environments_on_a_height_field_share_it(server: viser.ViserServer) -> None:
    stage = Stage(server, SceneGeometry(mujoco.MjModel.from_xml_string(ON_A_HILL)), POSITIONS)
    hill, balls = drawn(stage)
    assert hill.shape == (1, 3)
    np.testing.assert_allclose(balls, POSITIONS[:, :3])
    stage.show(POSITIONS, looked_at=1, follow=True)
    np.testing.assert_allclose(stage._frame.position, (-5.0, 3.0, -1.0))  # It is kept as high as the first one was.
    stage.show(POSITIONS, looked_at=1, follow=False)
    np.testing.assert_allclose(stage._frame.position, (0.0, 0.0, 0.0))

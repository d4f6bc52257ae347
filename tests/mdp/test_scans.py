"""Points of height scans that viewers draw, against rays of MuJoCo."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import mujoco
import numpy as np
import warp as wp

from shoal.mdp import observations
from shoal.mdp.ground import Ground
from shoal.mdp.scans import scanned_points
from shoal.mdp.terms import Obs
from shoal.mdp.values import grid_points
from shoal.sim.render.marks import Sphere

SIZE, CELLS = 2.0, 8


@dataclass
class Group:
    """Observations."""

    scan: object = Obs("height_scan", grid=(1.0, 0.6, 0.2))


def test_points_of_a_scan_lie_on_the_ground_where_vertical_rays_hit_it() -> None:
    heights = np.random.default_rng(1).uniform(0, 1, (CELLS + 1, CELLS + 1)).astype(np.float32)
    heights.flat[:2] = 0, 1  # MuJoCo scales them to 0 to 1.
    ground = Ground()
    ground.heights = wp.array(heights, dtype=wp.float32, device="cpu")
    ground.corner, ground.cell = wp.vec2(-SIZE, -SIZE), 2 * SIZE / CELLS
    bound = SimpleNamespace(function=observations.height_scan)
    task = SimpleNamespace(
        config=SimpleNamespace(terms=lambda _: {"policy": Group(), "critic": Group()}),
        bound=SimpleNamespace(observations={"policy": {"scan": bound}, "critic": {"scan": bound}}),
        state_values={"ground": ground},
        device=wp.get_device("cpu"),
        launch=lambda kernel, inputs, outputs, dim: wp.launch(
            kernel, dim, inputs=inputs, outputs=outputs, device="cpu"
        ),
    )
    turn = np.array([np.cos(0.5), 0, 0, np.sin(0.5)])  # One radian to the left.
    marks = scanned_points(task, {"qpos": np.array([0.3, -0.2, 1.0, *turn], np.float32)})
    points = np.array([mark.position for mark in marks if isinstance(mark, Sphere)])
    turned = grid_points(1.0, 0.6, 0.2) @ np.array([[np.cos(1), np.sin(1)], [-np.sin(1), np.cos(1)]])
    np.testing.assert_allclose(points[:, :2], turned + np.array([0.3, -0.2]), atol=1e-5)
    elevation = " ".join(map(str, heights[::-1].ravel()))  # MJCF has the rows from the top of a picture.
    model = mujoco.MjModel.from_xml_string(f"""<mujoco><asset><hfield name="hills" nrow="{CELLS + 1}" ncol="{CELLS + 1}"
      size="{SIZE} {SIZE} 1 1" elevation="{elevation}"/></asset><worldbody><geom type="hfield" hfield="hills"/>
      </worldbody></mujoco>""")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    down, normal = np.array([0, 0, -1.0]), np.zeros(3)
    hits = [10 - mujoco.mj_rayHfield(model, data, 0, np.array([x, y, 10.0]), down, normal) for x, y, _ in points]
    np.testing.assert_allclose(points[:, 2], hits, atol=1e-4)

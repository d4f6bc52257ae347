"""viser scene of several environments: one batch of meshes for all geoms of one shape and all environments."""

import math
from collections.abc import Sequence

import numpy as np
import viser

from shoal.sim.render.marks import Mark
from shoal.sim.render.shapes import SceneGeometry, Shape
from shoal.viewer.marks import ViserMarks, colour_bytes

_VIEW = np.array([0.3, -1.0, 0.45])
"""Direction from the scene to the initial camera."""
_FIELD_OF_VIEW = np.pi / 4
_MARGIN = 1.2
"""Initial field of view, relative to the size of the scene."""
SPACING = 1.3
"""Size of a grid cell, relative to an environment."""
MIN_ASPECT = 0.25
"""Least width of a cell, relative to its longer side, so that thin environments do not hide each other."""


def grid_offsets(num_envs: int, size: tuple[float, float]) -> np.ndarray:
    """Return the offset of each environment [m] in a grid without overlap. Shape (num_envs, 3).

    Rows run along x, the first one in front. The grid is about square, with its centre at the origin. One environment
    has the size `size` along x and y [m].
    """
    longer = max(*size, 1e-3)
    width, depth = (SPACING * max(side, MIN_ASPECT * longer) for side in size)
    columns = min(num_envs, max(1, round(math.sqrt(num_envs * depth / width))))
    rows = math.ceil(num_envs / columns)
    env = np.arange(num_envs)
    x = (env % columns - (columns - 1) / 2) * width
    y = (env // columns - (rows - 1) / 2) * depth
    return np.stack([x, y, np.zeros(num_envs)], axis=1).astype(np.float32)


class ViserScene:
    """Draws environments side by side.

    `geometry` is that of one environment; initial joint positions have the shape (num_envs, nq).
    """

    def __init__(self, server: viser.ViserServer, geometry: SceneGeometry, positions: np.ndarray) -> None:
        self._server = server
        self._geometry = geometry
        low, high = geometry.extent(positions[0])
        offsets = grid_offsets(len(positions), (high[0] - low[0], high[1] - low[1]))
        self._offsets = np.zeros_like(offsets) if geometry.is_shared else offsets
        self._followed_geom = int(np.argmax(geometry.moves))
        """The first geom that moves, which the camera follows."""
        self._frame = server.scene.add_frame("/scene", show_axes=False)
        self._label = server.scene.add_label("/scene/label", "", anchor="bottom-center")
        self._height = float(high[2] + 0.1 * (high[2] - low[2]))
        centres, rotations = self._poses_of(positions)
        self._initial_height = centres[0, self._followed_geom, 2]
        self._batches = [
            (shape, self._add(number, shape, centres, rotations)) for number, shape in enumerate(geometry.shapes)
        ]
        self._moving = [(shape.geoms, batch) for shape, batch in self._batches if geometry.moves[shape.geoms].any()]
        # An endless plane is the same for all environments.
        for ground in geometry.grounds:
            server.scene.add_grid(
                f"/scene/ground_{ground.geom}",
                infinite_grid=True,
                plane_color=colour_bytes(ground.colour)[0],
                plane_opacity=ground.colour[3],
                position=centres[0, ground.geom] - self._offsets[0],
                wxyz=rotations[0, ground.geom],
            )
        self._marks = ViserMarks(server, geometry, "/scene")
        server.scene.set_background_image(_sky())
        self._place_camera(low, high)

    def show_hidden(self, *, visible: bool) -> None:
        """Show or hide collision geoms."""
        for shape, batch in self._batches:
            if shape.hidden:
                batch.visible = visible

    def update(
        self, positions: np.ndarray, marks: Sequence[Sequence[Mark]] = (), *, selected: int, follow: bool
    ) -> None:
        """Move all geoms to joint positions, (num_envs, nq), and draw each environment's sites, contacts and marks.

        `follow` keeps the selected environment centred.
        """
        centres, rotations = self._poses_of(positions)
        target = centres[selected, self._followed_geom]
        # On a shared terrain the height is followed too. On a plane it is not, so that a hop is visible.
        rise = target[2] - self._initial_height if self._geometry.is_shared else 0.0
        with self._server.atomic():
            for geoms, batch in self._moving:
                batch.batched_positions = centres[:, geoms].reshape(-1, 3)
                batch.batched_wxyzs = rotations[:, geoms].reshape(-1, 4)
            drawn = self._geometry.sites(positions)
            for own, added in zip(drawn, marks, strict=False):
                own.extend(added)
            self._marks.update(drawn, self._geometry.contacts(positions), self._offsets)
            self._label.text = f"environment {selected}"
            self._label.position = (target[0], target[1], self._height + rise)
            self._frame.position = (-target[0], -target[1], -rise) if follow else (0.0, 0.0, 0.0)

    def _poses_of(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        centres, rotations = self._geometry.poses(positions)
        return centres + self._offsets[:, None], rotations

    def _add(self, number: int, shape: Shape, centres: np.ndarray, rotations: np.ndarray) -> viser.BatchedMeshHandle:
        if self._geometry.is_shared and not self._geometry.moves[shape.geoms].any():
            centres, rotations = centres[:1], rotations[:1]
        colours = np.tile(shape.colours, (len(centres), 1))
        return self._server.scene.add_batched_meshes_simple(
            f"/scene/shape_{number}",
            shape.vertices,
            shape.triangles,
            rotations[:, shape.geoms].reshape(-1, 4),
            centres[:, shape.geoms].reshape(-1, 3),
            batched_colors=colour_bytes(colours),
            batched_opacities=colours[:, 3] if (colours[:, 3] < 1).any() else None,
            visible=not shape.hidden,
        )

    def _place_camera(self, low: np.ndarray, high: np.ndarray) -> None:
        """Set the initial camera so that it sees all environments."""
        middle = np.array([0.0, 0.0, (low[2] + high[2]) / 2])
        reach = _MARGIN * np.linalg.norm(self._offsets.max(axis=0) + (high - low) / 2)
        camera = self._server.initial_camera
        camera.fov = _FIELD_OF_VIEW
        camera.look_at = middle
        camera.position = middle + _VIEW / np.linalg.norm(_VIEW) * reach / np.tan(_FIELD_OF_VIEW / 2)


def _sky() -> np.ndarray:
    """Return a picture that is lighter towards its lower edge. Shape (height, 1, 3), bytes."""
    top, bottom = np.array([190, 205, 222]), np.array([240, 246, 250])
    return (top + np.linspace(0, 1, 64)[:, None, None] * (bottom - top)).round().astype(np.uint8)

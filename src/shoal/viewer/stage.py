"""The environments as viser draws them: one batch of meshes for all geoms that look alike, in all environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.viewer.grid import offsets

if TYPE_CHECKING:
    import viser

    from shoal.sim.render.shapes import SceneGeometry, Shape

_VIEW = np.array([0.3, -1.0, 0.45])
"""From where the camera looks at first, seen from what it looks at."""
_FIELD_OF_VIEW = np.pi / 4
_MARGIN = 1.2
"""How much further than everything reaches the camera sees."""


class Stage:
    """Shows environments side by side."""

    def __init__(self, server: viser.ViserServer, look: SceneGeometry, positions: np.ndarray) -> None:
        """Put everything on the page, and the camera before it.

        Args:
            server: The page.
            look: What one environment looks like.
            positions: Joint positions with which it begins. Shape (num_envs, nq).
        """
        self._server = server
        self._look = look
        low, high = look.extent(positions[0])
        apart = offsets(len(positions), (high[0] - low[0], high[1] - low[1]))
        self._offsets = np.zeros_like(apart) if look.is_shared else apart
        self._leader = int(np.argmax(look.moves))
        """The first geom that moves, by which an environment is followed."""
        self._frame = server.scene.add_frame("/scene", show_axes=False)
        self._label = server.scene.add_label("/scene/label", "", anchor="bottom-center")
        self._height = float(high[2] + 0.1 * (high[2] - low[2]))
        places, rotations = self._poses_of(positions)
        self._first_height = places[0, self._leader, 2]
        self._batches = [
            (shape, self._add(number, shape, places, rotations)) for number, shape in enumerate(look.shapes)
        ]
        self._moving = [(shape.geoms, batch) for shape, batch in self._batches if look.moves[shape.geoms].any()]
        # An endless plane is the same for all environments.
        for ground in look.grounds:
            server.scene.add_grid(
                f"/scene/ground_{ground.geom}",
                infinite_grid=True,
                plane_color=_rgb(ground.colour),
                plane_opacity=ground.colour[3],
                position=places[0, ground.geom] - self._offsets[0],
                wxyz=rotations[0, ground.geom],
            )
        self._aim(low, high)

    def show_hidden(self, *, visible: bool) -> None:
        """Show or hide the geoms that are for collisions."""
        for shape, batch in self._batches:
            if shape.hidden:
                batch.visible = visible

    def show(self, positions: np.ndarray, *, looked_at: int, follow: bool) -> None:
        """Move everything to where it stands now.

        Args:
            positions: Joint positions. Shape (num_envs, nq).
            looked_at: The environment that has a label.
            follow: Whether that environment is kept where the camera looked at first.
        """
        places, rotations = self._poses_of(positions)
        leader = places[looked_at, self._leader]
        # Robots that share a ground walk up and down on it. Elsewhere one that hops is to be seen hopping.
        rise = leader[2] - self._first_height if self._look.is_shared else 0.0
        with self._server.atomic():
            for geoms, batch in self._moving:
                batch.batched_positions = places[:, geoms].reshape(-1, 3)
                batch.batched_wxyzs = rotations[:, geoms].reshape(-1, 4)
            self._label.text = f"environment {looked_at}"
            self._label.position = (leader[0], leader[1], self._height + rise)
            self._frame.position = (-leader[0], -leader[1], -rise) if follow else (0.0, 0.0, 0.0)

    def _poses_of(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places, rotations = self._look.poses(positions)
        return places + self._offsets[:, None], rotations

    def _add(self, number: int, shape: Shape, places: np.ndarray, rotations: np.ndarray) -> viser.BatchedMeshHandle:
        if self._look.is_shared and not self._look.moves[shape.geoms].any():
            places, rotations = places[:1], rotations[:1]
        colours = np.tile(shape.colours, (len(places), 1))
        return self._server.scene.add_batched_meshes_simple(
            f"/scene/shape_{number}",
            shape.vertices,
            shape.triangles,
            rotations[:, shape.geoms].reshape(-1, 4),
            places[:, shape.geoms].reshape(-1, 3),
            batched_colors=(255 * colours[:, :3]).round().astype(np.uint8),
            batched_opacities=colours[:, 3] if (colours[:, 3] < 1).any() else None,
            visible=not shape.hidden,
        )

    def _aim(self, low: np.ndarray, high: np.ndarray) -> None:
        """Let the camera begin where it sees all environments."""
        middle = np.array([0.0, 0.0, (low[2] + high[2]) / 2])
        reach = _MARGIN * np.linalg.norm(self._offsets.max(axis=0) + (high - low) / 2)
        camera = self._server.initial_camera
        camera.fov = _FIELD_OF_VIEW
        camera.look_at = middle
        camera.position = middle + _VIEW / np.linalg.norm(_VIEW) * reach / np.tan(_FIELD_OF_VIEW / 2)


def _rgb(colour: tuple[float, ...]) -> tuple[int, int, int]:
    red, green, blue = (round(255 * part) for part in colour[:3])
    return red, green, blue

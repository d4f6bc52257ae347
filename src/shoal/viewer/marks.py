"""Marks and contacts in a viser scene: one node for all that look alike, in all environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import viser

from shoal.sim.render.marks import Arrow, Ghost, Mark, Sphere
from shoal.sim.render.shapes import SceneGeometry
from shoal.sim.render.surfaces import sphere

_CONTACT = (230, 153, 51)
"""MuJoCo's colour of contact points."""
_CONTACT_SIZE = 0.3
"""Size of a contact point, relative to a mean geom, as in MuJoCo's viewers."""


class ViserMarks:
    """Draws marks below a node of the scene, which moves with it."""

    def __init__(self, server: viser.ViserServer, geometry: SceneGeometry, root: str) -> None:
        self._scene, self._geometry, self._root = server.scene, geometry, root
        self._nodes: dict[str, Any] = {}

    def update(self, marks: Sequence[Sequence[Mark]], contacts: Sequence[np.ndarray], offsets: np.ndarray) -> None:
        """Draw the marks and the contacts, (n, 3), of each environment at its offset, (num_envs, 3)."""
        pairs = [(mark, offset) for each, offset in zip(marks, offsets, strict=True) for mark in each]
        self._draw_arrows([(mark, offset) for mark, offset in pairs if isinstance(mark, Arrow) and mark.is_visible])
        self._draw_spheres([(mark, offset) for mark, offset in pairs if isinstance(mark, Sphere)])
        self._draw_ghosts([(mark, offset) for mark, offset in pairs if isinstance(mark, Ghost)])
        points = [each + offset for each, offset in zip(contacts, offsets, strict=True)]
        self._show(
            "contacts",
            self._scene.add_point_cloud,
            {"points": np.concatenate(points).astype(np.float32)} if points else {},
            colors=_CONTACT,
            point_size=_CONTACT_SIZE * self._geometry.mean_size,
            point_shape="circle",
        )

    def _draw_arrows(self, arrows: list[tuple[Arrow, np.ndarray]]) -> None:
        radii = {arrow.radius for arrow, _ in arrows}
        known = {float(name.removeprefix("arrows_")) for name in self._nodes if name.startswith("arrows_")}
        for radius in radii | known:
            alike = [(arrow, offset) for arrow, offset in arrows if arrow.radius == radius]
            starts = np.array([np.array(arrow.start) + offset for arrow, offset in alike]).reshape(-1, 3)
            vectors = np.array([arrow.vector for arrow, _ in alike]).reshape(-1, 3)
            points = np.stack([starts, starts + vectors], axis=1).astype(np.float32)
            sizes = {"shaft_radius": radius, "head_radius": 2 * radius, "head_length": 4 * radius}
            changing = {"points": points, "colors": colour_bytes([arrow.colour for arrow, _ in alike])}
            self._show(f"arrows_{radius}", self._scene.add_arrows, changing, **sizes)

    def _draw_spheres(self, spheres: list[tuple[Sphere, np.ndarray]]) -> None:
        places = np.array([np.array(each.position) + offset for each, offset in spheres], np.float32).reshape(-1, 3)
        changing = {
            "batched_positions": places,
            "batched_wxyzs": np.tile(np.array([1, 0, 0, 0], np.float32), (len(places), 1)),
            "batched_scales": np.array([each.radius for each, _ in spheres], np.float32),
            "batched_colors": colour_bytes([each.colour for each, _ in spheres]),
        }
        vertices, faces = sphere(1.0)
        fixed = {"vertices": vertices.astype(np.float32), "faces": faces}
        self._show("spheres", self._scene.add_batched_meshes_simple, changing, **fixed)

    def _draw_ghosts(self, ghosts: list[tuple[Ghost, np.ndarray]]) -> None:
        if not ghosts and not any(name.startswith("ghost") for name in self._nodes):
            return
        places, rotations = self._geometry.poses(np.array([each.positions for each, _ in ghosts]))
        places += np.array([offset for _, offset in ghosts], np.float32).reshape(-1, 1, 3)
        for number, shape in enumerate(self._geometry.shapes):
            if shape.hidden or not self._geometry.moves[shape.geoms].any():
                continue
            count = len(shape.geoms)
            drawn = np.array([self._geometry.belongs(shape.geoms, ghost.body) for ghost, _ in ghosts], dtype=bool)
            drawn = drawn.reshape(-1, count)
            colours = np.array([ghost.colours(shape.colours) for ghost, _ in ghosts]).reshape(-1, count, 4)[drawn]
            changing = {
                "batched_positions": places[:, shape.geoms][drawn],
                "batched_wxyzs": rotations[:, shape.geoms][drawn],
                "batched_colors": colour_bytes(colours),
                "batched_opacities": colours[:, 3].astype(np.float32),
            }
            fixed = {"vertices": shape.vertices, "faces": shape.triangles}
            self._show(f"ghost_{number}", self._scene.add_batched_meshes_simple, changing, **fixed)

    def _show(self, name: str, add: Any, changing: dict[str, np.ndarray], **fixed: Any) -> None:  # noqa: ANN401
        """Add a node where there is none yet, or change it; hide it where there is nothing to show."""
        is_empty = not all(map(len, changing.values()))
        if name in self._nodes:
            self._nodes[name].visible = not is_empty
        elif not is_empty:
            self._nodes[name] = add(f"{self._root}/{name}", **changing, **fixed)
            return
        if not is_empty:
            for key, value in changing.items():
                setattr(self._nodes[name], key, value)


def colour_bytes(colours: Any) -> np.ndarray:  # noqa: ANN401  Colours, (n, 4), 0 to 1.
    """Return red, green and blue as bytes. Shape (n, 3)."""
    return (255 * np.array(colours).reshape(-1, 4)[:, :3]).round().astype(np.uint8)

"""viser scene of several environments: one node for all that share a surface, in all environments."""

import math
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

import numpy as np
import viser
from viser.transforms import SO3

from shoal.sim.render.instances import Drawing, Instances, Kind, Shown, State
from shoal.sim.render.marks import Mark
from shoal.sim.render.surfaces import surface_of
from shoal.sim.render.surroundings import extent

_VIEW = np.array([0.3, -1.0, 0.45])
"""Direction from the scene to the initial camera."""
_FIELD_OF_VIEW = np.pi / 4
_MARGIN = 1.2
"""Initial field of view, relative to the size of the scene."""
_PLAIN, _NO_STATE = Shown(), MappingProxyType[str, np.ndarray]({})
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
    """Draws environments side by side, of a MuJoCo model; initial joint positions have the shape (num_envs, nq)."""

    def __init__(self, server: viser.ViserServer, model: Any, positions: np.ndarray) -> None:  # noqa: ANN401  MuJoCo has no types.
        self._server, self._model = server, model
        low, high = extent(model, positions[0])
        offsets = grid_offsets(len(positions), (high[0] - low[0], high[1] - low[1]))
        self._is_shared = model.nhfield > 0
        """Whether all environments share one height field, each at a position of its own."""
        self._offsets = np.zeros_like(offsets) if self._is_shared else offsets
        self._followed_body = int(np.argmax(model.body_weldid != 0))
        """The first body that moves, which the camera follows."""
        self._envs: dict[tuple[str, tuple[Kind, bool]], np.ndarray] = {}
        """The environment of each instance of a node."""
        self._nodes: dict[str, dict[tuple[Kind, bool], Any]] = {"fixed": {}, "moving": {}}
        self._frame = server.scene.add_frame("/scene", show_axes=False)
        self._label = server.scene.add_label("/scene/label", "", anchor="bottom-center")
        self._height = float(high[2] + 0.1 * (high[2] - low[2]))
        self.picked: SimpleQueue[int] = SimpleQueue()
        """Environments that were clicked."""
        self._prepare(positions, Shown())
        self._initial_height = self._target(positions, 0)[2]
        server.scene.set_background_image(_sky())
        self._place_camera(low, high)

    def update(  # noqa: PLR0913  By name.
        self,
        positions: np.ndarray,
        marks: Sequence[Sequence[Mark]] = (),
        *,
        selected: int,
        follow: bool,
        shown: Shown = _PLAIN,
        state: State = _NO_STATE,
    ) -> None:
        """Draw joint positions, (num_envs, nq), and the contacts and marks of each environment.

        `follow` keeps the selected environment centred. Forces need the state.
        """
        target = self._target(positions, selected)
        # On a shared terrain the height is followed too. On a plane it is not, so that a hop is visible.
        rise = target[2] - self._initial_height if self._is_shared else 0.0
        with self._server.atomic():
            if shown != self._shown:
                self._prepare(positions, shown)
            self._show("moving", self._moving.instances(positions, self._offsets, marks, state))
            self._label.text = f"environment {selected}"
            self._label.position = (target[0], target[1], self._height + rise)
            self._frame.position = (-target[0], -target[1], -rise) if follow else (0.0, 0.0, 0.0)

    def _target(self, positions: np.ndarray, env: int) -> np.ndarray:
        """Return the position of the body that the camera follows. Shape (3,)."""
        (data,) = self._moving.at(positions[env : env + 1])
        return data.xpos[self._followed_body] + self._offsets[env]

    def actuator_forces(self, positions: np.ndarray, state: State, env: int) -> np.ndarray:
        """Return the force or torque of each actuator of an environment [N or Nm]. Shape (nu,)."""
        rows = {name: values[env : env + 1] for name, values in state.items()}
        (data,) = self._moving.at(positions[env : env + 1], rows)
        return data.actuator_force.copy()

    def _prepare(self, positions: np.ndarray, shown: Shown) -> None:
        """Draw all that is fixed, on a shared terrain once."""
        self._shown = shown
        self._moving = Drawing(self._model, moving=True, shown=shown)
        fixed = Drawing(self._model, moving=False, shown=shown)
        self._show("fixed", fixed.instances(positions[: 1 if self._is_shared else None], self._offsets))

    def _show(self, root: str, drawn: dict[tuple[Kind, bool], Instances]) -> None:
        """Add a node for each kind that has none yet, change the others, and hide those of which nothing is drawn."""
        nodes = self._nodes[root]
        for key in nodes.keys() - drawn.keys():
            nodes[key].visible = False
        if not drawn:
            return
        # All at once: for each by itself it would take most of the time.
        rotations = SO3.from_matrix(np.concatenate([each.turns for each in drawn.values()])).wxyz
        ends = np.cumsum([len(each.turns) for each in drawn.values()])
        for (key, each), wxyzs in zip(drawn.items(), np.split(rotations, ends[:-1]), strict=True):
            kind, is_transparent = key
            changing = {
                "batched_positions": each.positions,
                "batched_wxyzs": wxyzs,
                "batched_scales": each.scales,
                "batched_colors": _bytes(each.colours[:, :3]),
            }
            if is_transparent:
                changing["batched_opacities"] = each.colours[:, 3]
            self._envs[root, key] = each.envs
            if key not in nodes:
                nodes[key] = self._add(f"/scene/{root}_{len(nodes)}", kind, each, changing)
                if root == "moving" and isinstance(nodes[key], viser.BatchedMeshHandle):
                    nodes[key].on_click(partial(self._pick, key))
                continue
            nodes[key].visible = True
            if isinstance(nodes[key], viser.BatchedMeshHandle):
                for name, value in changing.items():
                    setattr(nodes[key], name, value)

    async def _pick(self, key: tuple[Kind, bool], event: viser.SceneNodePointerEvent[Any]) -> None:
        envs, index = self._envs["moving", key], event.instance_index
        if index is not None and index < len(envs):
            self.picked.put(int(envs[index]))

    def _add(self, name: str, kind: Kind, drawn: Instances, fields: dict[str, Any]) -> Any:  # noqa: ANN401
        surface = surface_of(self._model, *kind)
        if surface is not None:
            return self._server.scene.add_batched_meshes_simple(name, *surface, **fields)
        return self._server.scene.add_grid(  # An endless plane is the same for all environments.
            name,
            infinite_grid=True,
            plane_color=fields["batched_colors"][0],
            plane_opacity=float(drawn.colours[0, 3]),
            position=drawn.positions[0] - self._offsets[0],
            wxyz=fields["batched_wxyzs"][0],
        )

    def _place_camera(self, low: np.ndarray, high: np.ndarray) -> None:
        """Set the camera so that it sees all environments."""
        middle = np.array([0.0, 0.0, (low[2] + high[2]) / 2])
        reach = _MARGIN * np.linalg.norm(self._offsets.max(axis=0) + (high - low) / 2)
        visitors = self._server.get_clients().values()  # Who have seen another scene before.
        for camera in (self._server.initial_camera, *(each.camera for each in visitors)):
            camera.fov = _FIELD_OF_VIEW
            camera.look_at = middle
            camera.position = middle + _VIEW / np.linalg.norm(_VIEW) * reach / np.tan(_FIELD_OF_VIEW / 2)


def _sky() -> np.ndarray:
    """Return a picture that is lighter towards its lower edge. Shape (height, 1, 3), bytes."""
    top, bottom = np.array([190, 205, 222]), np.array([240, 246, 250])
    return (top + np.linspace(0, 1, 64)[:, None, None] * (bottom - top)).round().astype(np.uint8)


def _bytes(colours: np.ndarray) -> np.ndarray:
    """Return colours from 0 to 1 as bytes, in the same shape."""
    return (255 * colours.clip(0, 1)).round().astype(np.uint8)

"""Marks: arrows, spheres and ghosts that a task draws beside its scene, in videos and viewers.

A task returns them for one environment in `Task.marks`. Only what draws calls it: a step does not.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import mujoco

Numbers = Sequence[float] | np.ndarray
Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, 0 to 1."""

GREEN: Colour = (0.15, 0.7, 0.2, 1.0)
"""What the policy is to do: commands and goals."""
BLUE: Colour = (0.15, 0.4, 0.95, 1.0)
"""What the robot does."""
GHOST: Colour = (0.15, 0.7, 0.2, 0.35)
_UPRIGHT = np.eye(3).ravel()


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow in the world. One that is not longer than its radius is not drawn."""

    start: Numbers
    """Where it begins [m]. Shape (3,)."""
    vector: Numbers
    """From there to its tip [m]. Shape (3,)."""
    colour: Colour = GREEN
    radius: float = 0.015
    """Radius of its shaft [m]."""

    @property
    def is_visible(self) -> bool:
        """Whether it is long enough."""
        return math.hypot(*self.vector) > self.radius


@dataclass(frozen=True, slots=True)
class Sphere:
    """A sphere in the world: a goal, or a point."""

    position: Numbers
    """Its middle [m]. Shape (3,)."""
    radius: float = 0.03
    """[m]."""
    colour: Colour = GREEN


@dataclass(frozen=True, slots=True)
class Ghost:
    """All that moves in the scene once more, in another pose; or one body of it."""

    positions: Numbers
    """The pose as ``qpos``. Shape (nq,)."""
    colour: Colour | None = GHOST
    """None for the geoms' own colours."""
    body: str = ""
    """The body, without those that are attached to it. Empty for all."""


Mark = Arrow | Sphere | Ghost
_KINDS: dict[str, type[Mark]] = {"Arrow": Arrow, "Sphere": Sphere, "Ghost": Ghost}


def to_json(frames: Iterable[Iterable[Mark]]) -> str:
    """Return the marks of each frame as text."""
    entries = [[[type(mark).__name__, asdict(mark)] for mark in marks] for marks in frames]
    return json.dumps(entries, default=lambda numbers: numbers.tolist())


def from_json(text: str) -> list[list[Mark]]:
    """Return the marks of `to_json`."""
    return [[_KINDS[kind](**fields) for kind, fields in marks] for marks in json.loads(text)]


class Pen:
    """Adds marks to MuJoCo's abstract scenes of one model."""

    def __init__(self, model: mujoco.MjModel) -> None:
        import mujoco

        self._mujoco: Any = mujoco
        self._model = model
        self._data = mujoco.MjData(model)
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        self._alone: dict[str, mujoco.MjModel] = {}

    def draw(self, marks: Iterable[Mark], scene: mujoco.MjvScene) -> None:
        """Add marks to a scene, as far as it has room."""
        for mark in marks:
            if isinstance(mark, Ghost):
                self._add_ghost(mark, scene)
            elif scene.ngeom < scene.maxgeom and (isinstance(mark, Sphere) or mark.is_visible):
                self._add(mark, scene.geoms[scene.ngeom])
                scene.ngeom += 1

    def _add(self, mark: Arrow | Sphere, geom: Any) -> None:  # noqa: ANN401  MuJoCo has no types.
        kinds, at = self._mujoco.mjtGeom, mark.position if isinstance(mark, Sphere) else mark.start
        size = mark.radius, mark.radius, mark.radius
        self._mujoco.mjv_initGeom(geom, kinds.mjGEOM_SPHERE, size, at, _UPRIGHT, mark.colour)
        if isinstance(mark, Arrow):
            self._mujoco.mjv_connector(geom, kinds.mjGEOM_ARROW, mark.radius, at, np.add(at, mark.vector))

    def _add_ghost(self, ghost: Ghost, scene: mujoco.MjvScene) -> None:
        first = scene.ngeom
        self._data.qpos[:] = ghost.positions
        self._mujoco.mj_kinematics(self._model, self._data)
        dynamic = self._mujoco.mjtCatBit.mjCAT_DYNAMIC.value
        shown = self._only(ghost.body) if ghost.body else self._model
        self._mujoco.mjv_addGeoms(shown, self._data, self._option, self._perturb, dynamic, scene)
        for geom in scene.geoms[first : scene.ngeom]:
            if ghost.colour is not None:
                geom.rgba[:] = ghost.colour
            geom.matid = -1
            geom.transparent = True

    def _only(self, body: str) -> mujoco.MjModel:
        """Return the model with the geoms of one body visible, and all others not."""
        if body not in self._alone:
            self._alone[body] = model = copy.copy(self._model)
            model.geom_rgba[model.geom_bodyid != model.body(body).id, 3] = 0.0
            model.geom_matid[model.geom_bodyid != model.body(body).id] = -1
        return self._alone[body]

"""Which rays a declaration is of, see `shoal.mdp.cameras`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.mdp.cameras import RayCastTerm
from shoal.mdp.functions import made_by
from shoal.mdp.names import Names


@dataclass(frozen=True, slots=True)
class Frames:
    """The bodies, sites or geoms that rays begin at, each with the whole pattern."""

    kind: str
    """``body``, ``site`` or ``geom``."""
    names: list[str]
    indices: list[int]
    bodies: list[int]
    """The body of each."""
    offsets: np.ndarray
    """Where rays begin in a frame [m]. Shape (n, 3)."""
    directions: np.ndarray
    """Unit vectors. Shape (n, 3)."""

    @property
    def columns(self) -> tuple[str, ...]:
        """A name for each ray: all of the first frame, and then of the next."""
        return tuple(f"{name} {ray}" for name in self.names for ray in range(len(self.offsets)))


def frames_of(names: Names, path: str, term: RayCastTerm) -> Frames:
    """Return the frames and rays that are declared at `path`.

    Raises:
        UsageError: There is no such pattern or frame, or the pattern returns no rays.
    """
    given = [kind for kind in ("body", "site", "geom") if getattr(term, kind)]
    if len(given) != 1:
        raise UsageError(
            f"{path} has {' and '.join(given) or 'nothing that its rays begin at'}: give one pattern of them."
        )
    made: Any = made_by(path, term, "ray_patterns")
    offsets, directions = (np.atleast_2d(np.asarray(each, dtype=np.float32)) for each in made)
    lengths = np.linalg.norm(directions, axis=-1, keepdims=True)
    if offsets.shape != directions.shape or offsets.shape[1:] != (3,) or not offsets.size or not lengths.all():
        shapes = f"offsets of the shape {offsets.shape} and directions of {directions.shape}"
        raise UsageError(
            f"{path} has a pattern with {shapes}, but both must be (n, 3) for at least one ray, and no direction 0."
        )
    kind, model = given[0], names.model
    indices = names.select(kind, getattr(term, kind), f"{path}.{kind}")
    bodies = {"body": range(model.nbody), "site": model.site_bodyid, "geom": model.geom_bodyid}[kind]
    known = names.names(kind)
    return Frames(
        kind,
        [known[each] for each in indices],
        indices,
        [int(bodies[each]) for each in indices],
        offsets,
        directions / lengths,
    )

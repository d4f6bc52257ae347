"""Which rays a declaration is of, see `shoal.mdp.cameras`."""

from dataclasses import dataclass

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
    def prefix(self) -> str:
        """What the names of their positions and orientations in MuJoCo's data begin with."""
        return {"body": "", "site": "site_", "geom": "geom_"}[self.kind]

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
    try:
        rays = np.array(made_by(path, term, "ray_patterns"), dtype=np.float32)
    except (TypeError, ValueError):  # Two arrays of different shapes, or no numbers.
        rays = np.zeros(0)
    if (
        rays.shape != (2, rays.size // 6, 3)
        or not rays.size
        or not (np.isfinite(rays).all() and rays[1].any(axis=1).all())
    ):
        raise UsageError(
            f"{path} has a pattern that returns no rays: it must return their offsets and directions, arrays of finite "
            "numbers of shape (n, 3), none of whose directions is 0."
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
        rays[0],
        rays[1] / np.linalg.norm(rays[1], axis=1, keepdims=True),
    )

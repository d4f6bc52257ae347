"""A kernel that asks the velocity tasks' ground what it is like, at any places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import warp as wp

from shoal.mdp.ground import Ground, clearance_of, surface_at

if TYPE_CHECKING:
    import numpy as np


@wp.kernel(enable_backward=False)
def _probe(ground: Ground, places: wp.array[wp.vec3], surfaces: wp.array[wp.vec3], gaps: wp.array[wp.float32]) -> None:
    index = wp.tid()
    place = places[index]
    surfaces[index] = surface_at(ground, place[0], place[1])
    gaps[index] = clearance_of(ground, place)


def probe(ground: Ground, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ground's height and slopes below places, (n, 3) each, and how far these are from it, (n,)."""
    surfaces, gaps = wp.zeros(len(places), dtype=wp.vec3), wp.zeros(len(places), dtype=wp.float32)
    wp.launch(_probe, len(places), inputs=[ground, wp.array(places, dtype=wp.vec3)], outputs=[surfaces, gaps])
    return surfaces.numpy(), gaps.numpy()

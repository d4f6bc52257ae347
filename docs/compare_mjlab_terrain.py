"""Compare sub-terrains of terrain with mjlab's of the same name: heights at the same points.

    pip install --target DIR --no-deps mjlab==1.6.0
    python docs/compare_mjlab_terrain.py DIR

mjlab's own functions build each preset, and rays find its surface. Kinds without random numbers are compared point by
point, a millimetre inside of Shoal's points, away from the fronts of mjlab's boxes; the others by quantiles of heights.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from typing import Any

import mujoco
import numpy as np
from compare_mjlab_terms import import_mjlab

from shoal.mdp import sub_terrains
from shoal.mdp.terrain_config import SUB_TERRAINS

DIFFICULTIES = (0.0, 0.5, 1.0)
EXACT = ("flat", "pyramid_stairs", "pyramid_stairs_inv", "hf_pyramid_slope", "hf_pyramid_slope_inv", "wave_terrain")
EXACT += ("open_stairs", "narrow_beams", "nested_rings")
SIZE, POINTS = 8.0, 81
"""Kinds without random numbers."""
SEEDS = 8


def heights_of_mjlab(preset: Any, difficulty: float, seed: int) -> np.ndarray:  # noqa: ANN401  mjlab is not installed.
    """Return the heights of a preset at the points of a sub-terrain above its border [m]. Shape (POINTS, POINTS)."""
    spec = mujoco.MjSpec()
    spec.worldbody.add_body(name="terrain")
    config = preset(proportion=1.0)
    config.size = (SIZE, SIZE)
    config.function(difficulty, spec, np.random.default_rng(seed))
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    along = np.linspace(0.0, SIZE, POINTS)
    along = along + 1e-3 * np.sign(SIZE / 2 - along)
    down, geom = np.array([0.0, 0.0, -1.0]), np.zeros(1, np.int32)
    rays = [
        10.0 - mujoco.mj_ray(model, data, np.array([x, y, 10.0]), down, None, 1, -1, geom, None)
        for y in along
        for x in along
    ]
    heights = np.array(rays).reshape(POINTS, POINTS)
    return heights - np.median(heights[1, 1:-1])


def heights_of_shoal(name: str, difficulty: float, seed: int) -> np.ndarray:
    """Return the heights of a sub-terrain's points above its border [m]. Shape (POINTS, POINTS)."""
    term = SUB_TERRAINS[name]
    plot = sub_terrains.Plot(difficulty, np.random.default_rng(seed))
    heights = getattr(sub_terrains, str(term.func))(plot, **{each: getattr(term, each) for each in term.parameters})
    for x, y, z, *half in plot.boxes:
        is_inside = plot.box_at((x, y), 2.0 * np.array(half))
        heights = np.where(is_inside, np.maximum(heights, z + half[2]), heights)
    return heights


def _shares(heights: list[np.ndarray]) -> list[float]:
    return np.percentile(heights, (1, 25, 50, 75, 99)).round(3).tolist()


def main() -> None:
    """Print one line for each kind and difficulty."""
    (config,) = import_mjlab(sys.argv[1], "mjlab.terrains.config")
    presets = config.ALL_TERRAIN_PRESETS
    print(f"{'kind':22s} difficulty   largest   median   points within 0.01 m")  # noqa: T201
    for name in EXACT:
        for difficulty in DIFFICULTIES:
            apart = np.abs(heights_of_mjlab(presets[name], difficulty, 0) - heights_of_shoal(name, difficulty, 0))
            share = np.mean(apart < 0.01)  # noqa: PLR2004  As in the headline.
            print(f"{name:22s} {difficulty:10.1f} {apart.max():9.3f} {np.median(apart):8.4f} {share:22.1%}")  # noqa: T201
    print(f"\n{'kind':22s} difficulty   heights at 1, 25, 50, 75, 99 % of {SEEDS} sub-terrains: mjlab's, Shoal's")  # noqa: T201
    for name in (name for name in SUB_TERRAINS if name in presets and name not in EXACT):
        for difficulty in DIFFICULTIES:
            theirs = _shares([heights_of_mjlab(presets[name], difficulty, seed) for seed in range(SEEDS)])
            own = _shares([heights_of_shoal(name, difficulty, seed) for seed in range(SEEDS)])
            print(f"{name:22s} {difficulty:10.1f}   {theirs}, {own}")  # noqa: T201
    print("\nMissing:", *sorted(presets.keys() - SUB_TERRAINS.keys()))  # noqa: T201


if __name__ == "__main__":
    main()

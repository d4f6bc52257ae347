"""Rough terrain for any robot, as declarations: sub-terrains, levels, and their terms. Importable without Warp."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from shoal.config.checks import Rule, above, at_least, check, each, listed, within
from shoal.mdp.config import Group, RobotConfig, group, task_config
from shoal.mdp.terms import Done, Event, Metric, ObsTerm, SubTerrain, SubTerrainTerm, Term

_STAIRS: dict[str, Any] = {"step_height_range": (0.0, 0.2), "step_width": 0.3}
_STAIRS |= {"platform_width": 3.0, "border_width": 1.0}
_LOW_STAIRS: dict[str, Any] = {"step_height_range": (0.02, 0.15), "step_width": 0.3}
_LOW_STAIRS |= {"platform_width": 1.0, "border_width": 0.3}
_SLOPE: dict[str, Any] = {"slope_range": (0.0, 0.7), "platform_width": 2.0, "border_width": 0.2}
_GRID: dict[str, float] = {"grid_width": 0.4, "platform_width": 1.0}
_MIDDLE: dict[str, float] = {"platform_width": 1.0, "border_width": 0.25}

SUB_TERRAINS: dict[str, SubTerrainTerm] = {
    # For small robots: Isaac Lab's ROUGH_TERRAINS_CFG with the sizes of its task for the Go1, and lower stairs.
    "rough": SubTerrain("rough", height_range=(0.01, 0.06), platform_width=1.0),
    "boxes": SubTerrain(
        "box_random_grid", grid_height_range=(0.025, 0.1), platform_height=0.0, border_width=0.0, **_GRID
    ),
    "hill": SubTerrain("slope", slope_range=(0.0, 0.4), platform_width=1.0),
    "pit": SubTerrain("slope_inv", slope_range=(0.0, 0.4), platform_width=1.0),
    "stairs_down": SubTerrain("pyramid_stairs", **_LOW_STAIRS),
    "stairs_up": SubTerrain("pyramid_stairs_inv", **_LOW_STAIRS),
    # mjlab 1.6.0's presets (mjlab.terrains.config). The height fields among them have a border of 0.25 m, which mjlab
    # rounds down to whole cells.
    "flat": SubTerrain("flat"),
    "pyramid_stairs": SubTerrain("pyramid_stairs", **_STAIRS),
    "pyramid_stairs_inv": SubTerrain("pyramid_stairs_inv", **_STAIRS),
    "hf_pyramid_slope": SubTerrain("hf_pyramid_slope", **_SLOPE),
    "hf_pyramid_slope_inv": SubTerrain("hf_pyramid_slope_inv", **_SLOPE),
    "random_rough": SubTerrain("random_rough", noise_range=(0.02, 0.1), noise_step=0.02, border_width=0.2),
    "wave_terrain": SubTerrain("wave_terrain", amplitude_range=(0.0, 0.2), num_waves=4, border_width=0.2),
    "discrete_obstacles": SubTerrain(
        "discrete_obstacles",
        obstacle_width_range=(0.3, 1.0),
        obstacle_height_range=(0.05, 0.3),
        num_obstacles=40,
        platform_width=1.0,
        border_width=0.2,
    ),
    # Of its scale of 10 mjlab uses half: its points are 0.05 m apart, and its horizontal_scale is 0.1 m.
    "perlin_noise": SubTerrain(
        "perlin_noise", height_range=(0.0, 1.0), octaves=4, persistence=0.3, lacunarity=2.0, scale=5.0, border_width=0.5
    ),
    "box_random_grid": SubTerrain(
        "box_random_grid", grid_height_range=(0.0, 0.3), platform_height=1.0, border_width=0.25, **_GRID
    ),
    "random_spread_boxes": SubTerrain(
        "random_spread_boxes",
        num_boxes=80,
        box_width_range=(0.1, 1.0),
        box_length_range=(0.1, 2.0),
        box_height_range=(0.05, 0.3),
        **_MIDDLE,
    ),
    "open_stairs": SubTerrain(
        "open_stairs", step_height_range=(0.1, 0.2), step_width_range=(0.4, 0.8), step_thickness=0.05, **_MIDDLE
    ),
    "random_stairs": SubTerrain("random_stairs", step_height_range=(0.1, 0.3), step_width=0.8, **_MIDDLE),
    # The floor is 2 m below mjlab's zero, and the border 0.2 m above, or 0.25 m.
    "stepping_stones": SubTerrain(
        "stepping_stones",
        stone_size_range=(0.4, 0.8),
        stone_distance=0.2,
        stone_height_variation=0.1,
        stone_size_variation=0.2,
        displacement_range=0.1,
        floor_depth=2.2,
        **_MIDDLE,
    ),
    "narrow_beams": SubTerrain("narrow_beams", num_beams=12, beam_width_range=(0.2, 0.8), floor_depth=2.2, **_MIDDLE),
    "nested_rings": SubTerrain(
        "nested_rings", num_rings=8, ring_width_range=(0.3, 0.6), gap_range=(0.1, 0.4), floor_depth=2.25, **_MIDDLE
    ),
    "tilted_grid": SubTerrain("tilted_grid", grid_width=1.0, tilt_range_deg=20.0, height_range=0.3, **_MIDDLE),
}
"""Kinds of sub-terrains by name."""

ROUGH_TERRAINS: dict[str, Any] = {
    "terrains": (
        *("flat", "pyramid_stairs", "pyramid_stairs_inv") * 2,
        *("hf_pyramid_slope", "hf_pyramid_slope_inv", "random_rough", "wave_terrain"),
    ),
    "sub_terrains": SUB_TERRAINS
    | {
        name: replace(term, step_height_range=(0.0, 0.1))
        for name, term in SUB_TERRAINS.items()
        if "pyramid_stairs" in name
    }
    | {name: replace(term, slope_range=(0.0, 1.0)) for name, term in SUB_TERRAINS.items() if "hf_pyramid" in name},
}
"""Fields of mjlab's ROUGH_TERRAINS_CFG: flat ground and stairs twice as often as the others."""


@dataclass(frozen=True, kw_only=True)
class TerrainConfig(RobotConfig):
    """Base of the configuration of a task with a robot on rough terrain; `on_terrain` makes one."""

    kinds: ClassVar[Mapping[str, type[Term]]] = {**RobotConfig.kinds, "sub_terrains": SubTerrainTerm}

    terrains: tuple[str, ...] = ("rough", "boxes", "hill", "pit", "stairs_down", "stairs_up")
    """Kinds of `sub_terrains`, each for as many environments. One that is named twice is for twice as many."""
    sub_terrains: Group = field(
        default_factory=lambda: group("sub_terrains", SUB_TERRAINS), metadata={"older_name": "tiles"}
    )
    """Numbers of the kinds of sub-terrains."""
    terrain_levels: Annotated[int, at_least(1)] = 10
    """Number of levels of each terrain type, from easy to hard."""
    sub_terrain_size: Annotated[float, within(1.0, 100.0)] = field(default=8.0, metadata={"older_name": "tile_size"})
    """Length of the sides of a sub-terrain [m], rounded to whole cells."""
    horizontal_scale: Annotated[float, within(0.01, 0.5)] = 0.1
    """Length of the cells of the height field [m]."""
    num_patches: Annotated[int, at_least(0)] = 0
    """Number of flat patches of each sub-terrain in which robots begin; 0, or where it has none: its middle."""
    patch_radius: Annotated[float, above(0.0)] = 0.5
    """Half of the sides of flat patches [m]."""
    max_height_diff: Annotated[float, at_least(0.0)] = 0.05
    """Largest difference of heights in a flat patch [m]."""
    terrain_seed: Annotated[int, at_least(0)] = 0
    """Seed of the terrain, which is the same on all workers."""
    curriculum: bool = True
    """Whether terrain levels follow the walked distance. If not, the level of each episode is drawn uniformly, as in
    `play` and `evaluate`."""
    first_levels: Annotated[int, at_least(1)] = 3
    """Number of the easiest levels that a curriculum begins on."""
    only_level: int | None = None
    """The only level, counted from 0, instead of a curriculum."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        known = tuple(self.terms("sub_terrains"))
        is_known = each(Rule(f"be one of {listed(known)}", lambda name: name in known))
        check(self, "env.", {"terrains": is_known, "only_level": within(0, self.terrain_levels - 1)})

    def in_play(self) -> Self:
        """Return the same without a curriculum, for an evaluation on all levels alike."""
        return replace(super().in_play(), curriculum=False)


def on_terrain(flat: RobotConfig, scans: Mapping[str, ObsTerm], *, spread: float, **fields: Any) -> TerrainConfig:
    """Return the configuration of a robot on rough terrain.

    Args:
        flat: The same on flat ground, with the event `base`, which is replaced, and a velocity as its first command.
        scans: The term `height_scan` of groups of observations, as ``Obs("height_scan", grid=(1.6, 1.0, 0.1))``.
        spread: Largest distance from the middle of a sub-terrain at the start, along x and y [m].
        fields: Other fields, such as `terrains`, and `sub_terrains`.
    """
    parts = flat.parts()
    levels = Event("update_terrain_levels", "reset", min_distance=2.0, promote_at=0.8, demote_at=0.5)
    base = Event("reset_on_sub_terrain", "reset", spread=spread, yaw=(-math.pi, math.pi), reach=0.2)
    parts["observations"] |= {name: parts["observations"][name] | {"height_scan": scan} for name, scan in scans.items()}
    parts["terminations"] |= {"out_of_terrain": Done("out_of_terrain_bounds", time_out=True)}
    parts["metrics"] |= {"terrain_level": Metric("terrain_level"), "walked_share": Metric("walked_share")}
    # The level first, then the sub-terrain that the base is put on.
    parts["events"] = {"terrain_levels": levels} | parts["events"] | {"base": base}
    parts["events"] |= {"first_levels": Event("draw_first_levels", "startup")}
    return task_config(TerrainConfig, **parts | fields)

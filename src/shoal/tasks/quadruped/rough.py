"""`Quadruped-Velocity-Rough`: the velocity task on rough terrain, with a height scan and a terrain curriculum."""

from collections.abc import Mapping
from typing import ClassVar

import mujoco
import numpy as np
import warp as wp

from shoal.mdp.ground import scan
from shoal.tasks.quadruped import events
from shoal.tasks.quadruped.config import RoughConfig
from shoal.tasks.quadruped.task import VelocityTask
from shoal.tasks.quadruped.terrain import BORDER, CELL, build_on_terrain, make_terrain

_START_SPREAD = 0.3
"""Largest distance of a first position from the middle of its tile, along each axis [m]: on the flat platform."""
_GOLDEN_RATIO = (1 + 5**0.5) / 2
_MIN_DISTANCE = 2.0
"""Shortest commanded distance that counts in the curriculum [m]."""


def _scan_points(config: RoughConfig) -> np.ndarray:
    """Return the points of the height scan in the robot's frame, x and y [m]. Shape (n, 2)."""
    counts = (int(side / config.scan_spacing + 1e-6) + 1 for side in (config.scan_length, config.scan_width))
    axes = [(np.arange(count) - (count - 1) / 2) * config.scan_spacing for count in counts]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


class RoughVelocity(VelocityTask[RoughConfig]):
    """Track a commanded velocity on rough terrain."""

    config = RoughConfig()
    observations: ClassVar = dict.fromkeys(("policy", "critic"), 48 + len(_scan_points(config)))
    metrics = (*VelocityTask.metrics, "terrain_level")

    @classmethod
    def build_model(cls, config: RoughConfig) -> mujoco.MjModel:
        """Return the robot on its terrain."""
        return build_on_terrain(config)

    def build(self) -> None:
        """Build the model, and count the points of the height scan."""
        super().build()
        self.scan_points = _scan_points(self.config)
        self.scan_column = self.observations["policy"]
        """First column of the height scan in the observations."""
        columns = self.scan_column + len(self.scan_points)
        self.observations = dict.fromkeys(self.observations, columns)  # pyright: ignore[reportAttributeAccessIssue]

    def build_terrain(self) -> None:
        """Set the ground to the height field."""
        self.terrain = make_terrain(self.config)
        self.ground.heights = self.constant(self.terrain.heights)
        self.ground.corner = wp.vec2(*self.terrain.corner)
        self.ground.cell = CELL

    def allocate(self) -> None:
        """Add terrain levels and the curriculum."""
        super().allocate()
        config = self.config
        self.levels = self.array("levels", dtype=wp.int32)
        """Terrain level of each environment, counted from 0."""
        self.commanded_distance = self.array("commanded_distance")
        """Commanded distance since the episode began [m]."""
        self.walked_distance = self.array("walked_distance")
        """Walked distance in the commanded direction [m]."""
        self.points = wp.array(self.scan_points, dtype=wp.vec2, device=self.device)
        self.centers = wp.array(self.terrain.centers, dtype=wp.vec2, device=self.device)
        # Beyond this there is ground for the feet, but not for the scan.
        self.edge = wp.vec2(*(-side - BORDER / 2 for side in self.terrain.corner))

        self.is_promoting = config.curriculum and config.only_level is None
        self.best_metric = "terrain_level" if self.is_promoting else None
        self.curriculum_params = events.Curriculum()
        self.curriculum_params.is_on = config.curriculum
        self.curriculum_params.lowest = config.only_level or 0
        self.curriculum_params.highest = config.terrain_levels - 1 if config.only_level is None else config.only_level
        self.curriculum_params.kinds = len(config.terrains)
        self.curriculum_params.min_distance = _MIN_DISTANCE
        self.curriculum_params.promote_at = config.promote_at
        self.curriculum_params.demote_at = config.demote_at

    def compute_rewards(self) -> None:
        """Compute rewards as on flat ground, and track the progress."""
        super().compute_rewards()
        self.launch(
            events.track_progress,
            inputs=[self.step_dt, self.edge, self.levels, self.qpos, self.qvel, self.command_array],
            outputs=[self.commanded_distance, self.walked_distance, self.truncated, self.metric_values],
        )

    def reset_state(self) -> None:
        """Reset where done, each robot to a tile of its level."""
        self.launch(
            events.update_terrain_levels,
            inputs=[self.done, self.time_out, self.curriculum_params],
            outputs=[self.rng, self.commanded_distance, self.walked_distance, self.levels],
        )
        super().reset_state()
        self.launch(
            events.move_to_tiles,
            inputs=[
                *(self.first_env, self.done, self.curriculum_params, self.centers, self.levels),
                *(_START_SPREAD, self.ground),
            ],
            outputs=[self.rng, self.qpos],
        )

    def randomize(self) -> None:
        """Startup randomisation, terrain levels included."""
        super().randomize()
        params = self.curriculum_params
        first = min(self.config.first_levels, params.highest - params.lowest + 1)
        self.launch(events.randomize_levels, inputs=[params.lowest, first], outputs=[self.rng, self.levels])

    def observe(self) -> None:
        """Write the observations, the height scan last."""
        super().observe()
        self.launch(
            scan,
            inputs=[self.ground, self.points, float(self.robot.start[2]), self.config.noise_scan, self.scan_column],
            outputs=[self.qpos, self.rng, self.obs["policy"], self.obs["critic"]],
            dim=(self.num_envs, len(self.scan_points)),
        )

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the number of environments on each level. Shape of `levels`: (terrain_levels,)."""
        if not self.is_promoting:
            return {}
        return {"levels": np.bincount(self.levels.numpy(), minlength=self.config.terrain_levels)}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Distribute the environments over the levels in the given proportions."""
        shares = np.cumsum(counts["levels"]) / np.sum(counts["levels"])
        if not self.config.curriculum or len(shares) != self.config.terrain_levels:
            return
        params = self.curriculum_params
        # Each terrain type gets its share of each level: environments take turns with the types. The golden ratio
        # spreads levels evenly over any stretch of environments: the first may continue with levels of their own.
        turns = np.argsort(np.argsort(np.arange(-(-self.num_envs // params.kinds)) * _GOLDEN_RATIO % 1.0))
        turn, kind = np.divmod(np.arange(self.num_envs), params.kinds)
        quantiles = (turns[(turn + kind * len(turns) // params.kinds) % len(turns)] + 0.5) / len(turns)
        self.levels.assign(np.searchsorted(shares, quantiles).clip(params.lowest, params.highest))

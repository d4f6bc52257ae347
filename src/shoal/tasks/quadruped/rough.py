"""`Quadruped-Velocity-Rough`: the velocity task on rough ground, which the robot sees, and which becomes harder."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import warp as wp

from shoal.tasks.quadruped import events
from shoal.tasks.quadruped.config import RoughConfig
from shoal.tasks.quadruped.ground import scan
from shoal.tasks.quadruped.task import VelocityTask
from shoal.tasks.quadruped.terrain import BORDER, CELL, build_on_terrain, make_terrain

if TYPE_CHECKING:
    from collections.abc import Mapping

    import mujoco

_START_SPREAD = 0.3
"""A robot begins at most so far from the middle of its tile, along each axis [m]: on the flat platform."""
_GOLDEN_RATIO = (1 + 5**0.5) / 2
_LEAST_WAY = 2.0
"""A robot that was told to go less far than this shows nothing about the ground [m]."""


def _scan_points(config: RoughConfig) -> np.ndarray:
    """Return the points of the ground that a robot sees, in its own frame: ahead and to the left [m]. Shape (n, 2)."""
    sides = (config.scan_length, config.scan_width)
    axes = [(np.arange(count) - (count - 1) / 2) * config.scan_spacing for count in _points_along(config, sides)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _points_along(config: RoughConfig, sides: tuple[float, float]) -> list[int]:
    return [int(side / config.scan_spacing + 1e-6) + 1 for side in sides]


class RoughVelocity(VelocityTask[RoughConfig]):
    """Walk as commanded, on rough ground."""

    config = RoughConfig()
    observations: ClassVar = dict.fromkeys(("policy", "critic"), 48 + len(_scan_points(config)))
    metrics = (*VelocityTask.metrics, "terrain_level")

    @classmethod
    def build_model(cls, config: RoughConfig) -> mujoco.MjModel:
        """Return the robot on its terrain."""
        return build_on_terrain(config)

    def open(self) -> None:
        """Build the model, and count what the robot sees."""
        super().open()
        self.scan_points = _scan_points(self.config)
        self.blind = self.observations["policy"]
        """Columns of the observations that say nothing of the ground."""
        columns = self.blind + len(self.scan_points)
        self.observations = dict.fromkeys(self.observations, columns)  # pyright: ignore[reportAttributeAccessIssue]

    def survey(self) -> None:
        """Say that it is the height field."""
        self.terrain = make_terrain(self.config)
        self.ground.heights = self.constant(self.terrain.heights)
        self.ground.corner = wp.vec2(*self.terrain.corner)
        self.ground.cell = CELL

    def allocate(self) -> None:
        """Add the levels, and what decides about them."""
        super().allocate()
        config = self.config
        self.levels = self.array("levels", dtype=wp.int32)
        """How hard the ground is where each robot begins, counted from 0."""
        self.asked = self.array("asked")
        """How far each robot was told to go since its episode began [m]."""
        self.walked = self.array("walked")
        """How far it has gone there [m]."""
        self.points = wp.array(self.scan_points, dtype=wp.vec2, device=self.device)
        self.middles = wp.array(self.terrain.middles, dtype=wp.vec2, device=self.device)
        # Beyond this there is ground for the feet, but none to see.
        self.edge = wp.vec2(*(-side - BORDER / 2 for side in self.terrain.corner))

        self.is_promoting = config.curriculum and config.only_level is None
        self.best_metric = "terrain_level" if self.is_promoting else None
        self.curriculum_rules = events.Curriculum()
        self.curriculum_rules.is_on = config.curriculum
        self.curriculum_rules.lowest = config.only_level or 0
        self.curriculum_rules.highest = config.terrain_levels - 1 if config.only_level is None else config.only_level
        self.curriculum_rules.kinds = len(config.terrains)
        self.curriculum_rules.least_way = _LEAST_WAY
        self.curriculum_rules.promote_at = config.promote_at
        self.curriculum_rules.demote_at = config.demote_at

    def judge(self) -> None:
        """Judge as on flat ground, and how far the robot has come."""
        super().judge()
        self.launch(
            events.follow,
            inputs=[self.step_dt, self.edge, self.levels, self.qpos, self.qvel, self.command_array],
            outputs=[self.asked, self.walked, self.truncated, self.measured],
        )

    def place(self) -> None:
        """Begin new episodes where done, each on a tile of its level."""
        self.launch(
            events.grade,
            inputs=[self.done, self.time_out, self.curriculum_rules],
            outputs=[self.rng, self.asked, self.walked, self.levels],
        )
        super().place()
        self.launch(
            events.set_on_tile,
            inputs=[self.done, self.curriculum_rules, self.middles, self.levels, _START_SPREAD, self.ground],
            outputs=[self.rng, self.qpos],
        )

    def randomize(self) -> None:
        """Send each environment to one of the first levels, too."""
        super().randomize()
        rules = self.curriculum_rules
        first = min(self.config.first_levels, rules.highest - rules.lowest + 1)
        self.launch(events.draw_levels, inputs=[rules.lowest, first], outputs=[self.rng, self.levels])

    def observe(self) -> None:
        """Write the observations, the ground's last."""
        super().observe()
        self.launch(
            scan,
            inputs=[self.ground, self.points, float(self.robot.start[2]), self.config.noise_scan, self.blind],
            outputs=[self.qpos, self.rng, self.obs["policy"], self.obs["critic"]],
            dim=(self.num_envs, len(self.scan_points)),
        )

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return how many environments are on each level. Shape of `levels`: (terrain_levels,)."""
        if not self.is_promoting:
            return {}
        return {"levels": np.bincount(self.levels.numpy(), minlength=self.config.terrain_levels)}

    def take_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Deal the environments to levels as they were."""
        dealt = np.cumsum(counts["levels"]) / np.sum(counts["levels"])
        if not self.config.curriculum or len(dealt) != self.config.terrain_levels:
            return
        rules = self.curriculum_rules
        # Each kind of ground gets its share of each level: environments take turns with the kinds. The golden ratio
        # spreads levels evenly over any stretch of environments: the first may go on with levels of their own.
        turns = np.argsort(np.argsort(np.arange(-(-self.num_envs // rules.kinds)) * _GOLDEN_RATIO % 1.0))
        turn, kind = np.divmod(np.arange(self.num_envs), rules.kinds)
        shares = (turns[(turn + kind * len(turns) // rules.kinds) % len(turns)] + 0.5) / len(turns)
        self.levels.assign(np.searchsorted(dealt, shares).clip(rules.lowest, rules.highest))

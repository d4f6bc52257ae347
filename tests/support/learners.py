"""Small learners on `TinyEnv`, and ways to look at what they do."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from support.tiny_env import TinyEnv
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.config import DistributionConfig, ModelConfig, PpoConfig, RslRlConfig, TrainConfig
from shoal.learn.groups import World
from shoal.learn.learner import build_learner
from shoal.learn.loop import TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rsl_rl.env import VecEnv

    from shoal.learn.checkpoints import Snapshot
    from shoal.learn.metrics import Row
    from shoal.learn.rsl_rl.learner import RslRlLearner

ALONE = World()
NUM_STEPS = 8
NUM_ENVS = 4


def tiny_agent(**changes: Any) -> RslRlConfig:
    """A learner with everything that can differ between ranks: normalisers, moments, a moving learning rate."""
    actor = ModelConfig(
        hidden_dims=(8,), obs_normalization=True, distribution=DistributionConfig(class_name="GaussianDistribution")
    )
    defaults = {
        "num_steps_per_env": NUM_STEPS,
        "save_interval": 2,
        "obs_groups": {"actor": ("policy",), "critic": ("privileged",)},
        "actor": actor,
        "critic": ModelConfig(hidden_dims=(8,), obs_normalization=True),
        "algorithm": PpoConfig(num_learning_epochs=2, num_mini_batches=2),
    }
    return RslRlConfig(**(defaults | changes))


def tiny_config(**changes: Any) -> TrainConfig:
    """A training of three iterations."""
    return TrainConfig(**({"task": "tiny", "num_envs": NUM_ENVS, "max_iterations": 3, "agent": tiny_agent()} | changes))


class RslRlLoop(TrainingLoop):
    """A training by rsl_rl."""

    learner: RslRlLearner


def tiny_loop(
    config: TrainConfig | None = None, *, env: VecEnv | None = None, world: World = ALONE, seed: int = 0
) -> RslRlLoop:
    """A training whose first weights follow from `seed`."""
    return loop_on(env or TinyEnv(num_envs=NUM_ENVS), config or tiny_config(), world, seed=seed)


def loop_on(env: VecEnv, config: TrainConfig, world: World = ALONE, *, seed: int = 0) -> RslRlLoop:
    """A training on these environments."""
    torch.manual_seed(seed)
    return RslRlLoop(env, build_learner(env, config, world), config, world)


@dataclass
class Story:
    """What a training logged and saved."""

    rows: list[Row] = field(default_factory=list)
    saved: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stopped_by: str | None = None

    @property
    def iterations(self) -> list[float]:
        """Number of each row."""
        return [row["iteration"] for row in self.rows]


def train(loop: TrainingLoop, stop_requests: Callable[[], Mapping[str, bool]] = dict) -> Story:
    """Train to the end, and keep what the training tells."""
    story = Story()

    def save(snapshot: Snapshot) -> None:
        assert snapshot.iteration not in story.saved, "an iteration was saved twice"
        if snapshot.learner is not None:
            # A saved state shares the memory of the learner that goes on.
            story.saved[snapshot.iteration] = copy.deepcopy(dict(snapshot.learner))

    story.stopped_by = loop.train(on_row=story.rows.append, save=save, stop_requests=stop_requests)
    return story


class CountedOperations(TorchDispatchMode):
    """Counts the operations that torch runs in the body, by name, collectives included."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @property
    def collectives(self) -> int:
        """How often the ranks met."""
        return sum(count for name, count in self.counts.items() if name.startswith("c10d."))

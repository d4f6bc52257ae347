"""What `play` and `evaluate` are asked: which policy, and how many episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.config.agent import AgentConfig
from shoal.config.env import EnvConfig
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayConfig:
    """Episodes of one trained policy."""

    task: str
    """What was trained: a registered name, or `path/to/file.py:Class`."""
    checkpoint: str = "latest"
    """The policy: a checkpoint directory, a `.pt` file, or `latest` of this task's experiment."""
    episodes: int = 10
    """Episodes to run, each in an environment of its own, so that short ones are not counted more often."""
    seed: int = 1
    """Seed of the environments; not the seed of any training by default."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """The GPU to run on, as an index into what is visible, or `None` for the CPU.
    `auto` is GPU 0 if one is visible, else the CPU."""
    log_root: str = "logs"
    """Directory of all experiments, where `latest` is looked for."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment; by default as it was in training."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner, whose networks are built again; by default as it was in training."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            UsageError: A value is out of its range.
        """
        if self.episodes < 1:
            message = f"--episodes is {self.episodes}, but must be at least 1: pass --episodes 10."
            raise UsageError(message)
        if self.seed < 0:
            message = f"--seed is {self.seed}, but must not be negative: pass --seed 1."
            raise UsageError(message)

"""What `play` and `evaluate` are asked: which policy, and how many episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import FILM_SIZE, at_least, check, refuse_no_mp4
from shoal.config.env import EnvConfig
from shoal.errors import UsageError

AgentKind = Literal["trained", "zero", "random"]
"""Who acts when nobody learns."""

HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayConfig:
    """Episodes of one policy."""

    task: str
    """What was trained: a registered name, or `path/to/file.py:Class`."""
    checkpoint: str = "latest"
    """The policy: a checkpoint directory, a `.pt` file, or `latest` or `best` of this
    task's newest run."""
    agent_kind: AgentKind = "trained"
    """Who acts: the policy of a checkpoint, or, without any, `zero` or `random` actions, these even in [-1, 1]."""
    episodes: int = 10
    """Episodes to run, each in an environment of its own, so that short ones are not counted more often."""
    viewer: Literal["web", "native"] | None = None
    """Show the policy until Ctrl-C, instead of counting episodes: on a page for the browser, or in a window of MuJoCo's
    where there is a display."""
    num_envs: int = 4
    """Environments that the page shows side by side. The window shows one."""
    viewer_host: str = "127.0.0.1"
    """Where the page is served. By default it can be reached from this machine only."""
    viewer_port: int = 8080
    """Port of the page. If it is taken, the next one that is free."""
    disturbances: bool = False
    """Keep the pushes and the noise of the observations that a task has in training. By default they are left out."""
    seed: int = 1
    """Seed of the environments; not the seed of any training by default."""
    video: str | None = None
    """Film the first of the environments, into this mp4."""
    video_length: int | None = None
    """Steps of the film, over several episodes if need be. Default: as many as an episode may last."""
    video_size: tuple[int, int] = (1280, 720)
    """Width and height of the film [pixels]."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """The GPU to run on, as an index into what is visible, or `None` for the CPU.
    `auto` is GPU 0 if one is visible, else the CPU."""
    log_root: str = "logs"
    """Directory of all experiments, where `latest` and `best` are looked for."""
    trust_run: bool = False
    """Import the classes that the policy's run names, also where the run is not below `log_root`."""
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
        check(self, "", {"video_length": at_least(1), "video_size": FILM_SIZE})
        refuse_no_mp4(self.video)
        if self.agent_kind != "trained" and self.checkpoint != "latest":
            message = (
                f"--checkpoint {self.checkpoint} and --agent {self.agent_kind} exclude each other, because "
                f"{self.agent_kind} actions come from no checkpoint: pass one of them."
            )
            raise UsageError(message)
        if self.num_envs < 1:
            message = f"--num-envs is {self.num_envs}, but must be at least 1: pass --num-envs 4."
            raise UsageError(message)
        if not 1 <= self.viewer_port <= HIGHEST_PORT:
            message = f"--viewer-port is {self.viewer_port}, but must be from 1 to {HIGHEST_PORT}: pass 8080."
            raise UsageError(message)
        if self.seed < 0:
            message = f"--seed is {self.seed}, but must not be negative: pass --seed 1."
            raise UsageError(message)

"""Configuration of a training: the flags of `train`, the task's environment, and the learner.

Nothing here depends on the machine; `shoal.plan` decides what does.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import SEED, Source, at_least, sources_of
from shoal.config.env import BaseEnvConfig
from shoal.config.flags import LaunchConfig
from shoal.config.rsl_rl import RslRlConfig
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(LaunchConfig):
    """One training."""

    task: Annotated[str, Source.RUN]
    """Task to train: a registered name, or `path/to/file.py:Class`."""
    learner: Annotated[str, Source.RUN] = "rsl_rl"
    """Learner that trains it: its name, or `path/to/file.py:Class`. `--agent.*` are its settings."""
    num_envs_total: Annotated[int | None, Source.RUN] = None
    """Environments over all workers; must divide evenly. Excludes `--num-envs`."""
    max_iterations: Annotated[int, at_least(1), Source.RUN] = 300
    """Learning iterations of the whole run: a resumed run goes on up to this number."""
    seed: Annotated[int, SEED, Source.RUN] = 42
    """Seed of the run. Environments of rank r are seeded with seed + r."""
    run_name: Annotated[str, Source.RUN] = ""
    """Suffix of the run directory's name, after the time stamp."""
    resume: Annotated[tuple[str, ...] | None, Source.FLAG] = None
    """Continue a run: its name or directory; without a value the newest of this experiment."""
    checkpoint: Annotated[str | None, Source.FLAG] = None
    """Start a new run from the weights of a checkpoint: its path or that of its run, `latest` or `best` of the newest
    run, or the best of all runs of this task, `best-of-runs`."""
    teacher: Annotated[str | None, Source.FLAG] = None
    """With the learner `distillation`: the policy that is imitated, as in `--checkpoint`, but of the task that
    `--agent.teacher-task` names. Default: the one that ships, if there is one."""
    keep_last: Annotated[int | None, at_least(1), Source.RUN] = None
    """Number of newest checkpoints to keep, besides the best one. Default: all."""
    keep_rank_files: Annotated[int | None, at_least(1), Source.RUN] = 3
    """Number of newest checkpoints that keep their rank files (environments and random states), with which `--resume`
    continues exactly. Older ones keep the learner alone. `None`: all."""
    eval_interval: Annotated[int, at_least(0), Source.RUN] = 0
    """Iterations between evaluations of the policy on rank 0, without exploration noise and without disturbances; the
    last iteration is evaluated, too. `--save-interval` must be a multiple, and the best checkpoint is the one with the
    highest mean return in them. 0 evaluates never."""
    eval_episodes: Annotated[int, at_least(1), Source.RUN] = 64
    """With `--eval-interval`: episodes of each evaluation, the same ones each time."""
    logger: Annotated[Literal["tensorboard", "wandb", "none"], Source.CONFIG] = "tensorboard"
    """Metrics writer besides `metrics.jsonl`, which is always written."""
    wandb_project: Annotated[str, Source.CONFIG] = "shoal"
    """Weights & Biases project, with `--logger wandb`."""
    check_replicas_every: Annotated[int, at_least(0), Source.RUN] = 50
    """Iterations between comparisons of all ranks' weights, normalisers and optimizers;
    0 compares only at the start and at the end."""
    max_restarts: Annotated[int, at_least(0), Source.RUN] = 0
    """Restarts from the newest valid checkpoint after a loss (exit code 75), in the same run directory.
    Only restarts in a row without a newer checkpoint count. A single worker then runs in a process of its own."""
    min_workers: Annotated[int | None, at_least(1), Source.RUN] = None
    """With `--max-restarts`: least number of workers to go on with, when a GPU is gone or when the same rank was
    lost twice in a row without a newer checkpoint. Default: all of them."""
    video: Annotated[bool, Source.RUN] = False
    """Record videos of one environment of rank 0 at intervals, in `<run>/videos`."""
    video_length: Annotated[int, at_least(1), Source.RUN] = 200
    """Steps of each video."""
    video_interval: Annotated[int, at_least(1), Source.RUN] = 2000
    """Steps from the beginning of one video to the beginning of the next."""
    export: Annotated[bool, Source.RUN] = True
    """At the end, write the policy to `<run>/exports`, as ONNX and as a torch.export program."""
    dry_run: Annotated[bool, Source.FLAG] = False
    """Print the plan and stop."""
    env: Annotated[BaseEnvConfig, Source.RUN] = field(default_factory=BaseEnvConfig)
    """The task's environment."""
    agent: Annotated[AgentConfig, Source.RUN] = field(default_factory=RslRlConfig)
    """The learner."""

    def __post_init__(self) -> None:
        LaunchConfig.__post_init__(self)
        if self.eval_interval and self.agent.save_interval % self.eval_interval:
            raise UsageError(
                f"--eval-interval is {self.eval_interval}, but --save-interval is {self.agent.save_interval}, which is "
                "no multiple of it, and a checkpoint is scored by an evaluation in its own iteration: pass "
                f"--eval-interval {math.gcd(self.eval_interval, self.agent.save_interval)}, or another --save-interval."
            )
        if self.video_length > self.video_interval:
            raise UsageError(
                f"--video-length is {self.video_length}, but --video-interval is {self.video_interval}, and one video "
                "ends before the next begins: pass a shorter length or a longer interval."
            )
        if self.resume is not None and self.checkpoint is not None:
            raise UsageError(
                "--resume and --checkpoint exclude each other: --resume continues a run in its own directory, "
                "--checkpoint starts a new run from its weights. Pass one of them."
            )
        if self.teacher is not None and (self.resume is not None or self.checkpoint is not None):
            raise UsageError(
                f"--teacher {self.teacher} excludes --resume and --checkpoint: the checkpoint of a student holds its "
                "teacher. Pass one of them."
            )
        if self.resume is not None and len(self.resume) > 1:
            raise UsageError(f"--resume takes one run at most, but got {' '.join(self.resume)}: pass one of them.")


NOT_REPEATED = tuple(name for name, source in sources_of(TrainConfig).items() if source is Source.FLAG)
"""Fields that belong to one command, not to the training: they are left out of `params/train.yaml`."""

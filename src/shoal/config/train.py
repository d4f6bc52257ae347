"""What one training is asked to be: the flags of `train`, the task's environment, and the learner.

Nothing here is derived from the machine; that is `shoal.plan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import FILM_SIZE, at_least, check
from shoal.config.env import EnvConfig
from shoal.config.machines import check_machines
from shoal.errors import UsageError

MACHINES = ("hosts", "ssh_config", "nnodes", "node_rank", "master_addr", "master_port", "interface")
"""Fields that say on which machines to train, and how they meet."""
NOT_REPEATED = ("resume", "checkpoint", "dry_run", *MACHINES)
"""Fields that belong to one command, not to the training: they are left out of `params/train.yaml`."""


_LEAST = {
    "num_envs": 1,
    "max_iterations": 1,
    "seed": 0,
    "node_rank": 0,
    "check_replicas_every": 0,
    "max_restarts": 0,
    "min_workers": 1,
    "keep_last": 1,
    "keep_every": 1,
    "keep_rank_files": 1,
    "video_length": 1,
    "video_interval": 1,
}
"""The least value of fields that are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Everything that was asked of one training."""

    task: str
    """What to train: a registered name, or `path/to/file.py:Class`."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """GPUs to train on, as indices into what is visible: `0 1`, `0,1`, `[0,1]`, `all`, or `None` for the CPU.
    `auto` is GPU 0 if one is visible, else the CPU."""
    nproc_per_node: int | None = None
    """Workers on this machine. Default: one for each GPU, and 1 on the CPU. More workers than GPUs share them."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, as `ssh` knows them, or `slurm` for those of the allocation. The first has rank 0.
    `--gpu-ids` and `--nproc-per-node` hold for each of them."""
    ssh_config: str | None = None
    """With `--hosts`: the file that tells `ssh` about them. Default: `~/.ssh/config`."""
    nnodes: str | None = None
    """Number of machines on each of which this command is typed, or `MIN:MAX`, with which training goes on when one is
    lost and takes it back when it returns."""
    node_rank: int | None = None
    """With `--nnodes`: which of them this machine is, from 0. Number 0 has rank 0."""
    master_addr: str | None = None
    """With `--nnodes`: an address or name of machine 0 that all others reach."""
    master_port: int = 29500
    """With `--nnodes`: the port on machine 0 at which they meet."""
    interface: str | None = None
    """Network interface through which workers on several machines talk. Default: the one that leads to machine 0."""
    num_envs: int = 1024
    """Environments on each worker."""
    num_envs_total: int | None = None
    """Environments over all workers; must divide evenly. Excludes `--num-envs`."""
    max_iterations: int = 300
    """Learning iterations of the whole run: a resumed run goes on up to this number."""
    seed: int = 42
    """Seed of the run. Environments of rank r are seeded with seed + r."""
    run_name: str = ""
    """Appended to the time stamp that names the run directory."""
    log_root: str = "logs"
    """Directory of all experiments."""
    resume: tuple[str, ...] | None = None
    """Continue a run: its name or directory, or no word at all for the newest of this experiment."""
    checkpoint: str | None = None
    """Start a new run from the weights of a checkpoint: its path, or `latest` or `best` of this
    experiment's newest run."""
    keep_last: int | None = None
    """How many of the newest checkpoints are kept. The best one is kept too.
    Default: all of them."""
    keep_every: int | None = None
    """With `--keep-last`: keep those whose iteration is a multiple of this, too."""
    keep_rank_files: int | None = 3
    """How many of the newest checkpoints keep their rank files, environments and random states, with which `--resume`
    goes on exactly. The others keep the learner alone. `None`: all of them."""
    torchrunx_log_dir: str | None = None
    """Directory of the per-rank log files; `""` turns them off. Default: `<run>/torchrunx`.
    The environment variable TORCHRUNX_LOG_DIR wins over this flag."""
    logger: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Where metrics go besides `metrics.jsonl`, which is always written."""
    wandb_project: str = "shoal"
    """Project of the Weights & Biases run, with `--logger wandb`."""
    check_replicas_every: int = 50
    """Iterations between comparisons of all ranks' weights, normalisers and optimizers;
    0 compares only at the start and at the end."""
    max_restarts: int = 0
    """How often to start again after a loss (exit code 75) from the newest good checkpoint, in the same run directory.
    Only restarts in a row without a newer checkpoint count. The worker is a process of its own then, even if it is one.
    """
    min_workers: int | None = None
    """With `--max-restarts`: go on with fewer workers, down to so many, when a GPU is gone or when the same rank was
    lost twice in a row without a newer checkpoint. Default: all of them."""
    startup_timeout: float = 900.0
    """How long a rank may take between two signs of progress until its first iteration is done, in which kernels are
    compiled [s]; 0 for ever. One that takes longer is taken for stuck, and ends the run with exit code 75."""
    stall_timeout: float = 300.0
    """The same from its second iteration on [s]; 0 for ever, as a debugger needs it."""
    video: bool = False
    """Film one environment of rank 0 now and then, into `<run>/videos`."""
    video_length: int = 200
    """Steps of each film."""
    video_interval: int = 2000
    """Steps from the beginning of one film to the beginning of the next."""
    video_size: tuple[int, int] = (1280, 720)
    """Width and height of each film [pixels]."""
    export: bool = True
    """Write the policy as ONNX, and as a program of torch.export, to `<run>/exports` when all iterations are done."""
    dry_run: bool = False
    """Print the plan and stop."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner."""

    def __post_init__(self) -> None:
        """Refuse what no machine could do.

        Raises:
            UsageError: A value is out of its range.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                flag = "--" + name.replace("_", "-")
                message = f"{flag} is {value}, but must be at least {least}: pass {flag} {least} or more."
                raise UsageError(message)
        check_machines(self)
        if self.video_length > self.video_interval:
            message = (
                f"--video-length is {self.video_length}, but --video-interval is {self.video_interval}, and one film "
                "ends before the next begins: pass a shorter length or a longer interval."
            )
            raise UsageError(message)
        times = {"startup_timeout": at_least(0), "stall_timeout": at_least(0)}
        check(self, "", {**times, "video_size": FILM_SIZE})
        if self.resume is not None and self.checkpoint is not None:
            message = (
                "--resume and --checkpoint exclude each other: --resume continues a run in its own directory, "
                "--checkpoint starts a new run from its weights. Pass one of them."
            )
            raise UsageError(message)
        if self.resume is not None and len(self.resume) > 1:
            message = f"--resume takes one run at most, but got {' '.join(self.resume)}: pass one of them."
            raise UsageError(message)

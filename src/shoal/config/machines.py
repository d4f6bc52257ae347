"""Flags of a launch: devices, machines, time-outs, and the checks that they agree with each other.

Whether the machines exist, and are alike, is checked when they are reached.
"""

from dataclasses import dataclass
from typing import Annotated, NoReturn

from shoal.config.checks import FlagsConfig, Source, at_least
from shoal.errors import UsageError

_SLURM = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig(FlagsConfig):
    """Where the workers of a command run: devices, and machines that one command reaches."""

    task: Annotated[str | None, Source.RUN]
    """Task: a registered name, or `path/to/file.py:Class`."""
    learner: Annotated[str, Source.RUN] = "rsl_rl"
    """Learner: its name, or `path/to/file.py:Class`."""
    gpu_ids: Annotated[tuple[str, ...], Source.RUN] = ("auto",)
    """Indices of visible GPUs (`0 1`, `0,1` or `[0,1]`), `all`, or `None` for the CPU.
    `auto` is GPU 0 if there is one, else the CPU."""
    nproc_per_node: Annotated[int | None, Source.RUN] = None
    """Workers on each machine. Default: one for each GPU, and 1 on the CPU. More workers than GPUs share them."""
    num_envs: Annotated[int, at_least(1), Source.RUN] = 1024
    """Environments on each worker."""
    log_root: Annotated[str, Source.CONFIG] = "logs"
    """Directory of all experiments."""
    torchrunx_log_dir: Annotated[str | None, Source.CONFIG] = None
    """Directory of the log files of the ranks; `""` turns them off. Default: `<run>/torchrunx`.
    The environment variable TORCHRUNX_LOG_DIR overrides this flag."""
    startup_timeout: Annotated[float, at_least(0), Source.RUN] = 900.0
    """Time without progress after which a rank counts as stuck, until its first iteration is done [s]; 0: never.
    A stuck rank ends the run with exit code 75."""
    stall_timeout: Annotated[float, at_least(0), Source.RUN] = 300.0
    """The same from the second iteration on [s]; 0: never, for use with a debugger."""
    hosts: Annotated[tuple[str, ...], Source.FLAG] = ()
    """Machines, by the names that `ssh` knows, or `slurm` for those of the allocation. The first has rank 0.
    `--gpu-ids` and `--nproc-per-node` hold for each of them."""
    ssh_config: Annotated[str | None, Source.FLAG] = None
    """With `--hosts`: the configuration file of `ssh`. Default: `~/.ssh/config`."""
    interface: Annotated[str | None, Source.FLAG] = None
    """Network interface between workers of several machines. Default: the one that leads to machine 0."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and flags that contradict each other or would do nothing."""
        FlagsConfig.__post_init__(self)
        if self.hosts:
            self._check_hosts()
        elif self.ssh_config is not None:
            _refuse(
                "--ssh-config was passed without --hosts, so nothing is reached by ssh", "pass --hosts too, or neither"
            )

    def _check_hosts(self) -> None:
        if getattr(self, "dry_run", False):
            _refuse(
                "--dry-run connects to no machine, so it has no plan for --hosts",
                f"run `shoal doctor --hosts {' '.join(self.hosts)}`, which does",
            )
        twice = sorted({host for host in self.hosts if self.hosts.count(host) > 1})
        if twice:
            _refuse(f"--hosts names {twice[0]} more than once", "name each machine once; --nproc-per-node adds workers")
        odd = next((host for host in self.hosts if not host or host.startswith("-") or not host.isprintable()), None)
        if odd is not None:
            _refuse(
                f"--hosts names {odd!r}, which is no name of a machine", "pass names or addresses, as ssh takes them"
            )
        if _SLURM in self.hosts and len(self.hosts) > 1:
            _refuse("--hosts slurm stands for all machines of the allocation", "pass it alone, or names alone")


def _refuse(fact: str, remedy: str) -> NoReturn:
    raise UsageError(f"{fact}: {remedy}.")

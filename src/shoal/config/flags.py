"""Flags of devices, workers, nodes and time limits, each declared once: the mix-ins of which commands are made.

A command with another default declares the field again; its help is that of the mix-in unless it has a docstring of its
own. Mix-ins have no slots of their own, since a class inherits the slots of one base only; none has a field of a class
with slots that comes after it among the bases, whose slot it would hide.

Whether nodes exist, and are alike, is checked when they are reached.
"""

from dataclasses import dataclass
from typing import Annotated

from shoal.config.checks import FlagsConfig, Source, at_least
from shoal.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TaskFlags(FlagsConfig):
    """The task of a command, and its learner, which stand first in its help."""

    __slots__ = ()
    task: Annotated[str | None, Source.RUN]
    """Task: a registered name, or `path/to/file.py:Class`."""
    learner: Annotated[str, Source.RUN] = "rsl_rl"
    """Learner: its name, or `path/to/file.py:Class`."""


@dataclass(frozen=True, kw_only=True)
class WorkerFlags(FlagsConfig):
    """Workers of a command: their devices, and time limits."""

    __slots__ = ()
    gpu_ids: Annotated[tuple[str, ...], Source.RUN] = ("auto",)
    """Indices of visible GPUs (`0 1`, `0,1` or `[0,1]`), `all`, or `None` for the CPU.
    `auto` is GPU 0 if there is one, else the CPU."""
    nproc_per_node: Annotated[int | None, Source.RUN] = None
    """Workers on each node. Default: one for each GPU, and 1 on the CPU. More workers than GPUs share them."""
    startup_timeout: Annotated[float, at_least(0), Source.RUN] = 900.0
    """Time without progress after which a rank counts as stuck, until its first iteration is done [s]; 0: never.
    A stuck rank ends the run with exit code 75."""
    stall_timeout: Annotated[float, at_least(0), Source.RUN] = 300.0
    """The same from the second iteration on [s]; 0: never, for use with a debugger."""


@dataclass(frozen=True, kw_only=True)
class LogRootFlags(FlagsConfig):
    """The directory of all runs."""

    __slots__ = ()
    log_root: Annotated[str, Source.CONFIG] = "logs"
    """Directory of all experiments."""


@dataclass(frozen=True, kw_only=True)
class NodeFlags(FlagsConfig):
    """Nodes that one command reaches over ssh."""

    __slots__ = ()
    hosts: Annotated[tuple[str, ...], Source.FLAG] = ()
    """Nodes, by the names that `ssh` knows, or `slurm` for those of the allocation. The first has rank 0.
    `--gpu-ids` and `--nproc-per-node` hold for each of them."""
    ssh_config: Annotated[str | None, Source.FLAG] = None
    """With `--hosts`: the configuration file of `ssh`. Default: `~/.ssh/config`."""
    interface: Annotated[str | None, Source.FLAG] = None
    """Network interface between workers of several nodes. Default: the one that leads to node 0."""

    def __post_init__(self) -> None:
        FlagsConfig.__post_init__(self)
        if self.ssh_config is not None and not self.hosts:
            raise UsageError(
                "--ssh-config was passed without --hosts, so nothing is reached by ssh: pass --hosts too, or neither."
            )
        twice = sorted({host for host in self.hosts if self.hosts.count(host) > 1})
        if twice:
            raise UsageError(
                f"--hosts names {twice[0]} more than once: name each node once; --nproc-per-node adds workers."
            )
        odd = next((host for host in self.hosts if not host or host.startswith("-") or not host.isprintable()), None)
        if odd is not None:
            raise UsageError(
                f"--hosts names {odd!r}, which is no name of a node: pass names or addresses, as ssh takes them."
            )
        if "slurm" in self.hosts and len(self.hosts) > 1:
            raise UsageError("--hosts slurm stands for all nodes of the allocation: pass it alone, or names alone.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig(LogRootFlags, NodeFlags, WorkerFlags, TaskFlags):
    """Where the workers of a command run: devices, and nodes that one command reaches."""

    num_envs: Annotated[int, at_least(1), Source.RUN] = 1024
    """Environments on each worker. On a GPU the trainings of most robots have 4096 where none are given."""
    torchrunx_log_dir: Annotated[str | None, Source.CONFIG] = None
    """Directory of the log files of the ranks; `""` turns them off. Default: `<run>/torchrunx`.
    The environment variable TORCHRUNX_LOG_DIR overrides this flag."""

    def __post_init__(self) -> None:
        NodeFlags.__post_init__(self)
        if self.hosts and getattr(self, "dry_run", False):
            raise UsageError(
                "--dry-run connects to no node, so it has no plan for --hosts: run `shoal doctor --hosts "
                f"{' '.join(self.hosts)}`, which does."
            )

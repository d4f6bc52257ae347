"""What `shoal doctor` is asked to look at."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig:
    """One examination of this machine."""

    task: str | None = None
    """A task whose training is held against the machine, too: its name, or `path/to/file.py:Class`."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """GPUs to examine, as for `train`: indices, `all`, or `None` for the CPU. `auto` is every visible GPU,
    or the CPU where there is none; with `--hosts`, the first GPU of each machine."""
    nproc_per_node: int | None = None
    """Workers that are to train together. Default: one for each GPU, and 2 on the CPU."""
    hosts: tuple[str, ...] = ()
    """Machines to examine instead of this one, as for `train`: how far apart they are, and what that costs the task."""
    ssh_config: str | None = None
    """With `--hosts`: the file that tells `ssh` about them. Default: `~/.ssh/config`."""
    interface: str | None = None
    """With `--hosts`: the network interface through which they talk. Default: the one that leads to the first."""
    log_root: str = "logs"
    """Directory of all experiments, whose disk is looked at."""
    timeout: float = 30.0
    """Time without any progress after which a rank counts as hung [s]."""
    json: bool = False
    """Print what was found as JSON instead of a table."""

    def __post_init__(self) -> None:
        """Refuse what cannot be examined.

        Raises:
            UsageError: A value is out of its range.
        """
        if self.nproc_per_node is not None and self.nproc_per_node < 1:
            message = f"--nproc-per-node is {self.nproc_per_node}, but must be at least 1: pass 1 or more."
            raise UsageError(message)
        alone = "--ssh-config" if self.ssh_config is not None else "--interface" if self.interface is not None else None
        if alone is not None and not self.hosts:
            message = (
                f"{alone} was passed without --hosts, so this machine alone is examined: pass --hosts, or leave it out."
            )
            raise UsageError(message)
        if self.timeout <= 0:
            message = f"--timeout is {self.timeout}, but must be more than 0: pass --timeout 30."
            raise UsageError(message)

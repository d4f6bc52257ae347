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
    or the CPU where there is none."""
    nproc_per_node: int | None = None
    """Workers that are to train together. Default: one for each GPU, and 2 on the CPU."""
    log_root: str = "logs"
    """Directory of all experiments, whose disk is looked at."""
    timeout: float = 30.0
    """Time without any progress after which a trial counts as hung [s]."""
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
        if self.timeout <= 0:
            message = f"--timeout is {self.timeout}, but must be more than 0: pass --timeout 30."
            raise UsageError(message)

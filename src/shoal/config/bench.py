"""What `shoal bench` is asked to measure."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One set of measurements of a task."""

    task: str
    """What to measure: a registered name, or `path/to/file.py:Class`."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """GPUs, as for `train`: indices, `all`, or `None` for the CPU."""
    nproc_per_node: tuple[int, ...] = (1,)
    """Numbers of workers to compare, such as `1 2`. The first one is what the others are held against."""
    num_envs: int = 1024
    """Environments on each worker."""
    iterations: int = 40
    """Training iterations that are timed, after `warmup`."""
    warmup: int = 5
    """Training iterations before the clock starts."""
    save_interval: int = 10
    """Training iterations from one checkpoint to the next. What one costs is told, if they are 3 or more."""
    seconds: float = 2.0
    """Time that each measurement of environment steps takes [s]."""
    repeats: int = 3
    """Times that everything is measured, in turn; medians are told."""
    threads: int = 1
    """CPU threads of each worker, so that workers are compared and not thread pools."""
    cold: bool = False
    """Also measure the time to the first iteration with an empty kernel cache."""
    json: str | None = None
    """File to write the results to, with machine and versions."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            UsageError: A value is out of its range.
        """
        for name in ("num_envs", "iterations", "save_interval", "repeats", "threads"):
            if getattr(self, name) < 1:
                flag = "--" + name.replace("_", "-")
                message = f"{flag} is {getattr(self, name)}, but must be at least 1: pass 1 or more."
                raise UsageError(message)
        if self.warmup < 1:
            message = f"--warmup is {self.warmup}, but the first iteration is never like the others: pass 1 or more."
            raise UsageError(message)
        if not self.nproc_per_node or min(self.nproc_per_node) < 1:
            message = "--nproc-per-node needs numbers of workers from 1 up: pass --nproc-per-node 1 2."
            raise UsageError(message)
        if self.seconds <= 0:
            message = f"--seconds is {self.seconds}, but must be more than 0: pass --seconds 2."
            raise UsageError(message)

"""What every task's environment can be told, whatever the robot.

A task adds its own settings in a subclass, beside its kernels and not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config.checks import above, check


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Base of every task's environment configuration.

    A subclass with slots that checks ranges of its own calls ``EnvConfig.__post_init__(self)``; ``super()``
    without arguments does not work there, because a dataclass with slots is a copy of the class that was
    written. How many environments there are is not said here: it belongs to the run, not to the task.
    """

    episode_length_s: float = 20.0
    """Longest time that an episode may take, in seconds of simulated time; then it is cut off (a time-out).
    The default is the one that Isaac Lab and mjlab use for locomotion."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check(self, "env.", {"episode_length_s": above(0)})

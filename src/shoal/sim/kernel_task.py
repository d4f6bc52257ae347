"""The base class of tasks whose whole step is Warp kernels: dynamics, rewards, reset and observations.

One step is, for all environments at once::

    simulate()   actions -> new state, reward terms, terminated flags         the author's kernels
    close()      episode length, time-out, done, reward, sums over episodes   shoal.sim.bookkeeping
    reset()      where done: a new episode's first state                      the author's kernels
    observe()    state -> observations                                        the author's kernels

These methods may only launch kernels, and what changes from step to step must live in arrays (`shoal.sim.validation`).
"""

from abc import abstractmethod
from typing import Generic, TypeVar

from shoal.config.env import EnvConfig
from shoal.sim import validation
from shoal.sim.task import Stage, Task

ConfigT = TypeVar("ConfigT", bound=EnvConfig)


class KernelTask(Task[ConfigT], Generic[ConfigT]):
    """A task whose dynamics are kernels.

    A subclass declares the class attributes, allocates its state in `allocate`, and launches its kernels in `simulate`,
    `reset` and `observe`. Its configuration has a field ``<term>_weight`` for each reward term.
    """

    def check_declarations(self, config: ConfigT) -> None:
        """Check the class attributes, see `shoal.sim.validation`."""
        validation.check_declarations(type(self), config)

    def weight_of(self, term: str) -> float:
        """Return the weight of a reward term."""
        return getattr(self.config, f"{term}_weight")

    @abstractmethod
    def simulate(self) -> None:
        """Launch kernels that turn `self.actions` into the next state, `self.terms` and `self.terminated`.

        Every reward term is written for every environment. The terminated flag needs to be written only where
        an environment failed.
        """

    @abstractmethod
    def reset(self) -> None:
        """Launch kernels that write a new episode's first state where `self.done` is set, and nowhere else.

        Random numbers come from `self.rng`, one state for each environment, which the kernel writes back.
        """

    @abstractmethod
    def observe(self) -> None:
        """Launch kernels that fill the arrays of `self.obs`, every column for every environment."""

    def stages(self) -> list[Stage]:
        """Return the stages of one step, in order."""
        observing: Stage = ("observe", self.observe)
        return [
            ("physics", self.simulate),
            ("close", self.close),
            *self.final_stages([observing]),
            ("reset", self.reset),
            observing,
        ]

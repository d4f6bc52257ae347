"""Recording of a job: observations, actions, rewards and recorders of each step, one HDF5 group an episode."""

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import torch
from tensordict import TensorDict

from shoal.envs.capabilities import Capabilities
from shoal.errors import UsageError
from shoal.learn.episodes import Step

_TERMINATED, _TIME_OUT = 1, 2


class Recording:
    """The steps of one part, in host memory until it is done. Each episode is cut off at its end."""

    def __init__(self, environments: Capabilities, first: int, stride: int) -> None:
        """Record a part whose first episode has the index `first`; those of one environment are `stride` apart.

        The environments are at the beginning of their episodes.

        Raises:
            UsageError: h5py is not installed.
        """
        if importlib.util.find_spec("h5py") is None:
            raise UsageError("--record needs the package h5py, which is not installed: run `uv add 'shoal[record]'`.")
        self._first, self._stride = first, stride
        self._records = environments.records
        self._recorded = [self._present()]
        """What the recorders have seen before each step, as observations are, and after the last."""
        self._observations: list[TensorDict] = []
        self._steps: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def _present(self) -> dict[str, torch.Tensor]:
        return {name: values.cpu().clone() for name, values in self._records().items()}

    def add(self, step: Step) -> None:
        """Add a step."""
        self._recorded.append(self._present())
        self._observations.append(step.observations.detach().cpu().clone())
        flags = torch.where(step.time_outs, _TIME_OUT, torch.where(step.dones != 0, _TERMINATED, 0)).to(torch.uint8)
        kept = (step.actions, step.rewards, flags, step.running)
        self._steps.append(tuple(each.detach().cpu().clone() for each in kept))  # pyright: ignore[reportArgumentType]

    def write(self, file: IO[bytes]) -> None:
        """Write all episodes to an empty file, as HDF5."""
        import h5py  # pyright: ignore[reportMissingTypeStubs]

        actions, rewards, flags, running = (torch.stack(each) for each in zip(*self._steps, strict=True))
        with h5py.File(file, "w") as opened:
            for row in range(actions.shape[1]):
                for number, steps in enumerate(_episodes(flags[:, row], running[:, row])):
                    group = opened.create_group(_name(self._first + row + number * self._stride))
                    for name in list(self._observations[0].keys()):
                        values = torch.stack([self._observations[step][name][row] for step in steps])
                        group.create_dataset(f"obs/{name}", data=values.numpy(), compression="gzip")
                    for name in self._recorded[0]:
                        values = torch.stack([self._recorded[step][name][row] for step in steps])
                        group.create_dataset(f"records/{name}", data=values.numpy(), compression="gzip")
                    group.create_dataset("actions", data=actions[steps, row].float().numpy(), compression="gzip")
                    group.create_dataset("rewards", data=rewards[steps, row].numpy())
                    group.create_dataset("terminated", data=(flags[steps, row] == _TERMINATED).numpy())
                    group.create_dataset("time_outs", data=(flags[steps, row] == _TIME_OUT).numpy())


def merge_recordings(parts: Iterable[Path], file: IO[bytes]) -> None:
    """Move the episodes of several files into one, which is empty."""
    import h5py  # pyright: ignore[reportMissingTypeStubs]

    with h5py.File(file, "w") as merged:
        for part in parts:
            with h5py.File(part, "r") as opened:
                for name in opened:
                    opened.copy(name, merged)


def _episodes(flags: torch.Tensor, running: torch.Tensor) -> Iterator[list[int]]:
    """Yield the steps of each finished episode of one environment."""
    steps: list[int] = []
    for step in range(len(flags)):
        if not running[step]:
            continue
        steps.append(step)
        if flags[step]:
            yield steps
            steps = []


def _name(index: int) -> str:
    return f"episode_{index:06d}"

"""Policies of evaluation jobs that compute, wait or raise."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tensordict import TensorDict


class Half:
    """Pushes with a share of the first observation."""

    def __init__(self, *, device: torch.device, scale: float) -> None:
        self.scale = torch.tensor(scale, device=device)

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        return observations["policy"][:, :1] * self.scale


class Slow(Half):
    """The same, with a pause before each step."""

    def __init__(self, *, device: torch.device, scale: float = 0.5) -> None:
        super().__init__(device=device, scale=scale)

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        time.sleep(0.05)
        return super().__call__(observations)


class Raises(Slow):
    """Raises in its first step, unless REPAIRED is set."""

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        if "REPAIRED" not in os.environ:
            raise ValueError("broken policy")
        return super().__call__(observations)


class RaisesOnce(Half):
    """Raises in its first step on the first worker that tries."""

    def __init__(self, *, device: torch.device, mark: str) -> None:
        super().__init__(device=device, scale=0.5)
        self.mark = Path(mark)

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        if not self.mark.exists():
            self.mark.touch()
            raise ValueError("broken once")
        return super().__call__(observations)


class Meets(Half):
    """Waits in its first step until as many processes as `workers` have come to theirs."""

    def __init__(self, *, device: torch.device, place: str, workers: int) -> None:
        super().__init__(device=device, scale=0.5)
        self.mark, self.workers = Path(place) / str(os.getpid()), workers

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        self.mark.touch()
        deadline = time.monotonic() + 120
        while len([*self.mark.parent.iterdir()]) < self.workers:
            if time.monotonic() > deadline:
                raise TimeoutError("the other worker has no job")
            time.sleep(0.02)
        return super().__call__(observations)


class KillsRank1(Slow):
    """Kills rank 1 in the middle of its second part."""

    def __init__(self, *, device: torch.device, mark: str) -> None:
        super().__init__(device=device)
        self.mark, self.calls = Path(mark), 0

    def __call__(self, observations: TensorDict) -> torch.Tensor:
        self.calls += 1
        if self.calls == 30 and os.environ["RANK"] == "1" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(observations)

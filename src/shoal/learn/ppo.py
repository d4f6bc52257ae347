"""rsl_rl's PPO with one collective a mini-batch among several ranks, where the library has three; pooled advantages.

The library asks all ranks for the KL divergence, sends rank 0's learning rate to all, and then averages the gradients:
each time every rank waits for the slowest. Here the divergence travels with the gradients, and every rank draws the
same learning rate from it, in time for the same optimizer step. What is learned is the same, up to the rounding of the
learning rate that the library sends as a 32-bit number.

The library normalises advantages by the mean and the deviation of each rank's own. Here they are those of all ranks, so
that the same samples teach the same, however many ranks have collected them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rsl_rl import algorithms
from rsl_rl.utils import reduce_gradients_in_buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

_TINY = 1e-8
"""What rsl_rl adds to a deviation."""
_STEP = 1.5
_LEAST, _MOST = 1e-5, 1e-2
"""By what the learning rate is changed, and within what: rsl_rl's numbers, and so held against it by a test."""


class PPO(algorithms.PPO):
    """PPO whose learning rate follows the KL divergence of all ranks without a collective of its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  What rsl_rl's PPO takes.
        """Take what rsl_rl's PPO takes."""
        super().__init__(*arguments, **named)
        self._acted: tuple[torch.Tensor, ...] | None = None
        """Parameters of the action distribution with which the newest mini-batch was acted; None outside an update."""
        self._carrier = torch.nn.Parameter(torch.zeros(1, device=self.device))  # Its gradient is the divergence.
        if self.is_multi_gpu and self.desired_kl is not None and self.schedule == "adaptive":
            self.schedule = "with the gradients"  # Any word but "adaptive" keeps the library from adapting it, too.
            for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
                setattr(self.storage, name, self._watched(getattr(self.storage, name)))

    def _watched(self, generator: Callable[[int, int], Iterator[RolloutStorage.Batch]]) -> Callable[[int, int], Any]:
        """Return a generator of the same mini-batches that leaves behind what `_divergence` needs of the newest."""

        def generate(num_mini_batches: int, num_epochs: int) -> Iterator[RolloutStorage.Batch]:
            for batch in generator(num_mini_batches, num_epochs):
                self._acted = batch.old_distribution_params
                yield batch
            self._acted = None

        return generate

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages, and normalise these over the samples of all ranks."""
        per_mini_batch = self.normalize_advantage_per_mini_batch
        if not self.is_multi_gpu or per_mini_batch:
            super().compute_returns(obs)
            return
        self.normalize_advantage_per_mini_batch = True  # Then the library leaves them as they are.
        super().compute_returns(obs)
        self.normalize_advantage_per_mini_batch = per_mini_batch
        advantages = self.storage.advantages
        advantages.copy_(_normalised(advantages))

    def reduce_parameters(self) -> None:
        """Average the gradients over all ranks, and with them the divergence from which the learning rate follows."""
        if self._acted is None:
            super().reduce_parameters()
            return
        self._carrier.grad = self._divergence(self._acted).view(1)
        curiosity = self.rnd.parameters() if self.rnd else ()
        parameters = [self._carrier, *self.actor.parameters(), *self.critic.parameters(), *curiosity]
        reduce_gradients_in_buckets(parameters, self.gpu_world_size, self.grad_reduce_bucket_mb)
        self._adapt(float(self._carrier.grad))

    @torch.no_grad()
    def _divergence(self, acted: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return this rank's mean KL divergence between the policy that acted and the one that learns."""
        # Symmetry augmentation has added rows behind those that were acted.
        learns = tuple(
            each[: len(before)] for each, before in zip(self.actor.output_distribution_params, acted, strict=True)
        )
        return self.actor.get_kl_divergence(acted, learns).mean(dtype=torch.float32)

    def _adapt(self, divergence: float) -> None:
        """Draw the learning rate of this very step from the divergence of all ranks."""
        if divergence > self.desired_kl * 2.0:
            self.learning_rate = max(_LEAST, self.learning_rate / _STEP)
        elif 0.0 < divergence < self.desired_kl / 2.0:
            self.learning_rate = min(_MOST, self.learning_rate * _STEP)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate


def _normalised(values: torch.Tensor) -> torch.Tensor:
    """Return values less their mean and by their deviation, over all ranks, as rsl_rl does with those of one."""
    exact = values.double()
    moments = torch.stack([exact.sum(), exact.square().sum(), torch.full_like(exact.sum(), exact.numel())])
    dist.all_reduce(moments)
    total, squares, count = moments
    mean = total / count
    deviation = ((squares - count * mean.square()) / (count - 1)).clamp(min=0.0).sqrt()
    return ((exact - mean) / (deviation + _TINY)).to(values.dtype)

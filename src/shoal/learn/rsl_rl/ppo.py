"""rsl_rl's PPO with one collective a mini-batch among several ranks, where the library has three; pooled advantages.

The library averages the KL divergence, broadcasts rank 0's learning rate, and then averages the gradients; each time
every rank waits for the slowest. Here the divergence is averaged with the gradients, and every rank computes the same
learning rate from it before the same optimizer step. The result is the same, up to the rounding of the learning rate
that the library sends as a 32-bit number.

The library normalises advantages by each rank's mean and standard deviation. Here they are those of all ranks, so that
the update does not depend on the number of ranks that collected the samples.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import reduce_gradients_in_buckets
from tensordict import TensorDict

from shoal.learn.groups import normalised_over_ranks

_RATE_FACTOR = 1.5
_MIN_RATE, _MAX_RATE = 1e-5, 1e-2
"""Factor and range of the adaptive learning rate: rsl_rl's numbers; a test compares them."""


class PPO(algorithms.PPO):
    """PPO whose learning rate follows the KL divergence of all ranks without a further collective."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  What rsl_rl's PPO takes.
        super().__init__(*arguments, **named)
        self._old_params: tuple[torch.Tensor, ...] | None = None
        """Parameters of the newest mini-batch's action distribution in the rollout; None outside an update."""
        self._kl_carrier = torch.nn.Parameter(torch.zeros(1, device=self.device))  # Its gradient is the KL divergence.
        if self.is_multi_gpu and self.desired_kl is not None and self.schedule == "adaptive":
            self.schedule = "with the gradients"  # Any word but "adaptive" turns the library's own off.
            for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
                setattr(self.storage, name, self._with_old_params(getattr(self.storage, name)))

    def _with_old_params(
        self, generator: Callable[[int, int], Iterator[RolloutStorage.Batch]]
    ) -> Callable[[int, int], Any]:
        """Return a generator of the same mini-batches that stores `_old_params` of each."""

        def generate(num_mini_batches: int, num_epochs: int) -> Iterator[RolloutStorage.Batch]:
            for batch in generator(num_mini_batches, num_epochs):
                self._old_params = batch.old_distribution_params
                yield batch
            self._old_params = None

        return generate

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages, and normalise these over the samples of all ranks."""
        per_mini_batch = self.normalize_advantage_per_mini_batch
        if not self.is_multi_gpu or per_mini_batch:
            super().compute_returns(obs)
            return
        self.normalize_advantage_per_mini_batch = True  # Then the library does not normalise them here.
        super().compute_returns(obs)
        self.normalize_advantage_per_mini_batch = per_mini_batch
        advantages = self.storage.advantages
        advantages.copy_(normalised_over_ranks(advantages))

    def reduce_parameters(self) -> None:
        """Average gradients and KL divergence over all ranks, and adapt the learning rate."""
        if self._old_params is None:
            super().reduce_parameters()
            return
        self._kl_carrier.grad = self._divergence(self._old_params).view(1)
        rnd = self.rnd.parameters() if self.rnd else ()
        parameters = [self._kl_carrier, *self.actor.parameters(), *self.critic.parameters(), *rnd]
        reduce_gradients_in_buckets(parameters, self.gpu_world_size, self.grad_reduce_bucket_mb)
        divergence = float(self._kl_carrier.grad)
        if divergence > self.desired_kl * 2.0:
            self.learning_rate = max(_MIN_RATE, self.learning_rate / _RATE_FACTOR)
        elif 0.0 < divergence < self.desired_kl / 2.0:
            self.learning_rate = min(_MAX_RATE, self.learning_rate * _RATE_FACTOR)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    @torch.no_grad()
    def _divergence(self, old: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return this rank's mean KL divergence between the policy of the rollout and the current one."""
        # Symmetry augmentation appends rows that the rollout does not have.
        new = tuple(each[: len(rows)] for each, rows in zip(self.actor.output_distribution_params, old, strict=True))
        return self.actor.get_kl_divergence(old, new).mean(dtype=torch.float32)

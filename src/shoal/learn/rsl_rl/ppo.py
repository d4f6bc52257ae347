"""rsl_rl's PPO, whose host never waits for the device: step and update are functions on tensors that stay in place.

A GPU runs them as CUDA graphs. Losses, order of mini-batches, optimizer and saved state are the library's, and tests
compare its update with this one. What differs is where and when things are computed:

- Losses and learning rate stay on the device until the update is done, and are then read at once.
- All gradients are one tensor, which `reduce_parameters` averages over the ranks in one collective. The KL divergence
  travels with them; the library averages it, and broadcasts rank 0's learning rate, in two more collectives.
- Advantages are normalised by mean and standard deviation over all ranks, and not by each rank's: the update does not
  depend on the number of ranks that collected the samples.
"""

import warnings
from typing import Any

import torch
from rsl_rl import algorithms
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from shoal.learn.gradients import FlatGradients
from shoal.learn.graphs import GraphChain, TensorGraph
from shoal.learn.groups import normalised_over_ranks
from shoal.learn.normalisers import update_normalisers
from shoal.learn.returns import discounted_sums
from shoal.learn.rsl_rl.cnn import CNNModel

_RATE_FACTOR = 1.5
_MIN_RATE, _MAX_RATE = 1e-5, 1e-2
"""Factor and range of the adaptive learning rate: rsl_rl's numbers; a test compares them."""
_PLAIN = {"fused": None, "capturable": False}
"""torch's options of an optimizer, as the library saves them."""
_OPTIMIZERS = ("optimizer_state_dict", "rnd_optimizer_state_dict")
_EPSILON = 1e-8
"""Added to the standard deviation of advantages, as in rsl_rl."""


class PPO(algorithms.PPO):
    """PPO that is captured as CUDA graphs where `cuda_graphs` and the networks allow it.

    Recurrent networks step as in the library, and their update is never captured, as its shapes change.
    """

    actor: Any
    critic: Any
    storage: Any

    def __init__(self, *arguments: Any, cuda_graphs: bool = True, **named: Any) -> None:  # noqa: ANN401  rsl_rl's.
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # torch's about weights that are shared.
            super().__init__(*arguments, **named)
        for group in self.optimizer.param_groups:  # The networks may share some, which rsl_rl would move twice.
            group["params"] = [*dict.fromkeys(group["params"])]
        self._is_recurrent = self.actor.is_recurrent or self.critic.is_recurrent
        self._is_adaptive = self.schedule == "adaptive" and self.desired_kl is not None
        names = ["value", "surrogate", "entropy"]
        self._loss_names = names + ["rnd"] * bool(self.rnd) + ["symmetry"] * bool(self.symmetry)
        device = torch.device(self.device)
        self._sums = torch.zeros(len(self._loss_names), dtype=torch.float64, device=device)  # Over an update.
        self._rate = torch.zeros((), dtype=torch.float64, device=device)
        actor = {*self.actor.parameters()}
        critic = [each for each in self.critic.parameters() if each not in actor]
        rnd = self.rnd.predictor.parameters() if self.rnd else []
        self._gradients = FlatGradients(self.actor.parameters(), critic, rnd, num_extra=1)
        self._divergence = self._gradients.extra
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)  # Of the storage, for the present step.
        observations = {name: rows[0].clone() for name, rows in self.storage.observations.items()}
        self._observations = TensorDict(observations, batch_size=[self.storage.num_envs])
        if self.symmetry:  # What cannot be mirrored is refused now, and numbers are copied before a graph is captured.
            augment = self.symmetry.data_augmentation_func
            augment(env=self.symmetry.env, obs=self._observations, actions=self.storage.actions[0])
        samples = self.storage.num_envs * self.storage.num_transitions_per_env
        self._rows = torch.zeros(samples // self.num_mini_batches, dtype=torch.int64, device=device)
        self._batch: Any = None  # The present one of recurrent networks.
        # Networks of the user's own may read numbers back, or replace their tensors; RMSprop reads its learning rate.
        known = {type(self.actor), type(self.critic)} <= {MLPModel, CNNModel} and "fused" in self.optimizer.defaults
        self._captures = cuda_graphs and known
        self._set_rate_and_graphs(self.learning_rate)

    def _set_rate_and_graphs(self, rate: float) -> None:
        """Set the learning rate, and make new graphs: the optimizers may have new tensors."""
        self.learning_rate = rate
        self._rate.fill_(rate)
        for optimizer in (self.optimizer, *([self.rnd.optimizer] if self.rnd else [])):
            for group in optimizer.param_groups:
                # With those of these options that it has, its step is few kernels, and can be captured.
                fast = {"fused": True, "capturable": self._rate.is_cuda}
                group.update({name: value for name, value in fast.items() if name in group})
            for moments in optimizer.state.values():
                if "step" in moments:  # Without these options it is on the host.
                    moments["step"] = moments["step"].to(self._rate.device)
            # torch warns of steps that are not captured, such as the first ones.
            vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
        for group in self.optimizer.param_groups:
            # A number in a tensor need not be read back.
            group["lr"] = torch.full((), rate, device=self.device) if self._rate.is_cuda and "fused" in group else rate
        self._act_graph = TensorGraph(self._act, self.device, name="A step of the policy", captures=self._captures)
        self._update_graph = GraphChain(
            [self._compute_gradients, self._descend],
            [self.reduce_parameters] if self.is_multi_gpu else [],
            self.device,
            name="An update from a mini-batch",
            captures=self._captures,
        )

    # The rollout.

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Draw actions for `obs`, and store both."""
        if self._is_recurrent:
            return super().act(obs)
        for name, rows in self._observations.items():
            rows.copy_(obs[name])
        self._slot.fill_(self.storage.step)
        self._act_graph()
        return self.storage.actions[self.storage.step]

    def _act(self) -> None:
        storage, observations = self.storage, self._observations
        actions = self.actor(observations, stochastic_output=True)
        parameters = self.actor.output_distribution_params
        if storage.distribution_params is None:
            steps = storage.num_transitions_per_env
            with torch.inference_mode(mode=False):
                storage.distribution_params = tuple(
                    torch.zeros(steps, *each.shape, dtype=each.dtype, device=each.device) for each in parameters
                )
        new = [
            (storage.actions, actions),
            (storage.values, self.critic(observations)),
            (storage.actions_log_prob, self.actor.get_output_log_prob(actions).unsqueeze(-1)),
            *zip(storage.distribution_params, parameters, strict=True),
            *((storage.observations[name], rows) for name, rows in observations.items()),
        ]
        for stored, rows in new:
            stored.index_copy_(0, self._slot, rows.unsqueeze(0))

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Store what followed from the actions: the reward, with the value of what a time-out cut off."""
        if self._is_recurrent:
            super().process_env_step(obs, rewards, dones, extras)
            return
        step = self.storage.step
        stored = self.storage.rewards[step].copy_(rewards.unsqueeze(-1))
        if self.rnd:
            self.intrinsic_rewards = self.rnd.get_intrinsic_reward(obs)
            stored += self.intrinsic_rewards.unsqueeze(-1)
        if "time_outs" in extras:
            stored.addcmul_(self.storage.values[step], extras["time_outs"].unsqueeze(-1).to(stored), value=self.gamma)
        self.storage.dones[step].copy_(dones.unsqueeze(-1))
        self.storage.step += 1

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns, and advantages normalised over the samples of all ranks."""
        storage, memory = self.storage, self.critic.get_hidden_state()
        last_values = self.critic(obs).detach()
        self.critic.reset(hidden_state=memory)  # The next rollout goes on from there.
        discounts = self.gamma * (1.0 - storage.dones.to(storage.values))
        errors = storage.rewards + discounts * torch.cat([storage.values[1:], last_values[None]]) - storage.values
        advantages = discounted_sums(errors, self.lam * discounts)
        torch.add(advantages, storage.values, out=storage.returns)
        if not self.normalize_advantage_per_mini_batch:
            advantages = normalised_over_ranks(advantages) if self.is_multi_gpu else _normalised(advantages)
        storage.advantages.copy_(advantages)

    # The update.

    def update(self) -> dict[str, float]:
        """Run all epochs over the rollout; return mean losses. Waits for the device once, at the end."""
        number, epochs = self.num_mini_batches, self.num_learning_epochs
        self._sums.zero_()
        if self._is_recurrent:
            for batch in self.storage.recurrent_mini_batch_generator(number, epochs):
                self._batch = batch
                self._update_graph()
            self._batch = None
        else:
            order = torch.randperm(number * len(self._rows), device=self.device).view(number, -1)
            for _ in range(epochs):
                for rows in order:
                    self._rows.copy_(rows)
                    self._update_graph()
        self._update_normalisers()
        self.storage.clear()
        *sums, self.learning_rate = torch.cat([self._sums, self._rate.view(1)]).tolist()
        return {name: total / (number * epochs) for name, total in zip(self._loss_names, sums, strict=True)}

    def reduce_parameters(self) -> None:
        """Average gradients and KL divergence over all ranks."""
        self._gradients.average(self.gpu_world_size, self.grad_reduce_bucket_mb)

    def _mini_batch(self) -> RolloutStorage.Batch:
        """Return the samples of the present rows."""

        def rows(stored: torch.Tensor) -> torch.Tensor:
            return stored.flatten(0, 1).index_select(0, self._rows)

        storage = self.storage
        observations = {name: rows(stored) for name, stored in storage.observations.items()}
        return RolloutStorage.Batch(
            observations=TensorDict(observations, batch_size=self._rows.shape),
            actions=rows(storage.actions),
            values=rows(storage.values),
            advantages=rows(storage.advantages),
            returns=rows(storage.returns),
            old_actions_log_prob=rows(storage.actions_log_prob),
            old_distribution_params=tuple(rows(each) for each in storage.distribution_params),
        )

    def _compute_gradients(self) -> None:
        """Compute the gradients of a mini-batch, and the divergence of its policy from that of the rollout."""
        batch: Any = self._mini_batch() if self._batch is None else self._batch
        size = batch.observations.batch_size[0]
        if self.normalize_advantage_per_mini_batch:
            batch.advantages = _normalised(batch.advantages)
        if self.symmetry:
            self.symmetry.augment_batch(batch, size)
        kind = self._rate.device.type
        with torch.autocast(kind, enabled=self.use_mixed_precision, dtype=torch.bfloat16):
            losses = self._losses(batch, size)
        loss = losses["surrogate"] + self.value_loss_coef * losses["value"] - self.entropy_coef * losses["entropy"]
        if self.rnd:
            loss = loss + losses["rnd"]
        if self.symmetry and self.symmetry.use_mirror_loss:
            loss = loss + self.symmetry.mirror_loss_coeff * losses["symmetry"]
        self._gradients.compute(loss)
        self._sums += torch.stack([losses[name].detach().to(self._sums) for name in self._loss_names])

    def _losses(self, batch: Any, size: int) -> dict[str, torch.Tensor]:  # noqa: ANN401
        """Return the losses of a mini-batch, whose first `size` samples are not mirrored ones."""
        self.actor(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0], stochastic_output=True)
        log_probs = self.actor.get_output_log_prob(batch.actions)
        values = self.critic(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[1])
        parameters = tuple(each[:size] for each in self.actor.output_distribution_params)
        entropy = self.actor.output_entropy[:size].mean()
        if self._is_adaptive:
            with torch.no_grad():
                divergence = self.actor.get_kl_divergence(batch.old_distribution_params, parameters)
                self._divergence.copy_(divergence.mean())
        ratio = torch.exp(log_probs - batch.old_actions_log_prob.squeeze(-1))
        advantages = batch.advantages.squeeze(-1)
        clipped = ratio.clamp(1.0 - self.clip_param, 1.0 + self.clip_param)
        errors = (values - batch.returns).square()
        if self.use_clipped_value_loss:
            near = batch.values + (values - batch.values).clamp(-self.clip_param, self.clip_param)
            errors = torch.max(errors, (near - batch.returns).square())
        losses = {
            "surrogate": torch.max(-advantages * ratio, -advantages * clipped).mean(),
            "value": errors.mean(),
            "entropy": entropy,
        }
        if self.rnd:
            losses["rnd"] = self.rnd.compute_loss(batch.observations[:size])
        if self.symmetry:
            # The means of mirrored copies are there; the library computes them once more.
            has_means = self.symmetry.use_data_augmentation
            actor: Any = (lambda _: self.actor.output_mean) if has_means else self.actor
            losses["symmetry"] = self.symmetry.compute_loss(actor, batch, size)
        return losses

    @torch.no_grad()
    def _descend(self) -> None:
        """Adapt the learning rate, clip the gradients of each network, and take a step of the optimizers."""
        if self._is_adaptive:
            divergence, rate = self._divergence[0], self._rate
            slower = (rate / _RATE_FACTOR).clamp(min=_MIN_RATE)
            faster = (rate * _RATE_FACTOR).clamp(max=_MAX_RATE)
            is_small = (divergence > 0.0) & (divergence < self.desired_kl / 2.0)
            changed = torch.where(is_small, faster, rate)
            rate.copy_(torch.where(divergence > self.desired_kl * 2.0, slower, changed))
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].copy_(rate)
                else:
                    group["lr"] = float(rate)
        self._gradients.clip(self.max_grad_norm, self.max_grad_norm)
        self.optimizer.step()
        if self.rnd:
            self.rnd.optimizer.step()

    def _update_normalisers(self) -> None:
        """Let normalisers learn from the rollout's observations; those of the user's own networks in their way."""
        observations = self.storage.observations.flatten(0, 1)
        seen: list[tuple[Any, torch.Tensor]] = []
        for network in (self._raw_actor, self._raw_critic):
            if type(network).update_normalization is not MLPModel.update_normalization:
                network.update_normalization(observations)
            elif network.obs_normalization and network.obs_groups:  # Images are not normalised.
                groups = [observations[name] for name in network.obs_groups]
                seen.append((network.obs_normalizer, torch.cat(groups, dim=-1)))
        if self.rnd and self.rnd.state_normalization:
            seen.append((self.rnd.state_normalizer, self.rnd.get_rnd_state(observations)))
        update_normalisers(seen)

    # Checkpoints have the library's layout and options.

    def save(self) -> dict[str, Any]:
        """Return the state in the library's layout, with its options of the optimizers."""
        saved = super().save()
        for name in saved.keys() & _OPTIMIZERS:
            for group in saved[name]["param_groups"]:
                group.update({name: value for name, value in _PLAIN.items() if name in group})
        for group in saved["optimizer_state_dict"]["param_groups"]:
            group["lr"] = self.learning_rate
        return saved

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, Any] | None, strict: bool) -> bool:  # noqa: FBT001
        """Load a state that the library or this class has saved."""
        loads_iteration = super().load(loaded_dict, load_cfg, strict)
        self._set_rate_and_graphs(self.learning_rate)
        return loads_iteration


def _normalised(advantages: torch.Tensor) -> torch.Tensor:
    return (advantages - advantages.mean()) / (advantages.std() + _EPSILON)

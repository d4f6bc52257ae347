"""FastSAC: soft actor-critic with distributional critics, for thousands of environments and several ranks.

The algorithm is that of Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv:1812.05905, with what
made it fast in Seo et al., arXiv:2512.01996: large batches, layer normalisation, the mean of two critics, categorical
returns (Bellemare et al., arXiv:1707.06887). Each rank has a replay buffer of its own environments; gradients are
averaged.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.utils import reduce_gradients_in_buckets
from torch import nn
from torch.distributions.transforms import TanhTransform

from shoal.config.fast_sac import FastSacConfig
from shoal.learn.groups import World
from shoal.learn.inference import FlatObservations
from shoal.learn.learner import Policy, TorchLearner
from shoal.learn.replay import Batch, Replay
from shoal.learn.training_env import TrainingEnv, endings

_LOG_STD_RANGE = (-5.0, 0.0)
"""Logarithm of the standard deviation before tanh, of which FastSAC's actor cannot leave the range."""
_BETAS = (0.9, 0.95)
"""Of the optimizers, FastSAC's."""
_BUCKET_MB = 25


class FastSacLearner(TorchLearner):
    """One replica of FastSAC."""

    learning_rate_flag = "--agent.learning-rate"

    def __init__(self, env: VecEnv, config: FastSacConfig, world: World) -> None:
        self.world, self.config = world, config
        self.check_for_nan, self.steps_per_iteration = config.check_for_nan, config.num_steps_per_env
        self._inputs = FlatObservations(env, config, "actor", "critic")
        sizes = self._inputs.sizes
        self._num_actions, device = env.num_actions, world.device
        self.actor = _Actor(sizes["actor"], env.num_actions, config).to(device)
        self.critics = _Critics(sizes["critic"], env.num_actions, config).to(device)
        self.targets = _Critics(sizes["critic"], env.num_actions, config).to(device).requires_grad_(requires_grad=False)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.normaliser = self.critics.normaliser
        self.scale = _RewardScale(config).to(device)
        self.temperature = _Temperature(config.initial_temperature).to(device)
        self._optimizers = {
            name: torch.optim.AdamW(
                module.parameters(),
                lr=config.learning_rate,
                betas=_BETAS,
                weight_decay=0.0 if module is self.temperature else config.weight_decay,
                fused=True,
            )
            for name, module in {"actor": self.actor, "critics": self.critics, "temperature": self.temperature}.items()
        }
        self._optimizers["critics"].register_step_post_hook(lambda *_: world.beat.mark())
        self._replay = Replay(config.replay_steps)
        self._num_envs = env.num_envs
        self._discounted = torch.zeros(env.num_envs, device=device)
        """Discounted sum of each environment's rewards, for the scale."""
        self.updates = 0
        """Updates of the critics so far; 0 means that the networks know nothing, and actions are random."""

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Networks, with their normalisers, the reward scale and the temperature."""
        networks: dict[str, nn.Module] = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        return networks | {"reward_scale": self.scale, "temperature": self.temperature}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers of actor, critics and temperature."""
        return {f"{name}_optimizer": optimizer for name, optimizer in self._optimizers.items()}

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Step all environments, and update from the replay buffer."""
        for module in self.modules.values():
            module.train()  # Normalisers learn.
        with torch.inference_mode():
            first = self._replay.steps
            for _ in range(self.steps_per_iteration):
                self._step(env)
            new = self._replay.since(first)
        env.end_rollout()
        self.actor.normaliser.update(new["actor"].flatten(0, 1))
        self.critics.normaliser.update(new["critic"].flatten(0, 1))
        self._update_scale(new["rewards"], new["ended"])
        if self._replay.steps < self.config.warmup_steps:
            return {}
        return self._update()

    def _step(self, env: TrainingEnv) -> None:
        """Step all environments once, and store the transition."""
        before = self._inputs(env.observations)
        if self.updates:
            actions, _ = self.actor.sample(before["actor"])
        else:
            actions = torch.empty(self._num_envs, self._num_actions, device=env.device).uniform_(-1, 1)
        observations, rewards, dones, extras = env.step(actions * self.config.action_limit)
        # An episode that was cut off goes on beyond its last observation; one that failed does not.
        ended, cut = endings(dones, extras)
        transition = {**before, "actions": actions, "rewards": rewards, "ended": ended, "terminated": ended & ~cut}
        after = self._inputs.after_step(observations, cut, extras)
        self._replay.add({**transition, **{f"next_{name}": rows for name, rows in after.items()}})

    def _update_scale(self, rewards: torch.Tensor, ended: torch.Tensor) -> None:
        """Update the scale of rewards from the discounted sums of new steps, pooled over ranks."""
        sums = torch.empty_like(rewards)
        for step in range(len(rewards)):
            self._discounted = self._discounted * self.config.gamma + rewards[step]
            sums[step] = self._discounted
            self._discounted = torch.where(ended[step], 0.0, self._discounted)
        self.scale.update(sums.view(-1, 1), self.world)

    def _update(self) -> dict[str, float]:
        """Take all updates of an iteration; return mean losses of this rank."""
        config = self.config
        totals: dict[str, list[torch.Tensor]] = {}
        size = max(1, config.batch_size // self.world.size)
        for _ in range(config.num_steps_per_env * config.updates_per_step):
            batch = self._replay.sample(size, config.num_step_returns, config.gamma)
            losses = {"critic": self._update_critics(batch)}
            if self.updates % config.policy_delay == 0:
                losses |= self._update_actor(batch)
            self.targets.follow(self.critics, config.tau)
            self.updates += 1
            for name, loss in losses.items():
                totals.setdefault(name, []).append(loss)
        return {name: float(torch.stack(values).mean()) for name, values in totals.items()}

    def _update_critics(self, batch: Batch) -> torch.Tensor:
        """Take one step of the critics towards the target distribution; return their cross-entropy."""
        with torch.no_grad():
            actions, log_probs = self.actor.sample(batch.next_actor)
            # The mixture of both critics, whose mean is the mean of theirs.
            mixture = self.targets(batch.next_critic, actions).softmax(dim=-1).mean(dim=0)
            discounts = (batch.discounts * ~batch.terminated).unsqueeze(1)
            atoms = self.targets.atoms - self.temperature() * log_probs.unsqueeze(1)
            target = self.targets.projected(mixture, self.scale(batch.rewards).unsqueeze(1) + discounts * atoms)
        logits = self.critics(batch.critic, batch.actions)
        loss = -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean(dim=1).sum()
        self._descend(loss, ["critics"])
        return loss.detach()

    def _update_actor(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Take one step of actor and temperature; return their losses, and the entropy."""
        actions, log_probs = self.actor.sample(batch.actor)
        values = self.critics.values(self.critics(batch.critic, actions)).mean(dim=0)
        actor_loss = (self.temperature().detach() * log_probs - values).mean()
        entropy = -log_probs.detach().mean()
        temperature_loss = self.temperature() * (entropy - self.config.target_entropy * self._num_actions)
        self._descend(actor_loss + temperature_loss, ["actor", "temperature"])
        return {"actor": actor_loss.detach(), "entropy": entropy}

    def _descend(self, loss: torch.Tensor, names: Sequence[str]) -> None:
        """Take one step of the named optimizers, with gradients averaged over ranks."""
        optimizers = [self._optimizers[name] for name in names]
        weights = [weight for each in optimizers for group in each.param_groups for weight in group["params"]]
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        if self.world.is_distributed:
            reduce_gradients_in_buckets(weights, self.world.size, _BUCKET_MB)
        torch.nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()

    def policy(self) -> Policy:
        """Return the actor without noise."""
        return self._inputs.policy(self.actor)

    def state(self) -> dict[str, Any]:
        """Return networks and optimizers; the replay buffer is not saved."""
        return {**super().state(), "updates": self.updates}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore networks, and unless `weights_only` optimizers. The replay buffer is filled anew."""
        super().restore(state, weights_only=weights_only)
        self.updates = int(state.get("updates", 0))

    def env_rows(self) -> dict[str, torch.Tensor]:
        """Return the discounted sums of rewards."""
        return {"discounted": self._discounted}

    def put_env_rows(self, rows: Mapping[str, torch.Tensor], num_envs: int) -> None:
        """Restore the sums of the first environments."""
        del num_envs
        sums = rows["discounted"]
        self._discounted[: len(sums)] = sums

    def metrics(self) -> dict[str, float]:
        """Return learning rate, temperature and the scale of rewards."""
        rate, temperature = self.config.learning_rate, float(self.temperature().detach())
        scale = 1 / float(self.scale.divisor)
        return {"Loss/learning_rate": rate, "Policy/temperature": temperature, "Policy/reward_scale": scale}


def _perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Return layers with layer normalisation and SiLU, the last of them linear."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


class _Actor(nn.Module):
    """A Gaussian, squashed by tanh."""

    def __init__(self, num_observations: int, num_actions: int, config: FastSacConfig) -> None:
        super().__init__()
        self.normaliser = EmpiricalNormalization(num_observations)
        self.network = _perceptron([num_observations, *config.actor_hidden_dims, 2 * num_actions])
        self.limit = config.action_limit

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the most likely actions for the environments. Shape (num, num_actions)."""
        mean, _ = self.distribution(observations)
        return torch.tanh(mean) * self.limit

    def distribution(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and log standard deviation before tanh. Shapes (num, num_actions)."""
        mean, raw = self.network(self.normaliser(observations)).chunk(2, dim=-1)
        low, high = _LOG_STD_RANGE
        return mean, low + 0.5 * (high - low) * (torch.tanh(raw) + 1)

    def sample(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions in [-1, 1], shape (num, num_actions), and their log-probabilities, shape (num,)."""
        mean, log_std = self.distribution(observations)
        noise = torch.randn_like(mean)
        raw = mean + log_std.exp() * noise
        gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        slope = TanhTransform().log_abs_det_jacobian(raw, None)  # It reads no result.
        return torch.tanh(raw), (gaussian - slope).sum(dim=-1)


class _Critics(nn.Module):
    """Two critics with categorical returns."""

    def __init__(self, num_observations: int, num_actions: int, config: FastSacConfig) -> None:
        super().__init__()
        self.normaliser = EmpiricalNormalization(num_observations)
        sizes = [num_observations + num_actions, *config.critic_hidden_dims, config.num_atoms]
        self.networks = nn.ModuleList(_perceptron(sizes) for _ in range(2))
        self.register_buffer("atoms", torch.linspace(-config.max_return, config.max_return, config.num_atoms))
        self.atoms: torch.Tensor

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (2, num, num_atoms)."""
        inputs = torch.cat([self.normaliser(observations), actions], dim=-1)
        return torch.stack([network(inputs) for network in self.networks])

    def values(self, logits: torch.Tensor) -> torch.Tensor:
        """Return expected returns. Shape (2, num)."""
        return logits.softmax(dim=-1) @ self.atoms

    def projected(self, probabilities: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """Return probabilities of the atoms from those of `returns`, each shared by its two neighbours.

        Both have the shape (num, num_atoms).
        """
        low, last = self.atoms[0], len(self.atoms) - 1
        places = ((returns.clamp(low, -low) - low) / (-2 * low) * last).clamp(0, last)
        lower = places.floor()
        upper_part = probabilities * (places - lower)
        target = torch.zeros_like(probabilities)
        target.scatter_add_(1, lower.long(), probabilities - upper_part)
        return target.scatter_add_(1, places.ceil().long(), upper_part)

    @torch.no_grad()
    def follow(self, critics: "_Critics", tau: float) -> None:
        """Move the weights towards those of `critics`."""
        torch._foreach_lerp_(list(self.networks.parameters()), list(critics.networks.parameters()), tau)


class _Temperature(nn.Module):
    """The factor on the entropy."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_value = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> torch.Tensor:
        """Return the factor."""
        return self.log_value.exp()


class _RewardScale(nn.Module):
    """Divides rewards so that discounted returns have the deviation 1, and none is beyond the critics' support."""

    def __init__(self, config: FastSacConfig) -> None:
        super().__init__()
        self.returns = EmpiricalNormalization(1)
        self.register_buffer("largest", torch.zeros(1))
        self.largest: torch.Tensor
        self.max_return = config.max_return

    def update(self, returns: torch.Tensor, world: World) -> None:
        """Add discounted returns of this rank. Shape (num, 1)."""
        self.returns.update(returns)
        self.largest = torch.maximum(self.largest, world.max_(returns.abs().amax(dim=0)))

    @property
    def divisor(self) -> torch.Tensor:
        """What rewards are divided by. Shape (1,)."""
        return torch.maximum(self.returns.std, self.largest / self.max_return).clamp(min=1e-6)

    def forward(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return scaled rewards."""
        return rewards / self.divisor

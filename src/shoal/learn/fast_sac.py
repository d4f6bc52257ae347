"""FastSAC: soft actor-critic with distributional critics, for thousands of environments and several ranks.

The algorithm is that of Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv:1812.05905, with what
made it fast in Seo et al., arXiv:2512.01996: large batches, layer normalisation, the mean of two critics, categorical
returns (Bellemare et al., arXiv:1707.06887). Each rank has a replay buffer of its own environments; gradients are
averaged.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.modules import EmpiricalNormalization
from torch import nn
from torch.distributions.transforms import TanhTransform

from shoal.config.fast_sac import FastSacConfig
from shoal.learn.gradients import FlatGradients
from shoal.learn.graphs import GraphChain
from shoal.learn.groups import World
from shoal.learn.inference import FlatObservations
from shoal.learn.learner import Policy, TorchLearner
from shoal.learn.normalisers import update_normalisers
from shoal.learn.replay import Batch, Replay
from shoal.learn.returns import discounted_sums
from shoal.learn.training_env import TrainingEnv

_LOG_STD_RANGE = (-5.0, 0.0)
"""Logarithm of the standard deviation before tanh, of which FastSAC's actor cannot leave the range."""
_BETAS = (0.9, 0.95)
"""Of the optimizers, FastSAC's."""
_LOSSES = ("critic", "actor", "entropy")


class FastSacLearner(TorchLearner):
    """One replica of FastSAC."""

    learning_rate_flag = "--agent.learning-rate"

    def __init__(self, env: VecEnv, config: FastSacConfig, world: World) -> None:
        self.world, self.config = world, config
        self.check_for_nan, self.steps_per_iteration = config.check_for_nan, config.num_steps_per_env
        self._inputs = FlatObservations(env, config, "actor", "critic")
        sizes = self._inputs.sizes
        self._num_envs, self._num_actions, device = env.num_envs, env.num_actions, world.device
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
        self._critic_gradients = FlatGradients(self.critics.parameters())
        self._actor_gradients = FlatGradients([*self.actor.parameters(), *self.temperature.parameters()])
        self._replay: Any = None  # Before the first step: play and export need none.
        self._actions = torch.zeros(env.num_envs, env.num_actions, device=device)
        self._rows = torch.zeros(max(1, config.batch_size // world.size), dtype=torch.int64, device=device)
        """Of the replay buffer, with which the transitions of the present batch begin."""
        self._sums = torch.zeros(len(_LOSSES), dtype=torch.float64, device=device)  # Of losses in an iteration.
        self._discounted = torch.zeros(env.num_envs, device=device)
        """Discounted sum of each environment's rewards, for the scale."""
        self.updates = 0
        """Updates of the critics so far; 0 means that the networks know nothing, and actions are random."""
        self._make_graphs()

    def _make_graphs(self) -> None:
        """Begin with new graphs: optimizers or replay buffer may have other tensors."""
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = self._sums.is_cuda
            # torch warns of steps that are not captured, such as the first ones.
            vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True
        size = self.world.size
        average_critics = partial(self._critic_gradients.average, size)
        average_actor = partial(self._actor_gradients.average, size)
        averages = [average_critics, None, average_actor] if self.world.is_distributed else []
        critics = [self._compute_critic_gradients, self._descend_critics]
        actor = [self._compute_actor_gradients, self._descend_actor]
        graph = partial(GraphChain, device=self.world.device, captures=self.config.cuda_graphs)
        self._act_graph = graph([self._act], [], name="A step of the policy")
        self._critic_graph = graph(critics, averages[:1], name="An update of the critics")
        self._both_graph = graph([*critics, *actor], averages, name="An update of critics and actor")

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
        observations = self._inputs.select(env.observations)
        if self._replay is None:
            self._replay = Replay(
                observations,
                self._num_actions,
                capacity=self.config.replay_steps,
                steps_per_iteration=self.steps_per_iteration,
                max_episode_length=int(env.max_episode_length),
                captures=self.config.cuda_graphs,
            )
        replay: Replay = self._replay
        with torch.inference_mode():
            replay.begin(observations)
            for _ in range(self.steps_per_iteration):
                if self.updates:
                    self._act_graph()
                else:
                    self._actions.uniform_(-1, 1)
                replay.add(self._actions, *env.step(self._actions * self.config.action_limit))
            seen, new = replay.newest(self.steps_per_iteration)
        env.end_rollout()
        self._learn_scales(self._inputs(seen), new["rewards"], new["ended"])
        numbers = self._update() if replay.steps >= self.config.warmup_steps else [0, 0, 0]
        *sums, finals_in_use = torch.cat([self._sums, replay.finals_in_use.view(1)]).tolist()
        if replay.reserve(int(finals_in_use)):
            self._make_graphs()
        return {name: total / number for name, total, number in zip(_LOSSES, sums, numbers, strict=True) if number}

    def _act(self) -> None:
        actions, _ = self.actor.sample(self._inputs(self._replay.observations)["actor"])
        self._actions.copy_(actions)

    def _learn_scales(self, seen: Mapping[str, torch.Tensor], rewards: torch.Tensor, ended: torch.Tensor) -> None:
        """Let normalisers and the scale of rewards learn from new steps, pooled over ranks."""
        begins = torch.cat([ended.new_zeros(2, self._num_envs), ended[:-1]])  # The step before ended an episode.
        values = torch.cat([self._discounted.unsqueeze(0), rewards])
        # Backwards in time: each sum goes on with that of the step before.
        sums = discounted_sums(values.flip(0), self.config.gamma * ~begins.flip(0)).flip(0)[1:]
        self._discounted.copy_(torch.where(ended[-1], 0.0, sums[-1]))
        inputs = {name: rows.flatten(0, 1) for name, rows in seen.items()}
        networks = [(self.actor.normaliser, inputs["actor"]), (self.critics.normaliser, inputs["critic"])]
        self.scale.update(sums.view(-1, 1), self.world, *networks)

    def _update(self) -> list[int]:
        """Take all updates of an iteration; return how many of each loss are summed up."""
        config = self.config
        self._sums.zero_()
        number, actor_updates = config.num_steps_per_env * config.updates_per_step, 0
        for rows in self._replay.draw(number, len(self._rows), config.num_step_returns):
            self._rows.copy_(rows)
            updates_actor = self.updates % config.policy_delay == 0
            (self._both_graph if updates_actor else self._critic_graph)()
            actor_updates += updates_actor
            self.updates += 1
            self.world.beat.mark()  # An iteration's updates take longer than a hang may.
        return [number, actor_updates, actor_updates]

    def _compute_critic_gradients(self) -> None:
        batch = self._replay.batch(self._rows, self.config.num_step_returns, self.config.gamma)
        loss = self._critic_loss(batch)
        self._critic_gradients.compute(loss)
        self._sums[0] += loss.detach()

    def _critic_loss(self, batch: Batch) -> torch.Tensor:
        """Return the cross-entropy of both critics with the target distribution."""
        observations, following = self._inputs(batch.observations), self._inputs(batch.following)
        with torch.no_grad():
            actions, log_probs = self.actor.sample(following["actor"])
            # The mixture of both critics, whose mean is the mean of theirs.
            mixture = self.targets(following["critic"], actions).softmax(dim=-1).mean(dim=0)
            discounts = (batch.discounts * ~batch.terminated).unsqueeze(1)
            atoms = self.targets.atoms - self.temperature() * log_probs.unsqueeze(1)
            target = self.targets.projected(mixture, self.scale(batch.rewards).unsqueeze(1) + discounts * atoms)
        logits = self.critics(observations["critic"], batch.actions)
        return -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean(dim=1).sum()

    def _descend_critics(self) -> None:
        """Take one step of the critics, which their targets follow."""
        self._critic_gradients.clip(self.config.max_grad_norm)
        self._optimizers["critics"].step()
        self.targets.follow(self.critics, self.config.tau)

    def _compute_actor_gradients(self) -> None:
        actor_loss, temperature_loss, entropy = self._actor_losses(self._replay.observations_of(self._rows))
        self._actor_gradients.compute(actor_loss + temperature_loss)
        self._sums[1:] += torch.stack([actor_loss.detach(), entropy])

    def _actor_losses(self, observations: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the losses of actor and temperature, and the entropy."""
        inputs = self._inputs(observations)
        actions, log_probs = self.actor.sample(inputs["actor"])
        values = self.critics.values(self.critics(inputs["critic"], actions)).mean(dim=0)
        actor_loss = (self.temperature().detach() * log_probs - values).mean()
        entropy = -log_probs.detach().mean()
        return actor_loss, self.temperature() * (entropy - self.config.target_entropy * self._num_actions), entropy

    def _descend_actor(self) -> None:
        """Take one step of actor and temperature."""
        self._actor_gradients.clip(self.config.max_grad_norm)
        self._optimizers["actor"].step()
        self._optimizers["temperature"].step()

    def policy(self) -> Policy:
        """Return the actor without noise."""
        return self._inputs.policy(self.actor)

    def state(self) -> dict[str, Any]:
        """Return networks and optimizers; the replay buffer is not saved."""
        return {**super().state(), "updates": self.updates}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore networks, and unless `weights_only` optimizers. The replay buffer starts empty."""
        super().restore(state, weights_only=weights_only)
        self.updates = int(state.get("updates", 0))
        self._make_graphs()

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
        temperature, divisor = torch.cat([self.temperature().detach().view(1), self.scale.divisor]).tolist()
        rate, scale = self.config.learning_rate, 1 / divisor
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
        positions = ((returns.clamp(low, -low) - low) / (-2 * low) * last).clamp(0, last)
        lower = positions.floor()
        upper_part = probabilities * (positions - lower)
        target = torch.zeros_like(probabilities)
        target.scatter_add_(1, lower.long(), probabilities - upper_part)
        return target.scatter_add_(1, positions.ceil().long(), upper_part)

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

    def update(self, returns: torch.Tensor, world: World, *beside: tuple[EmpiricalNormalization, torch.Tensor]) -> None:
        """Add discounted returns of this rank, of shape (num, 1); normalisers `beside` learn in the same collective."""
        update_normalisers([(self.returns, returns), *beside])
        torch.maximum(self.largest, world.max_(returns.abs().amax(dim=0)), out=self.largest)

    @property
    def divisor(self) -> torch.Tensor:
        """What rewards are divided by. Shape (1,)."""
        return torch.maximum(self.returns.std, self.largest / self.max_return).clamp(min=1e-6)

    def forward(self, rewards: torch.Tensor) -> torch.Tensor:
        """Return scaled rewards."""
        return rewards / self.divisor

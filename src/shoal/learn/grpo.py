"""GRPO over rsl_rl's models: advantages relative to a group of environments with the same episode, and no critic.

Each iteration begins new episodes everywhere, the same in each environment of a group, down to its random numbers. The
advantage of an action is its discounted return-to-go, normalised over the group's members that are still in their
episode at that step: what an expected return of a critic would be is the mean of the group.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel
from rsl_rl.utils import resolve_class
from tensordict import TensorDict

from shoal.config.grpo import GrpoConfig
from shoal.config.rsl_rl import to_rsl_rl
from shoal.envs.capabilities import capabilities_of
from shoal.errors import UsageError
from shoal.learn.gradients import FlatGradients
from shoal.learn.groups import World
from shoal.learn.inference import observation_sets
from shoal.learn.learner import Policy, TorchLearner
from shoal.learn.returns import discounted_sums
from shoal.learn.training_env import TrainingEnv

_EPSILON = 1e-6
"""Added to the deviation of a group's returns: a group that agrees teaches nothing."""


class GrpoLearner(TorchLearner):
    """One replica of GRPO."""

    learning_rate_flag = "--agent.learning-rate"

    def __init__(self, env: VecEnv, config: GrpoConfig, world: World) -> None:
        if not capabilities_of(env).rows():
            raise UsageError(
                "GRPO begins the same episode in several environments, but these do not give their state: pass another "
                "--learner."
            )
        self.world, self.config = world, config
        self.check_for_nan, self.steps_per_iteration = config.check_for_nan, config.num_steps_per_env
        observations = env.get_observations()
        groups = observation_sets(observations, config, "actor")
        model, settings = resolve_class(to_rsl_rl(config)["actor"])
        self.actor: MLPModel = model(observations, groups, "actor", env.num_actions, **settings).to(world.device)
        self.reference: MLPModel | None = copy.deepcopy(self.actor) if config.reference == "start" else None
        self.is_new = True
        """Whether nothing was learned yet: then the reference is the present policy."""
        self.optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate)
        self.optimizer.register_step_post_hook(lambda *_: world.beat.mark())
        self._gradients = FlatGradients(self.actor.parameters())
        self._rollout: TensorDict | None = None
        """Experience of one iteration, of shape (num_steps, num_envs); None before the first."""

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """The actor, and the reference if there is one."""
        return {"actor": self.actor} | ({"reference": self.reference} if self.reference else {})

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The actor's optimizer."""
        return {"optimizer": self.optimizer}

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Live through one episode in each environment, and learn from it."""
        if self.reference is not None and self.is_new:
            self.reference.load_state_dict(self.actor.state_dict())
        self.is_new = False
        self.actor.train()
        with torch.inference_mode():
            env.begin_episodes(self.config.group_size)
            for number in range(self.steps_per_iteration):
                observations = env.observations.select(*self.actor.obs_groups)
                actions = self.actor(observations, stochastic_output=True)
                log_probs = self.actor.get_output_log_prob(actions)
                _, rewards, dones, _ = env.step(actions)
                new = {"actions": actions, "log_probs": log_probs, "rewards": rewards, "ended": dones != 0}
                step = TensorDict({"observations": observations, **new}, batch_size=rewards.shape)
                if self._rollout is None:
                    with torch.inference_mode(mode=False):
                        self._rollout = step.expand(self.steps_per_iteration, *step.shape).clone()
                self._rollout[number].update_(step)
        env.end_rollout()
        return self._update(self._rollout)

    def _update(self, rollout: TensorDict) -> dict[str, float]:
        """Take all optimizer steps of an iteration; return mean losses of this rank."""
        config = self.config
        is_running = rollout["ended"].cumsum(dim=0) == rollout["ended"]  # Of the first episode.
        advantages = group_advantages(rollout["rewards"], is_running, config.gamma, config.group_size).flatten()
        weights = is_running.flatten().to(torch.float32)
        # Ranks may have different numbers of samples, of which each counts the same.
        number = self.world.sum_(weights.sum(dtype=torch.float64)) / self.world.size
        weights = weights * (len(weights) / number).to(torch.float32)
        samples = rollout.select("observations", "actions", "log_probs").flatten(0, 1)
        totals: dict[str, torch.Tensor] = {}
        size = len(weights) // config.num_mini_batches
        for _ in range(config.num_learning_epochs):
            order = torch.randperm(len(weights), device=weights.device)
            for batch in order[: size * config.num_mini_batches].view(config.num_mini_batches, size):
                losses = self._losses(samples[batch], advantages[batch], weights[batch])
                loss = losses["surrogate"] - config.entropy_coef * losses["entropy"]
                if "reference_kl" in losses:
                    loss = loss + config.kl_coef * losses["reference_kl"]
                self._gradients.compute(loss)
                if self.world.is_distributed:
                    self._gradients.average(self.world.size)
                self._gradients.clip(config.max_grad_norm)
                self.optimizer.step()
                for name, value in losses.items():
                    totals[name] = totals.get(name, 0) + value.detach()
        self.actor.update_normalization(samples["observations"])
        updates = config.num_learning_epochs * config.num_mini_batches
        return dict(zip(totals, (torch.stack(list(totals.values())) / updates).tolist(), strict=True))

    def _losses(self, samples: TensorDict, advantages: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the weighted means of clipped surrogate, entropy and divergence from the reference."""
        observations, actions = samples["observations"], samples["actions"]
        self.actor(observations, stochastic_output=True)
        log_probs = self.actor.get_output_log_prob(actions)
        ratio = torch.exp(log_probs - samples["log_probs"])
        clipped = ratio.clamp(1 - self.config.clip_param, 1 + self.config.clip_param)
        losses = {
            "surrogate": -(weights * torch.min(ratio * advantages, clipped * advantages)).mean(),
            "entropy": (weights * self.actor.output_entropy).mean(),
        }
        if self.reference is not None:
            with torch.no_grad():
                self.reference(observations, stochastic_output=True)
                difference = self.reference.get_output_log_prob(actions)
            difference = difference - log_probs
            # The estimator k3 of Schulman, "Approximating KL divergence" (2020): unbiased, and never negative.
            losses["reference_kl"] = (weights * (difference.exp() - 1 - difference)).mean()
        return losses

    def policy(self) -> Policy:
        """Return the actor without noise."""
        return self.actor.eval()

    def state(self) -> dict[str, Any]:
        """Return networks and optimizer."""
        return {**super().state(), "is_new": self.is_new}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore networks and optimizer; with `weights_only` the reference is the restored policy."""
        if weights_only:
            state = {**state, "reference": state.get("actor")}
        super().restore(state, weights_only=weights_only)
        self.is_new = weights_only or bool(state.get("is_new", False))

    def metrics(self) -> dict[str, float]:
        """Return learning rate and exploration noise."""
        spread = float(self.actor.output_std.detach().mean())
        return {"Loss/learning_rate": self.config.learning_rate, "Policy/mean_std": spread}


def group_advantages(rewards: torch.Tensor, is_running: torch.Tensor, gamma: float, group_size: int) -> torch.Tensor:
    """Return the return-to-go of each step, normalised over the group's members that are in their episode.

    Args:
        rewards: Shape (num_steps, num_envs); the environments of a group are neighbours.
        is_running: Whether a step counts. Shape (num_steps, num_envs).
        gamma: Discount for each step.
        group_size: Members of a group.

    Returns:
        Shape (num_steps, num_envs); 0 where a step does not count.
    """
    returns = discounted_sums(torch.where(is_running, rewards, 0.0), torch.full_like(rewards, gamma))
    members = returns.view(len(returns), -1, group_size)
    counts = is_running.view_as(members)
    number = counts.sum(dim=2, keepdim=True).clamp(min=1)
    centred = torch.where(counts, members - torch.where(counts, members, 0.0).sum(dim=2, keepdim=True) / number, 0.0)
    deviation = (centred.square().sum(dim=2, keepdim=True) / number).sqrt()
    return (centred / (deviation + _EPSILON)).view_as(returns)

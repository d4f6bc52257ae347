"""FastSAC's iterations against plain ones: whole transitions, one batch after the other, and torch's own functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.learner_agents import AGENTS
from support.learners import ALONE, train
from support.optima import Leave

from shoal.config import TrainConfig
from shoal.learn.fast_sac import FastSacLearner
from shoal.learn.loop import TrainingLoop
from shoal.learn.training_env import TrainingEnv, endings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUM_ENVS = 8


@pytest.fixture
def in_double_precision() -> Iterator[None]:
    """Rounding is far below what two algorithms differ by."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Plain(FastSacLearner):
    """The learner as it was before its tensors stayed in place."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rows: list[dict[str, torch.Tensor]] = []
        self.steps = 0

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Step, and update."""
        for module in self.modules.values():
            module.train()
        new: list[dict[str, torch.Tensor]] = []
        with torch.inference_mode():
            for _ in range(self.steps_per_iteration):
                before = {name: each.clone() for name, each in self._inputs(env.observations).items()}
                if self.updates:
                    actions, _ = self.actor.sample(before["actor"])
                else:
                    actions = torch.empty(NUM_ENVS, self._num_actions).uniform_(-1, 1)
                observations, rewards, dones, extras = env.step(actions * self.config.action_limit)
                ended, cut = endings(dones, extras)
                after = self._inputs.after_step(observations, cut, extras)
                row = {**before, "actions": actions, "rewards": rewards, "ended": ended, "terminated": ended & ~cut}
                new.append(row | {f"next_{name}": each.clone() for name, each in after.items()})
        env.end_rollout()
        self.steps += len(new)
        self.rows = [*self.rows, *new][-self.config.replay_steps :]
        self.actor.normaliser.update(torch.cat([row["actor"] for row in new]))
        self.critics.normaliser.update(torch.cat([row["critic"] for row in new]))
        sums = []
        for row in new:
            self._discounted = self._discounted * self.config.gamma + row["rewards"]
            sums.append(self._discounted)
            self._discounted = torch.where(row["ended"], 0.0, self._discounted)
        self.scale.returns.update(torch.cat(sums).unsqueeze(1))
        self.scale.largest = torch.maximum(self.scale.largest, torch.cat(sums).abs().amax())
        return self.update_plainly() if self.steps >= self.config.warmup_steps else {}

    def update_plainly(self) -> dict[str, float]:
        """Take all updates; return mean losses."""
        config = self.config
        data = {name: torch.stack([row[name] for row in self.rows]).clone() for name in self.rows[0]}
        shape = (config.num_steps_per_env * config.updates_per_step, config.batch_size)
        num_starts = max(1, len(self.rows) - config.num_step_returns + 1)
        all_starts, all_envs = torch.randint(num_starts, shape), torch.randint(NUM_ENVS, shape)
        totals: dict[str, list[float]] = {"critic": [], "actor": [], "entropy": []}
        for starts, envs in zip(all_starts, all_envs, strict=True):
            rewards, discounts, last = data["rewards"][starts, envs], torch.full((len(starts),), config.gamma), starts
            for _ in range(1, min(config.num_step_returns, len(self.rows))):
                goes_on = ~data["ended"][last, envs]
                last = last + goes_on
                rewards = rewards + torch.where(goes_on, discounts * data["rewards"][last, envs], 0.0)
                discounts = torch.where(goes_on, discounts * config.gamma, discounts)
            with torch.no_grad():
                actions, log_probs = self.actor.sample(data["next_actor"][last, envs])
                mixture = self.targets(data["next_critic"][last, envs], actions).softmax(dim=-1).mean(dim=0)
                discounts = (discounts * ~data["terminated"][last, envs]).unsqueeze(1)
                atoms = self.targets.atoms - self.temperature() * log_probs.unsqueeze(1)
                target = self.targets.projected(mixture, self.scale(rewards).unsqueeze(1) + discounts * atoms)
            logits = self.critics(data["critic"][starts, envs], data["actions"][starts, envs])
            loss = -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean(dim=1).sum()
            self.descend(loss, ["critics"])
            totals["critic"].append(float(loss.detach()))
            if self.updates % config.policy_delay == 0:
                actions, log_probs = self.actor.sample(data["actor"][starts, envs])
                values = self.critics.values(self.critics(data["critic"][starts, envs], actions)).mean(dim=0)
                loss, entropy = (self.temperature().detach() * log_probs - values).mean(), -log_probs.detach().mean()
                temperature_loss = self.temperature() * (entropy - config.target_entropy * self._num_actions)
                self.descend(loss + temperature_loss, ["actor", "temperature"])
                totals["actor"].append(float(loss.detach()))
                totals["entropy"].append(float(entropy))
            self.targets.follow(self.critics, config.tau)
            self.updates += 1
        return {name: sum(each) / len(each) for name, each in totals.items() if each}

    def descend(self, loss: torch.Tensor, names: Sequence[str]) -> None:
        """Take one step of the named optimizers."""
        optimizers = [self._optimizers[name] for name in names]
        weights = [weight for each in optimizers for group in each.param_groups for weight in group["params"]]
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        torch.nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()


def trained(kind: type[FastSacLearner], **changes: Any) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Train on environments whose episodes fail, and are cut off; return everything learned, and losses."""
    torch.manual_seed(0)
    agent: Any = replace(AGENTS["fast_sac"], **changes)
    config = TrainConfig(task="known", learner="fast_sac", agent=agent, num_envs=NUM_ENVS, max_iterations=20)
    env = Leave(NUM_ENVS)
    loop = TrainingLoop(env, kind(env, agent, ALONE), config, ALONE)
    rows = train(loop).rows
    losses = [{name: row[name] for name in row if name.startswith(("Loss/", "Policy/"))} for row in rows]
    return dict(loop.learner.replicated()), losses


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize(
    "changes",
    [
        {"warmup_steps": 20},
        {"num_step_returns": 1, "policy_delay": 1, "updates_per_step": 3},
        {"num_step_returns": 3, "num_steps_per_env": 1, "warmup_steps": 1, "policy_delay": 3, "max_grad_norm": 0.1},
        {"replay_steps": 9, "learning_rate": 1e-2, "actor_hidden_dims": (8, 4)},
    ],
)
def test_20_iterations_end_with_the_weights_and_losses_of_plain_ones(changes: dict[str, Any]) -> None:
    expected, losses = trained(Plain, **changes)
    found, found_losses = trained(FastSacLearner, **changes)
    assert len(losses) == 20
    assert found_losses == [pytest.approx(each, rel=1e-6, abs=1e-9) for each in losses]
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")

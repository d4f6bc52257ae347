"""skrl's PPO, SAC and TD3 for torch."""

# skrl declares `role` of a model's `compute` as a keyword, and passes it by position.
# pyright: reportIncompatibleMethodOverride=false

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import skrl.agents.torch.ppo as skrl_ppo
import skrl.agents.torch.ppo.ppo as ppo_module
import skrl.agents.torch.sac as skrl_sac
import skrl.agents.torch.td3 as skrl_td3
import torch
from rsl_rl.env import VecEnv
from rsl_rl.modules import MLP
from skrl.agents.torch import Agent
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.noises.torch import GaussianNoise
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.resources.schedulers.torch import KLAdaptiveLR
from torch import nn
from torch.distributions.transforms import TanhTransform

from shoal.config.skrl import SkrlConfig, SkrlJaxConfig
from shoal.learn.groups import World, normalised_over_ranks
from shoal.learn.learner import Policy, TorchLearner
from shoal.learn.skrl.rollout import AgentLearner, pooled_advantages


class SkrlLearner(AgentLearner, TorchLearner):
    """One replica of an agent of skrl for torch."""

    def __init__(self, env: VecEnv, config: SkrlConfig, world: World) -> None:
        super().__init__(env, config, world)
        self.config = config
        limit = math.inf if config.class_name == "PPO" else config.action_limit
        spaces = {**self.inputs.spaces(env.num_actions, limit), "device": world.device}
        make = {"PPO": _make_ppo, "SAC": _make_sac, "TD3": _make_td3}[config.class_name]
        self.agent: Any = make(config, env.num_envs, spaces, world)
        self.agent.init()
        self.agent.enable_training_mode(enabled=True)
        self._update, self.agent.update = self.agent.update, self._tracked_update
        self.learning_rate_flag = f"--agent.{config.class_name.lower()}.learning-rate"
        self.learns_each_step = config.class_name != "PPO"
        for optimizer in self.optimizers.values():
            optimizer.register_step_post_hook(lambda *_: world.beat.mark())
        if config.class_name == "SAC" and config.sac.learn_entropy:
            self.agent.entropy_optimizer.register_step_pre_hook(lambda *_: self._average_entropy_gradient())

    def _tracked_update(self, **times: int) -> None:
        """Update with losses tracked, which SAC and TD3 do only when they log; rewards are not, as that waits.

        A replay buffer, which is empty after a resume, first gets as many steps as at the start of the training.
        """
        memory = self.agent.memory
        is_filled = memory.filled or memory.memory_index > self.config.off_policy.learning_starts
        if self.learns_each_step and not is_filled:
            return
        self.agent.write_interval = sys.maxsize
        with pooled_advantages(ppo_module, "compute_gae", self.world, normalised_over_ranks):
            self._update(**times)
        self.agent.write_interval = 0

    def _average_entropy_gradient(self) -> None:
        """Average the gradient that skrl leaves different on each rank."""
        self.world.sum_(self.agent.log_entropy_coefficient.grad).div_(self.world.size)

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Networks and normalisers, under skrl's names."""
        parts = self.agent.checkpoint_modules
        modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
        if hasattr(self.agent, "log_entropy_coefficient"):
            modules["entropy"] = _Entropy(self.agent)
        return modules

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """Optimizers, under skrl's names."""
        parts = self.agent.checkpoint_modules
        return {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}

    def act(self, inputs: Mapping[str, torch.Tensor], **times: int) -> torch.Tensor:
        """Return actions."""
        return self.agent.act(**inputs, **times)[0]

    def record(self, transition: Mapping[str, torch.Tensor], **times: int) -> None:
        """Store a transition."""
        self.agent.record_transition(**transition, infos={}, **times)

    def policy(self) -> Policy:
        """Return the policy without noise."""
        name, actions = self.config.class_name, self.agent.policy.num_actions
        limit = None if name == "PPO" else self.config.action_limit
        network = Perceptron(
            self.inputs.sizes["actor"], actions, self.config.hidden_dims, limit=limit, halves=name == "SAC"
        )
        network.layers.load_state_dict(self.agent.policy.network.state_dict())
        scaler: Any = self.modules.get("observation_preprocessor")
        if scaler is not None:
            network.normalise(scaler.running_mean, scaler.running_variance, scaler.epsilon, scaler.clip_threshold)
        return self.inputs.policy(network).to(self.world.device)

    def state(self) -> dict[str, Any]:
        """Return the parts that skrl saves, the steps so far, and what skrl leaves out."""
        return {**super().state(), "steps": self.steps}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore the parts. The replay buffer of SAC and TD3 starts empty."""
        super().restore(state, weights_only=weights_only)
        if not weights_only:
            self.steps = int(state.get("steps", 0))

    def metrics(self) -> dict[str, float]:
        """Return learning rate and exploration noise."""
        rate = next(iter(self.optimizers.values())).param_groups[0]["lr"]
        spread = self.agent.tracking_data.get("Policy / Standard deviation")
        return {"Loss/learning_rate": float(rate)} | ({"Policy/mean_std": float(spread[-1])} if spread else {})


class Perceptron(nn.Module):
    """Hidden layers with ELU of exported policies."""

    def __init__(
        self, inputs: int, outputs: int, dims: Sequence[int], *, limit: float | None = None, halves: bool = False
    ) -> None:
        """Make new layers. `halves`: twice as many outputs, of which the first half counts; `limit`: that of tanh."""
        super().__init__()
        self.layers = MLP(inputs, outputs * (1 + halves), [*dims], "elu")
        self.limit, self.halves, self.clip = limit, halves, float("inf")
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))

    def normalise(self, mean: torch.Tensor, variance: torch.Tensor, epsilon: float, clip: float) -> None:
        """Normalise inputs as skrl's scalers do."""
        self.mean, self.deviation, self.clip = mean.float(), variance.float().sqrt() + epsilon, clip

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return actions of shape (num, outputs)."""
        actions = self.layers(((observations - self.mean) / self.deviation).clamp(-self.clip, self.clip))
        if self.halves:
            actions = actions.chunk(2, dim=-1)[0]
        return actions if self.limit is None else torch.tanh(actions) * self.limit


class _BoundedPolicy(Model):
    """A policy whose random actions come from torch's random state, as everything else does."""

    def __init__(self, config: SkrlConfig, spaces: Mapping[str, Any], *, num_parameters: int) -> None:
        """Make a network that returns `num_parameters` of the distribution of each action."""
        super().__init__(**spaces)
        self.network = MLP(self.num_observations, num_parameters * self.num_actions, [*config.hidden_dims], "elu")
        self.limit = config.action_limit

    def random_act(self, inputs: Mapping[str, torch.Tensor], *, role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Return actions from the whole action space."""
        del role
        actions = torch.empty(len(inputs["observations"]), self.num_actions, device=self.device)
        return actions.uniform_(-self.limit, self.limit), {}


class _GaussianPolicy(GaussianMixin, Model):
    """PPO's policy: one standard deviation for each action."""

    def __init__(self, config: SkrlConfig, spaces: Mapping[str, Any]) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.network = MLP(self.num_observations, self.num_actions, [*config.hidden_dims], "elu")
        self.log_std = nn.Parameter(torch.full((self.num_actions,), config.initial_log_std))

    def compute(self, inputs: Mapping[str, torch.Tensor], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        del role
        return self.network(inputs["observations"]), {"log_std": self.log_std}


class _SquashedPolicy(GaussianMixin, _BoundedPolicy):
    """SAC's policy: a Gaussian, squashed by tanh. skrl has none: its own clips."""

    def __init__(self, config: SkrlConfig, spaces: Mapping[str, Any]) -> None:
        _BoundedPolicy.__init__(self, config, spaces, num_parameters=2)
        GaussianMixin.__init__(self, min_log_std=-5)

    def compute(self, inputs: Mapping[str, torch.Tensor], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        del role
        mean, log_std = self.network(inputs["observations"]).chunk(2, dim=-1)
        return mean, {"log_std": log_std}

    def act(self, inputs: dict[str, Any], *, role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Squash the actions, and their log-probability (Haarnoja et al., arXiv:1812.05905, appendix C)."""
        raw, outputs = GaussianMixin.act(self, inputs, role=role)
        slope = TanhTransform().log_abs_det_jacobian(raw, None) + math.log(self.limit)
        outputs["log_prob"] = outputs["log_prob"] - slope.sum(dim=-1, keepdim=True)
        outputs["mean_actions"] = torch.tanh(outputs["mean_actions"]) * self.limit
        return torch.tanh(raw) * self.limit, outputs


class _DeterministicPolicy(DeterministicMixin, _BoundedPolicy):
    """TD3's policy."""

    def __init__(self, config: SkrlConfig, spaces: Mapping[str, Any]) -> None:
        _BoundedPolicy.__init__(self, config, spaces, num_parameters=1)
        DeterministicMixin.__init__(self, clip_actions=True)

    def compute(self, inputs: Mapping[str, torch.Tensor], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        del role
        return torch.tanh(self.network(inputs["observations"])) * self.limit, {}


class _Critic(DeterministicMixin, Model):
    """A value of states, or of states with actions."""

    def __init__(self, config: SkrlConfig, spaces: Mapping[str, Any], *, of_actions: bool) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.of_actions = of_actions
        self.network = MLP(self.num_states + of_actions * self.num_actions, 1, [*config.hidden_dims], "elu")

    def compute(self, inputs: Mapping[str, torch.Tensor], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        del role
        states = inputs["states"]
        return self.network(torch.cat([states, inputs["taken_actions"]], dim=-1) if self.of_actions else states), {}


def pooled_moments(
    mean: torch.Tensor, square: torch.Tensor, count: int, world: World
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return mean, variance and number of the samples of all ranks, from mean, mean square and number of this one's."""
    counts = torch.full_like(mean, count)
    counts, total, squares = world.sum_(torch.stack([counts, counts * mean, counts * square]))
    mean = total / counts
    return mean, (squares / counts - mean.square()).clamp(min=0.0), counts[0]


class _PooledScaler(RunningStandardScaler):
    """skrl's normaliser with moments over all ranks; its own differ between them."""

    def __init__(self, world: World, **settings: Any) -> None:  # noqa: ANN401  skrl's settings.
        super().__init__(**settings)
        self._world = world

    def _parallel_variance(self, input_mean: torch.Tensor, input_var: torch.Tensor, input_count: int) -> None:
        mean, square = input_mean.double(), input_var.double() + input_mean.double().square()
        moments: Any = pooled_moments(mean, square, input_count, self._world)
        super()._parallel_variance(*moments)


class _Entropy(nn.Module):
    """SAC's factor on the entropy, which skrl does not save."""

    def __init__(self, agent: Any) -> None:  # noqa: ANN401  skrl's SAC.
        super().__init__()
        self.agent = [agent]  # Not a module of this one.
        self.register_buffer("log_value", agent.log_entropy_coefficient.detach())

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401  torch's signature.
        super()._load_from_state_dict(*arguments, **named)
        (agent,) = self.agent
        agent._entropy_coefficient = agent.log_entropy_coefficient.detach().exp()  # noqa: SLF001


def settings_of(
    config: SkrlConfig | SkrlJaxConfig, spaces: Mapping[str, Any], world: World, scaler: type, *, values: bool = False
) -> dict[str, Any]:
    """Return what all agents are configured with: normalisers of the class `scaler`, of PPO's `values`, too."""
    sizes = {"observation": spaces["observation_space"], "state": spaces["state_space"]}
    normalised = {**(sizes if config.normalize_observations else {}), **({"value": 1} if values else {})}
    settings: dict[str, Any] = {"experiment": {"write_interval": 0, "checkpoint_interval": 0}}
    for name, size in normalised.items():
        settings[f"{name}_preprocessor"] = scaler
        settings[f"{name}_preprocessor_kwargs"] = {"world": world, "size": size, "device": spaces["device"]}
    return settings


def ppo_settings(
    config: SkrlConfig | SkrlJaxConfig, spaces: Mapping[str, Any], world: World, scaler: type
) -> dict[str, Any]:
    """Return what PPO is configured with, apart from the schedule of its learning rate."""
    plain = {name: value for name, value in asdict(config.ppo).items() if name != "adaptive_kl"}
    settings = settings_of(config, spaces, world, scaler, values=config.normalize_values)
    return settings | plain | {"rollouts": config.num_steps_per_env}


def _make_ppo(config: SkrlConfig, num_envs: int, spaces: Mapping[str, Any], world: World) -> Agent:
    settings = ppo_settings(config, spaces, world, _PooledScaler)
    if config.ppo.adaptive_kl is not None:
        settings["learning_rate_scheduler"] = KLAdaptiveLR
        settings["learning_rate_scheduler_kwargs"] = {"kl_threshold": config.ppo.adaptive_kl}
    models = {"policy": _GaussianPolicy(config, spaces), "value": _Critic(config, spaces, of_actions=False)}
    memory = RandomMemory(memory_size=config.num_steps_per_env, num_envs=num_envs, device=world.device)
    return skrl_ppo.PPO(models=models, memory=memory, cfg=settings, **spaces)


def _off_policy(
    config: SkrlConfig, num_envs: int, spaces: Mapping[str, Any], world: World
) -> tuple[dict[str, Any], RandomMemory, dict[str, Model]]:
    """Return settings, memory and critics of SAC and TD3."""
    own = asdict(config.off_policy)
    memory = RandomMemory(memory_size=own.pop("memory_size"), num_envs=num_envs, device=world.device, replacement=True)
    settings = settings_of(config, spaces, world, _PooledScaler) | own
    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    return settings, memory, {name: _Critic(config, spaces, of_actions=True) for name in names}


def _make_sac(config: SkrlConfig, num_envs: int, spaces: Mapping[str, Any], world: World) -> Agent:
    settings, memory, critics = _off_policy(config, num_envs, spaces, world)
    models = {"policy": _SquashedPolicy(config, spaces), **critics}
    return skrl_sac.SAC(models=models, memory=memory, cfg=settings, **spaces)


def _make_td3(config: SkrlConfig, num_envs: int, spaces: Mapping[str, Any], world: World) -> Agent:
    settings, memory, critics = _off_policy(config, num_envs, spaces, world)
    for name in ("exploration_noise", "smooth_regularization_noise"):
        settings[name] = GaussianNoise
        settings[f"{name}_kwargs"] = {"mean": 0.0, "std": getattr(config.td3, name), "device": world.device}
    policies = {name: _DeterministicPolicy(config, spaces) for name in ("policy", "target_policy")}
    return skrl_td3.TD3(models=policies | critics, memory=memory, cfg=settings, **spaces)

"""skrl's PPO for JAX. Networks, experience and optimizer are JAX's; observations and actions cross by DLPack.

Gradients and moments are averaged by the process group of torch, as with every learner: JAX's own plane would need a
second coordinator, installs a handler that swallows SIGTERM, and compiles its reduction again in each call.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import skrl
import skrl.agents.jax.ppo.ppo as ppo_module
import torch
import torch.distributed as dist
from jax.flatten_util import ravel_pytree
from rsl_rl.env import VecEnv
from skrl.agents.jax.ppo import PPO
from skrl.memories.jax import RandomMemory
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.jax import RunningStandardScaler
from skrl.resources.schedulers.jax import KLAdaptiveLR

from shoal.config.skrl import SkrlJaxConfig
from shoal.learn.groups import World, normalised_over_ranks
from shoal.learn.health import refuse_non_finite_update
from shoal.learn.learner import Policy, does_not_fit, refuse_other_shapes
from shoal.learn.skrl.learner import Perceptron, pooled_moments, ppo_settings
from shoal.learn.skrl.rollout import AgentLearner, pooled_advantages
from shoal.learn.training_env import TrainingEnv


class SkrlJaxLearner(AgentLearner):
    """One replica of skrl's PPO for JAX."""

    learning_rate_flag = "--agent.ppo.learning-rate"

    def __init__(self, env: VecEnv, config: SkrlJaxConfig, world: World) -> None:
        super().__init__(env, config, world)
        self.config = config
        settings = skrl.config.jax
        settings.key = _drawn()  # Equal on all ranks, as the first weights are.
        spaces = {**self.inputs.spaces(env.num_actions, math.inf), "device": settings.device}
        models = _make_models(config, world, spaces)
        for role, model in models.items():
            model.init_state_dict(role=role)
        self._policy, self._actions = models["policy"], None
        self.agent: Any = PPO(
            models=models,
            memory=_Memory(memory_size=config.num_steps_per_env, num_envs=env.num_envs, device=spaces["device"]),
            cfg=_settings(config, spaces, world),
            **spaces,
        )
        self.agent.init()
        self.agent.enable_training_mode(enabled=True)

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Step as skrl's trainers do; PPO learns at the end."""
        # From torch's random state, which differs between ranks and is in each rank's file.
        self._policy._g_key, self._policy._g_i = jax.random.PRNGKey(_drawn()), 0  # noqa: SLF001

        def normalise(advantages: jax.Array) -> jax.Array:
            return _to_jax(normalised_over_ranks(_to_torch(advantages), correction=0))

        with pooled_advantages(ppo_module, "_compute_gae", self.world, normalise):
            return super().iterate(env)

    def act(self, inputs: Mapping[str, torch.Tensor], **times: int) -> torch.Tensor:
        """Return actions, and keep them as JAX has them."""
        self._actions, _ = self.agent.act(*(_to_jax(value) for value in inputs.values()), **times)
        return _to_torch(self._actions)

    def record(self, transition: Mapping[str, torch.Tensor], **times: int) -> None:
        """Store a transition."""
        converted = {name: _to_jax(value) for name, value in transition.items() if name != "actions"}
        self.agent.record_transition(**converted, actions=self._actions, infos={}, **times)
        self.world.beat.mark()

    @property
    def _networks(self) -> dict[str, Any]:
        """Models and normalisers. Optimizers change with each step, and skrl's list holds the first ones."""
        parts = self.agent.checkpoint_modules.items()
        return {name: part for name, part in parts if not name.endswith("optimizer")}

    @property
    def _trees(self) -> dict[str, Any]:
        """Everything that is learned, as trees of arrays."""
        trees = {name: part.state_dict.params for name, part in self._networks.items()}
        optimizers = ("policy_optimizer", "value_optimizer")
        return trees | {name: getattr(self.agent, name).state for name in optimizers}

    def replicated(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, normalisers, moments and learning rates."""
        for name, tree in self._trees.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                yield f"{name}{jax.tree_util.keystr(path)}", _to_torch(leaf)
        rates = [self.agent.policy_learning_rate, self.agent.value_learning_rate]
        yield "learning_rate", torch.tensor([float(rate) for rate in rates], dtype=torch.float64)

    def broadcast(self) -> None:
        """Send rank 0's weights and normalisers to all ranks."""
        state = self.state()
        for name in self._networks:
            for tensor in state[name]:
                dist.broadcast(tensor, src=0)
        self.restore(state, weights_only=True)

    def state(self) -> dict[str, Any]:
        """Return the leaves of all trees, learning rates, and the steps so far."""
        state: dict[str, Any] = {
            name: [_to_torch(leaf) for leaf in jax.tree_util.tree_leaves(tree)] for name, tree in self._trees.items()
        }
        rates = [float(self.agent.policy_learning_rate), float(self.agent.value_learning_rate)]
        return {**state, "learning_rates": rates, "steps": self.steps}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore all trees, or without the optimizers."""
        with does_not_fit({}, state):
            for name, tree in self._trees.items():
                if weights_only and name not in self._networks:
                    continue
                leaves, structure = jax.tree_util.tree_flatten(tree)
                saved: list[torch.Tensor] = state[name]
                refuse_other_shapes(name, dict(enumerate(leaves)), dict(enumerate(saved)))
                put = jax.tree_util.tree_unflatten(structure, [_to_jax(tensor) for tensor in saved])
                if name in self._networks:
                    part = self._networks[name]
                    part.state_dict = part.state_dict.replace(params=put)
                else:
                    setattr(self.agent, name, getattr(self.agent, name).replace(state=put))
            if not weights_only:
                self.agent.policy_learning_rate, self.agent.value_learning_rate = state["learning_rates"]
                self.steps = int(state["steps"])

    def policy(self) -> Policy:
        """Return the policy without noise, with its normaliser, as a network of torch."""
        parameters = self._policy.state_dict.params["params"]
        network = Perceptron(self.inputs.sizes["actor"], len(parameters["log_std"]), self.config.hidden_dims)
        layers = [layer for layer in network.layers if isinstance(layer, torch.nn.Linear)]
        with torch.no_grad():
            for index, layer in enumerate(layers):
                layer.weight.copy_(_to_torch(parameters[f"Dense_{index}"]["kernel"]).T)
                layer.bias.copy_(_to_torch(parameters[f"Dense_{index}"]["bias"]))
        scaler = self.agent.checkpoint_modules.get("observation_preprocessor")
        if scaler is not None:
            mean, variance = _to_torch(scaler.running_mean), _to_torch(scaler.running_variance)
            network.normalise(mean, variance, scaler.epsilon, scaler.clip_threshold)
        return self.inputs.policy(network).to(self.world.device)

    def metrics(self) -> dict[str, float]:
        """Return learning rate and exploration noise."""
        spread = jnp.exp(self._policy.state_dict.params["params"]["log_std"]).mean()
        return {"Loss/learning_rate": float(self.agent.policy_learning_rate), "Policy/mean_std": float(spread)}

    def refuse_non_finite(self, losses: Mapping[str, float], *, iteration: int) -> None:
        """Refuse weights or losses that are not finite, if the configuration wants it."""
        if self.check_for_nan:
            leaves = jax.tree_util.tree_leaves([self._trees["policy"], self._trees["value"]])
            weights = [_to_torch(leaf) for leaf in leaves]
            refuse_non_finite_update(weights, losses, iteration=iteration, flag=self.learning_rate_flag)


def _drawn() -> int:
    """Return a seed from torch's random state."""
    return int(torch.randint(2**31 - 1, ()))


def _to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a copy, made by torch: one of JAX might be made after environments have overwritten their arrays."""
    if tensor.dtype == torch.bool:
        tensor = tensor.to(torch.int8)
    return jnp.from_dlpack(tensor.detach().clone(memory_format=torch.contiguous_format))


def _to_torch(array: Any) -> torch.Tensor:  # noqa: ANN401  An array of JAX, or a number.
    return torch.from_dlpack(jnp.asarray(array).block_until_ready()).clone()


def _make_models(config: SkrlJaxConfig, world: World, spaces: Mapping[str, Any]) -> dict[str, Any]:
    """Return policy and critic. flax copies a module with its own fields alone, so that the classes close over ours."""

    def hidden(values: jax.Array) -> jax.Array:
        for width in config.hidden_dims:
            values = nn.elu(nn.Dense(width)(values))
        return values

    class Replicated(Model):
        def reduce_parameters(self, tree: Any) -> Any:  # noqa: ANN401  skrl's signature.
            """Return the mean of a tree over all ranks, in one all_reduce."""
            vector, to_tree = ravel_pytree(tree)
            return to_tree(jnp.from_dlpack(world.sum_(_to_torch(vector)).div_(world.size)))

        def broadcast_parameters(self, *, rank: int = 0) -> None:
            """Do nothing: the training loop has all replicas broadcast."""

    class Policy(GaussianMixin, Replicated):
        """One standard deviation for each action."""

        def __init__(self, **fields: Any) -> None:  # noqa: ANN401  flax's fields.
            Model.__init__(self, **fields)
            GaussianMixin.__init__(self)

        @nn.compact
        def __call__(self, inputs: Mapping[str, jax.Array], role: str) -> tuple[jax.Array, dict[str, Any]]:
            del role
            values = hidden(inputs["observations"])  # Before the last layer, which flax numbers in turn.
            log_std = self.param("log_std", lambda _: jnp.full(self.num_actions, config.initial_log_std))
            return nn.Dense(self.num_actions)(values), {"log_std": log_std}

    class Value(DeterministicMixin, Replicated):
        def __init__(self, **fields: Any) -> None:  # noqa: ANN401  flax's fields.
            Model.__init__(self, **fields)
            DeterministicMixin.__init__(self)

        @nn.compact
        def __call__(self, inputs: Mapping[str, jax.Array], role: str) -> tuple[jax.Array, dict[str, Any]]:
            del role
            values = hidden(inputs["states"])
            return nn.Dense(1)(values), {}

    return {"policy": Policy(**spaces), "value": Value(**spaces)}


class _Memory(RandomMemory):
    """A rollout whose mini-batches are drawn from torch's random state; skrl's come from numpy's, not saved."""

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[jax.Array]]:
        """Return all samples in random order, in mini-batches."""
        del sequence_length
        indexes: Any = torch.randperm(len(self))[:batch_size].numpy()
        return self.sample_by_index(names, indexes=indexes, mini_batches=mini_batches)


class _PooledScaler(RunningStandardScaler):
    """skrl's normaliser with moments over all ranks; its own differ between them."""

    def __init__(self, world: World, **settings: Any) -> None:  # noqa: ANN401  skrl's settings.
        super().__init__(**settings)
        self._world = world

    def __call__(self, x: jax.Array | None, *, train: bool = False, inverse: bool = False) -> jax.Array | None:
        """Normalise, after an update from all ranks if `train`."""
        if x is not None and train:
            flat = x.reshape(-1, x.shape[-1])
            mean, square = _to_torch(flat.mean(axis=0)).double(), _to_torch(jnp.square(flat).mean(axis=0)).double()
            mean, variance, count = pooled_moments(mean, square, len(flat), self._world)
            moments = (mean, variance, count.view(1))
            self._parallel_variance(*(_to_jax(each.float()) for each in moments))  # pyright: ignore[reportArgumentType]
        return super().__call__(x, inverse=inverse)


def _settings(config: SkrlJaxConfig, spaces: Mapping[str, Any], world: World) -> dict[str, Any]:
    """Return skrl's configuration."""
    settings = ppo_settings(config, spaces, world, _PooledScaler)
    if config.ppo.adaptive_kl is not None:
        adapt: Any = KLAdaptiveLR(kl_threshold=config.ppo.adaptive_kl)

        def pooled_kladaptive(**_: Any) -> Any:  # noqa: ANN401  By its name skrl hands it the divergence.
            def schedule(count: int, *, lr: float, kl: float) -> float:
                # skrl has divided by the number of ranks what it has summed over the devices of this one.
                return adapt(count, lr=lr, kl=float(world.sum_(torch.tensor(float(kl), device=world.device))))

            return schedule

        settings["learning_rate_scheduler"] = pooled_kladaptive
    return settings

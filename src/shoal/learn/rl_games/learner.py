"""rl_games' continuous PPO as a learner: its agent collects and updates, and all else is Shoal's."""

import copy
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.schedulers import LinearScheduler
from rl_games.common.tr_helpers import DefaultRewardsShaper
from rl_games.common.vecenv import IVecEnv
from rsl_rl.env import VecEnv
from torch import nn

from shoal.config.rl_games import RlGamesConfig
from shoal.learn.groups import World, normalised_over_ranks
from shoal.learn.inference import FlatObservations
from shoal.learn.learner import Policy, TorchLearner, prints_to_log
from shoal.learn.training_env import TrainingEnv
from shoal.reading import parse_yaml


class RlGamesLearner(TorchLearner):
    """One replica of rl_games' agent."""

    learning_rate_flag = "--agent.learning-rate"

    def __init__(self, env: VecEnv, config: RlGamesConfig, world: World) -> None:
        self.world, self.config = world, config
        self.check_for_nan, self.steps_per_iteration = config.check_for_nan, config.num_steps_per_env
        # The plan has read and checked the file.
        params: dict[str, Any] = config.to_params() if config.yaml is None else parse_yaml(config.yaml)["params"]
        has_states = params["config"].get("central_value_config") is not None
        self._inputs = FlatObservations(env, config, *(("actor", "critic") if has_states else ("actor",)))
        self._env = _Environments(self._inputs, world)
        mini_batch = {"minibatch_size": env.num_envs * config.num_steps_per_env // config.num_mini_batches}
        if has_states:
            params["config"]["central_value_config"] |= mini_batch
        with tempfile.TemporaryDirectory() as scratch, prints_to_log(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Of torch.jit, which it uses for normalisers.
            params["config"] |= {
                "name": "shoal",
                "env_name": "shoal",
                "env_info": self._inputs.spaces(env.num_actions, 1.0),
                "vec_env": self._env,
                "num_actors": env.num_envs,
                "horizon_length": config.num_steps_per_env,
                **mini_batch,
                "seq_length": 1,  # Of recurrent networks; the samples must divide by it.
                "max_epochs": 1,  # Of linear schedules; `iterate` replaces it.
                "device": world.device,
                "multi_gpu": False,  # With True it opens a process group of its own, over NCCL.
                "torch_compile": False,
                "print_stats": False,
                "train_dir": scratch,
                "reward_shaper": DefaultRewardsShaper(**(params["config"].get("reward_shaper") or {})),
                "features": {"observer": self._env},
            }
            self.agent: Any = A2CAgent("shoal", params)
            self.agent.writer.close()
            self.agent.init_tensors()
        self._central = {"central_value": self.agent.central_value_net} if has_states else {}
        """The central critic, if there is one."""
        self._parts: list[Any] = [self.agent, *self._central.values()]
        """What has an optimizer, and its schedule."""
        for part in self._parts:
            part.multi_gpu, part.world_size = world.is_distributed, world.size
            part.global_rank, part.local_rank = world.rank, world.local_rank
            part.optimizer.register_step_post_hook(lambda *_: world.beat.mark())
        for net in self._central.values():
            net.writter = None  # It would make the directory again.

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """The network with its normalisers, and the central critic if there is one."""
        return {"model": self.agent.model, **self._central}

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizers."""
        central = {f"{name}_optimizer": net.optimizer for name, net in self._central.items()}
        return {"optimizer": self.agent.optimizer, **central}

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Run one of rl_games' epochs."""
        agent = self.agent
        self._env.env = env
        for part in self._parts:
            if isinstance(part.scheduler, LinearScheduler):
                part.scheduler.max_steps = env.max_iterations
        if agent.obs is None:
            agent.obs = agent.env_reset()
        agent.update_epoch()
        before = {name: _moments(part) for name, part in self._normalisers()}
        with prints_to_log():
            _, _, _, _, actor, critic, bounds, entropies, kls, *_ = agent.train_epoch()
        agent.dataset.update_values_dict(None)
        for name, part in self._normalisers():
            self._merge(part, before[name])
        losses = {"surrogate": actor, "value": critic, "entropy": entropies, "kl": kls}
        if bounds:
            losses["bounds"] = bounds
        return {
            name: float(torch.stack([each.detach().mean() for each in values]).mean())
            for name, values in losses.items()
        }

    def _normalisers(self) -> Iterator[tuple[str, Any]]:
        for owner, module in self.modules.items():
            for name, part in module.named_modules():
                if hasattr(part, "running_mean"):
                    yield f"{owner}.{name}", part

    def _merge(self, part: Any, before: torch.Tensor) -> None:  # noqa: ANN401  A scripted module.
        """Replace the moments of a normaliser by those of the samples of all ranks."""
        new = _moments(part) - before
        count, total, squares = before + self.world.sum_(new)
        part.running_mean.copy_(total / count)
        part.running_var.copy_(squares / count - part.running_mean.square())
        part.count.copy_(count.flatten()[0])

    def policy(self) -> Policy:
        """Return the means of the actor."""
        return self._inputs.policy(_Deterministic(self.agent.model, clips=self.agent.clip_actions))

    def replicated(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, normalisers, moments, and the state of the schedule."""
        yield from super().replicated()
        yield "last_lr", torch.tensor(float(self.agent.last_lr), dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        """Return networks, optimizers, and the state of the schedule."""
        agent = self.agent
        schedule = {"last_lr": float(agent.last_lr), "entropy_coef": agent.entropy_coef, "epoch": agent.epoch_num}
        return {**super().state(), **schedule}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore networks, and unless `weights_only` optimizers and schedule."""
        super().restore(state, weights_only=weights_only)
        if not weights_only:
            self.agent.last_lr = state["last_lr"]
            self.agent.entropy_coef = state.get("entropy_coef", self.agent.entropy_coef)
            for part in self._parts:
                part.epoch_num = state["epoch"]

    def metrics(self) -> dict[str, float]:
        """Return learning rate and exploration noise."""
        sigma = self.agent.experience_buffer.tensor_dict["sigmas"]
        return {"Loss/learning_rate": float(self.agent.last_lr), "Policy/mean_std": float(sigma.mean())}


def _moments(part: Any) -> torch.Tensor:  # noqa: ANN401  A scripted module.
    """Return count, sum and sum of squares of a normaliser. Shape (3, ...)."""
    mean, variance = part.running_mean.double(), part.running_var.double()
    return torch.stack([part.count.expand_as(mean), part.count * mean, part.count * (variance + mean.square())])


class _Environments(IVecEnv, AlgoObserver):
    """The environments as rl_games steps them; as its observer it learns when a rollout has ended."""

    env: TrainingEnv
    """Set before the first step."""

    def __init__(self, inputs: FlatObservations, world: World) -> None:
        self._inputs, self._world = inputs, world

    def after_init(self, algo: Any) -> None:  # noqa: ANN401
        """Take from the agent, on several ranks, the normalisation of advantages, which it would do on each."""
        self._dataset = algo.dataset
        self._normalises = algo.normalize_advantage and self._world.is_distributed
        algo.normalize_advantage = algo.normalize_advantage and not self._normalises

    def after_steps(self) -> None:
        """Mark the end of the rollout, whose advantages are then normalised over all ranks."""
        self.env.end_rollout()
        if self._normalises:
            values = self._dataset.values_dict
            values["advantages"] = normalised_over_ranks(values["advantages"])

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all environments."""
        _, rewards, dones, extras = self.env.step(actions)
        infos = {"time_outs": extras["time_outs"]} if "time_outs" in extras else {}
        return self.reset(), rewards.clone(), dones.to(torch.uint8), infos

    def reset(self) -> Any:  # noqa: ANN401  A tensor, or a dictionary of them.
        """Return the present observations: the episodes go on."""
        inputs = self._inputs(self.env.observations)
        return {"obs": inputs["actor"], "states": inputs["critic"]} if "critic" in inputs else inputs["actor"]


class _Deterministic(nn.Module):
    """The means of the actor, with its normaliser."""

    def __init__(self, model: Any, *, clips: bool) -> None:  # noqa: ANN401
        super().__init__()
        self.model, self.clips = copy.deepcopy(model), clips

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return actions of shape (num, num_actions)."""
        actions = self.model.a2c_network({"obs": self.model.norm_obs(observations), "is_train": False})[0]
        return actions.clamp(-1.0, 1.0) if self.clips else actions

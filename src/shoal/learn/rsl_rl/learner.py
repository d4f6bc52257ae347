"""rsl_rl's PPO, or an algorithm of the user's own in its frame, as a learner."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner

from shoal.config import DistillationConfig, RslRlConfig
from shoal.config.rsl_rl import to_rsl_rl
from shoal.learn.groups import World
from shoal.learn.learner import Policy, TorchLearner, does_not_fit, prints_to_log
from shoal.learn.rsl_rl.ppo import PPO
from shoal.learn.training_env import TrainingEnv


class RslRlLearner(OnPolicyRunner, TorchLearner):
    """PPO, models and storage are the library's, and its runner builds them; the training loop is not used."""

    networks: ClassVar[tuple[str, ...]] = ("actor", "critic")
    """Networks that may have a memory, which the algorithm holds by these names."""
    learning_rate_flag = "--agent.algorithm.learning-rate"
    algorithms: ClassVar[Mapping[str, type]] = {"PPO": PPO}
    """What is built instead of the library's algorithm of that name."""

    def __init__(self, env: VecEnv, config: RslRlConfig | DistillationConfig, world: World) -> None:
        self.world = world
        self.config: Any = config
        self.check_for_nan = config.check_for_nan
        self.steps_per_iteration = config.num_steps_per_env
        library_config = to_rsl_rl(config)
        algorithm = library_config["algorithm"]["class_name"]
        library_config["algorithm"]["class_name"] = self.algorithms.get(algorithm, algorithm)
        if library_config["algorithm"]["class_name"] is PPO:
            library_config["algorithm"]["cuda_graphs"] = self.config.cuda_graphs
        with prints_to_log():
            super().__init__(env, library_config, log_dir=None, device=world.device)
        # Each mini-batch is progress: an update of many samples takes longer than a hang may.
        self.alg.optimizer.register_step_post_hook(lambda *_: world.beat.mark())

    def _configure_multi_gpu(self) -> None:
        """Set the ranks of the algorithm. The library's version requires NCCL and `cuda:<rank>`."""
        self.is_distributed = self.world.is_distributed
        self.gpu_world_size = self.world.size
        self.gpu_global_rank = self.world.rank
        self.gpu_local_rank = self.world.local_rank
        ranks = {"global_rank": self.world.rank, "local_rank": self.world.local_rank, "world_size": self.world.size}
        self.cfg["multi_gpu"] = ranks if self.world.is_distributed else None

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Collect one rollout, and update from it."""
        self.alg.train_mode()
        with torch.inference_mode():
            # No collective in here, or the time of a rollout does not show which rank is slow.
            for _ in range(self.steps_per_iteration):
                observations, rewards, dones, extras = env.step(self.alg.act(env.observations))
                self.alg.process_env_step(observations, rewards, dones, extras)
                if self.alg.rnd:
                    rnd = {"Rnd/reward": self.alg.intrinsic_rewards, "Rnd/weight": self.alg.rnd.weight}
                    env.statistics.add_log(rnd)
        env.end_rollout()
        with torch.inference_mode():
            self.alg.compute_returns(env.observations)
        self.world.beat.mark()
        try:
            return self.alg.update()
        except RuntimeError:  # torch fails to sample from a policy with NaN weights, and blames the sampling.
            self.refuse_non_finite({}, iteration=env.iteration)
            raise

    def policy(self) -> Policy:
        """Return the actor without noise."""
        return self.get_inference_policy(device=self.device)

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Actor, critic and RND; the first two as they were before they were compiled."""
        networks = {"actor": self.alg._raw_actor, "critic": self.alg._raw_critic}  # noqa: SLF001
        return networks | ({"rnd": self.alg.rnd} if self.alg.rnd else {})

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """The optimizer of actor and critic, and that of RND."""
        rnd = {"rnd_optimizer": self.alg.rnd.optimizer} if self.alg.rnd else {}
        return {"optimizer": self.alg.optimizer, **rnd}

    def broadcast(self) -> None:
        """Send rank 0's weights and normalisers to all ranks."""
        self.alg.broadcast_parameters()

    def replicated(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, normalisers, optimizer moments and learning rates."""
        yield from super().replicated()
        # State of the adaptive schedule; the optimizer has it from the next mini-batch on.
        yield "learning_rate", torch.tensor(self.alg.learning_rate, dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        """Return the state in rsl_rl's layout; what rsl_rl does not save is in `infos`, which is free for users."""
        return {**self.alg.save(), "infos": {"rnd_updates": self.alg.rnd.update_counter if self.alg.rnd else 0}}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore a state that plain rsl_rl may have saved."""
        # A shipped policy is an actor alone.
        networks = {"actor": True, "critic": "critic_state_dict" in state or not weights_only}
        networks["rnd"] = "rnd_state_dict" in state
        with does_not_fit(self.modules, state):
            self.alg.load(dict(state), networks | {"optimizer": not weights_only}, strict=True)
        infos = state.get("infos")
        if self.alg.rnd and not weights_only:
            self.alg.rnd.update_counter = infos.get("rnd_updates", 0) if isinstance(infos, dict) else 0

    def env_rows(self) -> dict[str, torch.Tensor]:
        """Return the memory of recurrent networks, and the discounted sums of RND's reward normaliser."""
        rows = {
            f"{name}/{index}": part.transpose(0, 1)
            for name in self.networks
            for index, part in enumerate(_parts(getattr(self.alg, name).get_hidden_state()))
        }
        discounted = self._discounted_rnd_rewards
        return rows | ({"rnd": discounted.avg} if discounted is not None and discounted.avg is not None else {})

    def put_env_rows(self, rows: Mapping[str, torch.Tensor], num_envs: int) -> None:
        """Restore the memory of the first environments."""
        for name in self.networks:
            model = getattr(self.alg, name)
            parts = [row for key, row in sorted(rows.items()) if key.startswith(f"{name}/")]
            if parts and model.is_recurrent:
                hidden: list[Any] = [
                    _with_zeros(part, num_envs, self.world.device).transpose(0, 1).contiguous() for part in parts
                ]
                model.reset(hidden_state=hidden[0] if len(hidden) == 1 else tuple(hidden))
        discounted, sums = self._discounted_rnd_rewards, rows.get("rnd")
        if discounted is not None and sums is not None:
            discounted.avg = _with_zeros(sums, num_envs, self.world.device)

    @property
    def _discounted_rnd_rewards(self) -> Any:  # noqa: ANN401  A private class of rsl_rl.
        """The object whose `avg` has each environment's discounted sum of RND rewards; None without.

        RND's reward normaliser learns from them, and rsl_rl saves only its moments.
        """
        return getattr(self.alg.rnd.reward_normalizer, "disc_avg", None) if self.alg.rnd else None

    def metrics(self) -> dict[str, float]:
        """Return learning rate and exploration noise."""
        policy = self.alg.get_policy()
        spread = {} if policy.distribution is None else {"Policy/mean_std": float(policy.output_std.detach().mean())}
        return {"Loss/learning_rate": float(self.alg.learning_rate), **spread}


def _parts(hidden: torch.Tensor | tuple[torch.Tensor, ...] | None) -> tuple[torch.Tensor, ...]:
    """Return the hidden state of a recurrent network as a tuple: two parts of an LSTM, one of a GRU."""
    if hidden is None:
        return ()
    return hidden if isinstance(hidden, tuple) else (hidden,)


def _with_zeros(rows: torch.Tensor, num_envs: int, device: str) -> torch.Tensor:
    """Return rows for `num_envs` environments on `device`, with zeros for new ones."""
    padded = torch.zeros(num_envs, *rows.shape[1:], dtype=rows.dtype, device=device)
    padded[: len(rows)] = rows
    return padded

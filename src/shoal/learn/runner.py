"""rsl_rl's on-policy runner, made to run on any rank of any world.

The learner is the library's: its PPO, its models, its storage, and its `reduce_parameters`, which averages gradients
over ranks. What is ours is the loop around it: pooled statistics instead of rank 0's, checkpoints that appear whole,
an iteration count that says what is done, replica checks, and a stop that all ranks agree on.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from rsl_rl.runners import OnPolicyRunner

from shoal.config import MujocoConfig
from shoal.envs.capabilities import capabilities_of
from shoal.errors import TrainingFailedError
from shoal.learn.checkpoints import Snapshot
from shoal.learn.curriculum import pool_curriculum, restore_curriculum
from shoal.learn.health import refuse_many_lost, refuse_non_finite_rollout, refuse_non_finite_update
from shoal.learn.ppo import PPO
from shoal.learn.replicas import compare_replicas
from shoal.learn.state import random_state, rows_of
from shoal.learn.statistics import WHOLE_REWARD, Seconds, Statistics
from shoal.learn.stragglers import Stragglers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rsl_rl.env import VecEnv
    from tensordict import TensorDict

    from shoal.config import TrainConfig
    from shoal.learn.groups import World
    from shoal.learn.metrics import Row
    from shoal.learn.statistics import Pooled

logger = logging.getLogger(__name__)

_RESEEDED = 1_000_003
"""Between the seeds of one iteration and the next: a run that goes on with other workers must not begin as it began."""

_LOST = "lost environments"
"""Among what ranks count for each other, beside the names of signals."""


@dataclass(slots=True)
class Totals:
    """What a run adds up over all its iterations, over resumes too."""

    steps: int = 0
    """Environment steps of all ranks."""
    seconds: float = 0.0
    """Time spent in iterations [s]."""
    episodes: int = 0
    """Episodes that ended on any rank."""


class Runner(OnPolicyRunner):
    """Trains one replica of the policy among `world.size` of them."""

    def __init__(self, env: VecEnv, config: TrainConfig, world: World) -> None:
        """Build networks, optimizer and storage for this rank. The process group must be open.

        Args:
            env: Any environment of rsl_rl's. One that names `episode_terms` has `extras["episode_sums"]`.
            config: What was asked.
            world: All ranks.
        """
        self.world = world
        self.config = config
        self.capabilities = capabilities_of(env)
        self.iteration = 0
        self.totals = Totals()
        self.num_resumed = 0
        """How many of this rank's environments go on with an episode of a checkpoint: the first ones."""
        self.stragglers = Stragglers()
        self._warned: set[str] = set()  # Kinds of warnings that were logged.
        self.statistics = Statistics(world, env.num_envs, self.capabilities.episode_terms)
        library_config = config.agent.to_rsl_rl()
        if library_config["algorithm"]["class_name"] == "PPO":
            library_config["algorithm"]["class_name"] = PPO
        with _library_prints_to_log():
            super().__init__(env, library_config, log_dir=None, device=world.device)
        # Each mini-batch is progress: an update of many samples takes longer than a hang may.
        self.alg.optimizer.register_step_post_hook(lambda *_: world.beat.mark())

    def _configure_multi_gpu(self) -> None:
        """Tell the algorithm about the other ranks: the library's own version insists on NCCL and on `cuda:<rank>`."""
        self.is_distributed = self.world.is_distributed
        self.gpu_world_size = self.world.size
        self.gpu_global_rank = self.world.rank
        self.gpu_local_rank = self.world.local_rank
        places = {
            "global_rank": self.world.rank,
            "local_rank": self.world.local_rank,
            "world_size": self.world.size,
        }
        self.cfg["multi_gpu"] = places if self.world.is_distributed else None

    def synchronize(self) -> None:
        """Give every rank rank 0's weights and normalisers, and prove that it has them.

        Optimizer, learning rate and totals are not sent: they are new on every rank, or each rank has loaded the
        same checkpoint.
        """
        if self.world.is_distributed:
            self.alg.broadcast_parameters()
        digest = compare_replicas(self.alg, self.world, when="after the first broadcast")
        logger.debug("All %d replicas hold the learner %s.", self.world.size, digest)

    def train(
        self,
        *,
        on_row: Callable[[Row], None],
        save: Callable[[Snapshot], None],
        stop_requests: Callable[[], Mapping[str, bool]],
        on_step: Callable[[int], None] | None = None,
        keep_lost: Callable[[int], str | None] | None = None,
    ) -> str | None:
        """Train until `config.max_iterations` are done, or until any rank was asked to stop.

        Args:
            on_row: Called on every rank with the pooled metrics of each iteration.
            save: Called on every rank with what it has to save; the learner is rank 0's. It must copy what it keeps.
            stop_requests: Tells by name what this rank was asked, such as a signal it received. All ranks stop
                after the same iteration, after a checkpoint.
            on_step: Called after each step of the environments with its number, counted from 0 over the whole run.
            keep_lost: Called with the iteration, counted from 1, when its rollout is not finite on this rank. Keeps
                what led there, and returns the words that tell how to look at it, if there is anything.

        Returns:
            The name of the request that ended training early, or None.
        """
        # Episodes that end at different times give steadier statistics, and less correlated samples.
        new = self.env.episode_length_buf[self.num_resumed :]
        if len(new):
            drawn = torch.randint_like(new, high=int(self.env.max_episode_length))
            self.env.episode_length_buf = torch.cat([self.env.episode_length_buf[: self.num_resumed], drawn])
        self.statistics.set_ages(self.env.episode_length_buf)
        observations = self.env.get_observations()
        self.alg.train_mode()
        stop: str | None = None
        # All time is told: an iteration begins where the one before was counted, and pays for its checkpoint.
        counted = time.perf_counter()
        self.world.spent.take()  # What the beginning took is no iteration's.
        while self.iteration < self.config.max_iterations and stop is None:
            self.world.beat.begin_iteration(self.iteration + 1)
            started = time.perf_counter()
            self.world.beat.enter("rollout")
            observations = self._collect(observations, on_step, keep_lost)
            collected = time.perf_counter()
            self.world.beat.enter("update")
            losses = self._update(observations)
            learned = time.perf_counter()
            asked = stop_requests()
            counts = {**asked, _LOST: self._take_warnings()}
            seconds = Seconds(collected - started, learned - collected, self.world.spent.take())
            pooled = self.statistics.pool(losses, seconds, counts)
            self.iteration += 1
            self._refuse_many_lost(pooled.counts[_LOST])
            if self.config.agent.check_for_nan:
                refuse_non_finite_update(self.alg.optimizer, pooled.losses, iteration=self.iteration)
            stop = next((name for name in asked if pooled.counts[name]), None)
            took = (now := time.perf_counter()) - counted
            counted = now
            self._count(pooled, took)
            self._warn_of_stragglers(pooled)
            row = self._row(pooled, took)
            on_row(row)
            last = stop is not None or self.iteration == self.config.max_iterations
            self._compare_when_due(last=last)
            self._save_when_due(save, row, last=last)
        # A run that is done was not ended early, whatever came in its last iteration.
        return stop if self.iteration < self.config.max_iterations else None

    def _collect(
        self,
        observations: TensorDict,
        on_step: Callable[[int], None] | None,
        keep_lost: Callable[[int], str | None] | None,
    ) -> TensorDict:
        """Fill the storage with one rollout. It waits for no other rank, so that its time tells who is slow."""
        with torch.inference_mode():
            steps = self.config.agent.num_steps_per_env
            for step in range(self.iteration * steps, (self.iteration + 1) * steps):
                actions = self.alg.act(observations)
                observations, rewards, dones, extras = self.env.step(actions)
                self.alg.process_env_step(observations, rewards, dones, extras)
                self.statistics.add_step(rewards, dones, extras)
                self.world.beat.mark()
                if on_step is not None:
                    on_step(step)
                if self.alg.rnd:
                    curiosity = {"Rnd/reward": self.alg.intrinsic_rewards, "Rnd/weight": self.alg.rnd.weight}
                    self.statistics.add_log(curiosity)
            if self.config.agent.check_for_nan:
                place = {"rank": self.world.rank, "iteration": self.iteration + 1}
                refuse_non_finite_rollout(self.alg.storage, observations, keep_lost=keep_lost, **place)
            elif self.world.device != "cpu":
                torch.cuda.synchronize(self.world.device)  # Or the rollout's time is that of queueing it.
        return observations

    def _take_warnings(self) -> int:
        """Log each kind of warning of this rank's simulation once; return the number of divergences."""
        diverged, warnings = self.capabilities.take_warnings()
        for kind in warnings.keys() - self._warned:
            logger.warning("On rank %d, %s", self.world.rank, warnings[kind])
        self._warned |= warnings.keys()
        return diverged

    def _refuse_many_lost(self, lost: int) -> None:
        """Stop, on all ranks alike, when the simulation loses more environments than the task can bear."""
        if isinstance(self.config.env, MujocoConfig):
            num_envs, limit = self.env.num_envs * self.world.size, self.config.env.lost_limit
            refuse_many_lost(lost, num_envs, limit, iteration=self.iteration)

    def _update(self, observations: TensorDict) -> dict[str, float]:
        """Learn from the rollout, which `observations` follow on, and return mean losses."""
        with torch.inference_mode():
            self.alg.compute_returns(observations)
        self.world.beat.mark()
        try:
            return self.alg.update()
        except RuntimeError:  # torch refuses to draw from a policy whose weights are NaN, in words that blame the draw.
            if self.config.agent.check_for_nan:
                refuse_non_finite_update(self.alg.optimizer, {}, iteration=self.iteration + 1)
            raise

    def _warn_of_stragglers(self, pooled: Pooled) -> None:
        """Say on rank 0 when one rank has begun to keep all others waiting."""
        warning = self.stragglers.look(pooled.rank_seconds)
        if warning is not None and self.world.is_first:
            logger.warning("%s", warning)

    def _count(self, pooled: Pooled, seconds: float) -> None:
        """Add one iteration to the totals."""
        self.totals.steps += self.samples_per_iteration
        self.totals.seconds += seconds
        self.totals.episodes += pooled.episodes

    @property
    def seed(self) -> int:
        """Seed of what begins on this rank with the present iteration."""
        return self.config.seed + self.world.rank + _RESEEDED * self.iteration

    @property
    def samples_per_iteration(self) -> int:
        """Environment steps of all ranks in one iteration."""
        return self.config.agent.num_steps_per_env * self.env.num_envs * self.world.size

    def _row(self, pooled: Pooled, seconds: float) -> Row:
        """Return the metrics of this iteration, under rsl_rl's names where it has one."""
        policy = self.alg.get_policy()
        row = {
            "iteration": float(self.iteration),
            "max_iterations": float(self.config.max_iterations),
            **pooled.means,
            "Loss/learning_rate": float(self.alg.learning_rate),
            "Perf/total_fps": self.samples_per_iteration / seconds,
            "Perf/iteration_time": seconds,
            "Perf/slowest_rank_collection_time": max(pooled.rank_seconds),
            "Train/total_steps": float(self.totals.steps),
            "Train/total_time": self.totals.seconds,
            "Train/total_episodes": float(self.totals.episodes),
        }
        if isinstance(self.config.env, MujocoConfig):
            row["Env/lost"] = float(pooled.counts[_LOST])
        if policy.distribution is not None:
            row["Policy/mean_std"] = float(policy.output_std.detach().mean())
        return row

    def _compare_when_due(self, *, last: bool) -> None:
        """Compare all replicas every `check_replicas_every` iterations, and at the end."""
        every = self.config.check_replicas_every
        if last or (every and self.iteration % every == 0):
            compare_replicas(self.alg, self.world, when=f"after iteration {self.iteration}")

    def _save_when_due(self, save: Callable[[Snapshot], None], row: Row, *, last: bool) -> None:
        """Save every `save_interval` iterations, and at the end, with the score by which the best is chosen."""
        if last or self.iteration % self.config.agent.save_interval == 0:
            curriculum = pool_curriculum(self.capabilities, self.world)
            # Returns on different levels of a curriculum cannot be compared.
            metric = self.capabilities.best_metric or (None if curriculum else WHOLE_REWARD)
            snapshot = Snapshot(
                iteration=self.iteration,
                world_size=self.world.size,
                learner=self.state(curriculum) if self.world.is_first else None,
                rank=self.world.rank,
                own={"rows": rows_of(self), "random": random_state(self.world.device)},
                about={"num_envs": self.env.num_envs, "score": row.get(metric) if metric else None, "metric": metric},
            )
            save(snapshot)

    def state(self, curriculum: Mapping[str, list[float]] | None = None) -> dict[str, Any]:
        """Return all that `restore` needs, in rsl_rl's own layout, so that plain rsl_rl loads it too.

        rsl_rl's `iter` is the iteration last done, counted from 0.

        Args:
            curriculum: What `pool_curriculum` has returned.
        """
        totals = {
            "steps": self.totals.steps,
            "seconds": self.totals.seconds,
            "episodes": self.totals.episodes,
        }
        return {
            **self.alg.save(),
            "iter": self.iteration - 1,
            "infos": {
                "totals": totals,
                "statistics": self.statistics.history(),
                "curriculum": dict(curriculum or {}),
                "rnd_updates": self.alg.rnd.update_counter if self.alg.rnd else 0,
            },
        }

    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Take up a saved state: everything, or with `weights_only` the networks and normalisers alone."""
        networks = {"actor": True, "critic": True, "rnd": "rnd_state_dict" in state}
        try:
            self.alg.load(state, networks | {"optimizer": not weights_only}, strict=True)
            last_done = int(state["iter"])
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, KeyError, ValueError) as error:
            message = (
                f"The checkpoint does not fit the networks of this training ({error}). "
                "Pass the observation groups and hidden sizes that it was trained with."
            )
            raise TrainingFailedError(message) from error
        if weights_only:
            return
        self.iteration = last_done + 1
        infos = state.get("infos")  # rsl_rl leaves them to whoever saves.
        ours = infos if isinstance(infos, dict) and "totals" in infos else {}
        self.totals = Totals(**ours.get("totals", {}))
        self.statistics.take_history(ours.get("statistics", {}))
        # Or new environments would be copies of the run's first, which go on elsewhere.
        self.capabilities.restart(self.seed)
        restore_curriculum(self.capabilities, ours.get("curriculum", {}))
        if self.alg.rnd:
            self.alg.rnd.update_counter = ours.get("rnd_updates", 0)


@contextlib.contextmanager
def _library_prints_to_log() -> Iterator[None]:
    """Send what rsl_rl prints while it builds (models, observation sets) to the log, at DEBUG."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            logger.debug("%s", line)

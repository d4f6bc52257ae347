"""The training loop around a learner, on one rank or many.

Statistics pooled over ranks, checkpoints that appear whole, a count of iterations done, replica checks, non-finite
checks, and a stop that all ranks agree on.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rsl_rl.env import VecEnv

from shoal.config import MujocoConfig, TrainConfig
from shoal.config.plain import from_plain
from shoal.envs.capabilities import BAD_REWARD, capabilities_of
from shoal.errors import TrainingFailedError, UsageError
from shoal.learn.checkpoints import Snapshot
from shoal.learn.groups import World
from shoal.learn.health import refuse_many_diverged
from shoal.learn.learner import Learner, does_not_fit, refuse_other_moments
from shoal.learn.metrics import Row
from shoal.learn.replicas import compare_replicas
from shoal.learn.running_evaluation import RunningEvaluation
from shoal.learn.state import collect_rows, random_state, restore_curriculum
from shoal.learn.statistics import EVALUATION_RETURN, WHOLE_REWARD, Pooled, Seconds, Statistics
from shoal.learn.stragglers import Stragglers
from shoal.learn.training_env import TrainingEnv
from shoal.plan.changes import counted_in_return
from shoal.plan.checkpoints import check_learner
from shoal.seeds import derived_seed

logger = logging.getLogger(__name__)

_DIVERGED = "diverged environments"
"""Key of a count that is pooled together with the stop requests."""


@dataclass(slots=True)
class Totals:
    """Sums over all iterations of a run, resumes included."""

    steps: int = 0
    """Environment steps of all ranks."""
    seconds: float = 0.0
    """Time spent in iterations [s]."""
    episodes: int = 0
    """Episodes that ended on any rank."""


class TrainingLoop:
    """Trains one replica of a learner among `world.size` of them. The process group must be open."""

    def __init__(self, env: VecEnv, learner: Learner, config: TrainConfig, world: World) -> None:
        self.env, self.learner, self.config, self.world = env, learner, config, world
        self.capabilities = capabilities_of(env)
        self.iteration = 0
        self.totals = Totals()
        self.num_resumed = 0
        """Number of environments that continue an episode of a checkpoint: the first ones of this rank."""
        self.evaluation: RunningEvaluation | None = None
        """An evaluation of an earlier iteration that no row has yet."""
        self.stragglers = Stragglers()
        self._warned: set[str] = set()  # Kinds of warnings that were logged.
        terms, terminations = self.capabilities.episode_terms, self.capabilities.terminations
        self.statistics = Statistics(world, env.num_envs, terms, terminations)

    def synchronize(self) -> None:
        """Broadcast rank 0's weights and normalisers, and compare all replicas.

        Optimizer, learning rate and totals are not sent: they are new, or each rank has loaded the same checkpoint.
        """
        if self.world.is_distributed:
            self.learner.broadcast()
        digest = compare_replicas(self.learner, self.world, when="after the first broadcast")
        logger.debug("All %d replicas hold the learner %s.", self.world.size, digest)

    def train(  # noqa: PLR0913  All by name.
        self,
        *,
        on_row: Callable[[Row], None],
        save: Callable[[Snapshot], None],
        stop_requests: Callable[[], Mapping[str, bool]],
        on_step: Callable[[int], None] | None = None,
        dump_diverged: Callable[[int], str | None] | None = None,
        evaluate: Callable[[], Row | RunningEvaluation] | None = None,
    ) -> str | None:
        """Train until `config.max_iterations` are done, or until any rank has a stop request.

        Args:
            on_row: Called on every rank with the pooled metrics of each iteration.
            save: Called on every rank with its snapshot, whose tensors it must copy.
            stop_requests: Returns this rank's stop requests by name, such as a signal it received. All ranks stop
                after the same iteration, after a checkpoint.
            on_step: Called after each step of the environments with its number, counted from 0 over the whole run.
            dump_diverged: Called with the iteration, counted from 1, when its rollout is not finite on this rank.
                Writes the history of diverged environments, and returns how to replay it; None if there is none.
            evaluate: Called on rank 0 every `config.eval_interval` iterations and after the last one. Returns metrics
                of the policy, which rank 0's row then has, too, or an evaluation that goes on beside the training:
                see `_take_evaluation`.

        Returns:
            The name of the request that ended training early, or None.
        """
        # Episodes that end at different times give steadier statistics, and less correlated samples.
        new = self.env.episode_length_buf[self.num_resumed :]
        if len(new):
            drawn = torch.randint_like(new, high=int(self.env.max_episode_length))
            self.env.episode_length_buf = torch.cat([self.env.episode_length_buf[: self.num_resumed], drawn])
        self.statistics.set_ages(self.env.episode_length_buf)
        env = TrainingEnv(self.env, self.world, self.statistics, self.config)
        env.on_step, env.dump_diverged = on_step, dump_diverged
        stop: str | None = None
        # No time is left out: an iteration begins where the previous one was counted, and includes its checkpoint.
        counted = time.perf_counter()
        self.world.collective_timer.take()  # Start-up belongs to no iteration.
        while self.iteration < self.config.max_iterations and stop is None:
            env.begin_iteration(self.iteration + 1, self.learner.steps_per_iteration)
            started = time.perf_counter()
            losses = self.learner.iterate(env)
            took, collection = time.perf_counter() - started, env.collection_seconds
            requests = stop_requests()
            diverged, bad_reward = self._take_warnings()
            counts = {**requests, _DIVERGED: diverged, BAD_REWARD: bad_reward is not None}
            seconds = Seconds(collection, took - collection, self.world.collective_timer.take())
            pooled = self.statistics.pool(losses, seconds, counts)
            self.iteration += 1
            self._refuse_many_diverged(pooled.counts, bad_reward)
            self.capabilities.follow_metrics(pooled.means)
            self.learner.refuse_non_finite(pooled.losses, iteration=self.iteration)
            stop = next((name for name in requests if pooled.counts[name]), None)
            # Within the iteration's time, and not after a signal, which does not leave much time.
            evaluated = {} if evaluate is None else self._take_evaluation(evaluate, stop_requests, stopped=bool(stop))
            took = (now := time.perf_counter()) - counted
            counted = now
            self.totals.steps += self.samples_per_iteration
            self.totals.seconds += took
            self.totals.episodes += pooled.episodes
            warning = self.stragglers.check(pooled.rank_seconds)
            if warning is not None and self.world.is_first:
                logger.warning("%s", warning)
            row = self._row(pooled, took) | evaluated
            on_row(row)
            last = stop is not None or self.iteration == self.config.max_iterations
            every = self.config.check_replicas_every
            if last or (every and self.iteration % every == 0):
                compare_replicas(self.learner, self.world, when=f"after iteration {self.iteration}")
            self._save_when_due(save, row, last=last)
        # A finished run was not ended early, even if a request came in its last iteration.
        return stop if self.iteration < self.config.max_iterations else None

    def _is_evaluated(self, iteration: int) -> bool:
        """Whether an iteration is evaluated."""
        every = self.config.eval_interval
        return bool(every) and (iteration % every == 0 or iteration == self.config.max_iterations)

    def _take_evaluation(
        self,
        evaluate: Callable[[], Row | RunningEvaluation],
        stop_requests: Callable[[], Mapping[str, bool]],
        *,
        stopped: bool,
    ) -> Row:
        """Begin an evaluation if it is due, and return the metrics of one that has ended.

        An evaluation beside the training ends at the latest in the last iteration before the next one, which waits for
        it, as does the last of all: each has a row. A stop cancels it.
        """
        started, due = time.perf_counter(), not stopped and self._is_evaluated(self.iteration)
        row: Row = {}
        if due:
            begun = evaluate()
            if isinstance(begun, RunningEvaluation):
                self.evaluation, self._evaluated = begun, self.iteration
            else:
                row = {**begun, "Eval/iteration": float(self.iteration)}
        if self.evaluation is not None:
            last = self.iteration == self.config.max_iterations
            if stopped:
                self.evaluation.cancel()
            elif last or self._is_evaluated(self.iteration + 1):
                self.evaluation.wait(self.world.beat, lambda: not last and any(stop_requests().values()))
            if self.evaluation.is_done:
                metrics, self.evaluation = self.evaluation.metrics(), None
                row = metrics and {**metrics, "Eval/iteration": float(self._evaluated)}
        return {**row, "Perf/evaluation_time": time.perf_counter() - started} if due or row else {}

    def _take_warnings(self) -> tuple[int, str | None]:
        """Log each kind of warning of this rank's simulation once.

        Returns:
            The number of environments that diverged, and the sentence about a reward that was not finite.
        """
        diverged, warnings = self.capabilities.take_warnings()
        for kind in warnings.keys() - self._warned:
            logger.warning("On rank %d, %s", self.world.rank, warnings[kind])
        self._warned |= warnings.keys()
        return diverged, warnings.get(BAD_REWARD)

    def _refuse_many_diverged(self, counts: Mapping[str, int], bad_reward: str | None) -> None:
        """Stop all ranks when more environments have diverged than `diverged_limit` allows."""
        if isinstance(self.config.env, MujocoConfig):
            num_envs, limit = self.env.num_envs * self.world.size, self.config.env.diverged_limit
            cause = "The reward of another rank was NaN or infinite, whose log names its term"
            cause = f"On rank {self.world.rank}, {bad_reward}" if bad_reward else cause if counts[BAD_REWARD] else None
            refuse_many_diverged(counts[_DIVERGED], num_envs, limit, iteration=self.iteration, cause=cause)

    @property
    def seed(self) -> int:
        """Seed of this rank for what begins in this iteration: a run that resumes must not repeat its beginning."""
        return derived_seed(self.config.seed, self.world.rank, self.iteration)

    @property
    def samples_per_iteration(self) -> int:
        """Environment steps of all ranks in one iteration."""
        return self.learner.steps_per_iteration * self.env.num_envs * self.world.size

    def _row(self, pooled: Pooled, seconds: float) -> Row:
        """Return the metrics of this iteration, under rsl_rl's names where it has one."""
        row = {
            "iteration": float(self.iteration),
            "max_iterations": float(self.config.max_iterations),
            **pooled.means,
            **self.learner.metrics(),
            "Perf/total_fps": self.samples_per_iteration / seconds,
            "Perf/iteration_time": seconds,
            "Perf/slowest_rank_collection_time": max(pooled.rank_seconds),
            "Train/total_steps": float(self.totals.steps),
            "Train/total_time": self.totals.seconds,
            "Train/total_episodes": float(self.totals.episodes),
        }
        if isinstance(self.config.env, MujocoConfig):
            row["Env/diverged"] = float(pooled.counts[_DIVERGED])
        return row

    def _save_when_due(self, save: Callable[[Snapshot], None], row: Row, *, last: bool) -> None:
        """Save every `save_interval` iterations, and at the end, with the score by which the best is chosen."""
        if last or self.iteration % self.config.agent.save_interval == 0:
            # Numbers of environments, not the level of each: they fit any number of workers and environments.
            curriculum = {
                name: self.world.sum_(torch.as_tensor(counts, dtype=torch.float64, device=self.world.device)).tolist()
                for name, counts in self.capabilities.curriculum().items()
            }
            # Returns on different levels of a curriculum cannot be compared.
            metric = self.capabilities.best_metric or (None if curriculum else WHOLE_REWARD)
            if self.config.eval_interval:  # An evaluation has no curriculum.
                metric = EVALUATION_RETURN
            score = row.get(metric, math.nan) if metric else math.nan
            score = score if math.isfinite(score) else None
            snapshot = Snapshot(
                iteration=self.iteration,
                world_size=self.world.size,
                learner=self.state(curriculum) if self.world.is_first else None,
                rank=self.world.rank,
                rank_state={"rows": collect_rows(self), "random": random_state(self.world.device)},
                metadata={
                    "num_envs": self.env.num_envs,
                    "learner": self.config.learner,
                    # All iterations with a checkpoint are evaluated: what still runs is the evaluation of this one.
                    "score": score if self.evaluation is None else self.evaluation.score,
                    "metric": metric,
                    "counted": counted_in_return(self.config.env)
                    if metric in (EVALUATION_RETURN, WHOLE_REWARD)
                    else None,
                },
            )
            save(snapshot)

    def state(self, curriculum: Mapping[str, list[float]] | None = None) -> dict[str, Any]:
        """Return the state for `restore` in rsl_rl's layout, so that plain rsl_rl loads it too.

        rsl_rl's `iter` is the iteration last done, counted from 0. `curriculum` has the counts of all ranks by name.
        """
        state = self.learner.state()
        ours = {
            "totals": asdict(self.totals),
            "statistics": self.statistics.history(),
            "curriculum": dict(curriculum or {}),
        }
        own = {"iter": self.iteration - 1, "learner": self.config.learner}
        return {**state, **own, "infos": {**state.get("infos", {}), **ours}}

    def restore(self, state: dict[str, Any], *, weights_only: bool = False) -> None:
        """Restore a saved state: everything, or with `weights_only` only networks and normalisers."""
        check_learner(state, self.config.learner)
        self.learner.restore(state, weights_only=weights_only)
        if weights_only:
            return
        infos = state.get("infos")  # Free for users of rsl_rl.
        ours = infos if isinstance(infos, dict) and "totals" in infos else {}
        try:
            self.iteration = int(state["iter"]) + 1
            self.totals = from_plain(Totals, ours.get("totals", {}))
            self.statistics.restore_history(ours.get("statistics", {}))
        except (LookupError, ValueError, TypeError, AttributeError, UsageError) as error:
            raise TrainingFailedError(f"The checkpoint does not say how far its training was ({error!r}).") from error
        # Or new environments would be copies of the run's first, which go on elsewhere.
        self.capabilities.restart(self.seed)
        with does_not_fit({}, state):
            for name, optimizer in getattr(self.learner, "optimizers", {}).items():
                refuse_other_moments(name, optimizer)
            restore_curriculum(self.capabilities, state)

"""The work of one rank in an evaluation: take parts from the queue until none is left, each on this rank's device."""

import gc
import logging
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store

from shoal.checks.film import choose_gl
from shoal.config.plain import from_plain
from shoal.envs.building import VecEnv, build_vec_env
from shoal.envs.capabilities import capabilities_of
from shoal.errors import TrainingFailedError, reason_of
from shoal.jobs.episodes import run_part
from shoal.jobs.ledger import Claim, Ledger, state_of
from shoal.jobs.policies import CheckpointPolicy, JobPolicy, open_policy, policy_device
from shoal.jobs.recording import Recording
from shoal.jobs.results import write_summary
from shoal.learn.groups import World, group_timeout, process_group
from shoal.plan.job import Job, JobFiles, Part
from shoal.plan.spec import EvaluateSpec
from shoal.seeds import derived_seed
from shoal.signals import ERRORS, StopRequests
from shoal.sim.gpu_memory import refuse_broken_gpu
from shoal.sim.isolation import isolated
from shoal.sim.render.film import make_film
from shoal.sim.render.reel import Reel
from shoal.tasks import registry
from shoal.timing import POLL_S

logger = logging.getLogger(__name__)

_FILM_SIZE = (640, 480)
"""Width and height of films [pixels]: a report shows several."""
_RETRY_ELSEWHERE_S = 10.0
"""How long a part that failed on this rank is left to others, once there is nothing else to do [s]."""


def run_jobs(
    spec: EvaluateSpec,
    world: World,
    *,
    stop: StopRequests,
    store: Callable[[], Store] | None,
    threads: int,
) -> None:
    """Run parts of the queue as one rank, until all jobs are finished or failed.

    Raises:
        ShoalError: A signal came, the GPU cannot be used any more, or with `fail_fast` a job failed.
    """
    timeout = group_timeout(spec.config.startup_timeout, spec.config.stall_timeout)
    ledger = Ledger(
        out=spec.run.path, jobs=spec.jobs, rank=world.rank, world_size=world.size, assignment=spec.assignment
    )
    with (
        isolated(world.device, threads=threads),
        process_group(world, backend=spec.backend, store=store, timeout=timeout),
    ):
        worker = _Worker(spec, ledger, world, stop)
        worker.run()


class _Worker:
    """One rank at work. Environments and policy are kept for the next part, if it has the same."""

    def __init__(self, spec: EvaluateSpec, ledger: Ledger, world: World, stop: StopRequests) -> None:
        self._spec, self._ledger, self._world, self._stop = spec, ledger, world, stop
        self._env: tuple[Any, VecEnv] | None = None
        self._policy: tuple[Any, JobPolicy] | None = None
        self._parts = 0
        self._reported: set[tuple[str, str, str]] = set()
        """Failures that were logged: outcome, job, and reason. Those of further parts are in the results alone."""

    def run(self) -> None:
        idle_since: float | None = None
        several = self._world.size > 1 and self._spec.assignment == "queue"
        while not self._ledger.is_done():
            waited = 0.0 if idle_since is None else time.monotonic() - idle_since
            claim = self._ledger.claim(avoid_own_failures=several and waited < _RETRY_ELSEWHERE_S)
            if claim is None:  # Others run what is left; it comes back here if they fail.
                if idle_since is None:
                    idle_since = time.monotonic()
                    self._world.beat.enter("queue")
                time.sleep(POLL_S)
                self._mark()
                continue
            idle_since = None
            self._parts += 1
            self._world.beat.begin_iteration(self._parts)
            self._attempt(claim)
        self._free()

    def _attempt(self, claim: Claim) -> None:
        """Run a part. What it raises is a failure of its job, and not of this rank."""
        job, begun = claim.job, time.monotonic()
        try:
            self._run(claim)
        except Exception as error:
            if self._stop.first is not None:
                raise
            self._free()
            reason = reason_of(error)
            self._ledger.fail(claim, reason, traceback.format_exc())
            has_failed = state_of(self._ledger.out, job) == "failed"
            what = "The job failed" if has_failed else "It is tried again"
            failure = what, job.name, reason.split("\n")[0]
            if failure not in self._reported:
                logger.warning("%s: part %d of %s failed (%s).", what, claim.part.number, *failure[1:])
            self._reported.add(failure)
            refuse_broken_gpu(self._world.device, self._world.rank, error)
            if has_failed and self._spec.fail_fast:
                raise TrainingFailedError(f"The job {job.name} failed, and --fail-fast ends all: {reason}") from error
            return
        self._ledger.complete(claim, time.monotonic() - begun)
        if state_of(self._ledger.out, job) == "finished":
            write_summary(self._ledger.out, job)
        if self._world.is_first:
            done, total = self._ledger.progress()
            logger.info("%d of %d parts done; the last one was of %s.", done, total, job.name)

    def _run(self, claim: Claim) -> None:
        job, part = claim.job, claim.part
        env = self._environment(job, part)
        policy = self._policy_of(job, env)
        self._world.beat.enter("evaluate")
        stride = job.num_envs * job.rebuilds
        recording = Recording(part.first, stride) if job.record else None
        reel = None
        if job.video and part.number == 0:
            reel = Reel(capabilities_of(env).picture(), int(env.max_episode_length), _FILM_SIZE)

        def on_step() -> None:
            self._mark()
            if reel is not None and not reel.is_full:
                reel.take()

        run_part(claim, env, policy, on_step=on_step, recording=recording)
        if recording is not None:
            with self._ledger.folder.open(claim.recording_file(self._world.rank), "w+") as file:
                recording.write(file)
        if reel is not None:
            film = JobFiles(self._ledger.out / job.name).film
            make_film(reel.cut(), film, choose_gl(self._world.device, os.environ), self._ledger.folder)

    def _mark(self) -> None:
        """Mark progress; stop after a signal."""
        self._world.beat.mark()
        name = self._stop.first
        if name is not None:
            raise ERRORS[name](f"{name} ended the evaluation: the same command goes on with what is missing.")

    def _environment(self, job: Job, part: Part) -> VecEnv:
        """Return the job's environments: those of the last part, if they are the same and can begin anew."""
        seed = derived_seed(job.seed, part.build)
        key = (job.task, job.env, job.num_envs, seed)
        if self._env is None or self._env[0] != key:
            self._free()
            self._env = key, self._build(job, seed)
        if not capabilities_of(self._env[1]).can_restart:
            self._free()
            self._env = None, self._build(job, derived_seed(seed, part.first))  # For this part only.
        return self._env[1]

    def _build(self, job: Job, seed: int) -> VecEnv:
        """Build the job's environments."""
        task, world = registry.resolve(job.task), self._world
        torch.manual_seed(seed)
        config = from_plain(task.env, job.env)
        return build_vec_env(task, config, num_envs=job.num_envs, device=world.device, seed=seed, beat=world.beat)

    def _policy_of(self, job: Job, env: VecEnv) -> JobPolicy:
        """Return the job's policy: that of the last part, if it is the same."""
        key = (job.config, job.learner, job.agent, job.policy_device)
        if self._policy is not None and self._policy[0] == (job.policy, *key):
            return self._policy[1]
        if self._policy is not None and self._policy[0][1:] == key and isinstance(self._policy[1], CheckpointPolicy):
            policy = self._policy[1]  # Of another checkpoint.
            policy.load(Path(job.policy))
        else:
            self._policy, spec = None, self._spec
            device = policy_device(job, spec.policy_device, spec.policy_device_id, env_device=env.device)
            policy = open_policy(job, env, device)
        self._policy = (job.policy, *key), policy
        return policy

    def _free(self) -> None:
        """Give back the memory of environments and policy."""
        self._env = self._policy = None
        gc.collect()
        if self._world.device != "cpu":
            torch.cuda.empty_cache()

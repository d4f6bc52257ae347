"""The work of one rank in an evaluation: take parts from the queue until none is left, each on this rank's device."""

import gc
import logging
import math
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store

from shoal.checks.optional import choose_gl
from shoal.config.plain import from_plain
from shoal.envs.capabilities import capabilities_of
from shoal.envs.vec_env import VecEnv, build_vec_env
from shoal.errors import ShoalError, TrainingFailedError, reason_of
from shoal.jobs.ledger import Claim, Ledger, state_of
from shoal.jobs.policies import DevicePolicy, JobPolicy, open_policy, policy_device
from shoal.jobs.recording import Recording
from shoal.jobs.results import write_summary
from shoal.learn.episodes import Episode, Step, run_episodes
from shoal.learn.evaluation import TrainedPolicy
from shoal.learn.groups import World, group_timeout, process_group
from shoal.plan.job import EvaluatePlan, Job, JobFiles, Part
from shoal.seeds import derived_seed
from shoal.signals import ERRORS, StopRequests
from shoal.sim.gpu_memory import refuse_broken_gpu
from shoal.sim.isolation import isolated
from shoal.sim.render.recorder import Recorder
from shoal.sim.render.video import make_video
from shoal.tasks import registry
from shoal.timing import POLL_S

logger = logging.getLogger(__name__)

_VIDEO_SIZE = (640, 480)
"""Width and height of videos [pixels]: a report shows several."""
_RETRY_ELSEWHERE_S = 10.0
"""How long a part that failed on this rank is left to others, once there is nothing else to do [s]."""


def run_jobs(
    plan: EvaluatePlan, world: World, *, stop: StopRequests, store: Callable[[], Store] | None, threads: int
) -> None:
    """Run parts of the queue as one rank, until all jobs are finished or failed.

    Raises:
        ShoalError: A signal came, the GPU cannot be used any more, or with `fail_fast` a job failed.
    """
    timeout = group_timeout(plan.config.startup_timeout, plan.config.stall_timeout)
    ledger = Ledger(
        out=plan.run.path, jobs=plan.jobs, rank=world.rank, world_size=world.size, assignment=plan.config.assignment
    )
    with (
        isolated(world.device, threads=threads, beat=world.beat),
        process_group(world, backend=plan.backend, store=store, timeout=timeout),
    ):
        _Worker(plan, ledger, world, stop).run()


class _Worker:
    """One rank at work. Environments and policy are kept for the next part, if it has the same."""

    def __init__(self, plan: EvaluatePlan, ledger: Ledger, world: World, stop: StopRequests) -> None:
        self._config, self._ledger, self._world, self._stop = plan.config, ledger, world, stop
        self._env: tuple[Any, VecEnv] | None = None
        self._policy: tuple[Any, JobPolicy] | None = None
        self._parts = 0
        self._reported: set[tuple[str, str, str]] = set()
        """Failures that were logged: outcome, job, and reason. Those of further parts are in the results alone."""

    def run(self) -> None:
        idle_since = math.inf
        several = self._world.size > 1 and self._config.assignment == "queue"
        while not self._ledger.is_done():
            waited = time.monotonic() - idle_since
            claim = self._ledger.claim(avoid_own_failures=several and waited < _RETRY_ELSEWHERE_S)
            if claim is None:  # Others run what is left; it comes back here if they fail.
                idle_since = min(idle_since, time.monotonic())
                self._world.beat.enter("queue")
                time.sleep(POLL_S)
                self._mark()
                continue
            idle_since = math.inf
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
            if has_failed and self._config.fail_fast:
                raise TrainingFailedError(f"The job {job.name} failed, and --fail-fast ends all: {reason}") from error
            return
        self._ledger.complete(claim, time.monotonic() - begun)
        if state_of(self._ledger.out, job) == "finished":
            write_summary(self._ledger.out, job)
        if self._world.is_first:
            done, total = self._ledger.progress()
            logger.info("%d of %d parts done; the last one was of %s.", done, total, job.name)

    def _run(self, claim: Claim) -> None:
        """Run one episode in each environment, or those that begin in each within `num_steps` steps."""
        job, part = claim.job, claim.part
        env = self._environment(job, part)
        policy = self._policy_of(job, env)
        self._world.beat.enter("evaluate")
        stride = job.num_envs * job.rebuilds
        environments, recorder = capabilities_of(env), None
        if job.video and part.number == 0:
            recorder = Recorder(environments.picture(), int(env.max_episode_length), _VIDEO_SIZE)
        environments.restart(job.seed, part.first)
        environments.take_warnings()
        recording = Recording(environments, part.first, stride) if job.record else None
        policy.begin(range(part.first, part.first + env.num_envs), job.seed)
        end = time.monotonic() + (job.timeout or math.inf)

        def write(row: int, episode: Episode) -> None:
            index = part.first + row + episode.pop("number") * stride
            claim.write({"index": index, "seed": job.seed, **episode})

        def watch(step: Step) -> None:
            if recording is not None:
                recording.add(step)
            self._mark()
            if recorder is not None and not recorder.is_full:
                recorder.take()
            if time.monotonic() > end:
                raise ShoalError(
                    f"Part {part.number} of the job {job.name} took longer than its timeout of {job.timeout:g} s: "
                    "raise `timeout`, or pass fewer `num_envs`."
                )

        run_episodes(env, policy, part.count, write, within=job.num_steps or 0, on_step=watch)
        if recording is not None:
            with self._ledger.folder.open(claim.recording_file(self._world.rank), "w+") as file:
                recording.write(file)
        if recorder is not None:
            video = JobFiles(self._ledger.out / job.name).video
            make_video(recorder.cut(), video, choose_gl(self._world.device, os.environ), self._ledger.folder)

    def _mark(self) -> None:
        """Mark progress; stop after a signal."""
        self._world.beat.mark()
        name = self._stop.first
        if name is not None:
            raise ERRORS[name](f"{name} ended the evaluation: the same command goes on with what is missing.")

    def _environment(self, job: Job, part: Part) -> VecEnv:
        """Return the job's environments: those of the last part, if they are the same and can begin again."""
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
        config = from_plain(task.env, job.env)
        return build_vec_env(task, config, num_envs=job.num_envs, device=world.device, seed=seed, beat=world.beat)

    def _policy_of(self, job: Job, env: VecEnv) -> JobPolicy:
        """Return the job's policy: that of the last part, if it is the same."""
        key = (job.config, job.learner, job.agent, job.policy_device)
        if self._policy is not None and self._policy[0] == (job.policy, *key):
            return self._policy[1]
        policy = self._policy and self._policy[0][1:] == key and self._policy[1]
        if isinstance(policy, DevicePolicy) and isinstance(policy.policy, TrainedPolicy):
            policy.policy.load(Path(job.policy))  # Another checkpoint of the same networks.
        else:
            self._policy = policy = None
            device = policy_device(job, self._config.policy_device, env_device=env.device)
            policy = open_policy(job, env, device)
        self._policy = (job.policy, *key), policy
        return policy

    def _free(self) -> None:
        """Give back the memory of environments and policy."""
        self._env = self._policy = None
        gc.collect()
        torch.cuda.empty_cache()  # Nothing, unless this process uses a GPU.

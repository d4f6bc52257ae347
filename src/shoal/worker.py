"""The work of one rank, the same in every launch mode: device, environments, process group, training, export; or jobs.

The order must hold: isolation before anything allocates, environments with captured graphs before the process group,
first weights before the first step.
"""

from __future__ import annotations

import logging
import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError, reason_of
from shoal.heartbeat import Heartbeat
from shoal.learn.metrics import Row
from shoal.plan.checkpoints import Checkpoint, best_good, model_sums
from shoal.plan.ranks import Rank, usable_threads
from shoal.plan.spec import EvaluateSpec, SweepSpec, TrainSpec, WorkerSpec
from shoal.provenance import git_state, now, versions
from shoal.shell import join_command
from shoal.signals import ERRORS, StopRequests
from shoal.tasks import registry
from shoal.user_code import load

if TYPE_CHECKING:
    from torch.distributed import Store

    from shoal.envs.building import VecEnv
    from shoal.learn.checkpoints import Snapshot
    from shoal.learn.groups import World
    from shoal.learn.loop import TrainingLoop

logger = logging.getLogger(__name__)

_RUN_TRIALS = "shoal.sweep.worker:run_trials"
"""Named, not imported: it is of a higher layer, and calls `run_worker` for each trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The result of a worker that finished, in plain values."""

    rank: int
    host: str
    device: str
    iteration: int = 0
    digest: str = ""
    """Fingerprint of the learner at the end, equal on every rank."""
    last_row: Row = field(default_factory=dict[str, float])
    """Pooled metrics of the last iteration; empty without one."""
    distance: dict[str, float] = field(default_factory=dict[str, float])
    """Measurements of `learn.collective_latency`, if `probe` is set."""


def run_worker(  # noqa: PLR0913  All by name.
    job: WorkerSpec,
    rank: Rank,
    *,
    stop: StopRequests,
    store: Callable[[], Store] | None = None,
    on_row: Callable[[Row], None] | None = None,
    beat: Heartbeat | None = None,
    network: Mapping[str, str] | None = None,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Train as one rank, run evaluation jobs, or train trials of a sweep.

    Args:
        job: The work, the same on every rank.
        rank: This worker's rank.
        stop: Stop signals received; read between iterations.
        store: Opens the store of the process group; None for a single worker.
        on_row: Called on rank 0 with the metrics of each iteration.
        beat: This rank's heartbeat.
        network: Variables by which gloo and NCCL reach other nodes.

    Returns:
        The report, and what exports the policy, if this rank has to; to be called once the report is written.

    Raises:
        ShoalError: The work failed, or a signal ended it.
    """
    # Everything heavy is imported here: processes that only plan import this module too.
    from shoal.learn.groups import World

    device = job.nodes[0].devices[rank.local_rank]
    world = World(
        rank=rank.rank,
        local_rank=rank.local_rank,
        size=rank.world_size,
        device=device,
        local_size=rank.local_world_size,
        beat=beat or Heartbeat(),
        network=network or {},
    )
    if isinstance(job, EvaluateSpec):
        from shoal.jobs.worker import run_jobs

        run_jobs(job, world, stop=stop, store=store, threads=usable_threads(rank))
    elif isinstance(job, SweepSpec):
        load(_RUN_TRIALS)(job, rank, stop=stop, on_row=on_row, beat=world.beat)
    elif isinstance(job, TrainSpec):
        return _train(job, world, stop=stop, store=store, on_row=on_row, threads=usable_threads(rank))
    else:
        raise TypeError(type(job))
    return WorkerReport(rank=world.rank, host=platform.node(), device=device), lambda: None


def _train(  # noqa: PLR0913  All by name.
    job: TrainSpec,
    world: World,
    *,
    stop: StopRequests,
    store: Callable[[], Store] | None,
    on_row: Callable[[Row], None] | None,
    threads: int,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Train as one rank; return the report, and what exports the policy."""
    from shoal.learn.filming import filming
    from shoal.learn.groups import group_timeout, process_group
    from shoal.sim.gpu_memory import translate_memory_errors
    from shoal.sim.isolation import isolated

    flag = "--num-envs" if job.config.num_envs_total is None else "--num-envs-total"
    with translate_memory_errors(world.device, job.num_envs, flag), isolated(world.device, threads=threads):
        env, evaluation_env = _build_envs(job, world)
        timeout = group_timeout(job.config.startup_timeout, job.config.stall_timeout)
        with (
            # Around the group: no other rank waits for the last film.
            filming(env, job.config, job.run, world, hurry=lambda: stop.first is not None) as on_step,
            process_group(world, backend=job.backend, store=store, timeout=timeout),
        ):
            return _learn(job, world, env, evaluation_env, stop=stop, on_row=on_row, on_step=on_step)


def _build_envs(job: TrainSpec, world: World) -> tuple[VecEnv, VecEnv | None]:
    """Build this rank's environments, seeded by its rank, and those of `--eval-interval`, which rank 0 alone has.

    The GPU memory that `shoal.plan.sizes` counts is without the second ones: an evaluation has few, and no experience.
    """
    from shoal.envs.building import build_vec_env
    from shoal.envs.capabilities import capabilities_of, costs_of
    from shoal.learn.evaluation import EVALUATION_SEED
    from shoal.seeds import derived_seed
    from shoal.sim.kernel_cache import exclusive_kernel_cache

    spec = registry.resolve(job.config.task)
    seed = derived_seed(job.config.seed, world.rank)
    _seed_everything(seed)
    env = build_vec_env(spec, job.config.env, num_envs=job.num_envs, device=world.device, seed=seed, beat=world.beat)
    environments = capabilities_of(env)
    if job.config.agent.needs_final_observations:
        with exclusive_kernel_cache():
            environments.keep_final_observations()
    if world.is_first and (costs := costs_of(env)):
        logger.info("What %s does not offer: %s. See docs/guide/your_own_environment.md.", spec.name, "; ".join(costs))
    evaluation_env = None
    if job.config.eval_interval and not environments.can_restart:
        raise UsageError(
            f"--eval-interval was asked for, but {spec.name} cannot begin the same episodes again: leave it out, or "
            "give the environments a restart(), see docs/guide/your_own_environment.md."
        )
    if job.config.eval_interval and world.is_first:
        config, num_envs = job.config.env.in_play().undisturbed(), job.config.eval_episodes
        evaluation_env = build_vec_env(
            spec, config, num_envs=num_envs, device=world.device, seed=EVALUATION_SEED, beat=world.beat
        )
    world.beat.enter("startup")
    return env, evaluation_env


def _learn(  # noqa: PLR0913  All by name.
    job: TrainSpec,
    world: World,
    env: VecEnv,
    evaluation_env: VecEnv | None,
    *,
    stop: StopRequests,
    on_row: Callable[[Row], None] | None,
    on_step: Callable[[int], None] | None,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Build the learner, synchronise all replicas, and train; with an `evaluation_env` evaluate meanwhile."""
    from shoal.learn.allocator import keep_freed_memory
    from shoal.learn.checkpoint_transfer import CheckpointTransfer
    from shoal.learn.checkpoint_writer import CheckpointWriter
    from shoal.learn.collective_latency import measure_collective_latency
    from shoal.learn.evaluation import evaluate_learner
    from shoal.learn.groups import group_timeout
    from shoal.learn.learners import build_learner
    from shoal.learn.loop import TrainingLoop
    from shoal.learn.metrics import open_writers
    from shoal.learn.replicas import compare_replicas

    if world.device == "cpu":
        keep_freed_memory()
    _seed_everything(job.config.seed)  # The same first weights on every rank,
    loop = TrainingLoop(env, build_learner(env, job.config, world), job.config, world)
    _begin(job, loop)

    transfer = CheckpointTransfer(world, job.run, group_timeout(job.config.startup_timeout, job.config.stall_timeout))
    checkpoints = CheckpointWriter(job.run, world, job.config, transfer)
    about = _about(job, env) if world.is_first else {}
    writers = open_writers(job.run, job.config, loop.iteration) if world.is_first else []
    last_row: Row = {}

    def take_row(row: Row) -> None:
        nonlocal last_row
        last_row = row
        checkpoints.check()
        world.beat.enter("metrics")
        for writer in writers:
            writer.write(row)
        if on_row is not None and world.is_first:
            on_row(row)

    def save(snapshot: Snapshot) -> None:
        world.beat.enter("checkpoint")
        checkpoints.save(replace(snapshot, metadata={**snapshot.metadata, "time": now(), **about}))

    try:
        stopped_by = loop.train(
            on_row=take_row,
            save=save,
            stop_requests=stop.flags,
            on_step=on_step,
            dump_diverged=partial(_keep_lost, job, world, env),
            evaluate=evaluation_env
            and partial(evaluate_learner, loop.learner, evaluation_env, world, num_envs=env.num_envs),
        )
        world.beat.enter("checkpoint")
        checkpoints.wait()
        world.beat.enter("closing")
    finally:
        checkpoints.close()
        for writer in writers:
            writer.close()
    # A collective, also after a signal: a rank that ended before rank 0 has saved would alarm its launcher.
    digest = compare_replicas(loop.learner, world, when="at the end")
    if stopped_by is not None:
        raise ERRORS[stopped_by](
            f"{stopped_by} ended the run after iteration {loop.iteration}, with a checkpoint: pass --resume to go on."
        )
    distance = {} if job.probe is None else measure_collective_latency(world, job.probe)
    report = WorkerReport(
        rank=world.rank,
        host=platform.node(),
        device=world.device,
        iteration=loop.iteration,
        digest=digest,
        last_row=last_row,
        distance=distance,
    )
    exports = job.config.export and world.is_first
    return report, partial(_export, job, env, loop) if exports else lambda: None


def _begin(job: TrainSpec, loop: TrainingLoop) -> None:
    """Synchronise all replicas, with the state of the checkpoint to start from, if any; then record the launch."""
    from shoal.learn.checkpoint_transfer import local_copy
    from shoal.learn.checkpoints import read_checkpoint
    from shoal.learn.interface import refuse_other_terms
    from shoal.learn.run_json import write_launch
    from shoal.learn.state import resume_environments

    start, world = job.start, loop.world
    if start is None:
        loop.synchronize()
        _seed_everything(loop.seed)  # Each rank draws other actions.
        return
    with local_copy(Path(start.model), world) as model:
        if start.mode == "teacher":
            loop.learner.restore(read_checkpoint(model), weights_only=True)
        else:
            refuse_other_terms(job.config, start, model, loop.env)
            loop.restore(read_checkpoint(model), weights_only=start.mode == "weights")
        loop.synchronize()
        _seed_everything(loop.seed)
        if start.mode == "continue":
            resume_environments(loop, Checkpoint(model.parent))
            world.gather_strings([])  # A collective: every rank has restored.
            if job.launch and world.is_first:
                write_launch(job.run, job.config, job.launch)


def _about(job: TrainSpec, env: VecEnv) -> dict[str, Any]:
    """Return what the manifest of each checkpoint says about code, terms and models."""
    from shoal.learn.interface import interface_of

    code = {"versions": versions(), "git": git_state()}
    return code | {"interface": interface_of(env), "models": model_sums(job.run)}


def _keep_lost(job: TrainSpec, world: World, env: VecEnv, iteration: int) -> str | None:
    """Write the history of environments of this rank that diverged; a failure costs one warning.

    Returns:
        How to show it, or which reward term was not finite; None where neither is known.
    """
    from shoal.envs.capabilities import BAD_REWARD, capabilities_of
    from shoal.sim.nan.dump import write_dump

    file = job.run.lost_npz(world.rank)
    try:
        dump = capabilities_of(env).dump(job.config.task, rank=world.rank, iteration=iteration)
        if dump is None:
            bad_reward = capabilities_of(env).take_warnings()[1].get(BAD_REWARD)
            return bad_reward and f"On rank {world.rank}, {bad_reward}"
        write_dump(dump, file, job.run.folder)
    except OSError as error:
        logger.warning("What led to the lost environments cannot be kept in %s (%s).", file, error)
        return None
    first = dump.envs[0]
    return (
        f"`shoal replay {join_command([str(file)])}` shows how environment {first.env} of rank {world.rank} was lost "
        f"in step {first.step:,}"
    )


def _export(job: TrainSpec, env: VecEnv, loop: TrainingLoop) -> None:
    """Write the last policy, and the best one that was saved; a failure costs one warning."""
    from shoal.learn.checkpoints import read_checkpoint

    exported = Checkpoint(job.run.checkpoint_dir(loop.iteration))
    best = best_good(job.run)
    try:
        _export_as(job.run.policy_onnx, exported, job, env, loop)
        if best is not None and best != exported:
            exported = best
            loop.restore(read_checkpoint(best.model), weights_only=True)
            loop.iteration = best.iteration
            _export_as(job.run.best_onnx, best, job, env, loop)
    except Exception as error:  # noqa: BLE001  Exporters raise many kinds, and the training has succeeded.
        logger.warning(
            "The policy was not exported (%s). To try again: shoal export %s --checkpoint %s",
            reason_of(error).partition("\n")[0],
            job.config.task,
            exported.path,
        )


def _export_as(file: Path, checkpoint: Checkpoint, job: TrainSpec, env: VecEnv, loop: TrainingLoop) -> None:
    """Write the policy of `loop`, which has the state of `checkpoint`."""
    from shoal.learn.export import exportable_policy, write_policy

    name = registry.resolve(job.config.task).name
    source = str(checkpoint.path.relative_to(job.run.path.parent))
    policy = exportable_policy(loop.learner, env, name=name, checkpoint=source, iteration=loop.iteration)
    write_policy(policy, file, job.run.folder)


def _seed_everything(seed: int) -> None:
    """Seed the random states of networks, rollouts and user code."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  User code may draw from the global state.
    torch.manual_seed(seed)

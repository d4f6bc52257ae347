"""The work of one rank, the same in every launch mode: device, environments, process group, training, export; or jobs.

The order must hold: isolation before anything allocates, environments with captured graphs before the process group,
first weights before the first step. This module imports all that a training needs: processes that only plan do not
import it.
"""

import logging
import platform
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import Store

from shoal.envs.capabilities import BAD_REWARD, capabilities_of, costs_of
from shoal.envs.vec_env import VecEnv, build_vec_env
from shoal.errors import UsageError, reason_of
from shoal.heartbeat import Heartbeat
from shoal.learn.allocator import keep_freed_memory
from shoal.learn.checkpoint_transfer import CheckpointTransfer, local_copy
from shoal.learn.checkpoint_writer import CheckpointWriter
from shoal.learn.checkpoints import Snapshot, read_checkpoint
from shoal.learn.collective_latency import measure_collective_latency
from shoal.learn.evaluation import EVALUATION_SEED, evaluator_of
from shoal.learn.export import exportable_policy, write_policy
from shoal.learn.groups import World, group_timeout, process_group
from shoal.learn.interface import interface_of, refuse_other_terms
from shoal.learn.learner import build_learner
from shoal.learn.loop import TrainingLoop
from shoal.learn.metrics import Row, open_writers
from shoal.learn.replicas import compare_replicas
from shoal.learn.run_json import write_launch
from shoal.learn.state import restore_curriculum, resume_environments
from shoal.learn.videos import recording
from shoal.plan.checkpoints import Checkpoint, best_good, model_sums
from shoal.plan.job import EvaluatePlan
from shoal.plan.launch import Plan
from shoal.plan.ranks import Rank, usable_threads
from shoal.plan.training import TrainPlan
from shoal.provenance import git_state, now, versions
from shoal.run_record import WorkerReport
from shoal.seeds import derived_seed
from shoal.signals import ERRORS, StopRequests
from shoal.sim.gpu_memory import translate_memory_errors
from shoal.sim.isolation import isolated
from shoal.sim.nan.dump import write_dump
from shoal.tasks import registry
from shoal.text import join_command

logger = logging.getLogger(__name__)


def run_worker(  # noqa: PLR0913  All by name.
    plan: Plan,
    rank: Rank,
    *,
    stop: StopRequests,
    store: Callable[[], Store] | None = None,
    on_row: Callable[[Row], None] | None = None,
    beat: Heartbeat | None = None,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Train as one rank, or run evaluation jobs.

    Args:
        plan: The work, the same on every rank.
        rank: This worker's rank.
        stop: Stop signals received; read between iterations.
        store: Opens the store of the process group; None for a single worker.
        on_row: Called on rank 0 with the metrics of each iteration.
        beat: This rank's heartbeat.

    Returns:
        The report, and what exports the policy, if this rank has to; to be called once the report is written.

    Raises:
        ShoalError: The work failed, or a signal ended it.
    """
    node = plan.nodes[0]
    world = World(
        rank=rank.rank,
        local_rank=rank.local_rank,
        size=rank.world_size,
        device=node.devices[rank.local_rank],
        local_size=rank.local_world_size,
        beat=beat or Heartbeat(),
        network=node.network,
    )
    if isinstance(plan, TrainPlan):
        return _train(plan, world, stop=stop, store=store, on_row=on_row, threads=usable_threads(rank))
    if isinstance(plan, EvaluatePlan):
        from shoal.jobs.worker import run_jobs  # What policies and recordings need.

        run_jobs(plan, world, stop=stop, store=store, threads=usable_threads(rank))
    return WorkerReport(rank=world.rank, host=platform.node(), device=world.device), lambda: None


def _train(  # noqa: PLR0913  All by name.
    plan: TrainPlan,
    world: World,
    *,
    stop: StopRequests,
    store: Callable[[], Store] | None,
    on_row: Callable[[Row], None] | None,
    threads: int,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Train as one rank; return the report, and what exports the policy."""
    flag = "--num-envs" if plan.config.num_envs_total is None else "--num-envs-total"
    precision = plan.config.agent.matmul_precision
    with (
        translate_memory_errors(world.device, plan.config.num_envs, flag),
        isolated(world.device, threads=threads, matmul_precision=precision, beat=world.beat),
    ):
        env, evaluation_env = _build_envs(plan, world)
        timeout = group_timeout(plan.config.startup_timeout, plan.config.stall_timeout)
        with (
            # Around the group: no other rank waits for the last video.
            recording(env, plan.config, plan.run, world, hurry=lambda: stop.first is not None) as on_step,
            process_group(world, backend=plan.backend, store=store, timeout=timeout),
        ):
            return _learn(plan, world, env, evaluation_env, stop=stop, on_row=on_row, on_step=on_step)


def _build_envs(plan: TrainPlan, world: World) -> tuple[VecEnv, VecEnv | None]:
    """Build this rank's environments, seeded by its rank, and those of `--eval-interval`, which rank 0 alone has.

    The GPU memory that `shoal.plan.sizes` counts is without the second ones: an evaluation has few, and no experience.
    """
    spec = registry.resolve(plan.config.task)
    seed = derived_seed(plan.config.seed, world.rank)
    _seed_everything(seed)
    env = build_vec_env(
        spec, plan.config.env, num_envs=plan.config.num_envs, device=world.device, seed=seed, beat=world.beat
    )
    environments = capabilities_of(env)
    if plan.config.agent.needs_final_observations:
        environments.keep_final_observations()
    if world.is_first and (costs := costs_of(env)):
        logger.info("What %s does not offer: %s. See docs/guide/your_own_environment.md.", spec.name, "; ".join(costs))
    evaluation_env = None
    if plan.config.eval_interval and not environments.can_restart:
        raise UsageError(
            f"--eval-interval was asked for, but {spec.name} cannot begin the same episodes again: leave it out, or "
            "give the environments a restart(), see docs/guide/your_own_environment.md."
        )
    if plan.config.eval_interval and world.is_first:
        config, num_envs = plan.config.env.in_play().undisturbed(), plan.config.eval_episodes
        evaluation_env = build_vec_env(
            spec, config, num_envs=num_envs, device=world.device, seed=EVALUATION_SEED, beat=world.beat
        )
    world.beat.enter("startup")
    return env, evaluation_env


def _learn(  # noqa: PLR0913  All by name.
    plan: TrainPlan,
    world: World,
    env: VecEnv,
    evaluation_env: VecEnv | None,
    *,
    stop: StopRequests,
    on_row: Callable[[Row], None] | None,
    on_step: Callable[[int], None] | None,
) -> tuple[WorkerReport, Callable[[], None]]:
    """Build the learner, synchronise all replicas, and train; with an `evaluation_env` evaluate meanwhile."""
    if world.device == "cpu":
        keep_freed_memory()
    _seed_everything(plan.config.seed)  # The same first weights on every rank,
    loop = TrainingLoop(env, build_learner(env, plan.config, world), plan.config, world)
    _begin(plan, loop)

    transfer = CheckpointTransfer(
        world, plan.run, group_timeout(plan.config.startup_timeout, plan.config.stall_timeout)
    )
    checkpoints = CheckpointWriter(plan.run, world, plan.config, transfer)
    about = _about(plan, env) if world.is_first else {}
    writers = open_writers(plan.run, plan.config, loop.iteration) if world.is_first else []
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

    evaluate = evaluation_env and evaluator_of(loop.learner, evaluation_env, world, num_envs=env.num_envs)
    try:
        stopped_by = loop.train(
            on_row=take_row,
            save=save,
            stop_requests=stop.flags,
            on_step=on_step,
            dump_diverged=partial(_keep_diverged, plan, world, env),
            evaluate=evaluate,
        )
        world.beat.enter("checkpoint")
        checkpoints.wait()
        world.beat.enter("closing")
    finally:
        if loop.evaluation is not None:  # First: a checkpoint may wait for its score.
            loop.evaluation.cancel()
        checkpoints.close()
        for writer in writers:
            writer.close()
    # A collective, also after a signal: a rank that ended before rank 0 has saved would alarm its launcher.
    digest = compare_replicas(loop.learner, world, when="at the end")
    if stopped_by is not None:
        raise ERRORS[stopped_by](
            f"{stopped_by} ended the run after iteration {loop.iteration}, with a checkpoint: pass --resume to go on."
        )
    latency = {} if plan.probe is None else measure_collective_latency(world, plan.probe)
    report = WorkerReport(
        rank=world.rank,
        host=platform.node(),
        device=world.device,
        iteration=loop.iteration,
        digest=digest,
        last_row=last_row,
        collective_latency=latency,
    )
    exports = plan.config.export and world.is_first
    return report, partial(_export, plan, env, loop) if exports else lambda: None


def _begin(plan: TrainPlan, loop: TrainingLoop) -> None:
    """Synchronise all replicas, with the state of the checkpoint to start from, if any; then record the launch."""
    start, world = plan.start, loop.world
    if start is None:
        loop.synchronize()
        _seed_everything(loop.seed)  # Each rank draws other actions.
        return
    with local_copy(Path(start.model), world) as model:
        if start.mode == "teacher":
            loop.learner.restore(read_checkpoint(model), weights_only=True)
        else:
            refuse_other_terms(plan.config, start, model, loop.env)
            loop.restore(read_checkpoint(model), weights_only=start.mode == "weights")
        loop.synchronize()
        _seed_everything(loop.seed)
        if start.mode == "continue":
            resume_environments(loop, Checkpoint(model.parent))
            world.gather_strings([])  # A collective: every rank has restored.
            if plan.launch and world.is_first:
                write_launch(plan.run, plan.config, plan.launch)


def _about(plan: TrainPlan, env: VecEnv) -> dict[str, Any]:
    """Return what the manifest of each checkpoint says about code, terms and models."""
    code = {"versions": versions(), "git": git_state()}
    return code | {"interface": interface_of(env), "models": model_sums(plan.run)}


def _keep_diverged(plan: TrainPlan, world: World, env: VecEnv, iteration: int) -> str | None:
    """Write the history of environments of this rank that diverged; a failure costs one warning.

    Returns:
        How to show it, or which reward term was not finite; None where neither is known.
    """
    file = plan.run.diverged_npz(world.rank)
    try:
        dump = capabilities_of(env).dump(plan.config.task, rank=world.rank, iteration=iteration)
        if dump is None:
            bad_reward = capabilities_of(env).take_warnings()[1].get(BAD_REWARD)
            return bad_reward and f"On rank {world.rank}, {bad_reward}"
        write_dump(dump, file, plan.run.folder)
    except OSError as error:
        logger.warning("What led to the diverged environments cannot be kept in %s (%s).", file, error)
        return None
    first = dump.envs[0]
    return (
        f"`shoal replay {join_command([str(file)])}` shows how environment {first.env} of rank {world.rank} diverged "
        f"in step {first.step:,}"
    )


def _export(plan: TrainPlan, env: VecEnv, loop: TrainingLoop) -> None:
    """Write the last policy, and the best one that was saved; a failure costs one warning."""
    exported = Checkpoint(plan.run.checkpoint_dir(loop.iteration))
    best = best_good(plan.run)
    try:
        _export_as(plan.run.policy_onnx, exported, plan, env, loop)
        if best is not None and best != exported:
            exported = best
            state = read_checkpoint(best.model)
            loop.restore(state, weights_only=True)
            restore_curriculum(loop.capabilities, state)
            loop.iteration = best.iteration
            _export_as(plan.run.best_onnx, best, plan, env, loop)
    except Exception as error:  # noqa: BLE001  Exporters raise many kinds, and the training has succeeded.
        logger.warning(
            "The policy was not exported (%s). To try again: shoal export %s --checkpoint %s",
            reason_of(error).partition("\n")[0],
            plan.config.task,
            exported.path,
        )


def _export_as(file: Path, checkpoint: Checkpoint, plan: TrainPlan, env: VecEnv, loop: TrainingLoop) -> None:
    """Write the policy of `loop`, which has the state of `checkpoint`."""
    name = registry.resolve(plan.config.task).name
    source = str(checkpoint.path.relative_to(plan.run.path.parent))
    policy = exportable_policy(loop.learner, env, name=name, checkpoint=source, iteration=loop.iteration)
    write_policy(policy, file, plan.run.folder)


def _seed_everything(seed: int) -> None:
    """Seed the random states of networks, rollouts and user code."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  User code may draw from the global state.
    torch.manual_seed(seed)

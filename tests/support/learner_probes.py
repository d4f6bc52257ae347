"""What ranks do in `tests/learn/test_two_ranks.py`: each probe returns plain values for the tests to read.

One launch runs them all, since starting two ranks costs many seconds. The tests say what the values mean.
"""

from __future__ import annotations

import copy
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from support.learner_agents import AGENTS, new_loop, tensors_of
from support.learners import NUM_ENVS, NUM_STEPS, CountedOperations, tiny_agent, tiny_config, tiny_loop, train
from support.recorded_task import RECORDS_VARIABLE
from support.saved import write_checkpoint
from support.tiny_env import TinyEnv
from torch.distributed import FileStore

from shoal.errors import ShoalError
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.collective_latency import measure_collective_latency
from shoal.learn.groups import World, process_group
from shoal.learn.replicas import compare_replicas, fingerprints
from shoal.learn.statistics import Pooled, Seconds, Statistics
from shoal.plan.checkpoints import newest_good
from shoal.plan.nodes import NodePlan
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.signals import StopRequests
from shoal.tasks import registry
from shoal.worker import run_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.learners import RslRlLoop


NAN = float("nan")
SEED = 5


def run_probes(rank: int, scratch: str) -> dict[str, Any]:
    """Be one of two ranks: run all probes in turn."""
    torch.set_num_threads(1)
    world = World(rank=rank, local_rank=rank, size=2)
    with process_group(world, backend="gloo", store=lambda: FileStore(f"{scratch}/learning", 2)):
        report: dict[str, Any] = {
            probe.__name__: probe(world)
            for probe in (
                *(collectives, statistics, gradients, replicas, training, stock_training, invariance, distance),
                *(stopping, exploding, learners, central_value, advantages),
            )
        }
        report["resuming"] = resuming(world, RunDir(Path(scratch) / "tiny"))
    report["group_is_closed"] = not torch.distributed.is_initialized()
    report["working"] = working(rank, scratch)
    return report


def run_invariance(rank: int, scratch: str, size: int) -> dict[str, Any]:
    """Be one of several ranks: learn from one rollout alone and together."""
    torch.set_num_threads(1)
    world = World(rank=rank, local_rank=rank, size=size)
    with process_group(world, backend="gloo", store=lambda: FileStore(f"{scratch}/invariance", size)):
        return invariance(world)


def collectives(world: World) -> dict[str, Any]:
    """The few collectives that Shoal asks of the group."""
    mine = torch.tensor([world.rank, -world.rank])
    torch.distributed.barrier()
    world.collective_timer.take()
    time.sleep(0.2 * world.rank)
    came = time.monotonic()  # Both ranks have this clock.
    torch.distributed.barrier()
    return {
        "came": came,
        "spent": world.collective_timer.take(),
        "sum": world.sum_(mine.clone()).tolist(),
        "max": world.max_(mine.clone()).tolist(),
        "gathered": [tensor.tolist() for tensor in world.gather(mine)],
        # Of unlike number and length, not all ASCII, and one with a quote in it.
        "strings": world.gather_strings([["größer", ""], ['"']][world.rank]),
        "no_strings": world.gather_strings([]),
        "policies": _scheduling_policies(),
    }


def _scheduling_policies() -> dict[str, int]:
    """Return the kernel's scheduling policy of this thread, and of each that has a name of its own."""
    policies = {"this": os.sched_getscheduler(0)}
    for task in Path("/proc/self/task").iterdir():
        policies[(task / "comm").read_text(encoding="utf-8").strip()] = os.sched_getscheduler(int(task.name))
    return policies


def statistics(world: World) -> dict[str, Any]:
    """Five iterations of two environments on each rank, with known returns, lengths and log values."""
    mine = Statistics(world, num_envs=2, episode_terms=("up",))

    def step(rewards: list[float], dones: list[int], ups: list[float], log: dict[str, Any]) -> None:
        extras = {"episode_sums": torch.tensor(ups).unsqueeze(1), "log": log}
        mine.add_step(torch.tensor(rewards), torch.tensor(dones, dtype=torch.bool), extras)

    def pool() -> tuple[Pooled, int]:
        losses = {"value": [1.0, 3.0][world.rank]}
        counts = {"SIGINT": False, "SIGTERM": world.rank == 1, "lost": 2 + world.rank}
        with CountedOperations() as operations:
            pooled = mine.pool(losses, [Seconds(1.0, 2.0, 0.5), Seconds(3.0, 6.0, 2.5)][world.rank], counts)
        return pooled, operations.collectives

    results: list[tuple[Pooled, int]] = []
    if world.rank == 0:
        step([1, 10], [0, 0], [NAN, NAN], {"a/x": torch.tensor([1.0, 2.0, 3.0])})
        step([2, 20], [1, 0], [3, NAN], {"a/x": torch.tensor([1.0, 2.0, 3.0])})
        step([3, 30], [0, 1], [NAN, 6], {"a/x": torch.tensor([1.0, 2.0, 3.0])})
    else:
        step([100, 0], [1, 0], [10, NAN], {"a/x": 10.0, "b/only_here": 4})
        step([0, 0], [0, 0], [NAN, NAN], {"a/x": 10.0})
        step([5, 0], [1, 0], [1, NAN], {"a/x": 10.0})
    results.append(pool())
    # The first environment of rank 0 has been running since before: 3 so far.
    step([4, 0], [world.rank == 0, 0], [0, NAN], {"a/x": float(world.rank)})
    results.append(pool())
    step([0, 0], [0, 0], [NAN, NAN], {"late": torch.tensor(7.0)} if world.rank == 0 else {})
    results.append(pool())
    step([0, 0], [0, 0], [NAN, NAN], {})
    results.append(pool())
    step([0, 0], [0, 0], [NAN, NAN], {"late": torch.tensor([8.0, 10.0])} if world.rank == 1 else {})
    results.append(pool())
    return {
        "means": [pooled.means for pooled, _ in results],
        "episodes": [pooled.episodes for pooled, _ in results],
        "collectives": [count for _, count in results],
        "rank_seconds": results[0][0].rank_seconds,
        "counts": results[0][0].counts,
    }


def gradients(world: World) -> list[float]:
    """Gradients of 1 on rank 0 and of 2 on rank 1, averaged by the library's own code."""
    learner: Any = tiny_loop(world=world).learner.alg
    total = torch.stack([weights.sum() for weights in learner.actor.parameters()]).sum()
    learner._gradients.compute((world.rank + 1.0) * total)
    learner.reduce_parameters()
    averaged = [weights.grad for weights in learner.actor.parameters() if weights.grad is not None]
    return torch.cat([gradient.flatten() for gradient in averaged]).unique().tolist()


def replicas(world: World) -> dict[str, Any]:
    """Replicas that begin unlike and are made alike; and then one fault after another on rank 1."""
    loop = tiny_loop(tiny_config(max_iterations=1), world=world, seed=world.rank)
    unlike = fingerprints(loop.learner)
    try:
        compare_replicas(loop.learner, world, when="before the first broadcast")
    except ShoalError as error:
        before = str(error)
    else:
        before = "alike"
    loop.synchronize()
    alike = fingerprints(loop.learner)
    train(loop)
    with CountedOperations() as operations:
        digest = compare_replicas(loop.learner, world, when="now")
    return {
        "before": before,
        "weights_were_sent": {name: (unlike[name] == alike[name]) for name in unlike},
        "digest": digest,
        "collectives": operations.collectives,
        "faults": {name: _told_of(fault, loop, world) for name, fault in FAULTS.items()},
        "digest_after_repair": compare_replicas(loop.learner, world, when="now"),
    }


def _told_of(fault: Callable[[RslRlLoop], Any], loop: RslRlLoop, world: World) -> str:
    """Return what a comparison says while rank 1 has a fault, and repair it."""
    algorithm = loop.learner.alg
    state, rate = copy.deepcopy(algorithm.save()), algorithm.learning_rate
    if world.rank == 1:
        fault(loop)
    try:
        compare_replicas(loop.learner, world, when="after iteration 7")
    except ShoalError as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "alike"
    finally:
        algorithm.load(state, None, strict=True)
        algorithm.learning_rate = rate


def _nudge(tensor: torch.Tensor) -> None:
    """Move one number by one unit in the last place."""
    flat = tensor.detach().view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(torch.inf))


def _swap(tensor: torch.Tensor) -> None:
    """Exchange two numbers."""
    flat = tensor.detach().view(-1)
    flat[[0, 1]] = flat[[1, 0]]


def _moment(loop: RslRlLoop) -> torch.Tensor:
    return loop.learner.alg.optimizer.state_dict()["state"][0]["exp_avg"]


FAULTS: dict[str, Callable[[RslRlLoop], Any]] = {
    "one unit in the last place": lambda loop: _nudge(loop.learner.alg.actor.get_parameter("mlp.0.weight")),
    "two weights exchanged": lambda loop: _swap(loop.learner.alg.critic.get_parameter("mlp.0.weight")),
    "a normaliser": lambda loop: _nudge(loop.learner.alg.actor.obs_normalizer.get_buffer("_mean")),
    "a count": lambda loop: loop.learner.alg.critic.obs_normalizer.get_buffer("count").add_(1),
    "a moment": lambda loop: _nudge(_moment(loop)),
    "a moment that is missing": lambda loop: loop.learner.alg.optimizer.state.popitem(),
    "the optimizer's learning rate": lambda loop: loop.learner.alg.optimizer.param_groups[0].update(lr=1.0),
    "the schedule's learning rate": lambda loop: setattr(loop.learner.alg, "learning_rate", 1.0),
}
"""What is done to rank 1's learner."""


def learners(world: World) -> dict[str, list[str]]:
    """Each learner from other weights and environments on each rank; and then with one changed number on rank 1."""
    report = {}
    for agent in AGENTS:
        loop = new_loop(agent, world=world, seed=world.rank)
        loop.synchronize()
        torch.manual_seed(SEED + world.rank)
        train(loop)
        report[agent] = [compare_replicas(loop.learner, world, when="now")]
        if world.rank == 1:
            state = copy.deepcopy(loop.learner.state())
            _nudge(tensors_of(state)[0])
            loop.learner.restore(state, weights_only=False)
        try:
            compare_replicas(loop.learner, world, when="after iteration 7")
        except ShoalError as error:
            report[agent].append(str(error))
    return report


def central_value(world: World) -> dict[str, list[float]]:
    """One step of rl_games' central critic: its gradient, and the mean of those of both ranks, each taken alone."""
    loop: Any = new_loop("rl_games central value", world=world, seed=world.rank)
    loop.synchronize()
    torch.manual_seed(SEED + world.rank)
    train(loop)
    critic = loop.learner.agent.central_value_net
    batch = critic.dataset[0]
    alone, together = copy.deepcopy(critic), critic
    alone.multi_gpu = False
    gradients: dict[str, list[float]] = {}
    for name, each in (("mean", alone), ("averaged", together)):
        each.eval()  # Normalisers keep what they have.
        each.calc_gradients(batch)
        gradient = torch.cat([p.grad.flatten() for p in each.model.parameters() if p.grad is not None])
        gradients[name] = (world.sum_(gradient) / world.size if name == "mean" else gradient).tolist()
    return gradients


def advantages(world: World) -> dict[str, list[float]]:
    """Count, sum and sum of squares of this rank's advantages, as learners of other libraries learn from them."""
    moments: dict[str, list[float]] = {}
    for name in ("skrl", "skrl_jax", "rl_games"):
        loop: Any = new_loop(name, world=world, seed=world.rank, max_iterations=1)
        loop.synchronize()
        agent, found = loop.learner.agent, []
        if name == "rl_games":
            update = agent.train_actor_critic
            data = agent.dataset

            def noted(batch: Any, update: Any = update, data: Any = data, found: Any = found) -> Any:
                found.append(data.values_dict["advantages"].clone())
                return update(batch)

            agent.train_actor_critic = noted
        train(loop)
        values = np.array(found[0] if found else agent.memory.get_tensor_by_name("advantages"), dtype=np.float64)
        moments[name] = [float(values.size), values.sum(), np.square(values).sum()]
    return moments


def training(world: World, algorithm_class: str = "PPO") -> dict[str, Any]:
    """Three iterations, with unlike environments and actions on the two ranks."""
    agent = tiny_agent()
    # Advantages by mini-batch: those of a whole rollout are pooled, and the library's are not.
    algorithm = replace(agent.algorithm, class_name=algorithm_class, normalize_advantage_per_mini_batch=True)
    agent = replace(agent, algorithm=algorithm)
    loop = tiny_loop(tiny_config(agent=agent), env=TinyEnv(num_envs=NUM_ENVS, seed=world.rank), world=world)
    loop.synchronize()
    torch.manual_seed(SEED + world.rank)
    with _pooling_counted(loop) as counts, CountedOperations() as operations:
        story = train(loop)
    algorithm = loop.learner.alg
    trained = [*algorithm.actor.parameters(), *algorithm.critic.parameters()]
    return {
        "rows": story.rows,
        "saved": list(story.saved),
        "iteration": loop.iteration,
        "gradients": [p.grad.flatten().tolist() for p in trained if p.grad is not None],
        "normaliser": algorithm.actor.obs_normalizer.get_buffer("_mean").flatten().tolist(),
        "normaliser_count": int(algorithm.actor.obs_normalizer.get_buffer("count")),
        "learning_rate": algorithm.learning_rate,
        "digest": compare_replicas(loop.learner, world, when="at the end"),
        "pool_collectives": counts,
        "collectives": operations.collectives,
        "samples": NUM_STEPS * NUM_ENVS,
    }


def invariance(world: World) -> dict[str, Any]:
    """One update from the same rollout: of one worker that has all of it, and of all, which have a share each."""
    agent = tiny_agent()
    agent = replace(agent, algorithm=replace(agent.algorithm, num_learning_epochs=1, num_mini_batches=1))
    results: dict[str, Any] = {}
    rollout: dict[str, Any] = {}
    observations: Any = None
    total, each = 2 * NUM_ENVS, 2 * NUM_ENVS // world.size
    mine = slice(world.rank * each, (world.rank + 1) * each)
    for name, place, num_envs in (("alone", World(), total), ("together", world, each)):
        torch.manual_seed(SEED)
        loop = tiny_loop(tiny_config(agent=agent), env=TinyEnv(num_envs=num_envs, seed=SEED), world=place)
        algorithm = loop.learner.alg
        if name == "alone":
            observations = _roll_out(loop)
            rollout = dict(vars(algorithm.storage))
        else:
            _take_share(algorithm.storage, rollout, mine)
            observations = observations[mine]
        algorithm.compute_returns(observations)
        advantages = algorithm.storage.advantages.clone()
        losses = algorithm.update()
        trained = [*algorithm.actor.parameters(), *algorithm.critic.parameters()]
        normaliser = algorithm.actor.obs_normalizer
        results[name] = {
            "advantages": advantages if name == "together" else advantages[:, mine],
            "gradients": torch.cat([p.grad.flatten() for p in trained if p.grad is not None]),
            "parameters": torch.cat([p.detach().flatten() for p in trained]),
            "means": normaliser.get_buffer("_mean").flatten(),
            "variances": normaliser.get_buffer("_var").flatten(),
            "learning_rate": algorithm.learning_rate,
            "losses": losses,
        }
    return {
        name: {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in update.items()}
        for name, update in results.items()
    }


def _roll_out(loop: RslRlLoop) -> Any:
    """Fill a learner's storage, and return the observations behind it."""
    observations = loop.env.get_observations()
    with torch.inference_mode():
        for _ in range(NUM_STEPS):
            observations, rewards, dones, extras = loop.env.step(loop.learner.alg.act(observations))
            loop.learner.alg.process_env_step(observations, rewards, dones, extras)
    return observations


def _take_share(storage: Any, rollout: dict[str, Any], envs: slice) -> None:
    """Fill a storage with some environments of another one's rollout."""
    for name, value in rollout.items():
        if isinstance(value, torch.Tensor) or hasattr(value, "batch_size"):
            getattr(storage, name).copy_(value[:, envs])
        elif isinstance(value, tuple):
            setattr(storage, name, tuple(each[:, envs].clone() for each in value))
    storage.step = rollout["step"]


def stock_training(world: World) -> dict[str, Any]:
    """The same with the library's own PPO."""
    return training(world, "rsl_rl.algorithms:PPO")


def distance(world: World) -> dict[str, Any]:
    """Measured latencies, and the collectives from one row to the next."""
    loop = tiny_loop(tiny_config(), env=TinyEnv(num_envs=NUM_ENVS, seed=world.rank), world=world)
    loop.synchronize()
    totals: list[int] = []
    pool = loop.statistics.pool

    def noted(*arguments: Any, **named: Any) -> Pooled:
        pooled = pool(*arguments, **named)
        totals.append(operations.collectives)
        return pooled

    loop.statistics.pool = noted
    with CountedOperations() as operations:
        train(loop)
    measured = measure_collective_latency(loop.world)
    return {"measured": measured, "last_iteration": totals[-1] - totals[-2]}


@contextmanager
def _pooling_counted(loop: RslRlLoop) -> Iterator[list[int]]:
    """Keep how many collectives each iteration's statistics cost."""
    counts: list[int] = []
    pool = loop.statistics.pool

    def counted(*arguments: Any, **named: Any) -> Pooled:
        with CountedOperations() as operations:
            pooled = pool(*arguments, **named)
        counts.append(operations.collectives)
        return pooled

    loop.statistics.pool = counted
    yield counts


def stopping(world: World) -> dict[str, Any]:
    """Rank 1 gets a signal during the second of many iterations."""
    loop = tiny_loop(tiny_config(max_iterations=50, agent=tiny_agent(save_interval=50)), world=world)
    requests = iter([False, True])
    story = train(loop, lambda: {"SIGINT": False, "SIGTERM": world.rank == 1 and next(requests)})
    return {"stopped_by": story.stopped_by, "iteration": loop.iteration, "saved": list(story.saved)}


def exploding(world: World) -> str:
    """Rank 1 alone gets rewards so large that the squared error is infinite."""

    class Generous(TinyEnv):
        def step(self, actions: torch.Tensor) -> Any:
            observations, rewards, dones, extras = super().step(actions)
            return observations, rewards + 1e30 * world.rank, dones, extras

    loop = tiny_loop(env=Generous(num_envs=NUM_ENVS), world=world)
    try:
        train(loop)
    except ShoalError as error:
        return str(error)
    return "no error"


def resuming(world: World, run: RunDir) -> dict[str, Any]:
    """Two iterations, a checkpoint, and both ranks go on from it."""
    first = tiny_loop(tiny_config(max_iterations=2), world=world)
    train(first)
    if world.is_first:
        write_checkpoint(run, first.iteration, first.state(), world.size)
    torch.distributed.barrier()
    checkpoint, _ = newest_good(run)
    second = tiny_loop(tiny_config(max_iterations=3), world=world, seed=world.rank)
    if checkpoint is not None:
        second.restore(read_checkpoint(checkpoint.model))
    second.synchronize()
    same = fingerprints(first.learner) == fingerprints(second.learner)
    story = train(second)
    return {"same_learner": same, "iterations": story.iterations, "steps": second.totals.steps}


def working(rank: int, scratch: str) -> dict[str, Any]:
    """The real worker, on the real task, with a group of its own."""
    os.environ[RECORDS_VARIABLE] = scratch
    task = f"{Path(__file__).parent / 'recorded_task.py'}:Recorded"
    spec = registry.resolve(task)
    run = Path(scratch) / "run"
    run.mkdir(exist_ok=True)
    plan = TrainPlan(
        config=replace(spec.defaults(task), seed=SEED, logger="none"),
        launch_mode="spawned",
        nodes=(NodePlan(devices=("cpu", "cpu")),),
        world_size=2,
        backend="gloo",
        run_dir=str(run),
    )
    place = Rank(rank=rank, local_rank=rank, world_size=2, local_world_size=2)
    report, _ = run_worker(plan, place, stop=StopRequests(), store=lambda: FileStore(f"{scratch}/working", 2))
    return asdict(report)

"""Environments of a checkpoint that go on: on the same ranks to the last bit, or dealt again to others."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.hostile import vouch_for, write_hostile
from support.learners import RslRlLoop, loop_on, tiny_agent, tiny_config, tiny_loop

from shoal.config import ModelConfig, RndConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn.checkpoints import Snapshot, write_snapshot
from shoal.learn.groups import World
from shoal.learn.state import collect_rows, random_state, resume_environments, set_random_state
from shoal.plan.checkpoints import Checkpoint
from shoal.plan.rundir import RunDir
from shoal.tasks.cartpole.task import Swingup
from shoal.tasks.quadruped.config import FLAT
from shoal.tasks.quadruped.task import FlatVelocity

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 7


def on_a_rank(rank: int, size: int, num_envs: int, *, kind: str = "plain", task: Any = None) -> RslRlLoop:
    """A rank's learner and environments, which nobody has stepped. It needs no group, as it learns nothing here."""
    built = task or Swingup(Swingup.config, num_envs=num_envs, device="cpu", seed=rank)
    agent = tiny_agent(obs_groups={"actor": ("policy",), "critic": ("policy",), "rnd_state": ("policy",)})
    if kind == "rnd":
        rnd = RndConfig(enabled=True, reward_normalization=True, weight=1.0)
        agent = replace(agent, algorithm=replace(agent.algorithm, rnd=rnd))
    if kind == "recurrent":
        network = ModelConfig(class_name="RNNModel", hidden_dims=(8,), rnn_hidden_dim=6, rnn_type="lstm")
        agent = replace(agent, actor=replace(network, distribution=agent.actor.distribution), critic=network)
    return loop_on(WarpVecEnv(built), tiny_config(agent=agent), World(rank=rank, size=size))


def stepped(loop: RslRlLoop) -> RslRlLoop:
    """The same after some steps with random actions."""
    observations = loop.env.get_observations()
    with torch.inference_mode():
        for _ in range(STEPS):
            actions = loop.learner.alg.act(observations)
            observations, rewards, dones, extras = loop.env.step(actions)
            loop.learner.alg.process_env_step(observations, rewards, dones, extras)
            loop.statistics.add_step(rewards, dones, extras)
    return loop


def copied(loop: RslRlLoop) -> dict[str, torch.Tensor]:
    """All rows as they are now."""
    return {name: row.clone() for name, row in collect_rows(loop).items()}


def saved(run: RunDir, loops: list[RslRlLoop]) -> Checkpoint:
    """Write the checkpoint of a job."""
    run.unfinished_dir(5).mkdir(parents=True)  # The others wait until rank 0 has made it.
    for loop in reversed(loops):  # And rank 0 waits for the others.
        learner = {"weights": torch.zeros(1)} if loop.world.is_first else None
        rank_state = {"rows": copied(loop), "random": random_state("cpu")}
        metadata = {"num_envs": loop.env.num_envs}
        place = {"rank": loop.world.rank, "world_size": loop.world.size}
        write_snapshot(run, Snapshot(iteration=5, learner=learner, rank_state=rank_state, metadata=metadata, **place))
    return Checkpoint(run.checkpoint_dir(5))


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run without checkpoints."""
    return RunDir(tmp_path)


def assert_rows(loop: RslRlLoop, expected: dict[str, torch.Tensor], count: int) -> None:
    """See that the first environments have these rows."""
    rows = collect_rows(loop)
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        assert torch.equal(row[:count], expected[name][:count]), name


def joined(loops: list[RslRlLoop]) -> dict[str, torch.Tensor]:
    """The rows of all ranks, one after the other."""
    parts = [copied(loop) for loop in loops]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("kind", ["plain", "recurrent", "rnd"])
@pytest.mark.parametrize(("size", "each"), [(1, 12), (2, 6), (3, 4), (4, 3), (2, 3), (2, 9)])
def test_environments_are_dealt_again_in_their_order(size: int, each: int, kind: str, run_dir: RunDir) -> None:
    before = [stepped(on_a_rank(rank, 2, 6, kind=kind)) for rank in range(2)]
    everything = joined(before)
    memories = {"plain": 0, "recurrent": 4, "rnd": 1}  # Two of each LSTM, and a discounted sum of rewards.
    assert sum(name.startswith("memory/") for name in everything) == memories[kind]
    checkpoint = saved(run_dir, before)
    for rank in range(size):
        now = on_a_rank(10 + rank, 1, each, kind=kind)
        fresh = copied(now)
        now.world = World(rank=rank, size=size)
        resume_environments(now, checkpoint)
        first = rank * each
        count = max(0, min(each, 12 - first))
        assert now.num_resumed == count
        if count:
            assert_rows(now, {name: rows[first : first + count] for name, rows in everything.items()}, count)
        for name, rows in collect_rows(now).items():
            if not name.startswith("memory/"):
                assert torch.equal(rows[count:], fresh[name][count:]), name


def test_dealt_environments_step_on_as_they_would_have(run_dir: RunDir) -> None:
    before = [stepped(on_a_rank(rank, 2, 6)) for rank in range(2)]
    checkpoint = saved(run_dir, before)
    now = on_a_rank(0, 1, 12)
    resume_environments(now, checkpoint)
    actions = torch.linspace(-1.0, 1.0, 12).unsqueeze(1)
    for _ in range(20):
        for loop, some in ((before[0], actions[:6]), (before[1], actions[6:]), (now, actions)):
            loop.env.step(some)
    assert_rows(now, joined(before), 12)


def test_as_many_ranks_and_environments_go_on_with_their_random_states_too(run_dir: RunDir) -> None:
    before = [stepped(on_a_rank(rank, 2, 4)) for rank in range(2)]
    torch.manual_seed(9)
    random.seed(9)
    np.random.seed(9)  # noqa: NPY002
    checkpoint = saved(run_dir, before)
    drawn = torch.rand(3).tolist(), random.random(), np.random.rand()  # noqa: NPY002, S311
    now = on_a_rank(1, 2, 4)
    torch.manual_seed(1)
    resume_environments(now, checkpoint)
    assert now.num_resumed == 4
    assert_rows(now, copied(before[1]), 4)
    assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == drawn  # noqa: NPY002, S311


def test_environments_that_are_new_begin_as_none_of_the_run_did(run_dir: RunDir) -> None:
    def begun(rank: int, size: int, each: int) -> RslRlLoop:
        seed = tiny_config().seed + rank  # As `shoal.worker` seeds them.
        task = FlatVelocity(FLAT, num_envs=each, device="cpu", seed=seed)
        return on_a_rank(rank, size, each, task=task)

    before = [begun(rank, 3, 8) for rank in range(3)]
    before[0].iteration = 5
    checkpoint = saved(run_dir, before)
    now = begun(1, 2, 24)
    now.restore(before[0].state())
    resume_environments(now, checkpoint)
    assert now.num_resumed == 0
    for name in ("task/rng", "task/parameter/body_mass", "task/data/qpos"):
        old, new = (
            set(map(tuple, rows.flatten(1).tolist()))
            for rows in (joined(before)[name].unsqueeze(1), collect_rows(now)[name].unsqueeze(1))
        )
        assert (len(old), len(new), old & new) == (24, 24, set()), name


def test_random_states_are_plain_values(tmp_path: Path) -> None:
    torch.save(random_state("cpu"), tmp_path / "state.pt")
    states = torch.load(tmp_path / "state.pt", weights_only=True)
    expected = random.random(), np.random.standard_normal(), torch.rand(1).item()  # noqa: NPY002, S311
    set_random_state("cpu", states)
    assert (random.random(), np.random.standard_normal(), torch.rand(1).item()) == expected  # noqa: NPY002, S311


def test_a_robot_goes_on_with_its_own_floor_and_motors(run_dir: RunDir) -> None:
    def walking(seed: int) -> FlatVelocity:
        return FlatVelocity(FLAT, num_envs=3, device="cpu", seed=seed)

    before = stepped(on_a_rank(0, 1, 3, task=walking(0)))
    checkpoint = saved(run_dir, [before])
    now = on_a_rank(0, 1, 3, task=walking(7))
    assert not torch.equal(
        collect_rows(now)["task/parameter/body_mass"], collect_rows(before)["task/parameter/body_mass"]
    )
    resume_environments(now, checkpoint)
    for _ in range(30):
        for loop in (before, now):
            loop.env.step(torch.full((3, 12), 0.3))
    assert_rows(now, copied(before), 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda manifest: manifest.pop("num_envs"),
        lambda manifest: manifest["files"].pop("rank_00000.pt"),
    ],
)
def test_a_checkpoint_of_a_learner_alone_begins_new_episodes(
    spoil: Any, run_dir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = saved(run_dir, [on_a_rank(0, 1, 2)])
    manifest = checkpoint.manifest()
    spoil(manifest)
    (checkpoint.path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    now = on_a_rank(0, 1, 2)
    resume_environments(now, checkpoint)
    assert now.num_resumed == 0
    why = "the checkpoint has no environments, which --keep-rank-files keeps in the newest ones"
    assert caplog.messages == [f"All environments begin new episodes: {why}."]


@pytest.mark.parametrize("num_envs", [2, 3])
def test_environments_of_another_task_begin_new_episodes(
    num_envs: int, run_dir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = saved(run_dir, [on_a_rank(0, 1, 2)])
    robot = FlatVelocity(FLAT, num_envs=num_envs, device="cpu", seed=0)
    now = on_a_rank(0, 1, num_envs, task=robot)
    resume_environments(now, checkpoint)
    assert now.num_resumed == 0
    (message,) = caplog.messages
    assert message.startswith("All environments begin new episodes: 'task/")
    assert " is only in " in message


def test_an_environment_of_others_begins_new_episodes(run_dir: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    foreign = tiny_loop()
    assert collect_rows(foreign) == {}
    checkpoint = saved(run_dir, [on_a_rank(0, 1, foreign.env.num_envs)])
    resume_environments(foreign, checkpoint)
    assert caplog.messages == [
        "All environments begin new episodes: the environment does not say what its next step depends on."
    ]


@pytest.mark.parametrize(("size", "each"), [(2, 3), (1, 6)], ids=["as before", "dealt again"])
def test_code_in_the_file_of_a_rank_is_not_run(size: int, each: int, run_dir: RunDir) -> None:
    checkpoint = saved(run_dir, [on_a_rank(rank, 2, 3) for rank in range(2)])
    file = checkpoint.path / "rank_00001.pt"
    marker = write_hostile(file, torch.load(file, weights_only=True))
    vouch_for(file)
    assert checkpoint.damage() is None
    with pytest.raises(
        UsageError, match=r"rank_00001\.pt cannot be loaded as plain tensors \(UnpicklingError\), although"
    ):
        resume_environments(on_a_rank(size - 1, size, each), checkpoint)
    assert not marker.exists()
    torch.load(file, weights_only=False)  # It is as hostile as it looks.
    assert marker.exists()


@pytest.mark.parametrize(
    "content", [{}, [1, 2], torch.zeros(2), {"rows": 5}, {"rows": {"task/state": 5}, "random": {}}]
)
def test_a_file_of_a_rank_that_holds_no_rows_is_refused(content: Any, run_dir: RunDir) -> None:
    checkpoint = saved(run_dir, [on_a_rank(0, 1, 2)])
    file = checkpoint.path / "rank_00000.pt"
    torch.save(content, file)
    vouch_for(file)
    with pytest.raises(
        UsageError, match=r"rank_00000\.pt is no part of a checkpoint: it has no 'rows' of its environments"
    ):
        resume_environments(on_a_rank(0, 1, 2), checkpoint)


@pytest.mark.parametrize("content", ["word", None, {}, {"torch": "word"}, {"torch": torch.zeros(3)}, 5], ids=str)
def test_a_random_state_that_is_none_is_refused(content: Any, run_dir: RunDir) -> None:
    checkpoint = saved(run_dir, [on_a_rank(0, 1, 2)])
    file = checkpoint.path / "rank_00000.pt"
    torch.save(torch.load(file, weights_only=True) | {"random": content}, file)
    vouch_for(file)
    with pytest.raises(UsageError, match=r"rank_00000\.pt cannot be read \(.+\): pass --checkpoint to start a new run"):
        resume_environments(on_a_rank(0, 1, 2), checkpoint)


@pytest.mark.parametrize("each", [2, 1])
@pytest.mark.parametrize("rows", [0, 5])
def test_more_or_fewer_rows_than_environments_are_refused(rows: int, each: int, run_dir: RunDir) -> None:
    checkpoint = saved(run_dir, [on_a_rank(0, 1, 2)])
    file = checkpoint.path / "rank_00000.pt"
    content = torch.load(file, weights_only=True)
    content["rows"] = {name: row[:1].repeat(rows, *[1] * (row.ndim - 1)) for name, row in content["rows"].items()}
    torch.save(content, file)
    vouch_for(file)
    with pytest.raises(UsageError, match=r"rank_00000\.pt is no part of a checkpoint"):
        resume_environments(on_a_rank(0, 1, each), checkpoint)

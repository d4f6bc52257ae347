"""Episodes of a part: each follows from its seed and index, is counted once, and says how it ended."""

# Members of an HDF5 group have many types.
# pyright: reportIndexIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import pytest

from shoal.config.evaluate import EvaluateConfig
from shoal.config.plain import to_plain
from shoal.jobs.ledger import Ledger, prepare
from shoal.jobs.statistics import summarize
from shoal.jobs.worker import run_jobs
from shoal.learn.groups import World
from shoal.plan.job import EvaluatePlan, Job, JobFiles
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import RunDir
from shoal.seeds import derived_seed
from shoal.signals import StopRequests
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = f"{Path(__file__).parents[1] / 'support' / 'two_lengths.py'}:TwoLengths"
GOALS = f"{Path(__file__).parents[1] / 'support' / 'goal_task.py'}:Goal"


def job(task: str = "Cartpole-Balance", **fields: Any) -> Job:
    """A job with random actions."""
    env = registry.resolve(task).env
    env = replace(env, episode_length_s=0.5) if task.startswith(("Cartpole", "Quadruped")) else env
    plain: dict[str, Any] = {"name": "job", "policy": "random", "num_envs": 8, "num_episodes": 20, **fields}
    return Job(task=task, env=to_plain(env), **plain)


def episodes_of(out: Path, *jobs: Job) -> list[dict[str, Any]]:
    """Run jobs in this process, and return the episodes of the first."""
    RunDir(out).ranks_dir.mkdir(parents=True)
    prepare(out, jobs)
    plan = EvaluatePlan(
        config=EvaluateConfig(),
        launch_mode="in process",
        nodes=(NodePlan(devices=("cpu",)),),
        world_size=1,
        run_dir=str(out),
        jobs=jobs,
    )
    run_jobs(plan, World(), stop=StopRequests(), store=None, threads=1)
    assert Ledger(out=out, jobs=jobs).is_done()
    text = JobFiles(out / jobs[0].name).episodes.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_episodes_do_not_depend_on_the_number_of_environments(tmp_path: Path) -> None:
    eight = episodes_of(tmp_path / "eight", job())
    three = episodes_of(tmp_path / "three", job(num_envs=3))
    assert [each["index"] for each in eight] == list(range(20))
    assert three == eight
    assert len({each["return"] for each in eight}) > 10
    later = episodes_of(tmp_path / "later", job(num_episodes=5, first_episode=13))
    assert later == eight[13:18]
    assert episodes_of(tmp_path / "other", job(seed=2)) != eight


def test_nor_does_the_ground_of_a_robot(tmp_path: Path) -> None:
    """Environments take turns with the types of terrain."""
    task = "Quadruped-Velocity-Rough"
    four = episodes_of(tmp_path / "four", job(task, num_episodes=8, num_envs=4))
    assert episodes_of(tmp_path / "three", job(task, num_episodes=8, num_envs=3)) == four
    assert len({each["return"] for each in four}) == 8


def test_returns_are_the_sums_of_their_terms(tmp_path: Path) -> None:
    for each in episodes_of(tmp_path / "out", job("Hopper-v5", num_episodes=6)):
        assert each["return"] == pytest.approx(sum(each["terms"].values()), rel=1e-4)
        assert each["ended"] in {"terminated", "time out"}
        assert 0 < each["length"] <= 1000


def test_with_a_number_of_steps_episodes_follow_each_other_in_each_environment(tmp_path: Path) -> None:
    found = episodes_of(
        tmp_path / "out", job(num_episodes=None, num_steps=60, num_envs=4, rebuilds=2, task="Cartpole-Balance")
    )
    of_each: dict[int, int] = {}
    for each in found:
        of_each[each["index"] % 8] = of_each.get(each["index"] % 8, 0) + each["length"]
    assert len({each["index"] for each in found}) == len(found)
    assert set(of_each) == set(range(8)), "four environments in each of two builds"
    assert all(60 <= steps < 60 + 25 for steps in of_each.values()), "an episode lasts 25 steps, and the last one ends"


def test_with_a_number_of_steps_long_episodes_count_as_often_as_short_ones(tmp_path: Path) -> None:
    found = episodes_of(tmp_path / "out", job(KINDS, num_episodes=None, num_steps=60, num_envs=64, rebuilds=4))
    returns = [each["return"] for each in found]
    assert {each["length"]: each["return"] for each in found} == {1: 0.0, 50: 200.0}
    error = statistics.stdev(returns) / len(returns) ** 0.5
    assert statistics.fmean(returns) == pytest.approx(100, abs=3 * error)


def test_what_does_not_end_is_unfinished_and_counts(tmp_path: Path) -> None:
    endless = "gym:CliffWalking-v1"
    found = episodes_of(tmp_path / "out", job(endless, policy="zero", num_episodes=3, num_envs=2))
    assert [(each["index"], each["ended"]) for each in found] == [(index, "unfinished") for index in range(3)]
    assert {(each["return"], each["length"]) for each in found} == {(-1000.0, 1000)}
    summary = summarize(found)
    assert (summary["episodes"], summary["ended"], summary["return"]["mean"]) == (3, {"unfinished": 3}, -1000)


def test_success_is_counted_at_the_end_and_what_was_met_at_reset_is_told(tmp_path: Path) -> None:
    found = episodes_of(tmp_path / "out", job(GOALS, policy="zero", num_episodes=12))
    assert {each["metrics"]["kind"] for each in found} == {0, 1, 2}
    for each in found:
        assert each["success"] == (each["metrics"]["kind"] > 0)
        assert each["met_at_reset"] == (each["metrics"]["kind"] == 1)


def test_environments_are_built_anew_only_for_another_seed(tmp_path: Path) -> None:
    task: Any = registry.resolve(GOALS).load_builder()
    built: list[int] = task.built
    built.clear()
    jobs = [job(GOALS, name=name, policy=name, seed=5) for name in ("zero", "random")]
    episodes_of(tmp_path / "out", *jobs)
    assert built == [5]
    episodes_of(tmp_path / "rebuilt", job(GOALS, policy="zero", seed=5, rebuilds=3))
    assert built == [5, 5, derived_seed(5, 1), derived_seed(5, 2)]


def test_a_failure_of_every_part_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = f"{Path(__file__).parents[1] / 'support' / 'faulty_policies.py'}:Raises"
    with pytest.raises(FileNotFoundError):  # No episode was written.
        episodes_of(tmp_path, job(policy=policy, num_envs=4, retries=3))
    logged = [record.getMessage().partition(":")[0] for record in caplog.records if "failed" in record.getMessage()]
    assert logged == ["It is tried again", "The job failed"]


def test_steps_are_recorded_one_group_an_episode(tmp_path: Path) -> None:
    found = episodes_of(tmp_path / "out", job(num_episodes=10, record=True))
    with h5py.File(tmp_path / "out" / "job" / "dataset_job_rank00000.hdf5") as file:
        assert list(file) == [f"episode_{index:06d}" for index in range(10)]
        for each in found:
            group = file[f"episode_{each['index']:06d}"]
            assert group["actions"].shape == (each["length"], 1)
            assert group["obs/policy"].shape[0] == each["length"]
            assert group["rewards"][:].sum() == pytest.approx(each["return"], rel=1e-5)
            assert group["time_outs"][-1] == (each["ended"] == "time out")
            assert group["terminated"][-1] == (each["ended"] == "terminated")
            assert not group["terminated"][:-1].any()


@pytest.mark.soak
def test_thirty_jobs_in_one_process_give_their_memory_back(tmp_path: Path) -> None:
    jobs = [
        job("Cartpole-Swingup" if number % 2 else "Cartpole-Balance", name=f"job{number}", seed=number, num_envs=64)
        for number in range(30)
    ]
    after_five = memory_after(tmp_path / "warm", jobs[:5])
    after_thirty = memory_after(tmp_path / "out", jobs)
    assert after_thirty - after_five < 40 * 2**20


def memory_after(out: Path, jobs: Sequence[Job]) -> int:
    episodes_of(out, *jobs)
    fields = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return int(fields[1]) * 4096


def test_a_video_of_the_first_episode_is_made(tmp_path: Path) -> None:
    episodes_of(tmp_path / "out", job(num_episodes=2, num_envs=2, video=True))
    assert (tmp_path / "out" / "job" / "episode_000000.mp4").stat().st_size > 1000

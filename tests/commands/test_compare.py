"""Comparisons of policies, in rounds, and of directories of results: verdicts, what they leave out, and refusals."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from support.episode import EPISODE
from support.saved import write_checkpoint

from shoal.cli import main
from shoal.cli.parse import parse
from shoal.commands.compare import Comparison, compare, compare_policies
from shoal.commands.evaluate import evaluate, make_plan
from shoal.config.evaluate import CompareConfig, ComparePoliciesConfig, EvaluateConfig
from shoal.errors import ShoalError, UsageError
from shoal.jobs.comparison import judge
from shoal.jobs.entries import Overrides
from shoal.jobs.results import read_jobs
from shoal.launch.rank import ProgressReporter
from shoal.plan.job import Job, JobFiles
from shoal.plan.rundir import RunDir
from shoal.tasks import registry
from shoal.tasks.cartpole.config import BalanceConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHORT = ("--env.episode-length-s", "1", "--gpu-ids", "None", "--num-envs", "32")


def abort(error: ShoalError) -> NoReturn:
    raise error


def run_jobs(flags: EvaluateConfig, jobs: Sequence[Job]) -> Path:
    return evaluate(make_plan(flags, jobs=jobs), ProgressReporter(), abort)[0]


def compared(*words: str, out: Path) -> tuple[Comparison, list[int]]:
    """Compare two policies of the cart-pole; return it, and the pairs after each round that another follows."""
    config, overrides = parse("compare", ["Cartpole-Balance", *words, *SHORT, "--out", str(out)])
    assert isinstance(config, ComparePoliciesConfig)
    rounds: list[int] = []
    return compare_policies(config, overrides, run_jobs, lambda verdict: rounds.append(verdict.pairs)), rounds


# Policies


def test_two_policies_are_told_apart_before_all_episodes_are_run(tmp_path: Path) -> None:
    earned = ("--return-range", "-1", "1")
    comparison, rounds = compared("zero", "random", *earned, out=tmp_path / "out")
    assert comparison.verdict.which == "A"  # Random pushes topple the pole earlier.
    assert comparison.verdict.mean < 0
    assert (rounds, comparison.verdict.pairs) == ([], 64)
    swapped, _ = compared("random", "zero", *earned, out=tmp_path / "swapped")
    assert (swapped.verdict.which, swapped.verdict.mean) == ("B", -comparison.verdict.mean)


def test_the_verdict_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--return-range", "-1", "1", "--out", str(tmp_path / "out"))
    main.shoal(["compare", "Cartpole-Balance", "zero", "random", *words, *SHORT])
    assert "".join(capsys.readouterr()).count("A returns more") == 1


def test_a_policy_does_not_differ_from_itself(tmp_path: Path) -> None:
    comparison, rounds = compared("random", "random", "--num-episodes", "150", out=tmp_path)
    # The same seed and index: the same episode, also of random actions.
    assert (comparison.verdict.which, comparison.verdict.mean) == ("undecided", 0.0)
    assert rounds == [64, 128]
    assert comparison.verdict.pairs == 150
    for side in "AB":
        jobs = [job for job in read_jobs(tmp_path) if job.name.startswith(side)]
        assert [(job.first_episode, job.num_episodes) for job in jobs] == [(0, 64), (64, 64), (128, 22)]


def test_a_second_comparison_runs_only_what_is_missing(tmp_path: Path) -> None:
    compared("zero", "zero", "--num-episodes", "64", out=tmp_path)
    episodes = JobFiles(tmp_path / "A-000000-000064").episodes
    lines = episodes.read_text(encoding="utf-8").splitlines()
    changed = [json.dumps(json.loads(line) | {"return": 1000.0 + number}) for number, line in enumerate(lines)]
    episodes.write_text("\n".join(changed) + "\n", encoding="utf-8")
    comparison, rounds = compared("zero", "zero", "--num-episodes", "100", "--return-range", "0", "1100", out=tmp_path)
    assert comparison.verdict.which == "A"
    assert (rounds, comparison.verdict.pairs) == ([], 64)


def test_both_policies_run_in_the_environment_of_the_flags(tmp_path: Path) -> None:
    compared("zero", "zero", "--num-episodes", "50", "--env.pole-mass", "0.2", out=tmp_path)
    jobs = read_jobs(tmp_path)
    assert [job.env["pole_mass"] for job in jobs] == [0.2, 0.2]
    assert len({job.name for job in jobs}) == 2


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A training with a heavy pole, and two checkpoints."""
    run = RunDir(tmp_path / "Cartpole-Balance" / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text("env: {pole_mass: 0.3}", encoding="utf-8")
    for iteration in (1, 2):
        write_checkpoint(run, iteration, {}, world_size=1)
    return run


def parsed(*words: str, run: RunDir) -> tuple[ComparePoliciesConfig, Overrides]:
    config, overrides = parse("compare", ["Cartpole-Balance", *words, "--log-root", str(run.path.parents[1])])
    assert isinstance(config, ComparePoliciesConfig)
    return config, overrides


def test_by_default_both_policies_run_in_the_environment_of_the_one_that_was_trained(run: RunDir) -> None:
    for words in (("zero", "latest"), ("latest", "zero")):
        _, overrides = parsed(*words, run=run)
        assert isinstance(overrides.env, BalanceConfig)
        assert overrides.env.pole_mass == 0.3
    assert parsed("zero", "random", run=run)[1].env == registry.resolve("Cartpole-Balance").env


def test_a_side_with_several_policies_is_refused(run: RunDir) -> None:
    config, overrides = parsed("zero", "all", run=run)
    with pytest.raises(UsageError, match="B is 'all', which names 2 policies: pass one of them"):
        compare_policies(config, overrides, run_jobs, lambda _: None)


def test_ranks_of_another_launcher_are_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    launcher = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in (ranks | launcher).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="starts workers once a round, but torchrun or srun starts them once"):
        compare_policies(*parsed("zero", "random", run=run), run_jobs, lambda _: None)


@pytest.mark.parametrize(("words", "count"), [(["A"], "1 word"), (["A", "B", "C", "D"], "4 words"), (["--json"], "0")])
def test_other_than_two_sides_are_refused(words: list[str], count: str) -> None:
    with pytest.raises(UsageError, match=f"but {count}.* came there: pass `shoal compare A B` or"):
        parse("compare", words)


# Directories


def write_results(
    out: Path, task: str, returns: Sequence[float], env: dict[str, Any] | None = None, **more: Any
) -> Path:
    """Add a finished job to a directory of results."""
    job = {"name": f"job-{task}", "task": task, "policy": f"{out}.pt", "env": env or {}, **more}
    manifest = out / "manifest.json"
    jobs = json.loads(manifest.read_text(encoding="utf-8"))["jobs"] if manifest.exists() else []
    episodes = JobFiles(out / job["name"]).episodes
    episodes.parent.mkdir(parents=True)
    lines = (json.dumps(EPISODE | {"index": index, "return": value}) for index, value in enumerate(returns))
    episodes.write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest.write_text(json.dumps({"jobs": [*jobs, job]}), encoding="utf-8")
    return out


def compared_directories(a: Path, b: Path) -> list[Comparison]:
    return compare(CompareConfig(a=str(a), b=str(b)))


def test_each_task_of_two_directories_has_a_verdict(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    alternating = [float(number % 2) for number in range(600)]
    write_results(a, "Hopper", alternating)
    write_results(b, "Hopper", [value + 1 for value in alternating])
    write_results(a, "Ant", [*alternating, 5.0])
    write_results(b, "Ant", [*alternating[:599], math.nan])
    write_results(b, "Walker", alternating)
    ant, hopper = compared_directories(a, b)
    assert (ant.task, ant.verdict.which, ant.verdict.pairs, ant.unpaired, ant.verdict.diverged) == (
        "Ant",
        "undecided",
        599,
        1,
        1,
    )
    assert (hopper.task, hopper.verdict.which, hopper.verdict.mean) == ("Hopper", "B", 1.0)
    text = "\n".join(ant.lines())
    assert "1 episode of A or B alone: left out." in text
    assert "1 pair with a return that is not finite: left out of returns." in text


def test_environments_that_differ_without_being_asked_to_are_named(tmp_path: Path) -> None:
    shared = {"friction": 0.5, "weight": 1.0, "engine": "mujoco"}
    a = write_results(tmp_path / "a", "Ant", [1.0], shared, variation={"friction": 0.5})
    b = write_results(tmp_path / "b", "Ant", [2.0], shared | {"weight": 3.0}, variation={"friction": 0.5})
    (comparison,) = compared_directories(a, b)
    assert comparison.differing == ("weight",)
    assert "differ in weight: returns may not be comparable." in [*comparison.lines()][-1]


def test_a_directory_without_results_is_refused(tmp_path: Path) -> None:
    a = write_results(tmp_path / "a", "Ant", [1.0])
    with pytest.raises(UsageError, match=r"manifest\.json cannot be read .* pass the output of an evaluation"):
        compared_directories(a, tmp_path)


def test_directories_without_a_pair_are_refused(tmp_path: Path) -> None:
    a, b = write_results(tmp_path / "a", "Ant", [1.0]), write_results(tmp_path / "b", "Hopper", [1.0])
    with pytest.raises(UsageError, match="no finished episode with equal task"):
        compared_directories(a, b)


def test_directories_are_compared_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (write_results(tmp_path / name, "Ant", [value] * 600) for name, value in (("a", 2.0), ("b", 1.0)))
    main.shoal(["compare", str(a), str(b)])
    assert capsys.readouterr().out.splitlines() == [
        "Ant: A returns more after 600 pairs: B - A is -1 (95% interval -1.029 to -0.9707).",
        f"A is {a}, B is {b}.",
        "Failures: 0 of A, 0 of B; 0 of A alone, 0 of B alone.",
    ]
    main.shoal(["compare", str(a), str(b), "--json"])
    assert json.loads(capsys.readouterr().out)["which"] == "A"
    for each, value in ((a, 2.0), (b, 1.0)):
        write_results(each, "Hopper", [value] * 600)
    main.shoal(["compare", str(a), str(b), "--json"])
    assert [each["task"] for each in json.loads(capsys.readouterr().out)] == ["Ant", "Hopper"]


def test_an_interval_without_ends_is_null_in_json() -> None:
    verdict = judge([(EPISODE, EPISODE | {"return": 1.0})] * 3)
    comparison = Comparison(task="Ant", a="a", b="b", verdict=verdict, unpaired=2)
    printed = comparison.to_plain()
    json.dumps(printed, allow_nan=False)
    assert (printed["low"], printed["high"], printed["pairs"], printed["unpaired"]) == (None, None, 3, 2)

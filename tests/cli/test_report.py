"""What a person sees: the plan, the live table, plain lines, results and errors, each rendered at a fixed width."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from support.fake_devices import seen
from support.snapshots import matches_snapshot

from shoal.checks.findings import note, ok, problem
from shoal.cli import report
from shoal.cli.launched import print_evaluation
from shoal.cli.output import print_error, print_json, print_lines
from shoal.cli.parse import parse_train
from shoal.commands.play import Episodes
from shoal.commands.train import Outcome
from shoal.doctor import Diagnosis
from shoal.errors import TrainingFailedError
from shoal.jobs.statistics import summarize
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training
from shoal.run_record import WorkerReport

if TYPE_CHECKING:
    from shoal.checks.findings import Finding
    from shoal.plan.training import TrainPlan

SNAPSHOTS = Path(__file__).with_name("snapshots")
WORDS = ("--max-iterations", "300", "--num-envs", "1024", "--seed", "42", "--agent.num-steps-per-env", "32")
WORDS += ("--agent.algorithm.num-mini-batches", "4")

ROW = {
    "iteration": 150.0,
    "max_iterations": 300.0,
    "Train/mean_reward": 123.456,
    "Train/mean_episode_length": 487.25,
    "Perf/total_fps": 123456.7,
    "Train/total_steps": 9830400.0,
    "Loss/value": 0.012345,
    "Loss/surrogate": -0.0042,
    "Loss/learning_rate": 0.0005,
    "Policy/mean_std": 0.71,
    "Episode_Reward/swung_up": 0.9,
}


@pytest.fixture(autouse=True)
def _fixed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("CUDA_VISIBLE_DEVICES", "TORCHRUNX_LOG_DIR", "OMP_NUM_THREADS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def plan_of(*words: str, gpus: int = 0, environ: dict[str, str] | None = None) -> TrainPlan:
    return plan_training(parse_train(["Cartpole-Swingup", *WORDS, *words]), environ or {}, seen(gpus))


def tidy(text: str) -> str:
    """Text without what depends on the clock, and without the spaces at the ends of its lines."""
    lines = re.sub(r"\d+:\d\d:\d\d", "0:00:00", text).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def rendered(view: object) -> str:
    console = Console(width=100, record=True, force_terminal=True, file=Path("/dev/null").open("w", encoding="utf-8"))  # noqa: SIM115
    console.print(view)
    return tidy(console.export_text())


@pytest.fixture
def live() -> report._LiveView:
    return report._LiveView(plan_of(), Console(width=100, force_terminal=True))


def test_the_live_table_shows_progress_and_the_newest_metrics(live: report._LiveView) -> None:
    live.on_row({**ROW, "iteration": 149.0, "Train/mean_reward": 1.0})
    live.on_row(ROW)
    assert matches_snapshot(SNAPSHOTS / "live_view.txt", rendered(live))


def test_the_live_table_stands_before_there_are_metrics(live: report._LiveView) -> None:
    assert matches_snapshot(SNAPSHOTS / "live_view_at_the_start.txt", rendered(live))


def test_the_live_table_says_what_happens_until_there_are_metrics(live: report._LiveView) -> None:
    for phase in ("startup", "queue", "compile", "collective"):
        live.on_phase(phase)
    assert "Building environments and compiling kernels." in rendered(live)
    live.on_row(ROW)
    assert "Building" not in rendered(live)
    assert "elapsed 0:00:00 left -" in rendered(live)


def test_metrics_that_are_not_known_yet_are_dashes(live: report._LiveView) -> None:
    live.on_row({**ROW, "Train/mean_reward": None, "Loss/value": None})  # pyright: ignore[reportArgumentType]  JSON's null
    assert re.search(r"Mean reward\s+-\n", rendered(live))


def test_a_resumed_run_begins_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import replace

    plan = replace(plan_of(), start_iteration=120)
    assert "120/300" in rendered(report._LiveView(plan, Console(width=100)))
    with closing(report.training_view(plan)):
        pass
    assert "iterations 120 to 300" in capsys.readouterr().out


# Plain lines ----------------------------------------------------------------------------------------------------


def test_without_a_terminal_notes_come_first_then_the_headline_then_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = plan_of("--nproc-per-node", "2", environ={"RANK": "1"})
    with closing(report.training_view(plan)) as view:
        view.on_line("Run directory: here")
        view.on_phase("startup")
        view.on_row(ROW)
    assert matches_snapshot(SNAPSHOTS / "plain_view.txt", tidy(capsys.readouterr().out))


def test_plain_lines_name_each_phase_once_until_the_first_iteration_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with closing(report.training_view(plan_of())) as view:
        for phase in ("startup", "queue", "compile", "compile", "startup", "collective", "rollout"):
            view.on_phase(phase)
        view.on_row(ROW)
        view.on_phase("update")
    lines = [line.partition("] ")[2] for line in tidy(capsys.readouterr().out).splitlines() if "elapsed] " in line]
    assert [line.split()[0] for line in lines] == ["Starting", "Building", "First"]


def test_plain_lines_are_rare_but_the_last_is_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(report.training_view(plan_of())) as view:
        for iteration in range(1, 101):
            view.on_row({**ROW, "iteration": float(iteration)})
    lines = [line.partition("]")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert lines == ["[1/300", "[100/300"]


def test_the_last_row_is_told_when_the_training_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def train() -> None:
        with closing(report.training_view(plan_of())) as view:
            for iteration in (1, 2):
                view.on_row({**ROW, "iteration": float(iteration)})
            raise TrainingFailedError("It failed.")

    with pytest.raises(TrainingFailedError):
        train()
    assert capsys.readouterr().out.splitlines()[-1].startswith("[2/300]")


def test_nothing_is_told_twice_when_the_last_row_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(report.training_view(plan_of())) as view:
        view.on_row(ROW)
    assert capsys.readouterr().out.count("[150/300]") == 1


# Plans, results, errors -----------------------------------------------------------------------------------------


def test_the_plan_tells_devices_ranks_batches_and_directories(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpu-ids", "0", "1", "--run-name", "wide", "--torchrunx-log-dir", "files")
    report.print_plan(plan_of(*words, gpus=2), {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert matches_snapshot(SNAPSHOTS / "plan.txt", tidy(capsys.readouterr().out))


def test_the_plan_of_one_worker_on_the_cpu_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    report.print_plan(plan_of(), {})
    assert matches_snapshot(SNAPSHOTS / "plan_on_the_cpu.txt", tidy(capsys.readouterr().out))


def test_a_dry_run_writes_nothing_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shoal.cli import main

    main.shoal(["train", "Cartpole-Swingup", "--log-root", str(tmp_path / "logs"), "--dry-run"])
    assert "world size" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def outcome(ranks: int) -> Outcome:
    reports = [
        WorkerReport(rank=rank, host="here", device="cpu", iteration=300, digest="0123456789abcdef", last_row=dict(ROW))
        for rank in range(ranks)
    ]
    return Outcome(RunDir(Path("logs/run")), reports)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_outcome_ends_with_the_run_directory(ranks: int) -> None:
    *more, last = outcome(ranks).lines()
    assert last == "Finished 300 iterations, mean reward 123.46. Run directory: logs/run"
    assert more == ([] if ranks == 1 else ["All 2 ranks hold the same learner, 0123456789abcdef."])


def episode(earned: float, length: int, *, success: bool | None = None, met_at_reset: bool = False) -> dict[str, Any]:
    return {
        "return": earned,
        "length": length,
        "ended": "time_out",
        "success": success,
        "met_at_reset": met_at_reset,
        "terms": {},
        "metrics": {},
    }


def test_episodes_are_printed_one_by_one_and_with_the_statistics_of_evaluate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_lines(Episodes([episode(earned, length) for earned, length in ((1.0, 10), (2.0, 20), (6.0, 30))]).lines())
    *table, last = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    told = re.fullmatch(r"3 episodes, with 95% intervals: return 3\.00 \[(.+), (.+)\], length 20\.0", " ".join(last))
    assert told
    assert 1.0 <= float(told[1]) < 3.0 < float(told[2]) <= 6.0
    assert [row[:4] for row in table if row[0].isdigit()] == [
        ["1", "1.00", "10", "time_out"],
        ["2", "2.00", "20", "time_out"],
        ["3", "6.00", "30", "time_out"],
    ]


def test_the_rate_of_success_has_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(Episodes([episode(float("nan"), 5, success=number < 8) for number in range(10)]).lines())
    # Wilson's interval of 8 of 10, from tables.
    told = "10 episodes, with 95% intervals: no finite return, length 5.0, success 80% [49%, 94%]"
    assert capsys.readouterr().out.splitlines()[-1] == told


@pytest.mark.parametrize(
    ("begun", "told"),
    [
        (0, "success 50% [15%, 85%]"),
        (2, "success 50% [9%, 91%] of 2 episodes, without 2 that met it in the first step"),
        (4, "success unknown, as all 4 met it in the first step"),
    ],
)
def test_episodes_that_begin_with_success_are_left_out_of_its_rate_with_a_word(
    begun: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = [episode(1.0, 5, success=number % 2 == 0, met_at_reset=number < begun) for number in range(4)]
    print_lines(Episodes(episodes).lines())
    assert capsys.readouterr().out.splitlines()[-1].endswith(f", {told}")


def test_an_evaluation_says_how_many_episodes_the_success_rate_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    summary = summarize([episode(1.0, 5, success=True, met_at_reset=number < 3) for number in range(10)])
    jobs = [
        {"name": name, "state": "done", "summary": summary | {"met_at_reset": met}}
        for name, met in (("a", 3), ("b", 0))
    ]
    print_evaluation(Path("out"), {"jobs": jobs}, ["a", "b"])
    assert capsys.readouterr().err.splitlines() == [
        "Report: out/report.html",
        "3 of 10 episodes of a met the success condition in the first step: its success rate leaves them out.",
    ]


def test_an_evaluation_is_json_of_its_own_jobs_if_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [{"name": name, "summary": None} for name in "abc"]
    print_evaluation(Path("out"), {"jobs": jobs}, ["b"], as_json=True)
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == (jobs[1], "Report: out/report.html\n")
    print_evaluation(Path("out"), {"jobs": jobs}, ["a", "c"], as_json=True)
    assert json.loads(capsys.readouterr().out) == [jobs[0], jobs[2]]


def test_an_evaluation_of_one_job_is_its_terms_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"terms": {"upright": 2.0}, "metrics": {"success": 1.0}, "ended": "time out", "success": True}
    summary = summarize([episode(earned, 10) | told for earned in (1.0, 2.0, 3.0)])
    print_evaluation(Path("out"), {"jobs": [{"name": "a", "state": "done", "summary": summary}]}, ["a"])
    *table, line = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert table == ["term mean", "upright 2", "success 1"]
    numbers = r"return 2\.00 \[1\..., .\...\], length 10\.0, 3 of 3 reached the time limit, success 100% \[44%, 100%\]"
    assert re.fullmatch(rf"3 episodes, with 95% intervals: {numbers}", line), line


def test_an_evaluation_of_several_jobs_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        {"name": "a", "state": "done", "summary": summarize([episode(2.0, 10), episode(2.0, 20)])},
        {"name": "b", "state": "failed", "summary": None},
    ]
    print_evaluation(Path("out"), {"jobs": jobs}, ["a", "b"])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["job", "episodes", "return", "low", "high", "length", "success"],
        ["a", "2", "2.00", "2.00", "2.00", "15.00", "-"],
        ["b", "failed", "-", "-", "-", "-", "-"],
    ]


def test_an_error_is_told_on_standard_error_with_its_details_above(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(TrainingFailedError("It [failed].", details="Traceback [most recent]\n"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Traceback [most recent]\nError: It [failed].\n")


# The doctor -----------------------------------------------------------------------------------------------------


def diagnosis_of(*findings: Finding) -> Diagnosis:
    return Diagnosis((ok("python", "Python 3.11.7"), *findings))


def test_a_diagnosis_is_a_table_with_what_to_do_below_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    long = "The driver is 545.23.08, and before 550 (CUDA 12.4) some steps cannot be recorded as graphs"
    found = (
        note("driver", long, "expect them to be slower, or update the driver"),
        problem("nccl", "all_reduce through nccl failed: rank 1 of 2 is [stuck]", "export NCCL_P2P_DISABLE=1"),
    )
    print_lines(report.lines_of_diagnosis(diagnosis_of(*found)))
    assert matches_snapshot(SNAPSHOTS / "diagnosis.txt", tidy(capsys.readouterr().out))


def test_a_good_diagnosis_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(report.lines_of_diagnosis(diagnosis_of()))
    assert capsys.readouterr().out.endswith("1 ok, 0 to note, 0 wrong. Training would work.\n")


def test_a_diagnosis_as_json_is_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    taken = problem("GPU 0", "it is taken", "wait", transient=True)
    print_json(diagnosis_of(taken).to_plain())
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 75
    assert told["findings"][1] == {
        "topic": "GPU 0",
        "level": "problem",
        "truth": "it is taken",
        "remedy": "wait",
        "transient": True,
    }

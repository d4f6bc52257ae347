"""The runs that `shoal runs` lists: real trainings, some of which are altered as a crash would leave them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.bombs import YAML
from support.refusals import HEAVY
from support.stories import carry_out

from shoal.cli import main
from shoal.cli.parse import parse
from shoal.commands.runs import collect
from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.run_record import lock_run

if TYPE_CHECKING:
    from shoal.commands.runs import ListedRun

TASK = "Cartpole-Swingup"
SAME = "--gpu-ids None --num-envs 16 --max-iterations 2 --no-export --agent.num-steps-per-env 8"
"""Flags of all runs here."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A training of two iterations, with other values than the defaults."""
    return carry_out(
        tmp_path_factory.mktemp("logs"), TASK, "--max-iterations", "2", "--seed", "7", "--env.pole-mass", "0.3"
    ).run


def copy_of(trained: RunDir, log_root: Path, name: str, experiment: str = TASK) -> RunDir:
    """Return a run like the trained one."""
    return RunDir(Path(shutil.copytree(trained.path, log_root / experiment / name)))


@pytest.fixture
def runs(trained: RunDir, log_root: Path) -> list[RunDir]:
    """Three runs, oldest first."""
    return [copy_of(trained, log_root, f"2026-01-0{day}_00-00-00") for day in (1, 2, 3)]


def listed(log_root: Path, *words: str) -> dict[str, ListedRun]:
    """Return what `shoal runs WORDS` lists, by name and in its order."""
    found = collect(parse("runs", [*words, "--log-root", str(log_root)])[0])
    return {each.run.name: each for each in found.runs}


def set_launch(run: RunDir, **entries: Any) -> None:
    """Change the newest launch of a run's record."""
    record = json.loads(run.run_json.read_text(encoding="utf-8"))
    record["launches"][-1] |= entries
    run.run_json.write_text(json.dumps(record), encoding="utf-8")


def set_score(
    run: RunDir, score: float, metric: str = "Train/mean_whole_reward", counted: dict[str, float] | None = None
) -> None:
    """Give the only checkpoint of a run a score."""
    file = run.checkpoint_dir(2) / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) | {"score": score, "metric": metric, "counted": counted}
    file.write_text(json.dumps(manifest), encoding="utf-8")


def set_params(run: RunDir, old: str, new: str) -> None:
    """Replace text in the configuration of a run."""
    text = run.train_yaml.read_text(encoding="utf-8")
    assert text.count(old) == 1
    run.train_yaml.write_text(text.replace(old, new), encoding="utf-8")


def test_a_finished_run_has_its_progress_and_what_it_changed(trained: RunDir) -> None:
    (run,) = listed(trained.path.parent.parent).values()
    assert (run.state, run.exit_code, run.reason) == ("finished", 0, None)
    assert (run.iteration, run.max_iterations, run.steps) == (2, 2, 2 * 16 * 8)
    assert run.best is not None
    assert run.best.iteration == 2
    assert run.changed is not None
    assert (run.changed["seed"], run.changed["env.pole_mass"]) == (7, 0.3)
    assert set(run.to_plain()["flags"].split(" --")) >= {"seed 7", "env.pole-mass 0.3", "no-export"}


@pytest.mark.parametrize(
    ("code", "state"), [(0, "finished"), (1, "failed"), (75, "failed"), (130, "interrupted"), (143, "interrupted")]
)
def test_the_state_follows_from_the_exit_code(code: int, state: str, runs: list[RunDir], log_root: Path) -> None:
    set_launch(runs[0], ended={"exit_code": code})
    run = listed(log_root)[runs[0].name]
    assert (run.state, run.exit_code) == (state, code)


def test_a_run_without_an_end_is_running_while_its_lock_is_held_and_lost_afterwards(
    runs: list[RunDir], log_root: Path
) -> None:
    set_launch(runs[0], ended=None)
    with ExitStack() as stack:
        lock_run(runs[0], stack)
        assert listed(log_root)[runs[0].name].state == "running"
        with ExitStack() as refused, pytest.raises(UsageError, match="is in use"):
            lock_run(runs[0], refused)
    assert listed(log_root)[runs[0].name].state == "lost"
    runs[0].lock.unlink()
    assert listed(log_root)[runs[0].name].state == "lost"
    runs[0].lock.symlink_to(runs[0].run_json)
    assert listed(log_root)[runs[0].name].state == "unknown"


def test_a_run_that_is_being_resumed_is_running(runs: list[RunDir], log_root: Path) -> None:
    """Its launch is not in run.json before all ranks have restored."""
    set_launch(runs[0], ended={"exit_code": 130})
    with ExitStack() as stack:
        lock_run(runs[0], stack)
        run = listed(log_root)[runs[0].name]
        assert (run.state, run.exit_code) == ("running", None)
    assert listed(log_root)[runs[0].name].state == "interrupted"


def test_progress_is_that_of_the_last_complete_line(runs: list[RunDir], log_root: Path) -> None:
    long = [
        json.dumps({"iteration": number, "Train/total_steps": number * 10, "a": "x" * 500}) for number in range(500)
    ]
    runs[0].metrics_jsonl.write_text("\n".join([*long, '{"iteration": 500']), encoding="utf-8")
    runs[1].metrics_jsonl.write_text('{"iteration": 1', encoding="utf-8")
    runs[2].metrics_jsonl.unlink()
    found = listed(log_root)
    assert [(found[run.name].iteration, found[run.name].steps) for run in runs] == [(499, 4990), (0, None), (0, None)]


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(runs: list[RunDir], log_root: Path) -> None:
    runs[0].run_json.write_text("{", encoding="utf-8")
    runs[1].train_yaml.unlink()
    empty = RunDir(log_root / TASK / "2026-01-04_00-00-00")
    empty.path.mkdir()
    found = listed(log_root)
    assert {name: each.state for name, each in found.items()} == {
        empty.name: "unreadable",
        runs[2].name: "finished",
        runs[1].name: "unreadable",
        runs[0].name: "unreadable",
    }
    assert found[runs[0].name].reason == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) in run.json"
    )
    assert found[runs[1].name].reason == f"FileNotFoundError: No such file or directory: {runs[1].train_yaml}"


@pytest.mark.parametrize("text", ["[]", '{"launches": []}', '{"launches": [5]}', '{"launches": [{"ended": 5}]}'])
def test_a_record_of_nonsense_ends_no_list(text: str, runs: list[RunDir], log_root: Path) -> None:
    runs[0].run_json.write_text(text, encoding="utf-8")
    assert [each.state for each in listed(log_root).values()] == ["finished", "finished", "unreadable"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", YAML)
def test_a_configuration_that_multiplies_or_nests_ends_no_list(kind: str, runs: list[RunDir], log_root: Path) -> None:
    runs[0].train_yaml.write_text(YAML[kind], encoding="utf-8")
    assert [each.state for each in listed(log_root).values()] == ["finished", "finished", "unreadable"]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["run.json", "params/train.yaml", "metrics.jsonl"])
def test_a_pipe_ends_no_list(name: str, runs: list[RunDir], log_root: Path) -> None:
    (runs[0].path / name).unlink()
    os.mkfifo(runs[0].path / name)
    *_, last = listed(log_root).values()
    assert (last.state, last.iteration) in {("unreadable", 0), ("finished", 0)}


@pytest.mark.parametrize("text", ["word", "[]", "5", '{"iteration": "one"}'])
def test_a_row_of_nonsense_ends_no_list(text: str, runs: list[RunDir], log_root: Path) -> None:
    runs[0].metrics_jsonl.write_text(f"{text}\n", encoding="utf-8")
    assert [each.state for each in listed(log_root).values()] == ["finished", "finished", "unreadable"]


# Order


def test_the_newest_run_is_first_or_the_best(runs: list[RunDir], log_root: Path) -> None:
    for run, score in zip(runs, (2.0, 9.0, 5.0), strict=True):
        set_score(run, score)
    oldest, middle, newest = (run.name for run in runs)
    assert list(listed(log_root)) == [newest, middle, oldest]
    assert list(listed(log_root, "--sort", "score")) == [middle, newest, oldest]
    assert list(listed(log_root, "--sort", "score", "--limit", "1")) == [middle]


def test_scores_by_another_metric_than_the_newest_runs_are_not_compared(runs: list[RunDir], log_root: Path) -> None:
    set_score(runs[0], 2.0)
    set_score(runs[1], 900.0, metric="Metrics/terrain_level")
    set_score(runs[2], 1.0)
    assert list(listed(log_root, "--sort", "score")) == [run.name for run in (runs[0], runs[2], runs[1])]


def test_returns_of_other_rewards_than_the_newest_runs_are_not_compared(runs: list[RunDir], log_root: Path) -> None:
    one, hundred = {"env.upright_weight": 1.0}, {"env.upright_weight": 100.0}
    for run, score, counted in zip(runs, (2.0, 900.0, 1.0), (one, hundred, one), strict=True):
        set_score(run, score, counted=counted)
    assert list(listed(log_root, "--sort", "score")) == [run.name for run in (runs[0], runs[2], runs[1])]
    *_, best, others = collect(parse("runs", [TASK, "--log-root", str(log_root)])[0]).lines()
    assert best.endswith(str(runs[0].checkpoint_dir(2)))
    assert others == "Scores of 1 of these runs are not compared: they are of another metric or of other rewards."


def test_the_best_of_all_runs_is_whole(runs: list[RunDir], log_root: Path) -> None:
    assert collect(parse("runs", ["--log-root", str(log_root)])[0]).best is None  # No score yet.
    for run, score in zip(runs, (2.0, 9.0, 5.0), strict=True):
        set_score(run, score)
    (runs[1].checkpoint_dir(2) / "model.pt").write_bytes(b"damaged")
    best = collect(parse("runs", [TASK, "--log-root", str(log_root)])[0]).best
    assert best is not None
    assert best.path == runs[2].checkpoint_dir(2)


def test_a_task_selects_its_runs(trained: RunDir, runs: list[RunDir], log_root: Path) -> None:
    other = copy_of(trained, log_root, "2026-01-02_12-00-00", experiment="Elsewhere")  # Of no task that is known here.
    assert list(listed(log_root)) == [runs[2].name, other.name, runs[1].name, runs[0].name]
    assert list(listed(log_root, "Elsewhere")) == [other.name]
    assert len(listed(log_root, TASK)) == 3
    by_score = list(listed(log_root, "--sort", "score"))
    assert by_score == [runs[2].name, runs[1].name, runs[0].name, other.name]


def test_without_any_run_it_says_where_it_looked(log_root: Path) -> None:
    """Results of an evaluation are no run."""
    (log_root / "evaluations" / "2026-11-23_21-53-24").mkdir(parents=True)
    (log_root / "evaluations" / "2026-11-23_21-53-24" / "manifest.json").write_text("{}", encoding="utf-8")
    for words, place in (((), log_root), ((TASK,), log_root / TASK)):
        with pytest.raises(UsageError) as refusal:
            listed(log_root, *words)
        assert str(refusal.value) == f"There are no runs in {place} yet: train first, or pass --log-root."


# Many runs

_COUNT_READING = """
import json, sys
from pathlib import Path

def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(sys.argv[1]):
        parts = Path(arguments[0]).relative_to(sys.argv[1]).parts
        if len(parts) > 1:
            read.setdefault(parts[1], []).append("/".join(parts[2:]))

read = {}
sys.addaudithook(note)
from shoal.cli.main import shoal
shoal(["runs", "--log-root", *sys.argv[1:]])
print(json.dumps(read), file=sys.stderr)
"""


def reading(log_root: Path, *words: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines that `shoal runs` prints, and the files and directories that it reads of each run."""
    program = [sys.executable, "-c", _COUNT_READING, str(log_root), *words]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), json.loads(done.stderr)


@pytest.fixture
def many(trained: RunDir, log_root: Path) -> list[str]:
    """Three thousand runs, newest first, with the trained one's files; the highest score is that of the oldest run."""
    first = datetime(2026, 1, 1)  # noqa: DTZ001  Run names hold local time.
    names = [f"{first + timedelta(minutes=number):%Y-%m-%d_%H-%M-%S}" for number in range(3000)]
    (log_root / TASK).mkdir(parents=True)
    for name in names:
        (log_root / TASK / name).mkdir()
        for entry in trained.path.iterdir():
            if entry.name != "checkpoints" or name != names[0]:
                (log_root / TASK / name / entry.name).symlink_to(entry)
    oldest = RunDir(log_root / TASK / names[0])
    shutil.copytree(trained.checkpoints_dir, oldest.checkpoints_dir)
    set_score(oldest, 900.0)
    return names[::-1]


def test_only_files_of_listed_runs_are_read(many: list[str], log_root: Path) -> None:
    lines, read = reading(log_root, "--limit", "10")
    assert [line.split()[0] for line in lines[1:11]] == many[:10]
    assert set(read) == {*many[:10]}
    assert sum(map(len, read.values())) < 300
    assert lines[11] == "These are 10 of 3,000 runs: pass --limit 3000 to list all."
    assert lines[12].startswith(f"These runs of {TASK}: --gpu-ids None")


def test_without_a_limit_a_table_has_twenty_lines_and_json_all(many: list[str], log_root: Path) -> None:
    lines, read = reading(log_root, TASK)
    assert [line.split()[0] for line in lines[1:21]] == many[:20]
    assert set(read) == {*many[:20]}
    assert lines[21].startswith("These are 20 of 3,000 runs")
    (log_root / TASK).rename(log_root / "All")
    (log_root / TASK).mkdir()
    for name in many[:21]:
        (log_root / "All" / name).rename(log_root / TASK / name)
    lines, _ = reading(log_root, TASK, "--json")
    plain = json.loads("\n".join(lines))
    assert (len(plain["runs"]), plain["omitted"]) == (21, 0)


def test_by_score_the_manifests_of_all_runs_are_read_and_no_more(many: list[str], log_root: Path) -> None:
    lines, read = reading(log_root, "--sort", "score", "--limit", "2")
    assert [line.split()[0] for line in lines[1:3]] == [many[-1], many[0]]
    assert set(read) == {*many}
    others = {name for run in many[1:-1] for name in read[run]}
    assert others == {"checkpoints", "checkpoints/000002/manifest.json"}
    assert lines[-1].startswith("Best checkpoint of these runs by Train/mean_whole_reward, 900.00: ")


# Flags


def test_runs_of_a_file_show_in_what_they_differ_without_importing_it(runs: list[RunDir], log_root: Path) -> None:
    for run in runs:
        set_params(run, f"task: {TASK}", "task: /nowhere/kites.py:Kite")
    set_params(runs[1], "seed: 7", "seed: 8")
    assert [each.changed for each in listed(log_root).values()] == [{"seed": 7}, {"seed": 8}, {"seed": 7}]


def test_the_table_ends_each_row_with_the_flags_in_which_runs_differ(
    runs: list[RunDir], log_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(runs[1], "pole_mass: 0.3", "pole_mass: 0.1")  # The default.
    for run, hours in zip(runs, (5 * 24 + 23, 3, 3), strict=True):
        set_launch(run, started=(datetime.now().astimezone() - timedelta(hours=hours, minutes=1)).isoformat())
    set_launch(runs[0], ended={"exit_code": 75})
    set_score(runs[1], 12.5)
    main.shoal(["runs", TASK, "--log-root", str(log_root)])
    title, *rows, common, best = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert title == "run state iterations steps score age flags"
    assert rows == [
        f"{runs[2].name} finished 2/2 256 - 3 h --env.pole-mass 0.3",
        f"{runs[1].name} finished 2/2 256 12.50 3 h",
        f"{runs[0].name} failed (75) 2/2 256 - 5 d --env.pole-mass 0.3",
    ]
    assert common == f"All runs of {TASK}: {SAME.replace('--no-export', '--seed 7 --no-export')}"
    assert best == f"Best checkpoint by Train/mean_whole_reward, 12.50: {runs[1].checkpoint_dir(2)}"


def test_json_is_all_that_is_on_standard_output_and_nothing_heavy_is_imported(trained: RunDir) -> None:
    program = (
        "import sys; from shoal.cli.main import shoal; shoal(sys.argv[1:]);"
        f"sys.exit(', '.join(name for name in {HEAVY} if name in sys.modules))"
    )
    words = ("runs", "--json", "--log-root", str(trained.path.parent.parent))
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["run"], run["state"], run["steps"]) == (str(trained.path), "finished", 256)
    assert run["changed"]["env.pole_mass"] == 0.3

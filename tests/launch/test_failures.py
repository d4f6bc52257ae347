"""Ranks that fail, in real launches: who is blamed, in which words, with which exit code, and what is left.

Rank files are told of here too, because each launch costs seconds: every row of the table asks for them in another way.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, run, torchrun

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended

pytestmark = pytest.mark.spawn

SPAWNED = ("--nproc-per-node", "2")


@dataclass(frozen=True)
class Fault:
    """One launch that fails."""

    task: str
    rank: int
    code: int
    sentence: str
    """What the last line holds."""
    command: tuple[str, ...] = TRAIN
    flags: tuple[str, ...] = SPAWNED
    log_dir: str | None = None
    """TORCHRUNX_LOG_DIR."""
    environ: tuple[tuple[str, str], ...] = ()
    """More of the environment."""
    within: float = 10
    """How long after the fault the command may take to end [s]."""


LEFT_OVER = (
    ("RANK", "5"),
    ("WORLD_SIZE", "9"),
    ("MASTER_ADDR", "10.255.255.1"),
    ("MASTER_PORT", "1"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
)
"""What a shell may still hold of an earlier launcher."""
RAISED = "failed in rollout (iteration 2): shoal_user_faulty_tasks"
STALL_S = 4
SOON = ("--stall-timeout", str(STALL_S))
STUCK = " s in rollout (iteration 2)"
LOCKED = f"{STUCK}: its process does not let Python run, so native code holds its lock. Its stacks are in "
STUCK_S = STALL_S + 15
"""What the design allows for a rank that got stuck [s]."""
FAULTS = {
    "spawned, rank 1 raises": Fault("Raises", 1, 1, RAISED),
    "spawned, rank 0 raises": Fault("Raises", 0, 1, RAISED, flags=(*SPAWNED, "--torchrunx-log-dir", "")),
    "spawned, rank 1 is killed": Fault("Dies", 1, 75, "killed by SIGKILL", log_dir="here"),
    "spawned, rank 1 leaves": Fault(
        "Leaves",
        1,
        75,
        "it left with exit code 3",
        flags=(*SPAWNED, "--torchrunx-log-dir", "there"),
        environ=LEFT_OVER,
    ),
    "spawned, NaN on rank 1": Fault(
        "TurnsToNan", 1, 1, "held NaN or infinity", flags=(*SPAWNED, "--torchrunx-log-dir", "there"), log_dir=""
    ),
    "spawned, rank 1 crashes": Fault("Segfaults", 1, 75, "in rollout (iteration 2): killed by SIGSEGV. Its stacks are"),
    "spawned, rank 1 dies waiting": Fault("DiesWaiting", 1, 75, "in collective (iteration 2): killed by SIGKILL"),
    "spawned, rank 1 starves": Fault("Starves", 1, 75, "was refused memory in rollout (iteration 2) (RuntimeError"),
    "spawned, rank 1 sleeps": Fault("Waits", 1, 75, STUCK, flags=(*SPAWNED, *SOON), within=STUCK_S),
    "spawned, rank 1 is stopped": Fault(
        "Stops", 1, 75, f"{STUCK}: its process is stopped", flags=(*SPAWNED, *SOON), within=STUCK_S
    ),
    "spawned, rank 1 holds the lock": Fault("HoldsTheLock", 1, 75, LOCKED, flags=(*SPAWNED, *SOON), within=STUCK_S),
    "spawned, rank 1 refuses": Fault("Refuses", 1, 2, "it has no wings"),
    "in process, rank 0 raises": Fault("Raises", 0, 1, RAISED, flags=()),
    "joined, rank 1 raises": Fault("Raises", 1, 1, RAISED, command=torchrun(2), flags=()),
    "joined, rank 1 is killed": Fault(
        "Dies", 1, 1, " in rollout (iteration 2): killed or crashed", command=torchrun(2), flags=()
    ),
    "joined, rank 0 is killed": Fault(
        "Dies", 0, 1, " in rollout (iteration 2): killed or crashed", command=torchrun(2), flags=()
    ),
    "joined, rank 1 is stopped": Fault(
        "Stops", 1, 1, f"{STUCK}: its process is stopped", command=torchrun(2), flags=SOON, within=STUCK_S
    ),
    "in process, rank 0 sleeps": Fault("Waits", 0, 75, STUCK, flags=SOON, within=STUCK_S),
}


SOAK = (
    "spawned, rank 1 starves",
    "spawned, rank 1 dies waiting",
    "in process, rank 0 raises",
    "in process, rank 0 sleeps",
    "joined, rank 0 is killed",
    "joined, rank 1 is stopped",
    "joined, rank 1 raises",
    "spawned, rank 0 raises",
    "spawned, rank 1 crashes",
    "spawned, rank 1 holds the lock",
    "spawned, rank 1 is stopped",
    "spawned, rank 1 leaves",
    "spawned, rank 1 refuses",
    "spawned, NaN on rank 1",
)
"""Launches that CI leaves out for its time; `make test-soak` has them."""


@dataclass(frozen=True)
class Failed:
    """A launch that failed, and what had been asked of it."""

    fault: Fault
    ended: Ended
    where: Path
    seconds_after: float
    """Time from the last iteration that was done to the end of the command [s]."""


_made: dict[str, Failed] = {}


@pytest.fixture
def failed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Failed:
    """One launch of the table, made when the first test asks for it."""
    name = request.param
    if name not in _made:
        fault = FAULTS[name]
        where = tmp_path_factory.mktemp(name.replace(", ", "_").replace(" ", "_"))
        environ = {"SHOAL_TEST_FAULTY_RANK": str(fault.rank), **dict(fault.environ)}
        if fault.log_dir is not None:
            environ["TORCHRUNX_LOG_DIR"] = fault.log_dir and str(where / fault.log_dir)
        ended = run((*fault.command, f"{FAULTY}:{fault.task}", *SMALL, *fault.flags), where, environ)
        seconds = time.time() - (ended.run / "metrics.jsonl").stat().st_mtime
        _made[name] = Failed(fault, ended, where, seconds)
    return _made[name]


def launches(*words: str) -> pytest.MarkDecorator:
    """Give a test the launches whose names hold all words."""
    found = [name for name in FAULTS if all(word in name for word in words)]
    names = [pytest.param(name, marks=pytest.mark.soak if name in SOAK else ()) for name in found]
    return pytest.mark.parametrize("failed", names, indirect=True)


@launches()
def test_the_exit_code_tells_what_happened(failed: Failed) -> None:
    assert failed.ended.code == failed.fault.code, failed.ended.stdout + failed.ended.stderr


@launches()
def test_it_ends_in_time(failed: Failed) -> None:
    # The fault strikes in the second iteration, milliseconds after the row of the first.
    assert failed.seconds_after < failed.fault.within


@launches()
def test_nothing_outlives_it(failed: Failed) -> None:
    assert failed.ended.left_processes == []
    assert failed.ended.left_files == []


@launches("spawned")
def test_the_last_line_names_rank_and_cause(failed: Failed) -> None:
    last = failed.ended.last_line
    assert last.startswith("Error: ")
    assert f"ank {failed.fault.rank} on " in last
    assert failed.fault.sentence in last


@launches("spawned", "raises")
def test_an_exception_that_no_pickle_can_carry_is_told_in_its_own_words(failed: Failed) -> None:
    # Its class has two arguments and lives in a function. Errors and reports travel as text, so nothing is pickled.
    assert failed.ended.last_line.endswith("TwoArgumentsError: injected fault at 7")


@launches("in process")
def test_the_last_line_names_rank_and_cause_in_process_too(failed: Failed) -> None:
    assert "Rank 0 on " in failed.ended.last_line
    assert failed.fault.sentence in failed.ended.last_line
    assert f"Error: {failed.ended.record['ended']['last_line']}" == failed.ended.last_line


@launches("sleeps")
def test_the_stacks_of_a_rank_that_got_stuck_show_where(failed: Failed) -> None:
    stacks = failed.ended.run / "ranks" / f"rank_{failed.fault.rank:05d}.stacks.txt"
    assert f"Its stacks are in {stacks}." in failed.ended.last_line
    assert "in strike" in stacks.read_text(encoding="utf-8")


@launches("raises")
def test_its_own_traceback_is_printed_once_and_no_other(failed: Failed) -> None:
    said = failed.ended.stdout + failed.ended.stderr
    assert said.count("raise TwoArgumentsError(what, where)") == 1
    ours = said.partition("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")[0]  # torchrun's own
    assert ours.count("Traceback (most recent call last)") <= 2 if "joined" in failed.fault.command else True
    assert "Connection closed by peer" not in said


@launches("NaN")
def test_nan_is_told_in_one_sentence_without_a_traceback(failed: Failed) -> None:
    assert "Traceback" not in failed.ended.stderr + failed.ended.stdout
    assert "observation group 'policy' of environments 0, 1, 2" in failed.ended.last_line


@launches("refuses")
def test_a_refusal_inside_a_worker_has_no_traceback(failed: Failed) -> None:
    assert "Traceback" not in failed.ended.stderr + failed.ended.stdout


@launches("spawned")
def test_the_record_tells_how_it_ended(failed: Failed) -> None:
    ended = failed.ended.record["ended"]
    assert ended["exit_code"] == failed.fault.code
    assert f"Error: {ended['last_line']}" == failed.ended.last_line
    assert ended["digests"] == {}


@launches("joined")
def test_the_record_names_the_rank_that_torchrun_lost(failed: Failed) -> None:
    ended = failed.ended.record["ended"]
    if failed.fault.task == "Raises":
        assert ended["exit_code"] == 1
        assert f"Rank {failed.fault.rank} on " in ended["last_line"]
        torchruns = failed.ended.stderr.partition("ChildFailedError")[2]
        assert f"TrainingFailedError: {ended['last_line']}" in torchruns  # By its TORCHELASTIC_ERROR_FILE.
    else:
        assert ended["exit_code"] == 75
        assert f"ank {failed.fault.rank} on " in ended["last_line"]
        assert failed.fault.sentence in ended["last_line"]


@launches("spawned")
def test_only_the_iteration_before_the_fault_is_in_the_metrics(failed: Failed) -> None:
    assert [row["iteration"] for row in failed.ended.rows] == [1]


@launches("joined, rank 1 raises")
def test_exit_records_tell_the_cause_from_a_secondary_failure(failed: Failed) -> None:
    records = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted((failed.ended.run / "ranks").glob("*.json"))
    ]
    assert [record["is_secondary"] for record in records] == [True, False]


@launches("spawned, rank 1 leaves")
def test_variables_left_over_in_a_shell_are_noted_first_and_ignored(failed: Failed) -> None:
    names = ", ".join(name for name, _ in LEFT_OVER)
    note = f"{names} are set, but no launcher started this process: ignoring them."
    assert failed.ended.stdout.splitlines()[0] == note


@launches("joined")
def test_behind_torchrun_each_rank_says_the_same(failed: Failed) -> None:
    ours = [line for line in failed.ended.stderr.splitlines() if line.startswith("Error: ")]
    # The rank that failed tells it with its traceback, and rank 0, which tells of the run, without.
    assert len(ours) == (2 if failed.fault.task == "Raises" else 1)
    assert len(set(ours)) == 1


# Refusals behind torchrun ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training that torchrun has started, and that no rank can carry out: its log root is a file."""
    where = tmp_path_factory.mktemp("refused")
    (where / "logs").write_text("", encoding="utf-8")
    return run((*torchrun(2), "Cartpole-Swingup", *SMALL), where)


def test_a_refusal_behind_torchrun_is_in_the_same_words_on_every_rank(refused: Ended) -> None:
    # torchrun may end the second rank before it comes to speak.
    sentences = {line for line in refused.stderr.splitlines() if line.startswith("Error: ")}
    assert len(sentences) == 1
    assert sentences.pop().startswith("Error: --log-root asks for ")


def test_torchrun_reports_our_exit_code(refused: Ended) -> None:
    assert refused.code == 1
    assert re.search(r"exitcode\s*: 2 ", refused.stderr)
    assert (refused.left_processes, refused.left_files) == ([], [])


# Rank files -----------------------------------------------------------------------------------------------------


def rank_files(directory: Path) -> list[str]:
    """The names of the rank files below `directory`, in the only launch there; its name must be a second."""
    (launch,) = directory.iterdir()
    datetime.fromisoformat(launch.name)
    return sorted(path.name for path in launch.iterdir())


BOTH = ["localhost[0].log", "localhost[1].log"]


@launches("spawned, rank 1 raises")
def test_rank_files_lie_in_the_run_by_default(failed: Failed) -> None:
    assert rank_files(failed.ended.run / "torchrunx") == BOTH


@launches("spawned, rank 1 is killed")
def test_rank_files_lie_where_the_environment_says(failed: Failed) -> None:
    assert rank_files(failed.where / "here") == BOTH
    assert not (failed.ended.run / "torchrunx").exists()


@launches("spawned, rank 1 leaves")
def test_rank_files_lie_where_the_flag_says(failed: Failed) -> None:
    assert rank_files(failed.where / "there") == BOTH
    assert not (failed.ended.run / "torchrunx").exists()


@launches("spawned, rank 0 raises")
def test_an_empty_flag_turns_rank_files_off(failed: Failed) -> None:
    assert list(failed.where.rglob("*.log")) == []


@launches("spawned, NaN")
def test_an_empty_variable_turns_rank_files_off_whatever_the_flag_says(failed: Failed) -> None:
    assert list(failed.where.rglob("*.log")) == []


@launches("spawned, rank 1 is killed")
def test_a_lost_rank_is_told_with_its_file(failed: Failed) -> None:
    (file,) = (failed.where / "here").glob("*/localhost[[]1[]].log")
    assert f"Its last words are in {file}." in failed.ended.last_line


@launches("spawned, rank 1 raises")
def test_the_traceback_also_stands_in_the_file_of_its_rank(failed: Failed) -> None:
    files = sorted((failed.ended.run / "torchrunx").glob("*/*"))
    raised = ["injected fault" in file.read_text(encoding="utf-8") for file in files]
    assert raised == [False, True]

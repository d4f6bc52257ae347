"""The launch mode *in process*, through the same functions as the command, in this very process."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import FAULTY, rows_of
from support.stories import Listener, carry_out

from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, TrainingFailedError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture(autouse=True)
def _rank_0_is_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_FAULTY_RANK", "0")


def ending_of(log_root: Path, kind: type[ShoalError], task: str, listener: Listener) -> tuple[ShoalError, Path]:
    """Carry out a faulty task, and return the error that ended it and the run directory."""
    with pytest.raises(kind) as caught:
        carry_out(log_root, f"{FAULTY}:{task}", listener=listener)
    (run,) = log_root.glob("*/*")
    return caught.value, run


def end_in(run: Path) -> dict[str, Any]:
    """What `run.json` says of the end of the only launch."""
    (launch,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["launches"]
    return launch["ended"]


def test_an_exception_of_the_users_becomes_one_error_with_its_traceback(log_root: Path, listener: Listener) -> None:
    error, run = ending_of(log_root, TrainingFailedError, "Raises", listener)
    assert str(error).startswith("Rank 0 on ")
    assert "raise TwoArgumentsError(what, where)" in error.details
    assert (end_in(run)["exit_code"], end_in(run)["last_line"]) == (1, str(error))


def test_nan_is_one_sentence(log_root: Path, listener: Listener) -> None:
    error, run = ending_of(log_root, TrainingFailedError, "TurnsToNan", listener)
    assert "held NaN or infinity in iteration 2" in str(error)
    assert error.details == ""
    assert not list((run / "checkpoints").iterdir())


@pytest.mark.filterwarnings("ignore:The observation configuration dictionary 'obs_groups':UserWarning")
def test_curiosity_learns_on_a_task_of_ours_and_is_told(log_root: Path, listener: Listener) -> None:
    rnd = ("--agent.algorithm.rnd.enabled", "--agent.algorithm.rnd.weight", "0.1")
    carry_out(log_root, "Cartpole-Swingup", "--max-iterations", "2", *rnd, listener=listener)
    first, second = listener.rows
    assert first["Rnd/reward"] > 0
    assert second["Loss/rnd"] < first["Loss/rnd"]
    assert first["Rnd/weight"] == pytest.approx(0.1 * 0.02)  # rsl_rl scales it by the length of a step.


def test_what_a_task_refuses_keeps_its_exit_code(log_root: Path, listener: Listener) -> None:
    error, run = ending_of(log_root, UsageError, "Refuses", listener)
    assert error.exit_code == end_in(run)["exit_code"] == 2


def test_a_build_that_fails_leaves_no_run_directory(log_root: Path, listener: Listener, tmp_path: Path) -> None:
    file = tmp_path / "misspelt.py"
    file.write_text(
        "from shoal.tasks.cartpole.task import Swingup\n\nclass Misspelt(Swingup):\n    def allocate(self):\n"
        "        super().allocate()\n        self.config.forse_limit\n",
        encoding="utf-8",
    )
    with pytest.raises(
        UsageError, match=rf"line 6 of {file}, in allocate.*forse_limit'\. Did you mean 'force_limit'\?"
    ):
        carry_out(log_root, f"{file}:Misspelt", listener=listener)
    assert list(log_root.glob("*/*")) == []
    assert listener.lines[-1].endswith("was removed: nothing was learned.")


@pytest.mark.parametrize(
    ("task", "kind", "name"),
    [
        ("Interrupted", InterruptedRunError, "SIGINT"),
        ("Terminated", TerminatedRunError, "SIGTERM"),
        ("HungUp", TerminatedRunError, "SIGHUP"),
        ("Warned", TerminatedRunError, "SIGUSR1"),
    ],
)
def test_a_signal_ends_the_run_after_the_iteration_with_a_checkpoint(
    log_root: Path, listener: Listener, task: str, kind: type[ShoalError], name: str
) -> None:
    error, run = ending_of(log_root, kind, task, listener)
    assert str(error).startswith(f"{name} ended the run after iteration 2, with a checkpoint")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000002"]
    assert end_in(run)["exit_code"] == error.exit_code
    assert [row["iteration"] for row in listener.rows] == [1, 2]


def test_a_closed_terminal_does_not_end_a_run_under_nohup(log_root: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # What nohup does.
    try:
        outcome = carry_out(log_root, f"{FAULTY}:HungUp")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.reports[0].iteration == 3


def test_a_signal_is_answered_at_once(log_root: Path, listener: Listener) -> None:
    ending_of(log_root, InterruptedRunError, "Interrupted", listener)
    answer = "SIGINT: stopping after this iteration, with a checkpoint. Ctrl-C again stops at once."
    assert listener.lines[1:] == [answer]


def test_a_second_ctrl_c_ends_the_run_in_the_middle_of_an_iteration(log_root: Path, listener: Listener) -> None:
    error, run = ending_of(log_root, InterruptedRunError, "InterruptedTwice", listener)
    assert str(error) == "SIGINT ended the run at once. It has no checkpoint yet: start it again."
    assert end_in(run)["exit_code"] == 130
    assert [row["iteration"] for row in rows_of(run)] == [1]


def test_signal_handlers_are_put_back(log_root: Path, listener: Listener) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    ending_of(log_root, InterruptedRunError, "InterruptedTwice", listener)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_ranks_left_over_in_a_shell_are_hidden_from_libraries(
    log_root: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_over = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.255.255.1"}
    for name, value in left_over.items():
        monkeypatch.setenv(name, value)
    # The fault strikes where RANK is 0, or not set: it raises only if the 1 in the shell is hidden from it.
    ending_of(log_root, TrainingFailedError, "Raises", listener)
    assert {name: os.environ[name] for name in left_over} == left_over


def test_two_runs_in_one_second_get_two_directories(log_root: Path) -> None:
    runs = {carry_out(log_root, "Cartpole-Swingup", "--max-iterations", "1").run.path for _ in range(3)}
    assert len(runs) == 3

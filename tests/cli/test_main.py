"""How commands leave, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import LAUNCH_TIMEOUT_S, left_in, marked, marks, outliving, wait_until

SHOAL = (sys.executable, "-m", "shoal")


@pytest.mark.parametrize("words", [["tasks"], ["train", "Cartpole-Swingup", "--help"]])
def test_a_command_that_nobody_reads_ends_quietly(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*SHOAL, *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["train", "Walker"], ["train", "Walker"]),
        (["play", "Walker"], ["play", "Walker"]),
        (["evaluate", "Walker"], ["evaluate", "Walker"]),
        (["shoal", "tasks"], ["tasks"]),
    ],
)
def test_the_installed_commands_are_those_of_shoal(words: list[str], same: list[str]) -> None:
    installed = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    answers = [
        subprocess.run(command, capture_output=True, text=True, check=False) for command in (installed, [*SHOAL, *same])
    ]
    assert answers[0].returncode == answers[1].returncode
    assert (answers[0].stdout, answers[0].stderr) == (answers[1].stdout, answers[1].stderr)


def test_a_bug_of_ours_shows_its_traceback_and_exits_with_one() -> None:
    bug = "from shoal.cli import help, main; del help.pairs"
    script = f"import sys; sys.argv = ['shoal', 'tasks']; {bug}; main.run('shoal')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "name 'pairs' is not defined" in ended.stderr


TASK = """
import os, signal
class Default:
    def __set_name__(self, owner, name):  # Dataclasses call it for each field.
        os.kill(os.getpid(), signal.{})
class Task:
    field = Default()
"""


@pytest.mark.parametrize(
    ("name", "code", "said"), [("SIGINT", 130, "Interrupted."), ("SIGTERM", 143, "Ended by SIGTERM.")]
)
def test_a_signal_while_a_class_is_made_ends_a_command_as_at_any_other_time(
    tmp_path: Path, name: str, code: int, said: str
) -> None:
    (tmp_path / "task.py").write_text(TASK.format(name), encoding="utf-8")
    words = [*SHOAL, "train", f"{tmp_path / 'task.py'}:Task", "--dry-run"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (code, "", f"Error: {said}")


def test_a_command_that_asks_for_more_memory_than_there_is_says_so() -> None:
    hungry = "from shoal.cli import help, main; import torch; help.print_tasks = lambda _: torch.empty(10**15)"
    script = f"import sys; sys.argv = ['shoal', 'tasks']; {hungry}; main.run('shoal')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(
        "Error: There is not enough memory (you tried to allocate 4000000000000000 bytes): make"
    )


@pytest.mark.parametrize(
    ("environ", "order"),
    [({}, "PCI_BUS_ID"), ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "FASTEST_FIRST")],
)
def test_every_command_counts_gpus_as_nvidia_smi_does_unless_told_otherwise(
    environ: dict[str, str], order: str
) -> None:
    usual = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_ORDER"}
    script = (
        "import os, sys; from shoal.cli import main\n"
        "from shoal.cli import help\n"
        "help.print_tasks = lambda _: print(os.environ['CUDA_DEVICE_ORDER'], 'torch' in sys.modules)\n"
        "sys.argv = ['shoal', 'tasks']; main.run('shoal')"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=usual | environ, capture_output=True, text=True, check=False)
    assert ended.stdout == f"{order} False\n"


@pytest.mark.parametrize(
    ("name", "code", "last_line"),
    [
        ("SIGINT", 130, "Error: Interrupted.\n"),
        *((name, 143, f"Error: Ended by {name}.\n") for name in ("SIGTERM", "SIGHUP", "SIGUSR1")),
    ],
)
def test_a_signal_that_comes_before_the_imports_is_answered_in_a_line(name: str, code: int, last_line: str) -> None:
    script = f"""
import os, runpy, signal, sys
class Early:
    def find_spec(self, module, *_):
        if module == "rich.console":  # Among the first of what takes its time.
            os.kill(os.getpid(), signal.{name})
sys.meta_path.insert(0, Early())
sys.argv = ["shoal", "tasks"]
runpy.run_module("shoal", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", last_line)


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words", "at_work"),
    [
        (signal.SIGHUP, ["doctor", "--gpu-ids", "None", "--nproc-per-node", "2"], "shoal-doctor-*"),
        (
            signal.SIGTERM,
            ["bench", "Cartpole-Swingup", "--gpu-ids", "None", "--nproc-per-node", "2", "--num-envs", "64"],
            "shoal-bench-*/*/*/metrics.jsonl",
        ),
    ],
)
@pytest.mark.soak
def test_a_command_that_is_told_to_end_ends_what_it_has_started(
    number: signal.Signals, words: list[str], at_work: str, tmp_path: Path
) -> None:
    mark, of_its_own = marks(tmp_path)
    process = subprocess.Popen(
        [*SHOAL, *words],
        env={**os.environ, **of_its_own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    temporary = Path(of_its_own["TMPDIR"])
    assert wait_until(lambda: any(temporary.glob(at_work)), LAUNCH_TIMEOUT_S)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr.strip().splitlines()[-1]) == (143, f"Error: Ended by {number.name}.")
    assert outliving(lambda: marked(mark)) == []
    assert left_in(temporary) == []

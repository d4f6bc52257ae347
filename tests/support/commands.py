"""Shoal's commands as a user starts them: a process of their own, and an account of all that they left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

FAULTY = Path(__file__).with_name("faulty_tasks.py")
"""The file of tasks with a fault."""

TRAIN = (sys.executable, "-m", "shoal", "train")
"""The words that start a training."""

SMALL_WITH_EXPORT = ("--gpu-ids", "None", "--num-envs", "16", "--agent.num-steps-per-env", "8")
"""Flags of a training that takes a fraction of a second an iteration."""

SMALL = (*SMALL_WITH_EXPORT, "--no-export")
"""The same, without the seconds at its end."""

SURROUNDINGS = {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
"""Environment of each command. Threads of such small networks would only wait for each other."""

LAUNCH_TIMEOUT_S = 240.0
"""No launch of a test takes so long, on a busy machine either [s]."""

_KEPT_BY_TORCH = ("torchinductor_", "torchelastic_")
"""Temporary directories that torch and torchrun leave on purpose: a cache, and logs."""

_MARK = "SHOAL_TEST_COMMAND"


def torchrun(workers: int) -> tuple[str, ...]:
    """The words that start a training as several ranks of torchrun."""
    return (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={workers}"),
        *("-m", "shoal", "train"),
    )


@dataclass
class Ended:
    """How a command ended, and what it left."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    """How long it took [s]."""
    seconds_after_signal: float
    """How long it took from the last signal on [s]."""
    left_processes: list[str]
    """Command lines of processes that outlived it."""
    left_files: list[str]
    """Names of files and directories that lie in its temporary directory."""
    log_root: Path
    """What was passed as `--log-root`."""

    @property
    def last_line(self) -> str:
        """The last line on standard error."""
        return self.stderr.strip().splitlines()[-1]

    @property
    def runs(self) -> list[Path]:
        """All run directories below the log root."""
        return sorted(self.log_root.glob("*/*"))

    @property
    def run(self) -> Path:
        """The only run directory."""
        (run,) = self.runs
        return run

    @property
    def record(self) -> dict[str, Any]:
        """The only launch in the run's `run.json`."""
        (launch,) = json.loads((self.run / "run.json").read_text(encoding="utf-8"))["launches"]
        return launch

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The run's metrics."""
        return rows_of(self.run)


_marks: set[str] = set()
"""Commands that may still run."""


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run, one row an iteration."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@dataclass
class Running:
    """A command that runs in a session of its own, as under a shell of its own."""

    process: subprocess.Popen[str]
    mark: str
    log_root: Path
    temporary: Path
    started: float = field(default_factory=time.monotonic)
    signalled: float | None = None
    """When it last got a signal."""
    lines: list[str] = field(default_factory=list)
    """What it has printed so far, on standard output."""

    def read_until(self, word: str) -> str:
        """Return its next line of output that holds `word`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if word in line:
                return line
        message = f"It ended without printing {word!r}: {self.end()}"
        raise AssertionError(message)

    @property
    def leader(self) -> int:
        """The launching process, which leads the session."""
        return self.process.pid

    def processes(self) -> list[int]:
        """Return the living processes that are its own."""
        return list(marked(self.mark))

    def left_files(self) -> list[str]:
        """Return the names of what it has left in temporary directories so far."""
        return left_in(self.temporary)

    def signal_itself(self, number: signal.Signals) -> None:
        """Send a signal to the launching process alone, as `kill` does."""
        self.signalled = time.monotonic()
        os.kill(self.leader, number)

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the launching process and all its workers, as a terminal does."""
        self.signalled = time.monotonic()
        os.killpg(self.leader, number)

    def signal_process(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to one of its processes."""
        self.signalled = time.monotonic()
        os.kill(pid, number)

    def signal_every_process(self, number: signal.Signals) -> None:
        """Send a signal to all processes that it has started, and theirs, as a scheduler does."""
        for pid in self.processes():
            self.signal_process(pid, number)

    def end(self, timeout: float = LAUNCH_TIMEOUT_S) -> Ended:
        """Wait until it has ended."""
        try:
            stdout, stderr = self.process.communicate(timeout=timeout)
        finally:
            ended = time.monotonic()
            left = outliving(self.processes)
            kill(self.processes())
            _marks.discard(self.mark)
        return Ended(
            code=self.process.returncode,
            stdout="".join(self.lines) + (stdout or ""),
            stderr=stderr,
            seconds=ended - self.started,
            seconds_after_signal=ended - (self.signalled or ended),
            left_processes=left,
            left_files=self.left_files(),
            log_root=self.log_root,
        )


def start(
    words: Sequence[str], where: Path, environ: Mapping[str, str] | None = None, *, stdout: int = subprocess.PIPE
) -> Running:
    """Start a command with `where/logs` for `--log-root`, but the demo, and a temporary directory of its own."""
    mark, of_its_own = marks(where)
    runs = () if "demo" in words else ("--log-root", str(where / "logs"))
    process = subprocess.Popen(
        [*words, *runs],
        cwd=where,
        env={**os.environ, **SURROUNDINGS, **of_its_own, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Running(process=process, mark=mark, log_root=where / "logs", temporary=Path(of_its_own["TMPDIR"]))


def marks(where: Path) -> tuple[str, dict[str, str]]:
    """Return a new mark, and the variables that give it and a temporary directory to a command and all it starts."""
    temporary, mark = where / "tmp", uuid.uuid4().hex
    temporary.mkdir(parents=True, exist_ok=True)
    _marks.add(mark)
    return mark, {"TMPDIR": str(temporary), _MARK: mark}


def left_in(temporary: Path) -> list[str]:
    """Return the names of what commands have left in their temporary directory."""
    return sorted(path.name for path in temporary.iterdir() if not path.name.startswith(_KEPT_BY_TORCH))


def end_all() -> None:
    """End what commands have left running, such as one whose test failed before its end."""
    for mark in _marks:
        kill(marked(mark))
    _marks.clear()


def kill(pids: Iterable[int]) -> None:
    """Kill processes, some of which may just have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(words: Sequence[str], where: Path, environ: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end."""
    return start(words, where, environ).end()


def wait_until(condition: Callable[[], bool], timeout: float = 120.0, pause_s: float = 0.02) -> bool:
    """Look at a condition until it holds or the time is over; return whether it holds.

    The default is patience with a busy machine that draws pages with its processor, not a claim about Shoal.
    """
    pause, deadline = threading.Event(), time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(pause_s)
    return True


def outliving(processes: Callable[[], Iterable[int]]) -> list[str]:
    """Return the command lines of processes that outlive their command. What was just killed gets a moment to go."""
    wait_until(lambda: not list(processes()), timeout=2.0)
    return [command_line(pid) for pid in processes()]


def marked(mark: str) -> Iterator[int]:
    """Yield the living processes that inherited a mark, wherever they hang in the tree."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and f"{_MARK}={mark}" in _read(entry / "environ"):
            yield int(entry.name)


def command_line(pid: int) -> str:
    """Return the words that a process was started with."""
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def has_loaded(pid: int, library: str) -> bool:
    """Whether a process has mapped a library, such as torch's, or a part of it."""
    return library in _read(Path(f"/proc/{pid}/maps"))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # It has just ended; a zombie's is empty.
        return ""

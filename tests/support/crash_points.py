"""Checkpoints whose writers are killed before each single thing that they do to the disk, one thing after the other.

Every write is a process of its own, forked from one that has imported all it needs. It counts what it does to files,
as Python's audit events and the flushes tell, and is killed with SIGKILL in the middle of its list. Nothing that it
does is replaced: a large write is made in two halves, so that it can be killed between them.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from shoal.config import TrainConfig
from shoal.files import Folder
from shoal.learn import checkpoints
from shoal.learn.checkpoint_writer import CheckpointWriter
from shoal.learn.checkpoints import Snapshot, write_snapshot
from shoal.learn.groups import World
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST, BEFORE, NEW = 1, 2, 3
"""Two whole checkpoints, and the number of the one that is written, in the place of a damaged one."""
SIZE = 2
"""Ranks."""
_DESCRIPTORS = Path("/proc/self/fd")
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def sweep(_rank: int, scratch: str, victim: int) -> list[str]:
    """Write the same checkpoint again and again, and kill one of its two ranks a step later each time.

    Leaves `scratch/<steps done>`, a run as the crash has left it; in `scratch/whole` one that nobody was killed in.
    Beside it, `<steps done>.error` has the error of a first rank that was not killed.

    Returns:
        What the victim does to files, step by step.
    """
    torch.set_num_threads(1)
    torch.save({}, io.BytesIO())  # Whatever torch imports for it is no step of a write.
    where = Path(scratch)
    template = RunDir(where / "template")
    _prepare(template)
    steps = where / "steps"
    _write_once(_run_at(where / "whole", template), victim, None, steps)
    trail = steps.read_text(encoding="utf-8").splitlines()
    for done in range(len(trail)):
        _write_once(_run_at(where / str(done), template), victim, done, steps)
    return trail


def _prepare(run: RunDir) -> None:
    """Write the checkpoints that are there before, and damage the last one."""
    for iteration in (OLDEST, BEFORE, NEW):
        run.unfinished_dir(iteration).mkdir(parents=True)
        for rank in reversed(range(SIZE)):
            write_snapshot(run, snapshot(iteration, rank))
    (run.checkpoint_dir(NEW) / checkpoints.MODEL).write_bytes(b"")


def snapshot(iteration: int, rank: int) -> Snapshot:
    """What a rank saves."""
    learner = {"weights": torch.full((3000,), float(iteration))} if rank == 0 else None
    rank_state = {"rows": {"state": torch.full((SIZE, 3000), float(10 * iteration + rank))}}
    return Snapshot(
        iteration=iteration,
        rank=rank,
        world_size=SIZE,
        learner=learner,
        rank_state=rank_state,
        metadata={"num_envs": SIZE},
    )


def _run_at(root: Path, template: RunDir) -> RunDir:
    run = RunDir(root / "Cartpole-Swingup" / "2026-01-01_00-00-00")
    shutil.copytree(template.path, run.path)
    return run


def _write_once(run: RunDir, victim: int, steps_done: int | None, steps: Path) -> None:
    """Let both ranks write their part, and wait for the victim.

    Rank 0 is killed beside rank 1, which is then ended as a launch would end it. Rank 1 is killed before rank 0 begins,
    which need not wait then.
    """
    error_file = run.path.parent.parent.with_suffix(".error")
    watched = _Steps(steps, steps_done)
    other = None
    if victim == 1:
        run.unfinished_dir(NEW).mkdir()
    else:
        other = _forked(lambda: _write(run, 1, None, error_file))
    _, status = os.waitpid(_forked(lambda: _write(run, victim, watched, error_file)), 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed != (steps_done is not None):
        message = f"The victim ended with the status {status} when it was to be killed after {steps_done} steps."
        raise RuntimeError(message)
    if other is None:
        checkpoints.RANK_FILE_TIMEOUT_S = 0.0
        other = _forked(lambda: _write(run, 0, None, error_file))
    elif killed:
        os.kill(other, signal.SIGKILL)  # It may have ended, but was not waited for.
    os.waitpid(other, 0)


def _forked(function: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        function()
        os._exit(0)
    finally:
        os._exit(1)


def _write(run: RunDir, rank: int, watched: _Steps | None, error_file: Path) -> None:
    """Be one rank that saves. The one that is not watched writes its error."""
    writer = CheckpointWriter(run, World(rank=rank, size=SIZE), TrainConfig(task="", keep_last=1, keep_rank_files=None))
    if watched is not None:
        watched.begin()
    try:
        writer.save(snapshot(NEW, rank))
        writer.wait()
    except Exception as error:
        error_file.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise
    if watched is not None:
        watched.end()


class _Steps:
    """What this process does to files, by name; and its end, before one of them."""

    def __init__(self, file: Path, last: int | None) -> None:
        self._file = file
        self._last = last
        self._names: list[str] = []
        self._counts = True

    def begin(self) -> None:
        """Look at everything from now on."""
        sys.addaudithook(self._look)
        flush, opened = os.fsync, Folder.open

        def flush_counted(descriptor: int) -> None:
            self._step("flush", _DESCRIPTORS / str(descriptor))
            flush(descriptor)

        def open_in_halves(folder: Folder, path: Path, mode: str) -> Any:
            return _InHalves(opened(folder, path, mode), lambda: self._step("half of", path))

        os.fsync = flush_counted
        Folder.open = open_in_halves  # pyright: ignore[reportAttributeAccessIssue]

    def end(self) -> None:
        """Look no more, and keep the names."""
        self._counts = False
        self._file.write_text("\n".join(self._names), encoding="utf-8")

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], int):  # A descriptor of what was opened by its name.
            return
        if event in _CHANGES:
            self._step(event.removeprefix("os."), arguments[0])
        elif event == "open" and arguments[2] & _WRITES:
            self._step("open", arguments[0])

    def _step(self, what: str, path: Any) -> None:
        if not self._counts:
            return
        if len(self._names) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        named = Path(path)
        self._names.append(f"{what} {(named.readlink() if named.parent == _DESCRIPTORS else named).name}")


class _InHalves:
    """A file that is written to in two halves."""

    def __init__(self, file: Any, between: Callable[[], None]) -> None:
        self._file = file
        self._between = between

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: Any) -> int:
        """Write a half, which the disk has at once, and write the other one."""
        half = len(data) // 2
        self._file.write(data[:half])
        self._between()
        return half + self._file.write(data[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

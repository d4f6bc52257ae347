"""A process that has imported what commands import, and forks for each case: `python -m support.fuzz.server`.

It reads one case a line, as JSON, and answers with a line: how the command ended, and what it did.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import math
import os
import resource
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from support import warm
from support.fuzz.guard import Guard

from shoal.errors import ShoalError

MEMORY = 2 << 30
"""Memory that a command may take beyond that of its imports [bytes]."""
PATIENCE = 3
"""A command may take this many times as long as it may use a core: other processes use cores, too."""
_FILE = 256 << 20
"""Largest file that it may write [bytes], so that a fault does not fill the disk."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl: children of a case that has ended become this process's."""
_LAST = 2_000_000
"""Characters of the output that are kept."""


def serve() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for name in warm.IMPORTED:
        importlib.import_module(name)
    _warm_up(json.loads(sys.stdin.readline()))
    gc.freeze()  # So that forks share the pages of what is imported.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        answers.write(json.dumps(_run(**json.loads(line))) + "\n")
        answers.flush()


def _warm_up(commands: list[list[str]]) -> None:
    """Run commands once, so that forks need not import what they import late, nor load the kernels of a task."""
    from shoal.cli import main

    for words in commands:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ShoalError):
            main.shoal(words)
    tempfile.tempdir = None  # Each case has a directory of its own.


def _run(*, seconds: float, **case: Any) -> dict[str, Any]:
    """Run a command in a fork, and return how it ended."""
    output, told = os.memfd_create("output"), os.memfd_create("told")
    began = time.monotonic()
    if (process := os.fork()) == 0:
        _become(output=output, told=told, seconds=seconds, **case)
    handle = os.pidfd_open(process)
    ended, _, _ = select.select([handle], [], [], PATIENCE * seconds)
    took = time.monotonic() - began
    os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        ended = []
    left = _end_children()
    printed = _read(output)
    os.close(handle)
    return {
        "code": code if ended else None,
        "seconds": took,
        "peak": usage.ru_maxrss << 10,
        "output": printed[-_LAST:],
        "traceback": "Traceback (most recent call last)" in printed,
        "told": _read(told).splitlines(),
        "left": left if ended else 0,
    }


def _become(
    *,
    name: str,
    words: list[str],
    cwd: str,
    environ: dict[str, str],
    writable: list[str],
    given: str,
    witness: bool,
    seconds: float,
    output: int,
    told: int,
) -> NoReturn:
    """Become a command, limited and guarded."""
    os.setsid()
    held = int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE, _FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
    guard = Guard(writable, given, told)
    if witness:
        guard.witness()
    guard.install()
    warm.run(name, words, cwd, environ, [os.open(os.devnull, os.O_RDONLY), output, output])


def _end_children() -> int:
    """End the processes that a case has left; return how many were still running."""
    running = 0
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split():
        for child in map(int, children):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                running += 1
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    return running


def _read(descriptor: int) -> str:
    text = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
    os.close(descriptor)
    return text


if __name__ == "__main__":
    serve()
    os._exit(0)  # What libraries print at an end is of no use here.

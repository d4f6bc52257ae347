"""Processes of the doctor's own, each under a time limit: whatever hangs or crashes in them becomes a finding.

What they have to say is one line of JSON each time. Libraries print where they like, so a child keeps its standard
output to itself and sends all else to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from shoal import PYTHON, procfs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

START_S = 180.0
"""How long a child may take to import its libraries and do its work [s]; importing torch on a busy disk is slow."""
_LAST_WORDS = 300  # characters


@dataclass(slots=True)
class Child:
    """One process that runs a module of this package."""

    process: subprocess.Popen[str]
    stderr: IO[str]
    """A file without a name, which takes what is no answer."""

    def answer(self, seconds: float = START_S) -> dict[str, Any] | str:
        """Wait for the last line of its answer; or return why there is none, as a clause."""
        try:
            said, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"it did not end within {seconds:g} s"
        finally:
            self.end()
        lines = said.splitlines()
        return json.loads(lines[-1]) if lines and self.process.returncode == 0 else how_it_ended(self)

    def last_words(self) -> str:
        """Return the last line that it said on standard error."""
        self.stderr.seek(0)
        lines = [line.strip() for line in self.stderr.read().splitlines() if line.strip()]
        return lines[-1][:_LAST_WORDS].rstrip(".") if lines else ""

    def end(self) -> None:
        """Kill it if it still runs, and take notice of its end."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def start_child(module: str, asked: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Child:
    """Start `python -m shoal.doctor.<module>` with what is asked of it, as JSON."""
    stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  It lives with the child.
    process = subprocess.Popen(
        [*PYTHON, "-m", f"shoal.doctor.{module}", json.dumps(dict(asked)), str(os.getpid())],
        env={**os.environ, **(environ or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    return Child(process, stderr)


def how_it_ended(child: Child) -> str:
    """Say how a child ended that did not answer."""
    words = child.last_words()
    return procfs.how_it_ended(child.process.returncode) + (f": {words}" if words else "")


def begin() -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], None]]:
    """Begin to be a child: return what is asked, and what writes an answer to the parent, without whom we end."""
    procfs.end_with_parent(int(sys.argv[2]), signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(data: Mapping[str, Any]) -> None:
        answers.write(json.dumps(dict(data)) + "\n")
        answers.flush()

    return json.loads(sys.argv[1]), answer

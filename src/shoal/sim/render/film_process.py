"""The process that makes a film, from outside: started, waited for, ended. It leaves nothing but the film."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from shoal import PYTHON
from shoal.checks.film import GL_VARIABLE
from shoal.errors import ShoalError
from shoal.procfs import how_it_ended
from shoal.sim.render.film import unfinished

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.sim.render.clip import Clip

_CLEAN_UP_S = 5.0
"""How long a process that is told to end may take to clean up [s]; a frame takes a tenth of a second."""


class FilmProcess:
    """Draws and encodes one clip."""

    def __init__(self, clip: Clip, target: Path, gl: str, *, nice: int = 0) -> None:
        """Start.

        Args:
            clip: What is filmed.
            target: The film, an mp4.
            gl: What to draw with, see `shoal.checks.film`.
            nice: How far other processes go first, up to 19.

        Raises:
            OSError: There is no room for the clip, or for another process.
        """
        self.target = target
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  It lives as long as the process.
        with tempfile.TemporaryFile() as told:  # Neither file has a name that could be left behind.
            clip.write(told)
            told.seek(0)
            self._process = subprocess.Popen(
                [*PYTHON, "-m", "shoal.sim.render.film", str(target), str(os.getpid()), str(nice)],
                env={**os.environ, GL_VARIABLE: gl},
                stdin=told,
                stdout=self._said,
                stderr=self._said,
                # A Ctrl-C is for whoever has started it. In a session of its own, where the kernel schedules sessions
                # as groups, nice would only count among the processes of that session.
                process_group=0,
            )

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._process.poll() is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Return as soon as it has ended, or after so long; tell whether it has."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def why_failed(self) -> str | None:
        """Say, as a clause, why there is no film; None when there is one. It must have ended."""
        if self._process.returncode == 0:
            return None
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1].rstrip(".") if lines else how_it_ended(self._process.returncode)

    def end(self) -> None:
        """End it if it still runs, and clean up behind it."""
        self._process.terminate()
        if not self.wait(_CLEAN_UP_S):
            self._process.kill()
            self._process.wait()
            unfinished(self.target).unlink(missing_ok=True)
        self._said.close()


def make_film(clip: Clip, target: Path, gl: str) -> None:
    """Make a film, and wait for it.

    Raises:
        ShoalError: There is none; tells why.
    """
    process = FilmProcess(clip, target, gl)
    try:
        process.wait()
        reason = process.why_failed()
    finally:
        process.end()
    if reason is not None:
        message = f"The film {target} could not be made ({reason})."
        raise ShoalError(message)

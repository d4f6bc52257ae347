"""Child processes that call one function under a time limit, so that its crash, its hang and its imports stay there."""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from shoal import PYTHON, procfs

TIMEOUT_S = 180.0
"""How long a probe may take to import its libraries and finish [s]; importing torch on a busy disk is slow."""
_LONGEST_LINE = 300  # characters of standard error that are reported


class Probe:
    """A child process that calls a function, such as ``shoal.sim.probe:probe``, with a JSON value, and prints JSON."""

    def __init__(self, function: str, argument: object, environ: Mapping[str, str] | None = None) -> None:
        # A file, not a pipe: nothing reads it while the process runs.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*PYTHON, "-m", __name__, function, json.dumps(argument), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=environ,
        )

    def result(self, timeout_s: float | None = TIMEOUT_S) -> dict[str, Any] | str:
        """Wait for the result. Return a clause that describes the failure if the process failed or took too long."""
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
            self._stderr.seek(0)
            errors = [line.strip() for line in self._stderr if line.strip()]
        except subprocess.TimeoutExpired:
            return f"it did not end within {timeout_s:g} s"
        finally:
            self.kill()
        if self._process.returncode == 0:
            return json.loads(output)
        last_line = f": {errors[-1][:_LONGEST_LINE].rstrip('.')}" if errors else ""
        return procfs.how_it_ended(self._process.returncode) + last_line

    def kill(self) -> None:
        """Kill the process if it still runs, reap it, and close its files, if that is not done."""
        self._process.kill()
        with self._process:  # Waits, and closes its output.
            self._stderr.close()


def _main(function: str, argument: str, parent: str) -> None:
    procfs.end_with_parent(int(parent), signal.SIGKILL)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Libraries print to standard output, too.
    with results:
        json.dump(pkgutil.resolve_name(function)(json.loads(argument)), results)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Child processes that import torch or run a kernel under a time limit, so that a crash or a hang becomes a finding."""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

from shoal import PYTHON, procfs

TIMEOUT_S = 180.0
"""How long a probe may take to import its libraries and finish [s]; importing torch on a busy disk is slow."""
_LONGEST_LINE = 300  # characters of standard error that are reported


class Probe:
    """A child process that calls a function, such as ``shoal.sim.probe:probe``, with a JSON value, and prints JSON."""

    def __init__(self, function: str, argument: object) -> None:
        # A file, not a pipe: nothing reads it while the process runs.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*PYTHON, "-m", __name__, function, json.dumps(argument), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def result(self) -> dict[str, Any] | str:
        """Wait for the result. Return a clause that describes the failure if the process failed or took too long."""
        try:
            output, _ = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"it did not end within {TIMEOUT_S:g} s"
        finally:
            self.kill()
        if self._process.returncode == 0:
            return json.loads(output)
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().splitlines() if line.strip()]
        last_line = f": {lines[-1][:_LONGEST_LINE].rstrip('.')}" if lines else ""
        return procfs.how_it_ended(self._process.returncode) + last_line

    def kill(self) -> None:
        """Kill the process if it still runs, and reap it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def probe_torch(gpus: list[int]) -> dict[str, Any]:
    """Return torch's versions, whether it can use CUDA, and which of `gpus` have peer access to each other."""
    import torch
    import torch.distributed as dist
    from torch.cuda import nccl

    uses_cuda, failure = torch.version.cuda is not None and bool(gpus), None
    if uses_cuda:
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            uses_cuda, failure = False, str(error).strip().partition("\n")[0].rstrip(".")
    can_access = torch.cuda.can_device_access_peer
    peers = [[one, other] for one in gpus for other in gpus if uses_cuda and one != other and can_access(one, other)]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": ".".join(map(str, nccl.version())) if uses_cuda and dist.is_nccl_available() else None,
        "device_count": torch.cuda.device_count() if uses_cuda else 0,
        "problem": failure,
        "peers": peers,
    }


def _main(function: str, argument: str, parent: str) -> None:
    procfs.end_with_parent(int(parent), signal.SIGKILL)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Libraries print to standard output, too.
    with results:
        json.dump(pkgutil.resolve_name(function)(json.loads(argument)), results)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Child processes that import torch or run a kernel under a time limit, so that a crash or a hang becomes a finding."""

import json
import os
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
    """A running child process that computes one of `PROBES` and prints the result as JSON."""

    def __init__(self, name: str, argument: object) -> None:
        """Start the process.

        Args:
            name: Key of `PROBES`.
            argument: Argument of the function, a JSON value.
        """
        # A file, not a pipe: nothing reads it while the process runs.
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*PYTHON, "-m", __name__, name, json.dumps(argument), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def result(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | str:
        """Wait for the result. Return a clause that describes the failure if the process failed or took too long."""
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"it did not end within {timeout_s:g} s"
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

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": None,
        "device_count": 0,
        "problem": None,
        "peers": [],
    }
    if torch.version.cuda is None or not gpus:
        return facts
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        facts["problem"] = str(error).strip().partition("\n")[0].rstrip(".")
        return facts
    facts["device_count"] = torch.cuda.device_count()
    if dist.is_nccl_available():
        facts["nccl"] = ".".join(map(str, nccl.version()))
    facts["peers"] = [
        [one, other] for one in gpus for other in gpus if one != other and torch.cuda.can_device_access_peer(one, other)
    ]
    return facts


def probe_kernel(device: str) -> dict[str, Any]:
    """Run one Warp kernel on a device, and capture it as a graph."""
    from shoal.sim.probe import probe

    return probe(device)


PROBES = {"torch": probe_torch, "kernel": probe_kernel}


def _main(name: str, argument: str, parent: str) -> None:
    procfs.end_with_parent(int(parent), signal.SIGKILL)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Libraries print to standard output, too.
    with results:
        json.dump(PROBES[name](json.loads(argument)), results)


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Measure the supervision of many simulated machines: when each fault is found, and what the launching process does.

    python docs/measure_scale.py --nodes 8 32 128

Supervisor, hang detector, node status and messages are Shoal's own; machines, links, clocks and time are simulated
(tests/support/simulated_launch.py).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.simulated_launch import SimulatedLaunch, cut, deadlock, killed, raises, sleeps, stopped

from shoal.plan.rundir import RunDir

FAULTS = {
    "a rank is killed": killed,
    "a rank raises, and another 0.3 s later": raises,
    "a rank sleeps": sleeps,
    "a rank is stopped": stopped,
    "a cable is pulled": cut,
    "all ranks wait": deadlock,
}
STALL_S = 60.0
QUIET_S = 60.0


def show(*parts: str) -> None:
    """Write a line of the result."""
    sys.stdout.write(" ".join(parts) + "\n")


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32, 128], help="numbers of nodes, from 8 on")
    return parser


def main() -> None:
    """Print two tables in Markdown."""
    chosen = flags().parse_args().nodes
    show(f"| fault, --stall-timeout {STALL_S:.0f} |", " | ".join(f"{number} machines" for number in chosen), "|")
    show("| --- |" + " --- |" * len(chosen))
    errors: dict[str, str] = {}
    for name, fault in FAULTS.items():
        times: list[str] = []
        for number in chosen:
            with launched(number) as launch:
                seconds, errors[name] = launch.supervise(fault)
            times.append(f"{seconds:.1f} s")
        show(f"| {name} |", " | ".join(times), "|")
    show("\n| quiet training |", " | ".join(f"{number} machines" for number in chosen), "|")
    show("| --- |" + " --- |" * len(chosen))
    loads: list[tuple[float, float, float, float]] = []
    for number in chosen:
        with launched(number) as launch:
            tracemalloc.start()
            launch.supervise(end=QUIET_S)
            gc.collect()
            memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        with launched(number) as launch:
            launch.supervise(end=QUIET_S)
            sent = launch.messages / QUIET_S, launch.bytes / QUIET_S / 1e3
            loads.append((*sent, launch.seconds / QUIET_S, memory / 1e6))
    names = ("messages a second", "kB a second", "CPU time", "memory [MB]")
    for name, each in zip(names, zip(*loads, strict=True), strict=True):
        shown = (f"{100 * value:.1f} %" if name == "CPU time" else f"{value:.1f}" for value in each)
        show(f"| {name} |", " | ".join(shown), "|")
    show()
    for name, error in errors.items():
        show(f"{name}: {error}")


@contextmanager
def launched(num_nodes: int) -> Iterator[SimulatedLaunch]:
    """Yield a simulated launch; its replacements are undone at the end."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        run = RunDir(Path(directory))
        run.ranks_dir.mkdir()
        yield SimulatedLaunch(run, patched, num_nodes=num_nodes, stall_timeout=STALL_S)


if __name__ == "__main__":
    main()

"""SLURM as far as a job script and the tasks of a step see it: `srun` and `scontrol` as small shell scripts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""What a batch script finds around it, in an allocation of two tasks on one machine."""

_SRUN = """#!/bin/bash
# Starts the tasks of one step on this machine, hands signals on to them, and ends with their highest exit code.
while [[ $1 == --* ]]; do shift; done
hand_on() { kill -s "$1" "${tasks[@]}" 2>/dev/null; }
tasks=()
for name in USR1 TERM; do trap "hand_on $name" "$name"; done
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_STEP_ID=0 SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_STEP_NUM_TASKS=$SLURM_NTASKS \\
        SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_STEP_TASKS_PER_NODE=$SLURM_NTASKS "$@" &
    tasks+=($!)
done
highest=0
for task in "${tasks[@]}"; do
    wait "$task"
    code=$?
    while kill -0 "$task" 2>/dev/null; do
        wait "$task"
        code=$?
    done
    if ((code > highest)); then highest=$code; fi
done
exit "$highest"
"""
_SCONTROL = """#!/bin/bash
echo "$@" >>"$FAKE_SCONTROL"
"""


def batch_environment(where: Path) -> dict[str, str]:
    """Return the environment of a batch script whose commands of SLURM lie in `where`.

    What it has asked of `scontrol` is in `where/asked`.
    """
    where.mkdir(parents=True, exist_ok=True)
    for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        (where / name).write_text(text, encoding="utf-8")
        (where / name).chmod(0o755)
    path = os.pathsep.join([str(where), os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    return {**JOB, "PATH": path, "FAKE_SCONTROL": str(where / "asked")}


def task_environment(
    rank: int, local_rank: int, node: int, *, hosts: str, tasks_per_node: str, tasks: int
) -> dict[str, str]:
    """Return what srun tells one task of a step over several nodes."""
    return {
        **JOB,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_TASKS_PER_NODE": tasks_per_node,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
    }

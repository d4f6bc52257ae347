"""A file with a task made of terms trains through every launch mode, and two workers learn the same in each."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import TRAIN, Ended, run, torchrun
from support.fake_slurm import batch_environment
from support.machines import machines, needs_machines

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.soak, needs_machines, pytest.mark.timeout(900)]

ARM = f"{Path(__file__).parents[2]}/docs/examples/arm.py:Arm"
FLAGS = (ARM, "--gpu-ids", "None", "--num-envs", "16", "--max-iterations", "3", "--logger", "none", "--no-export")


def test_a_file_of_terms_trains_through_every_launch_mode(tmp_path: Path) -> None:
    with machines(tmp_path / "made", "a", "b") as made:
        trained = {
            "in process": run((*TRAIN, *FLAGS), tmp_path / "one"),
            "spawned": run((*TRAIN, *FLAGS, "--nproc-per-node", "2"), tmp_path / "spawned"),
            "torchrun": run((*torchrun(2), *FLAGS), tmp_path / "torchrun"),
            "srun": run(("srun", *TRAIN, *FLAGS), tmp_path / "srun", batch_environment(tmp_path / "slurm")),
            "hosts": made.launcher.start((*TRAIN, *FLAGS, "--hosts", "a", "b"), made.shared / "hosts").end(),
        }
    for mode, ended in trained.items():
        assert ended.code == 0, f"{mode}: {ended.stdout}{ended.stderr}"
    digests = {mode: digests_of(ended) for mode, ended in trained.items()}
    assert len(digests.pop("in process")) == 1
    assert all(len(of_ranks) == 2 for of_ranks in digests.values()), digests
    assert len({digest for of_ranks in digests.values() for digest in of_ranks}) == 1, digests


def digests_of(ended: Ended) -> list[str]:
    """The fingerprint of each rank's learner at the end."""
    return list(ended.record["ended"]["digests"].values())

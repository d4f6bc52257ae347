"""A training that has succeeded has succeeded, whatever becomes of its export in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from support.commands import FAULTY, SMALL_WITH_EXPORT, TRAIN, run

from shoal.plan.checkpoints import best_first, list_checkpoints
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spawn


@pytest.mark.soak
@pytest.mark.parametrize(
    ("task", "warnings"),
    [("CannotSayWhatItsActionsMean", 1), ("DiesWhileExported", 0)],
)
def test_a_lost_export_is_no_lost_run(task: str, warnings: int, tmp_path: Path) -> None:
    flags = ("--nproc-per-node", "2", "--max-iterations", "1", *SMALL_WITH_EXPORT)
    ended = run((*TRAIN, f"{FAULTY}:{task}", *flags), tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.record["ended"]["exit_code"] == 0
    assert "Finished 1 iterations" in ended.stdout.splitlines()[-1]
    assert (ended.stdout + ended.stderr).count("The policy was not exported (LookupError: no robot).") == warnings
    assert (ended.run / "checkpoints" / "000001" / "model.pt").is_file()
    assert not (ended.run / "exports").exists()
    assert ended.left_processes == ended.left_files == []


def test_the_best_policy_is_exported_beside_the_last(tmp_path: Path) -> None:
    ruin = ("--agent.algorithm.schedule", "fixed", "--agent.algorithm.learning-rate", "0.3")
    flags = ("--max-iterations", "6", "--agent.save-interval", "1", "--env.episode-length-s", "0.3", *ruin)
    ended = run((*TRAIN, "Cartpole-Balance", *SMALL_WITH_EXPORT, *flags), tmp_path)
    assert ended.code == 0, ended.stderr
    best = best_first(list_checkpoints(RunDir(ended.run)))[0]
    assert best.iteration < 6, "it says something"
    names = {"policy.onnx", "policy.pt2", "best.onnx", "best.pt2"}
    assert {path.name for path in (ended.run / "exports").iterdir()} == names
    told = {name: onnx.load(str(ended.run / "exports" / name)).metadata_props for name in ("policy.onnx", "best.onnx")}
    iterations = {name: int({each.key: each.value for each in props}["iteration"]) for name, props in told.items()}
    assert iterations == {"policy.onnx": 6, "best.onnx": best.iteration}

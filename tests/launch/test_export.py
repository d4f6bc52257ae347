"""A training that has succeeded has succeeded, whatever becomes of its export in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL_WITH_EXPORT, TRAIN, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spawn


@pytest.mark.parametrize(("task", "warnings"), [("CannotSayWhatItsActionsMean", 1), ("DiesWhileExported", 0)])
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

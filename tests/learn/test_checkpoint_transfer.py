"""What a rank takes of a checkpoint's files that another rank names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shoal.errors import TrainingFailedError
from shoal.learn.checkpoint_transfer import local_copy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["../../../planted", "/planted", "..", ""])
def test_a_name_that_leads_out_of_the_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    answers = iter([[["sum"], [""]], [[name], []]])  # Sums of the model, then names of the files beside it.
    world: Any = SimpleNamespace(
        is_on_one_machine=False, is_distributed=True, is_first=False, gather_strings=lambda _: next(answers)
    )
    with pytest.raises(TrainingFailedError, match="is no name of a file"), local_copy(tmp_path / "model.pt", world):
        pass

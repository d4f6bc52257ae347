"""What a rank takes of a checkpoint's files that another rank names."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shoal.errors import TrainingFailedError
from shoal.learn import checkpoint_transfer
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


def test_a_file_is_sent_in_chunks_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: deque[torch.Tensor] = deque()
    first: Any = SimpleNamespace(is_first=True, device="cpu")
    other: Any = SimpleNamespace(is_first=False, device="cpu")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(100)))
    monkeypatch.setattr(checkpoint_transfer, "_CHUNK_BYTES", 30)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, **_: sent.append(tensor.clone()))
    checkpoint_transfer._broadcast_file(source, None, first)
    assert [len(chunk) for chunk in sent] == [1, 30, 30, 30, 10]
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, **_: tensor.copy_(sent.popleft()))
    checkpoint_transfer._broadcast_file(source, target, other)
    assert target.read_bytes() == source.read_bytes()

"""Carries checkpoints between machines that do not share a disk: to rank 0's, which keeps the run, and from it.

What a training begins from is carried to all machines that lack it, once, in the group of all ranks. What the ranks
save later is carried beside the training, by their checkpoint threads, in a group of its own: a collective of the
training's must not meet one of another thread's.
"""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from shoal.errors import TrainingFailedError
from shoal.plan.checkpoints import MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from shoal.learn.groups import World
    from shoal.plan.rundir import RunDir

_CHUNK_BYTES = 64 * 1024 * 1024


class Courier:
    """Brings the files of ranks elsewhere to rank 0."""

    def __init__(self, world: World, run: RunDir, patience: timedelta) -> None:
        """Find out who does not share rank 0's disk. A collective.

        Args:
            world: All ranks.
            run: The run, in whose directory rank 0 leaves something to see.
            patience: How long a file may take.
        """
        self.elsewhere: frozenset[int] = frozenset()
        """Ranks that do not see the run's directory as rank 0 does."""
        if world.is_on_one_machine or not world.is_distributed:
            return
        ((sign, *_), *_) = world.gather_strings([f".here-{uuid.uuid4().hex}"])
        file = run.path / sign
        if world.is_first:
            file.touch()
        world.gather_strings([])  # It is there now.
        seen = world.gather_strings(["yes" if file.exists() else ""])
        if world.is_first:
            file.unlink()
        self.elsewhere = frozenset(rank for rank, (answer,) in enumerate(seen) if not answer)
        self._group: Any = dist.new_group(backend="gloo", timeout=patience) if self.elsewhere else None

    def send(self, data: bytes | memoryview) -> None:
        """Send a file to rank 0, which waits for it or will."""
        whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.send(torch.tensor([len(whole)]), dst=0, group=self._group)
        for chunk in whole.split(_CHUNK_BYTES):
            dist.send(chunk, dst=0, group=self._group)

    def receive(self, rank: int) -> memoryview:
        """Return the next file that `rank` sends."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, src=rank, group=self._group)
        whole = torch.empty(int(size.item()), dtype=torch.uint8)
        for chunk in whole.split(_CHUNK_BYTES):
            dist.recv(chunk, src=rank, group=self._group)
        return memoryview(whole.numpy())  # pyright: ignore[reportArgumentType]  An array is a buffer.


@contextmanager
def at_hand(model: Path, world: World) -> Iterator[Path]:
    """Have a checkpoint that rank 0 has at hand on this machine too, for the time of the body. A collective.

    Args:
        model: Its `model.pt`, as rank 0 knows it; the files beside it belong to it.
        world: All ranks.

    Yields:
        The same file, or a copy.
    """
    if world.is_on_one_machine or not world.is_distributed:
        yield model
        return
    own = _sum_of(model)
    sums = [each for (each,) in world.gather_strings([own])]
    if all(each == sums[0] for each in sums):
        yield model
        return
    # The other files of a checkpoint are named in no flag: they lie beside its model.
    names = [path.name for path in _files_of(model)] if world.is_first else []
    with tempfile.TemporaryDirectory(prefix="shoal-checkpoint-") as scratch:
        here = own == sums[0]
        copies = Path(scratch) / model.parent.name
        copies.mkdir()
        for name in world.gather_strings(names)[0]:
            if name in {"", ".."} or "/" in name:
                message = (
                    f"Rank 0 has sent {name!r} as part of a checkpoint, which is no name of a file: see what it is."
                )
                raise TrainingFailedError(message)
            _broadcast_file(model.with_name(name), None if here else copies / name, world)
        yield model if here else copies / model.name


def _files_of(model: Path) -> list[Path]:
    """Return a model and, where it is part of a checkpoint, what lies beside it."""
    return sorted(path for path in model.parent.iterdir() if path.is_file()) if model.name == MODEL else [model]


def _sum_of(model: Path) -> str:
    return hashlib.sha256(model.read_bytes()).hexdigest() if model.is_file() else ""


def _broadcast_file(source: Path, copy: Path | None, world: World) -> None:
    """Send a file of rank 0's to all, who write it where they lack it."""
    data = bytearray(source.read_bytes()) if world.is_first else bytearray()
    size = torch.tensor([len(data)], device=world.device)
    dist.broadcast(size, src=0)
    with copy.open("wb") if copy is not None else nullcontext() as file:
        for begin in range(0, int(size.item()), _CHUNK_BYTES):
            count = min(_CHUNK_BYTES, int(size.item()) - begin)
            ours = (
                torch.frombuffer(data, dtype=torch.uint8, count=count, offset=begin)
                if data
                else torch.empty(count, dtype=torch.uint8)
            )
            chunk = ours.to(world.device)
            dist.broadcast(chunk, src=0)
            if file is not None:
                file.write(chunk.cpu().numpy().tobytes())

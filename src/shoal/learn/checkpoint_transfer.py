"""Checkpoint transfer between rank 0 and machines that do not share its disk.

The checkpoint that a training starts from is broadcast once, in the default process group. Later files go from the
checkpoint threads to rank 0 in a group of their own: collectives of two threads must not mix in one group.
"""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shoal.errors import TrainingFailedError
from shoal.learn.groups import World
from shoal.plan.checkpoints import MODEL, sha256
from shoal.plan.rundir import RunDir
from shoal.reading import opened

_CHUNK_BYTES = 64 * 1024 * 1024


class CheckpointTransfer:
    """Sends rank files to rank 0 from ranks that do not see the run directory."""

    def __init__(self, world: World, run: RunDir, timeout: timedelta) -> None:
        """Find the ranks that do not share rank 0's disk. A collective. Sending a file may take up to `timeout`."""
        self.remote_ranks: frozenset[int] = frozenset()
        """Ranks that do not see rank 0's run directory."""
        if world.is_on_one_machine or not world.is_distributed:
            return
        ((name, *_), *_) = world.gather_strings([f".here-{uuid.uuid4().hex}"])
        file = run.path / name
        if world.is_first:
            run.folder.open(file, "x").close()
        world.gather_strings([])  # Wait until the file is there.
        visible = world.gather_strings(["yes" if file.exists() else ""])
        if world.is_first:
            run.folder.remove(file)
        self.remote_ranks = frozenset(rank for rank, (answer,) in enumerate(visible) if not answer)
        self._group: Any = dist.new_group(backend="gloo", timeout=timeout) if self.remote_ranks else None

    def send(self, data: bytes | memoryview) -> None:
        """Send a file to rank 0."""
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.send(torch.tensor([len(content)]), dst=0, group=self._group)
        for chunk in content.split(_CHUNK_BYTES):
            dist.send(chunk, dst=0, group=self._group)

    def receive(self, rank: int) -> memoryview:
        """Return the next file that `rank` sends."""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, src=rank, group=self._group)
        content = torch.empty(int(size.item()), dtype=torch.uint8)
        for chunk in content.split(_CHUNK_BYTES):
            dist.recv(chunk, src=rank, group=self._group)
        return memoryview(content.numpy())  # pyright: ignore[reportArgumentType]  An array is a buffer.


@contextmanager
def local_copy(model: Path, world: World) -> Iterator[Path]:
    """Yield rank 0's checkpoint `model` where this machine has it, or else a temporary copy. A collective.

    In a checkpoint directory the files beside `model.pt` are copied too.
    """
    if world.is_on_one_machine or not world.is_distributed:
        yield model
        return
    local_sum = sha256(model) if model.is_file() else ""
    sums = [rank_sum for (rank_sum,) in world.gather_strings([local_sum])]
    if len(set(sums)) == 1:
        yield model
        return
    names = [model.name]
    if world.is_first and model.name == MODEL:
        names = sorted(path.name for path in model.parent.iterdir() if path.is_file())
    with tempfile.TemporaryDirectory(prefix="shoal-checkpoint-") as scratch:
        has_it = local_sum == sums[0]
        directory = Path(scratch) / model.parent.name
        directory.mkdir()
        for name in world.gather_strings(names)[0]:
            if name in {"", ".."} or "/" in name:
                raise TrainingFailedError(
                    f"Rank 0 has sent {name!r} as part of a checkpoint, which is no name of a file: see what it is."
                )
            _broadcast_file(model.with_name(name), None if has_it else directory / name, world)
        yield model if has_it else directory / model.name


def _broadcast_file(source: Path, target: Path | None, world: World) -> None:
    """Send a file of rank 0 to all ranks, a chunk at a time; those with a `target` write it there."""
    size = torch.tensor([source.stat().st_size if world.is_first else 0], device=world.device)
    dist.broadcast(size, src=0)
    content = torch.empty(int(size.item()), dtype=torch.uint8)
    buffer: Any = content.numpy()
    if world.is_first:
        with opened(source) as file:
            if file.readinto(buffer) < len(content):
                raise EOFError(f"{source} was truncated while it was read")
    for chunk in content.split(_CHUNK_BYTES):
        sent = chunk.to(world.device)
        dist.broadcast(sent, src=0)
        chunk.copy_(sent)
    if target is not None:
        buffer.tofile(target)

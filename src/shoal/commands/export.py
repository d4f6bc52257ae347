"""`shoal export`: write a checkpoint's policy as ONNX and as a program of `torch.export`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from shoal.config import ExportConfig
from shoal.plan.checkpoints import run_of
from shoal.plan.launch import refuse_unwritable_file
from shoal.plan.resume import find_model
from shoal.plan.rundir import refuse_links
from shoal.tasks import registry
from shoal.text import pairs

_WIDEST = 60
"""Most characters of an entry of the metadata in the table: lists of all joints are longer."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A policy that was exported."""

    metadata: Mapping[str, str]
    files: tuple[Path, ...]

    def lines(self) -> Iterator[str]:
        """Yield the metadata, with long entries cut off, and the files."""
        yield from pairs((name, shorten(text, _WIDEST, placeholder=" ...")) for name, text in self.metadata.items())
        yield f"Exported the policy to {' and '.join(map(str, self.files))}."

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"metadata": dict(self.metadata), "files": [*map(str, self.files)]}


def export(config: ExportConfig) -> Exported:
    """Write a trained policy as ONNX, and as a program of `torch.export`.

    Returns the metadata in each file, and the files.

    Raises:
        UsageError: There is no such policy, it cannot be exported, or its files cannot be written there.
        ShoalError: The files could not be written.
    """
    spec = registry.resolve(config.task)
    model = find_model(config.log_root, spec, config.checkpoint).absolute()
    onnx_file = _onnx_file(config, model)

    from shoal.learn.export import read_policy, write_policy

    run = run_of(model)
    checkpoint = str(model.parent.relative_to(run.path.parent)) if run else model.name
    policy = read_policy(config, spec, model, checkpoint)
    folder = run.folder if run and config.out is None else None
    return Exported(policy.metadata, write_policy(policy, onnx_file, folder))


def _onnx_file(config: ExportConfig, model: Path) -> Path:
    """Return the path of the ONNX file; raise if it cannot be written there."""
    run = run_of(model)
    default = run.policy_onnx if run else model.with_suffix(".onnx")
    file = default if config.out is None else Path(config.out)
    if run and config.out is None:
        refuse_links(run)
    refuse_unwritable_file("The default of --out" if config.out is None else "--out", file, "policy.onnx")
    return file

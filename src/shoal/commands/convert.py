"""The story of `shoal convert`: load a checkpoint from elsewhere, give it rsl_rl 5's layout, write it without code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.plan.training import refuse_unwritable

if TYPE_CHECKING:
    from shoal.config import ConvertConfig


@dataclass(frozen=True, slots=True)
class Converted:
    """What was made of which file."""

    file: Path
    layout: str
    """What the file was like."""
    output: Path
    notes: tuple[str, ...]
    """A sentence about each thing that is not as it was."""


def convert(config: ConvertConfig) -> Converted:
    """Make a plain `model.pt` of a checkpoint from elsewhere.

    Raises:
        UsageError: There is no such file, it holds code and is not trusted, or it is no checkpoint.
        ShoalError: The disk refused the plain one.
    """
    file = Path(config.file)
    if not file.is_file():
        message = f"{file} is no file: pass the .pt file of a checkpoint, such as model_1000.pt."
        raise UsageError(message)
    output = _output(config, file)

    from shoal.learn.foreign import load_foreign, write_plain
    from shoal.learn.layouts import in_current_layout

    saved = in_current_layout(load_foreign(file, trust=config.trust), file)
    dropped = write_plain(saved.state, output)
    notes = (*saved.notes, *(f"{name} was left out: it is no tensor and no plain value." for name in dropped))
    return Converted(file, saved.layout, output, notes)


def _output(config: ConvertConfig, file: Path) -> Path:
    """Return where the plain file goes.

    Raises:
        UsageError: It cannot be written there, as far as looking tells.
    """
    if config.output is None:
        output = file.with_name(f"{file.stem}_plain.pt")
        flag = "The default of --output"
    else:
        output = Path(config.output)
        flag = "--output"
    if output.is_dir():
        message = f"{flag} asks for {output}, which is a directory: pass a file, such as {output / 'model.pt'}."
        raise UsageError(message)
    if output.exists() and output.samefile(file):
        message = f"{flag} asks for {output}, which is the file that is converted: pass another one."
        raise UsageError(message)
    refuse_unwritable(flag, output.parent)
    return output

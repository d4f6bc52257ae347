"""What `shoal convert` is asked: which file, whether its code may run, and where the plain one goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig:
    """One checkpoint from elsewhere."""

    file: str
    """The `.pt` file of a checkpoint of plain rsl_rl, of mjlab or of Isaac Lab."""
    trust: bool = False
    """Unpickle the file if it holds code. That runs whatever code is in it: only for files from people you trust."""
    output: str | None = None
    """The plain file. Default: beside the other one, as `<name>_plain.pt`."""

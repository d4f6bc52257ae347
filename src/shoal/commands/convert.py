"""`shoal convert`: convert a foreign checkpoint to rsl_rl 5's layout, with plain values only."""

from pathlib import Path

from shoal.config import ConvertConfig
from shoal.errors import UsageError
from shoal.plan.launch import refuse_unwritable_file


def convert(config: ConvertConfig) -> list[str]:
    """Convert a checkpoint of rsl_rl, mjlab or Isaac Lab to a plain `model.pt` that `train` and `play` load.

    Returns a sentence about each entry that was changed or left out, and how to go on.

    Raises:
        UsageError: There is no such file, it holds code and is not trusted, or it is no checkpoint.
        ShoalError: The output could not be written.
    """
    file = Path(config.file)
    if not file.is_file():
        raise UsageError(f"{file} is no file: pass the .pt file of a checkpoint, such as model_1000.pt.")
    output = _output(config, file)

    from shoal.learn.foreign_checkpoints import (
        load_foreign_checkpoint,
        rename_to_current_layout,
        write_plain_checkpoint,
    )

    renamed = rename_to_current_layout(load_foreign_checkpoint(file, trust=config.trust), file)
    dropped = write_plain_checkpoint(renamed.state, output)
    return [
        *renamed.notes,
        *(f"{name} was left out: it is no tensor and no plain value." for name in dropped),
        f"Converted {file}, which has {renamed.layout}, to {output}.",
        f"To start from it: train TASK --checkpoint {output}",
    ]


def _output(config: ConvertConfig, file: Path) -> Path:
    """Return the path of the output; raise if it cannot be written there."""
    flag = "The default of --output" if config.output is None else "--output"
    output = file.with_name(f"{file.stem}_plain.pt") if config.output is None else Path(config.output)
    if output.exists() and output.samefile(file):
        raise UsageError(f"{flag} asks for {output}, which is the file that is converted: pass another one.")
    refuse_unwritable_file(flag, output, "model.pt")
    return output

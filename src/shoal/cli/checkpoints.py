"""Output of `shoal checkpoints` and `shoal convert`."""

import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.checks.findings import size
from shoal.cli.output import printable
from shoal.cli.report import print_line
from shoal.commands.checkpoints import Verified, VerifiedRun
from shoal.commands.convert import Converted


def print_checkpoints(verified: VerifiedRun, *, as_json: bool) -> None:
    """Print the checkpoints of a run, with the newest undamaged and the best one marked."""
    if as_json:
        sys.stdout.write(json.dumps(verified.to_plain(), indent=2) + "\n")
        return
    print_line(f"Run directory: {verified.run.path}")
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("iteration", "written", "size", "ranks", "score", "resumes"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("state")
    for each in verified.checkpoints:
        table.add_row(
            str(each.checkpoint.iteration),
            f"{each.written:%Y-%m-%d %H:%M:%S}",
            "-" if each.size is None else size(each.size),
            "-" if each.world_size is None else str(each.world_size),
            "-" if each.score is None else f"{each.score:.2f}",
            "exactly" if each.is_exact else "learner only" if each.damage is None else "-",
            _state(each, verified),
        )
    Console(highlight=False, soft_wrap=True).print(table)
    if verified.best:
        print_line(
            f"Best by {verified.metric}." if verified.metric else "No score can be compared: the best is the last one."
        )


def _state(each: Verified, verified: VerifiedRun) -> Text:
    if each.damage is not None:
        return Text(printable(f"damaged: {each.damage}"), style="bold red")
    marks = [name for name, marked in (("newest", verified.newest), ("best", verified.best)) if each is marked]
    return Text(", ".join(["whole", *marks]), style="green")


def print_converted(converted: Converted) -> None:
    """Print the notes of a conversion, and the path of the file."""
    for note in converted.notes:
        print_line(note)
    print_line(f"Converted {converted.file}, which has {converted.layout}, to {converted.output}.")
    print_line(f"To start from it: train TASK --checkpoint {converted.output}")

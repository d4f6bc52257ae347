"""Output of `shoal replay`: the last steps, the first non-finite value, and the accuracy of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.output import printable
from shoal.cli.report import print_line
from shoal.commands.replay import Replayed

if TYPE_CHECKING:
    from shoal.sim.nan.replay import Step

_STEPS_SHOWN = 10
_WIDTH = 120
"""Least width of the table: without a terminal rich takes 80 columns, and would shorten the numbers."""

_TITLES = {"native": "MuJoCo C", "warp": "MuJoCo Warp"}


def print_replayed(replayed: Replayed) -> None:
    """Print the result of a replay."""
    about, lost, replay = replayed.dump.info, replayed.lost, replayed.replay
    print_line(
        f"{about.task}, simulated by {_TITLES[about.engine]}: environment {lost.env} of rank {about.rank}, "
        f"{about.rank * about.num_envs + lost.env} of all, was lost in step {lost.step:,}, iteration {about.iteration}."
    )
    if about.lost > 1:
        others = ", ".join(str(each.env) for each in replayed.dump.envs)
        print_line(f"That rank lost {about.lost:,} environments in that iteration; --env takes {others}.")
    _print_steps(replay.steps[-_STEPS_SHOWN:])
    print_line(_first_non_finite(replayed))
    print_line(_accuracy(replayed))
    if replayed.video is not None:
        print_line(f"Film: {replayed.video}")


def _print_steps(steps: Sequence[Step]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for title in ("step", "|qpos|", "|qvel|", "|qacc|", "|ctrl|", "contacts", "deepest [m]"):
        table.add_column(title, justify="right")
    table.add_column("fastest")
    table.add_column("warnings")
    for step in steps:
        largest = [f"{value:.3g}" for value in (step.qpos, step.qvel, step.qacc, step.ctrl)]
        touching = [str(step.contacts), f"{step.penetration:.3g}" if step.contacts else "-"]
        table.add_row(f"{step.number:,}", *largest, *touching, Text(printable(step.fastest)), " ".join(step.warnings))
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    console.print(table)


def _first_non_finite(replayed: Replayed) -> str:
    """Return a sentence that names the first value that was not finite, and its step."""
    about, lost, wrong = replayed.dump.info, replayed.lost, replayed.replay.fault
    if wrong is None:
        return f"Not lost here: the numbers that MuJoCo Warp made of step {lost.step:,} are not those of MuJoCo C."
    when = f"after {wrong.physics_step} of its {about.decimation} physics steps"
    if not wrong.physics_step:
        when = "before its physics, as the task had set it"
    lost_so = "Lost in that step too" if wrong.step == lost.step else f"Lost before that step, in step {wrong.step:,}"
    return f"{lost_so}: {wrong.what} is {wrong.value:.3g} {when}."


def _accuracy(replayed: Replayed) -> str:
    """Return a sentence that compares the replay with the recorded states."""
    replay, is_exact = replayed.replay, replayed.dump.info.engine == "native"
    if not replay.compared:
        return "There is no earlier step to compare with."
    of_all = f"{replay.compared:,} recorded states"
    if replay.differs_in is None:
        return f"All {of_all} come out {'to the last bit' if is_exact else f'within {replay.bound:g}, relatively'}."
    text = f"Step {replay.differs_in:,} is the first to lead elsewhere than recorded; the largest difference is "
    text += f"{replay.difference:.2g}, relatively, over {of_all}."
    return f"{text} Another processor may round otherwise." if is_exact else text

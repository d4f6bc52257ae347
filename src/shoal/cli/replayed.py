"""What `shoal replay` prints: an environment's last steps, what was wrong first, and how true the replay is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.output import printable
from shoal.cli.report import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.commands.replay import Replayed
    from shoal.sim.replay import Step

_STEPS_SHOWN = 10
_WIDTH = 120
"""Columns of the table at least: where there is no terminal rich has 80, and would shorten its numbers."""

_TITLES = {"native": "MuJoCo C", "warp": "MuJoCo Warp"}


def print_replayed(replayed: Replayed) -> None:
    """Print what came out."""
    about, lost, replay = replayed.dump.about, replayed.lost, replayed.replay
    print_line(
        f"{about.task}, simulated by {_TITLES[about.engine]}: environment {lost.env} of rank {about.rank}, "
        f"{about.rank * about.num_envs + lost.env} of all, was lost in step {lost.step:,}, iteration {about.iteration}."
    )
    if about.lost > 1:
        others = ", ".join(str(each.env) for each in replayed.dump.envs)
        print_line(f"That rank lost {about.lost:,} environments in that iteration; --env takes {others}.")
    _print_steps(replay.steps[-_STEPS_SHOWN:])
    print_line(_what_was_wrong(replayed))
    print_line(_how_true(replayed))
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


def _what_was_wrong(replayed: Replayed) -> str:
    """Say which number was the first that was not finite, and when."""
    about, lost, wrong = replayed.dump.about, replayed.lost, replayed.replay.wrong
    if wrong is None:
        return f"Not lost here: the numbers that MuJoCo Warp made of step {lost.step:,} are not those of MuJoCo C."
    when = f"after {wrong.physics_step} of its {about.decimation} physics steps"
    if not wrong.physics_step:
        when = "before its physics, as the task had set it"
    lost_so = "Lost in that step too" if wrong.step == lost.step else f"Lost before that step, in step {wrong.step:,}"
    return f"{lost_so}: {wrong.what} is {wrong.value:.3g} {when}."


def _how_true(replayed: Replayed) -> str:
    """Say whether the replay gives what was recorded."""
    replay, is_exact = replayed.replay, replayed.dump.about.engine == "native"
    if not replay.compared:
        return "There is no earlier step to compare with."
    of_all = f"{replay.compared:,} recorded states"
    if replay.differs_in is None:
        return f"All {of_all} come out {'to the last bit' if is_exact else f'within {replay.bound:g}, relatively'}."
    told = f"Step {replay.differs_in:,} is the first to lead elsewhere than recorded; the largest difference is "
    told += f"{replay.difference:.2g}, relatively, over {of_all}."
    return f"{told} Another processor may round otherwise." if is_exact else told

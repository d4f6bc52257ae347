"""Makes the same resume on Shoal, on a script with plain rsl_rl, and on mjlab, and prints what each of them did.

    python docs/compare_resume.py [--out DIR] [--json FILE] [--mjlab PATH_TO_TRAIN]

Each trains a quadruped on rough ground: for ten iterations without a stop, twice; and for five, resumed for five more.
What both have left is compared. Then the first five are resumed after their newest checkpoint was cut in half, after a
newer run was killed as soon as it had a directory, and by the same command as without a stop.

rsl_rl is this file again, with `--as-script`: the shortest script that trains and resumes with it. Its task is Shoal's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.commands import TRAIN, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HALF = 5
"""Iterations before the resume, and after it."""

NUM_ENVS, STEPS, SEED = 16, 8, 42
EPISODE_S = 0.2
"""Time of an episode [s]: 10 steps of both tasks, so that episodes end in every iteration."""

LEVELS = 4
"""Levels of the ground."""

FORWARD_SPEED = 20.0
"""Shoal sends a robot down a level with a command to go two metres, and did not come half as far: here, in one short
episode [m/s]."""

PATIENCE_S = 600.0
"""mjlab compiles its kernels in the first run [s]."""

LEVEL_TAGS = ("Metrics/terrain_level", "Curriculum/terrain_levels/mean")
LENGTH_TAGS = ("Train/mean_episode_length",)

ITS_NAME = """
from importlib.metadata import version
print("mjlab", version("mjlab") + ", rsl_rl", version("rsl-rl-lib"))
"""

ENVIRON = {"CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
"""No GPU for anybody, and output at the time in which a terminal would show it."""


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One of those that are compared."""

    name: str
    words: Callable[[int], list[str]]
    """The command, for so many iterations as its flag takes them."""
    resume: tuple[str, ...]
    """What resumes, besides."""
    checkpoint: Callable[[int], str]
    """Where below a run's directory the checkpoint with so many iterations done is."""
    counts_all: bool
    """Whether the flag for iterations takes those of the whole run when resuming, and not those to add."""
    finds_runs: bool
    """Whether it chooses the run to resume by itself."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one command did."""

    code: int
    counted: list[int]
    """Iterations as it counts them, in its own metrics."""
    metrics: dict[str, list[float]]
    """Its metrics by name, but for times."""
    total_steps: int | None
    """The last total of steps that it printed."""
    said: str
    """The last line of its errors, where it failed."""


def main() -> None:
    """Make all trials, one after the other, and print the table."""
    asked = flags().parse_args()
    if asked.as_script is not None:
        train_with_rsl_rl(asked.log_root, asked.as_script, resume=asked.resume)
        return
    columns: dict[str, dict[str, str]] = {}
    launches: dict[str, dict[str, Any]] = {}
    for trainer in trainers(asked.mjlab):
        where = asked.out.resolve() / re.sub(r"\W+", "_", trainer.name)
        where.mkdir(parents=True)
        done = tried(trainer, where)
        columns[trainer.name] = dict(rows(trainer, where, done))
        launches[trainer.name] = {name: asdict(launch) for name, launch in done.items()}
        if asked.json is not None:
            asked.json.write_text(json.dumps(launches, indent=1) + "\n", encoding="utf-8")
    say(table(columns))


def flags() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("resumes"), help="a directory for runs, which must not exist")
    parser.add_argument("--json", type=Path, default=None, help="write here what each launch did")
    parser.add_argument("--mjlab", type=Path, default=None, help="mjlab's `train`, in an environment of its own")
    parser.add_argument("--as-script", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log-root", type=Path, help=argparse.SUPPRESS)
    return parser


def say(text: str) -> None:
    """Print at once: a trial may take a minute."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def trainers(mjlab: Path | None) -> Iterator[Trainer]:
    """Yield all that are compared, with their versions."""
    rsl_rl = metadata.version("rsl-rl-lib")
    yield Trainer(
        name="Shoal",
        words=shoal,
        resume=("--resume",),
        checkpoint=lambda done: f"checkpoints/{done:06}/model.pt",
        counts_all=True,
        finds_runs=True,
    )
    # Its iterations are counted from 0.
    plain: dict[str, Any] = {"checkpoint": lambda done: f"model_{done - 1}.pt", "counts_all": False}
    yield Trainer(name=f"rsl_rl {rsl_rl} in a script", words=script, resume=("--resume",), finds_runs=False, **plain)
    if mjlab is not None:
        name = subprocess.run([mjlab.parent / "python", "-c", ITS_NAME], check=True, capture_output=True, text=True)
        its: dict[str, Any] = {"words": mjlab_at(mjlab.absolute()), "resume": ("--agent.resume", "True")}
        yield Trainer(name=name.stdout.strip(), finds_runs=True, **its, **plain)


def shoal(iterations: int) -> list[str]:
    """Return the words that start Shoal."""
    agent = f"--agent.num-steps-per-env {STEPS} --agent.save-interval 1 --no-export --seed {SEED}"
    env = f"--num-envs {NUM_ENVS} --env.episode-length-s {EPISODE_S} --env.terrain-levels {LEVELS}"
    env = f"{env} --env.commands.twist.lin-vel-x {-FORWARD_SPEED} {FORWARD_SPEED}"
    words = f"--gpu-ids None --max-iterations {iterations} {agent} {env}"
    return [*TRAIN, "Quadruped-Velocity-Rough", *words.split()]


def script(iterations: int) -> list[str]:
    """Return the words that start this file as the script."""
    return [sys.executable, str(Path(__file__).resolve()), "--as-script", str(iterations)]


def mjlab_at(train: Path) -> Callable[[int], list[str]]:
    """Return what starts mjlab's Go1, each robot in the middle of a sub-terrain: how far it gets from there decides."""
    agent = f"--agent.num-steps-per-env {STEPS} --agent.save-interval 1 --agent.logger tensorboard --agent.seed {SEED}"
    ground = "--env.scene.terrain.terrain-generator.num-"
    env = f"--env.scene.num-envs {NUM_ENVS} --env.episode-length-s {EPISODE_S} {ground}rows {LEVELS} {ground}cols 6"
    pose = "--env.events.reset-base.params.pose-range."
    its_flags = f"--gpu-ids None {agent} {env} {pose}x (0.0,0.0) {pose}y (0.0,0.0)"
    words = [str(train), "Mjlab-Velocity-Rough-Unitree-Go1", *its_flags.split(), "--agent.max-iterations"]
    return lambda iterations: [*words, str(iterations)]


def train_with_rsl_rl(log_root: Path, iterations: int, *, resume: bool) -> None:
    """Train in one process, with nothing but what rsl_rl and torch have of their own."""
    from dataclasses import replace

    import torch
    from rsl_rl.runners import OnPolicyRunner

    from shoal.config.rsl_rl import to_rsl_rl
    from shoal.envs.vec_env import WarpVecEnv
    from shoal.tasks import registry

    torch.manual_seed(SEED)
    spec = registry.resolve("Quadruped-Velocity-Rough")
    task: Any = replace(spec.env, episode_length_s=EPISODE_S, terrain_levels=LEVELS, forward_speed=FORWARD_SPEED)
    env = WarpVecEnv(spec.load_builder()(task, num_envs=NUM_ENVS, device="cpu", seed=SEED))
    config = to_rsl_rl(spec.agent) | {"save_interval": 1, "num_steps_per_env": STEPS}
    run = log_root / "script" / "run"
    runner = OnPolicyRunner(env, config, log_dir=str(run), device="cpu")
    if resume:
        newest = max(run.glob("model_*.pt"), key=lambda file: int(file.stem.removeprefix("model_")))
        runner.load(str(newest))
    runner.learn(iterations, init_at_random_ep_len=True)


def tried(trainer: Trainer, where: Path) -> dict[str, Launch]:
    """Make all launches of one trainer. Each is given a directory of its own, or a copy of the first half's."""
    more = 2 * HALF if trainer.counts_all else HALF
    done: dict[str, Launch] = {}

    def launch(name: str, iterations: int, *, resume: bool = False) -> None:
        words = [*trainer.words(iterations), *(trainer.resume if resume else ())]
        done[name] = launched(words, where / name)
        say(f"{trainer.name}, {name}: exit code {done[name].code}, iterations {span(done[name].counted)}")

    launch("straight", 2 * HALF)
    launch("straight_again", 2 * HALF)
    launch("half", HALF)
    for name in ("resumed", "resumed_by_the_same_command", "resumed_from_truncated", "resumed_after_killed"):
        shutil.copytree(where / "half" / "logs", where / name / "logs")
    launch("resumed", more, resume=True)
    launch("resumed_by_the_same_command", 2 * HALF, resume=True)
    cut_in_half(checkpoint_in(trainer, where / "resumed_from_truncated", HALF))
    launch("resumed_from_truncated", more, resume=True)
    if trainer.finds_runs:
        killed_at_once(trainer.words(2 * HALF), where / "resumed_after_killed")
        launch("resumed_after_killed", more, resume=True)
    return done


def launched(words: list[str], where: Path) -> Launch:
    """Run a command to its end, and read what it has logged."""
    where.mkdir(exist_ok=True)
    before = set(where.rglob("events.out.*"))
    ended = start(words, where, ENVIRON).end(PATIENCE_S)
    (where / "output.txt").write_text(f"{ended.stdout}\n{ended.stderr}", encoding="utf-8")
    logged: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(set(where.rglob("events.out.*")) - before):
        logged |= scalars_in(file)
    totals = re.findall(r"Total steps:?\s+([\d,]+)", ended.stdout, re.IGNORECASE)
    return Launch(
        code=ended.code,
        counted=[step for step, _ in logged.get("Loss/surrogate", [])],
        metrics={
            name: [value for _, value in values]
            for name, values in logged.items()
            if not (name.startswith("Perf/") or name.endswith("/time") or name == "Train/total_time")
        },
        total_steps=int(totals[-1].replace(",", "")) if totals else None,
        said=ended.last_line.replace(f"{where}/", "") if ended.code else "",
    )


def scalars_in(events: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what a file of TensorBoard holds: steps and values by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(events))
    read.Reload()
    return {name: [(each.step, each.value) for each in read.Scalars(name)] for name in read.Tags()["scalars"]}


def killed_at_once(words: list[str], where: Path) -> None:
    """Start one more run, and kill it as soon as it has a directory."""
    before = set((where / "logs").glob("*/*"))
    running = start(words, where, ENVIRON)
    came = wait_until(lambda: set((where / "logs").glob("*/*")) != before, timeout=PATIENCE_S)
    running.signal_every_process(SIGKILL)
    running.end(PATIENCE_S)
    (run,) = set((where / "logs").glob("*/*")) - before
    if not came or list(run.rglob("*.pt")):
        message = f"The run in {run} was to be killed before its first checkpoint, and was not."
        raise RuntimeError(message)


def cut_in_half(file: Path) -> None:
    """Leave the first half of a file."""
    os.truncate(file, file.stat().st_size // 2)


def checkpoint_in(trainer: Trainer, where: Path, done: int) -> Path:
    """Return the checkpoint of the only run there, with so many iterations done."""
    (run,) = (where / "logs").glob("*/*")
    return run / trainer.checkpoint(done)


def newest_in(where: Path) -> Path:
    """Return the file with networks and optimizer that was written last."""
    return max((where / "logs").rglob("model*.pt"), key=lambda file: file.stat().st_mtime_ns)


def rows(trainer: Trainer, where: Path, done: dict[str, Launch]) -> Iterator[tuple[str, str]]:
    """Yield the rows of one trainer."""
    straight, half, resumed = done["straight"], done["half"], done["resumed"]
    whole = checkpoint_in(trainer, where / "straight", 2 * HALF)
    again = differences(whole, checkpoint_in(trainer, where / "straight_again", 2 * HALF))
    yield "twice without a stop: largest difference", f"{max(again.values()):.2g}"
    apart = differences(whole, newest_in(where / "resumed"))
    moved = differences(whole, checkpoint_in(trainer, where / "straight", HALF))
    for part in sorted(apart, reverse=True):
        yield f"resumed, and without a stop: largest difference of {part}", f"{apart[part]:.2g}"
    yield f"for scale: how far the last {HALF} iterations move a weight", f"{moved['weights']:.2g}"
    yield "iterations, as it counts them", f"{span(half.counted)}, resumed {span(resumed.counted)}"
    yield "total steps at the end, without a stop and resumed", f"{straight.total_steps}, {resumed.total_steps}"
    same, of = same_metrics(straight, resumed)
    yield "metrics after the resume that are equal", f"{same} of {of}"
    for name, tags in (("mean episode length", LENGTH_TAGS), ("mean level of the ground", LEVEL_TAGS)):
        yield f"{name}, iterations 1 to {HALF}", series(half, tags)
        yield f"{name}, {HALF + 1} to {2 * HALF} without a stop", series(straight, tags, HALF)
        yield f"{name}, {HALF + 1} to {2 * HALF} resumed", series(resumed, tags)
    yield "what else is in the checkpoint", ", ".join(sorted(others_in(newest_in(where / "half"))))
    yield "newest checkpoint cut in half", outcome(done["resumed_from_truncated"])
    killed = outcome(done["resumed_after_killed"]) if trainer.finds_runs else "-"
    yield "a newer run was killed before its first checkpoint", killed
    total = len(half.counted) + len(done["resumed_by_the_same_command"].counted)
    yield f"iterations done in all, by the command for {2 * HALF} and its flag to resume", str(total)


def differences(one: Path, other: Path) -> dict[str, float]:
    """Return the largest difference between two checkpoints, by part; 0 only where all bits are the same."""
    import torch

    largest: dict[str, float] = {}
    first, second = tensors_in(one), tensors_in(other)
    if first.keys() != second.keys():
        message = f"{one} and {other} do not hold the same values."
        raise RuntimeError(message)
    for name, value in first.items():
        part = "normalisers" if "normalizer" in name else "optimizer" if name.startswith("optimizer") else "weights"
        same = torch.equal(value, second[name])
        apart = 0.0 if same else float((value.double() - second[name].double()).abs().max())
        largest[part] = max(largest.get(part, 0.0), apart)
    return largest


def tensors_in(file: Path) -> dict[str, Any]:
    """Return all numbers of networks and optimizer, as tensors by name."""
    import torch

    saved = torch.load(file, map_location="cpu", weights_only=True)
    states = {name: state for name, state in saved.items() if name.endswith("_state_dict")}
    leaves = ((name, value) for name, value in walked("", states) if isinstance(value, torch.Tensor | float | int))
    return {name.removeprefix("/"): torch.as_tensor(value) for name, value in leaves}


def others_in(file: Path) -> set[str]:
    """Return the names of what a checkpoint holds besides, to the second part of each, and other files beside it."""
    import torch

    found: set[str] = set()
    for each in [file, *file.parent.glob("rank_*.pt")]:
        for name, _ in walked("", torch.load(each, map_location="cpu", weights_only=True)):
            if "_state_dict" not in name:
                found.add("`" + "/".join(name.split("/")[1:3]) + "`")
    return found


def walked(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what nested dictionaries and lists of dictionaries hold."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walked(f"{name}/{key}", each)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for index, each in enumerate(value):
            yield from walked(f"{name}/{index}", each)
    else:
        yield name, value


def same_metrics(straight: Launch, resumed: Launch) -> tuple[int, int]:
    """Return how many values of the second half are equal, and of how many. What never changes does not count."""
    pairs = [
        (value, resumed.metrics.get(name, [])[index : index + 1])
        for name, values in straight.metrics.items()
        if len(set(values)) > 1
        for index, value in enumerate(values[HALF:])
    ]
    return sum([value] == other for value, other in pairs), len(pairs)


def series(launch: Launch, tags: tuple[str, ...], first: int = 0) -> str:
    """Return the values of the metric, under whichever of the names."""
    return " ".join(f"{value:.2f}" for tag in tags for value in launch.metrics.get(tag, [])[first:]) or "-"


def outcome(launch: Launch) -> str:
    """Return what came of a resume."""
    if launch.code:
        return f"exit code {launch.code}: {': '.join(launch.said.split(': ')[:2])}"
    return f"goes on, iterations {span(launch.counted)}"


def span(counted: list[int]) -> str:
    """Return the first and the last."""
    return f"{counted[0]} to {counted[-1]}" if counted else "none"


def table(columns: dict[str, dict[str, str]]) -> str:
    """Return everything as a table in Markdown."""
    names = list(next(iter(columns.values())))
    lines = ["| | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    lines += ["| " + " | ".join([name, *(column[name] for column in columns.values())]) + " |" for name in names]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

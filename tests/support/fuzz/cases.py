"""Cases: which command reads which file, and how the file is changed. A case follows from its number and a seed.

What a command reads, writes and lists is not written down here: it runs once on the valid files, with a witness, and
each file that it opened, and each name that it wrote, is changed in each way that its kind allows.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from support.fuzz.corpus import CPU, RUN, TASK
from support.fuzz.harness import Answer, Finding, Place, Server, judge
from support.fuzz.mutations import BYTES, FOLDERS, IN_PLACE, LINKS, Mutation, of_content
from support.hostile import vouch_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

_LOGS = ("--log-root", "{given}/logs")
_RUN = f"{{given}}/{RUN}"
_CHECKPOINT = f"{_RUN}/checkpoints/000002"
_FURTHER = ("train", TASK, "--resume", _RUN, "--max-iterations", "3", *CPU, *_LOGS)
_BRIEFLY = ("--num-envs", "1", "--num-episodes", "1")
_NEW = ("--out", "{given}/new")
_SPEC = ("train", "Quadruped-Velocity-Flat", *CPU, *_LOGS, "--dry-run")
_ROBOT = "{given}/robot/robot"
_NETWORKS = ("--agent.actor.hidden-dims", "8", "--agent.critic.hidden-dims", "8")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, and what it is given of the corpus."""

    words: tuple[str, ...]
    given: tuple[str, ...]
    """Files and folders of the corpus."""
    unseen: tuple[str, ...] = ()
    """Files that a library in C or another program reads, which no witness sees."""
    is_inside: bool = False
    """Whether it works in the folder that it is given, of which only what is unseen is changed."""

    def in_place(self, place: Place) -> list[str]:
        """Return the words for a place."""
        return [word.replace("{given}", str(place.given)) for word in self.words]

    def run(self, server: Server, place: Place, **options: Any) -> Answer:
        """Run it in a place."""
        return server.run(place, self.in_place(place), inside=self.is_inside, **options)


def _command(*words: str, given: str, unseen: str = "", is_inside: bool = False) -> Command:
    return Command(words=words, given=tuple(given.split()), unseen=tuple(unseen.split()), is_inside=is_inside)


COMMANDS: dict[str, Command] = {
    "runs": _command("shoal", "runs", *_LOGS, given="logs"),
    "runs of a task as JSON": _command("shoal", "runs", TASK, "--sort", "score", "--json", *_LOGS, given="logs"),
    "checkpoints": _command("shoal", "runs", _RUN, *_LOGS, given="logs"),
    "plan of a resume": _command(*_FURTHER, "--dry-run", given=RUN),
    "resume": _command(*_FURTHER, "--no-export", given=RUN),
    "plan of a configuration": _command(
        "train", "--config", "{given}/config.yaml", *CPU, *_LOGS, "--dry-run", given="config.yaml"
    ),
    "plan of a run's configuration": _command(
        "train", "--config", f"{_RUN}/params/train.yaml", *CPU, *_LOGS, "--dry-run", given=RUN
    ),
    "plan from a checkpoint": _command(
        "train", TASK, "--checkpoint", _CHECKPOINT, *CPU, *_LOGS, *_NETWORKS, "--dry-run", given=RUN
    ),
    "train from a checkpoint": _command(
        *("train", TASK, "--checkpoint", _CHECKPOINT, *CPU, *_LOGS, "--max-iterations", "1", "--num-envs", "2"),
        *("--agent.num-steps-per-env", "4", "--no-export", "--logger", "none", *_NETWORKS),
        given=RUN,
    ),
    "plan of jobs": _command(
        "evaluate", "--jobs", "{given}/jobs.yaml", *CPU, *_LOGS, "--dry-run", given=f"jobs.yaml {RUN}"
    ),
    "plan of jobs in JSON": _command(
        "evaluate", "--jobs", "{given}/jobs.json", *CPU, *_LOGS, "--dry-run", given=f"jobs.json {RUN}"
    ),
    "evaluate a run": _command("evaluate", TASK, "--checkpoint", _RUN, *_NEW, *_BRIEFLY, *CPU, *_LOGS, given=RUN),
    "evaluate a file": _command(
        "evaluate",
        TASK,
        "--checkpoint",
        "{given}/model.pt",
        *_NEW,
        *_BRIEFLY,
        *CPU,
        *_LOGS,
        *_NETWORKS,
        given="model.pt",
    ),
    "evaluate ONNX": _command(
        "evaluate",
        TASK,
        "--checkpoint",
        "{given}/exported/policy.onnx",
        *_NEW,
        *_BRIEFLY,
        *CPU,
        *_LOGS,
        given="exported",
        unseen="exported/policy.onnx",
    ),
    "evaluate a program": _command(
        "evaluate",
        TASK,
        "--checkpoint",
        "{given}/exported/policy.pt2",
        *_NEW,
        *_BRIEFLY,
        *CPU,
        *_LOGS,
        given="exported",
        unseen="exported/policy.pt2",
    ),
    "evaluate again": _command(
        "evaluate", "--jobs", "{given}/jobs.yaml", "--out", "{given}/out", *CPU, *_LOGS, given=f"jobs.yaml out {RUN}"
    ),
    "evaluate further": _command(
        "evaluate",
        "--jobs",
        "{given}/jobs.yaml",
        "--out",
        "{given}/unfinished",
        "--rerun-failed",
        *CPU,
        *_LOGS,
        given=f"jobs.yaml unfinished {RUN}",
    ),
    "evaluate in a repository": _command(
        *("evaluate", TASK, "--checkpoint", "{given}/model.pt", *_NEW, *_BRIEFLY, *CPU, *_LOGS, *_NETWORKS),
        given="model.pt rl_games.yaml .git",
        unseen=".git/config",
        is_inside=True,
    ),
    "watch": _command("evaluate", TASK, "--watch", _RUN, *_NEW, *_BRIEFLY, *CPU, *_LOGS, given=RUN),
    "compare": _command("shoal", "compare", "{given}/out", "{given}/other", "--json", given="out other"),
    "play": _command("play", TASK, "--checkpoint", _RUN, "--episodes", "1", *CPU, *_LOGS, given=RUN),
    "play the best": _command(
        "play", TASK, "--checkpoint", "best-of-runs", "--episodes", "1", *CPU, *_LOGS, given="logs"
    ),
    "export": _command("shoal", "export", TASK, "--checkpoint", _RUN, *_LOGS, given=RUN),
    "replay": _command("shoal", "replay", "{given}/diverged.npz", given="diverged.npz"),
    "motion": _command("shoal", "motion", "{given}/motion.npz", "--out", "{given}/new.npz", given="motion.npz"),
    "motion of a table": _command("shoal", "motion", "{given}/motion.csv", given="motion.csv"),
    "check a motion": _command(
        *("shoal", "check-env", "Humanoid-Tracking-Flat", "--env.motion", "{given}/motion.npz"),
        *("--num-envs", "1", "--steps", "2", *CPU),
        given="motion.npz",
    ),
    "convert": _command("shoal", "convert", "{given}/model.pt", "--output", "{given}/new.pt", given="model.pt"),
    "plan of a sweep": _command("shoal", "sweep", "{given}/sweep.yaml", *CPU, *_LOGS, "--dry-run", given="sweep.yaml"),
    "plan of a grid": _command("shoal", "sweep", "{given}/grid.yaml", *CPU, *_LOGS, "--dry-run", given="grid.yaml"),
    "sweep": _command("shoal", "sweep", "{given}/sweep.yaml", *CPU, *_LOGS, given="sweep.yaml logs/sweeps"),
    "plan of a robot": _command(
        *_SPEC,
        "--env.robot",
        f"{_ROBOT}.xml",
        given="robot",
        unseen="robot/robot.xml robot/defaults.xml robot/head.obj",
    ),
    "plan of a URDF": _command(*_SPEC, "--env.robot", f"{_ROBOT}.urdf", given="robot", unseen="robot/robot.urdf"),
    "check a robot": _command(
        *("shoal", "check-env", "Quadruped-Velocity-Flat", "--env.robot", f"{_ROBOT}.xml"),
        *("--num-envs", "1", "--steps", "2", *CPU),
        given="robot",
        unseen="robot/robot.xml robot/defaults.xml robot/head.obj",
    ),
    "plan of rl_games": _command(
        "train",
        TASK,
        "--learner",
        "rl_games",
        "--agent.yaml",
        "{given}/rl_games.yaml",
        *CPU,
        *_LOGS,
        "--dry-run",
        given="rl_games.yaml",
    ),
}
"""Every command that reads files from others."""

REFUSED = {"plan of a URDF", "evaluate a program"}
"""Commands that may refuse the valid file: a robot without a base that moves, and a program, which may be code."""
_USAGE = 2
"""Exit code of a refusal."""
_VOUCHED = 0.9
"""Share of the changed files of checkpoints whose sum in the manifest is changed, too."""
_LARGE = 1 << 28
"""Size of a file that is not read here [bytes]."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A change of something that a command touches."""

    command: str
    path: str
    """Below the given folder."""
    mutation: str
    is_link: bool
    """Whether it leads elsewhere what the command writes."""


class Cases:
    """All cases of a corpus."""

    def __init__(self, corpus: Place, servers: Sequence[Server], seed: int) -> None:
        """Let each command run once, and list what can be changed of what it touches."""
        self.corpus, self._seed = corpus, seed
        names = iter(enumerate(COMMANDS))
        self._targets: list[list[Target]] = [[] for _ in COMMANDS]

        def work(server: Server, place: Place) -> None:
            for index, name in names:
                self._targets[index] = _varied(self._targets_of(name, server, place), seed)

        side_by_side(corpus, servers, work)

    def _targets_of(self, name: str, server: Server, place: Place) -> list[Target]:
        command = COMMANDS[name]
        with _filled(self.corpus, place, command):
            answer = command.run(server, place, witness=True, seconds=120)
            assert answer.code == 0 or (answer.code == _USAGE and name in REFUSED), (name, answer)
            touched = [] if command.is_inside else answer.told
            seen = {*touched, *(f"reads {place.given}/{path}" for path in command.unseen)}
            targets = _targets(name, place, self.corpus, seen)
            assert targets, name
            return targets

    def __len__(self) -> int:
        """Return the number of targets."""
        return sum(map(len, self._targets))

    def run(self, number: int, server: Server, place: Place) -> list[Finding]:
        """Run a case, and return what was found. Each command has every nth case."""
        index, which = divmod(number, len(self._targets))
        target = self._targets[which][index % len(self._targets[which])]
        rng = Random(f"{self._seed}/{number}")  # noqa: S311
        command = COMMANDS[target.command]
        with _filled(self.corpus, place, command):
            path = place.given / target.path
            what = _mutation(path, target.mutation)(path, rng, place.outside)
            if _is_vouched_for(path) and rng.random() < _VOUCHED:
                vouch_for(path)
            before = place.state()
            answer = command.run(server, place)
            return list(judge(number, target.command, f"{target.path} {what}", place, answer, before))


def _varied(targets: list[Target], seed: int) -> list[Target]:
    """Return targets in random order, each mutation on one path before any on a second one; links on all at once."""
    Random(seed).shuffle(targets)  # noqa: S311
    seen: Counter[str] = Counter()
    rounds: list[tuple[int, int]] = []
    for index, target in enumerate(targets):
        rounds.append((0 if target.is_link else seen[target.mutation], index))
        seen[target.mutation] += not target.is_link
    return [targets[index] for _, index in sorted(rounds)]


def _is_vouched_for(path: Path) -> bool:
    """Whether a file is a part of a checkpoint whose manifest tells its sum, and can be summed up quickly."""
    return (
        path.suffix == ".pt"
        and path.is_file()
        and path.stat().st_size < _LARGE
        and path.with_name("manifest.json").is_file()
    )


def side_by_side(corpus: Place, servers: Sequence[Server], work: Callable[[Server, Place], None]) -> None:
    """Let each server work in a place of its own."""
    places = [Place(path=corpus.path.with_name(f"slot-{index}")) for index in range(len(servers))]
    with ThreadPoolExecutor(len(servers)) as pool:
        for each in [pool.submit(work, *pair) for pair in zip(servers, places, strict=True)]:
            each.result()


def run_cases(
    cases: Cases, numbers: Iterable[int], servers: Sequence[Server], tell: Callable[[str], None]
) -> list[Finding]:
    """Run cases on servers side by side, and tell each finding."""
    left, found = iter(list(numbers)), list[Finding]()

    def work(server: Server, place: Place) -> None:
        for number in left:
            for each in cases.run(number, server, place):
                found.append(each)
                tell(str(each))

    side_by_side(cases.corpus, servers, work)
    return found


def warm_up_commands(corpus: Place) -> list[list[str]]:
    """Return commands that import and load what most commands need."""
    robot = ["train", "Quadruped-Velocity-Flat", "--dry-run", "--env.robot", f"{corpus.given}/robot/robot.xml", *CPU]
    names = ("runs", "plan of a configuration", "play", "compare", "motion of a table")
    return [*(COMMANDS[name].in_place(corpus) for name in names), robot]


class _filled:  # noqa: N801  A context manager.
    """A place with what a command is given, for the body."""

    def __init__(self, corpus: Place, place: Place, command: Command) -> None:
        self._corpus, self._place, self._command = corpus, place, command

    def __enter__(self) -> None:
        corpus, place = self._corpus, self._place
        assert len(str(corpus.path)) == len(str(place.path))
        place.make()
        for name in self._command.given:
            source, target = corpus.given / name, place.given / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        for file in place.given.rglob("*"):
            if file.suffix in {".yaml", ".json", ".jsonl"}:  # They hold absolute paths.
                data = file.read_bytes()
                file.write_bytes(data.replace(str(corpus.path).encode(), str(place.path).encode()))

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._place.path)


_OWN = re.compile(r"logs(/sweeps(/\w+)?)?")
"""Folders of the user, who may have put them on another disk: what is written in them is written there."""
_UNIQUE = re.compile(r"\.\d+$|\d{4}-\d\d-\d\d_|tfevents|\.lock$")
"""Names that no one can foresee: of a process, of a moment."""


def _targets(command: str, place: Place, corpus: Place, touched: set[str]) -> list[Target]:
    """Return the targets of a command, of what its witness told."""
    found: set[tuple[str, str]] = set()
    written: set[str] = set()
    for line in sorted(touched):
        kind, _, where = line.partition(" ")
        if kind not in {"reads", "writes", "lists"} or not where.startswith(f"{place.given}/"):
            continue
        path = where.removeprefix(f"{place.given}/")
        there = corpus.given / path
        if _UNIQUE.search(path.replace(RUN, "")):
            continue
        if kind == "writes" and (corpus.given / path.partition("/")[0]).exists():  # A new folder must be empty.
            written.add(path)
        of_file = [*IN_PLACE, *BYTES, *of_content(there)] if there.is_file() else []
        of_folder = [*IN_PLACE, *FOLDERS] if there.is_dir() else []
        found |= {(path, name) for name in of_file or of_folder or IN_PLACE}
        for parent in list(there.relative_to(corpus.given).parents)[:-1]:
            found |= {(str(parent), name) for name in IN_PLACE}
    found = {(path, name) for path, name in found if name != "link to folder" or not _OWN.fullmatch(path)}
    return [
        Target(command=command, path=path, mutation=name, is_link=path in written and name in LINKS)
        for path, name in sorted(found)
    ]


def _mutation(path: Path, name: str) -> Mutation:
    return {**IN_PLACE, **BYTES, **FOLDERS, **of_content(path)}[name]

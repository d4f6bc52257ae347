"""Runs cases in forks of a warm process, and judges what each did."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.fuzz.guard import CODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SECONDS = 10.0
"""Longest time that a command may use a core [s]."""
_TESTS = Path(__file__).parents[2]
_WITHOUT_MEMORY = re.compile("MemoryError|Unable to allocate|can't allocate memory")
"""What Python, NumPy and torch say where a limit of memory ends a command, also if it is refused in a sentence."""
_FRAME = re.compile(r'File "(?:.*/)?((?:shoal|support|site-packages)/.+?)", line (\d+), in (.+)')


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command ended, and what it did."""

    code: int | None
    """Exit code; None if it took too long."""
    seconds: float
    peak: int
    """Largest memory, with that of its imports [bytes]."""
    output: str
    traceback: bool
    told: list[str]
    """What a guard has told."""
    left: int
    """Processes that outlived it."""


@dataclass(kw_only=True)
class Place:
    """The folders of one case: what it is given, where it works, and what it must leave alone."""

    path: Path
    given: Path = field(init=False)
    """Files from others, and where results go."""
    cwd: Path = field(init=False)
    """An empty working directory, below which nothing may be written."""
    outside: Path = field(init=False)
    """Files and folders that links and names lead to."""
    temporary: Path = field(init=False)

    def __post_init__(self) -> None:
        """Name the folders."""
        self.given, self.cwd = self.path / "given", self.path / "cwd"
        self.outside, self.temporary = self.path / "outside", self.path / "tmp"

    def make(self) -> None:
        """Make the folders but that of what is given, and what is outside."""
        for folder in (self.cwd, self.temporary, self.outside / "folder" / "parts"):
            folder.mkdir(parents=True)
        for name in ("file", "folder/file", "folder/parts/file"):
            (self.outside / name).write_text("This must stay as it is.\n", encoding="utf-8")
        for name in ("000000.jsonl", "000001.jsonl"):  # As an evaluation has them, which merges them and removes all.
            (self.outside / "folder" / "parts" / name).touch()

    def state(self) -> dict[str, Any]:
        """Return what nothing may change: the working directory, and what is outside."""
        found = sorted(path for folder in (self.cwd, self.outside) for path in (folder, *folder.rglob("*")))
        return {str(path.relative_to(self.path)): (path.stat().st_mode, _content(path)) for path in found}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


class Server:
    """A warm process, which runs one case at a time."""

    def __init__(self, home: Path, warm_up: Sequence[Sequence[str]] = ()) -> None:
        """Start it, and let it run commands once before it forks."""
        self._home = home
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        self._environ = {
            **{name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV", "LANG") if name in os.environ},
            "HOME": str(home),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "CUDA_VISIBLE_DEVICES": "",
            "WANDB_MODE": "offline",  # It starts a process then, too, and needs no account.
        }
        python_path = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.fuzz.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=home,
            env={**self._environ, "PYTHONPATH": python_path, "TMPDIR": str(home / "tmp")},
        )
        self._send(warm_up)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.communicate(timeout=30)

    def _send(self, data: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(data) + "\n")
        self._process.stdin.flush()

    def run(
        self,
        place: Place,
        words: Sequence[str],
        *,
        inside: bool = False,
        witness: bool = False,
        seconds: float = SECONDS,
    ) -> Answer:
        """Run a command in a place; `inside` is whether it works in the folder that it is given."""
        self._send(
            {
                "name": words[0],
                "words": list(words[1:]),
                "cwd": str(place.given if inside else place.cwd),
                "environ": {**self._environ, "TMPDIR": str(place.temporary)},
                "writable": [str(place.given), str(place.temporary), str(self._home / ".cache")],
                "given": str(place.given),
                "witness": witness,
                "seconds": seconds,
            }
        )
        assert self._process.stdout is not None
        return Answer(**json.loads(self._process.stdout.readline()))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a command must not do."""

    kind: str
    """What was violated."""
    where: str
    """What is the same for equal faults: the innermost frame of Shoal, or what was touched."""
    number: int
    """Of the case."""
    command: str
    change: str
    output: str
    """The last lines."""

    def __str__(self) -> str:
        """Return a line of ASCII: names may hold anything."""
        return f"case {self.number}: {self.command}: {self.change!a}: {self.kind} {self.where!a}: {self.output!a}"


def judge(  # noqa: PLR0917  A case.
    number: int, command: str, change: str, place: Place, answer: Answer, before: dict[str, Any]
) -> Iterator[Finding]:
    """Yield what a command did wrong."""

    def finding(kind: str, where: str) -> Finding:
        last = answer.output.strip().splitlines()[-2:]
        output = " | ".join(line.strip()[:300] for line in last)
        return Finding(kind=kind, where=where, number=number, command=command, change=change, output=output)

    for violation in answer.told:
        event, _, rest = violation.partition(" ")
        yield finding(event, re.sub(r"\d{4,}", "N", rest.replace(str(place.path), "")))
    after = place.state()
    if before != after and all(each.startswith(CODE) for each in answer.told):  # Else what has changed it was told.
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        yield finding("changed outside", ", ".join(changed))
    if answer.code is None:
        yield finding("hangs", f"after {answer.seconds:.0f} s")
    elif answer.traceback:
        yield finding("traceback", _innermost(answer.output))
    elif answer.code not in {0, 1, 2}:
        yield finding("exit code", str(answer.code))
    if _WITHOUT_MEMORY.search(answer.output):
        yield finding("memory", "more than it may take")
    if answer.left:
        yield finding("processes left", str(answer.left))


def _innermost(output: str) -> str:
    """Return the innermost frame of Shoal of the last traceback, and the error."""
    last = output.rpartition("Traceback (most recent call last)")[2]
    frames = [match for match in _FRAME.findall(last) if match[0].startswith("shoal/")]
    error = next(
        (line for line in last.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)), ""
    )
    where = "{}:{} in {}".format(*frames[-1]) if frames else "outside of Shoal"
    return f"{where}: {error.partition(':')[0]}"


def distinct(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each fault: the first case that shows it, and how many do."""
    faults: dict[tuple[str, str, str], list[Finding]] = {}
    for each in sorted(findings, key=lambda each: each.number):
        faults.setdefault((each.kind, each.where, each.command), []).append(each)
    return [f"{len(each)} times, {each[0]}" for _, each in sorted(faults.items())]

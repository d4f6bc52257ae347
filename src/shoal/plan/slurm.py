"""The machines of a SLURM allocation, parsed from SLURM's compressed host list."""

import itertools
import re
from collections.abc import Mapping

from shoal.errors import UsageError

_MOST_HOSTS = 100_000
_PART = re.compile(r"[^\[\]]+|\[[^\[\]]*\]")
_SPAN = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?")


def allocated_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the machines of this allocation, in SLURM's order.

    Raises:
        UsageError: This process is in no allocation, or the list cannot be parsed.
    """
    word = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if not word.strip():
        raise UsageError(
            "--hosts slurm was asked for, but SLURM_JOB_NODELIST is not set, so this process is in no allocation: run "
            "it from within sbatch or salloc, or name the machines."
        )
    return expand_hosts(word)


def expand_hosts(word: str) -> tuple[str, ...]:
    """Return the host names of a list such as ``a[01-03,7],b``.

    Raises:
        UsageError: The list cannot be parsed.
    """
    names: list[str] = []
    for entry in _entries(word):
        parts = _PART.findall(entry)
        if not entry or "".join(parts) != entry:
            raise _unreadable(word)
        choices = [_numbers(part[1:-1], word) if part[0] == "[" else [part] for part in parts]
        names.extend(map("".join, itertools.islice(itertools.product(*choices), _MOST_HOSTS)))
    return tuple(dict.fromkeys(names))


def _entries(word: str) -> list[str]:
    """Split at commas outside brackets."""
    entries, depth = [""], 0
    for letter in word.strip():
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += letter
    return entries


def _numbers(spans: str, word: str) -> list[str]:
    """Return the numbers of ``01-03,7``, padded to the width of the first of each span."""
    numbers: list[str] = []
    for span in spans.split(","):
        match = _SPAN.fullmatch(span)
        first, last = (int(match["first"]), int(match["last"] or match["first"])) if match else (1, 0)
        if match is None or last < first or last - first >= _MOST_HOSTS:
            raise _unreadable(word)
        width = len(match["first"])
        numbers.extend(f"{number:0{width}d}" for number in range(first, last + 1))
    return numbers


def _unreadable(word: str) -> UsageError:
    return UsageError(
        f"SLURM_JOB_NODELIST is '{word}', which is no list of machines such as a[01-03,7],b: name them in --hosts."
    )

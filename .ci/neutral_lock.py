"""Make a `uv.lock` index-neutral: every package and version stays pinned, no index or file address remains.

uv reads the neutral form as a list of preferred versions, resolves to exactly those, and completes the file
in the work tree. Git stores only the neutral form: this script is the clean filter that `.gitattributes`
names and `make setup` configures. It needs nothing but Python: git runs it outside the project's
environment.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REGISTRY = re.compile(r'registry = "[^"]*"')
METADATA_TABLE = re.compile(r"\[package\.metadata[.\]]")


def neutral(lock: str) -> str:
    """Return `lock` without addresses, hashes and package metadata. The neutral form is returned as it is."""
    return "\n".join(_neutral_lines(lock.splitlines())).rstrip("\n") + "\n"


def _neutral_lines(lines: Sequence[str]) -> Iterator[str]:
    # uv writes every table header and every key at the start of a line, and indents the items of an array.
    in_wheels = in_metadata = False
    for line in lines:
        if line.startswith("["):
            in_metadata = METADATA_TABLE.match(line) is not None
        if line.startswith("wheels = ["):
            in_wheels = True
        if not (in_wheels or in_metadata or line.startswith("sdist = ")):
            yield REGISTRY.sub('registry = "."', line)
        if in_wheels and line.endswith("]"):
            in_wheels = False


def addresses(lock: str) -> list[tuple[int, str]]:
    """Return the number and text of every line of `lock` that still holds an address."""
    return [(number, line) for number, line in enumerate(lock.splitlines(), start=1) if "://" in line]


def _read(name: str) -> str:
    # Bytes, not text mode: git hands over what is stored, and no platform may change its line ends.
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode("utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description="Make a uv.lock index-neutral, or check that it is.")
    parser.add_argument("files", nargs="*", default=["-"], metavar="FILE", help="a lock; '-' (the default) is stdin")
    parser.add_argument("--check", action="store_true", help="only name the lines that hold an address, and exit 1")
    args = parser.parse_args(argv)
    if not args.check:
        if len(args.files) != 1:
            parser.error("one FILE is made neutral at a time; several can only be checked: pass --check")
        sys.stdout.buffer.write(neutral(_read(args.files[0])).encode("utf-8"))
        return 0
    found = [f"{name}:{number}: {line}" for name in args.files for number, line in addresses(_read(name))]
    for line in found:
        sys.stderr.write(f"{line}\n")
    if found:
        sys.stderr.write("A committed lock holds no address: run `make setup`, then add uv.lock again.\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

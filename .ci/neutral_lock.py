"""Make a `uv.lock` index-neutral: every package, version and hash stays pinned, no index or file address remains.

uv reads the neutral form as a list of preferred versions, resolves to exactly those, and completes the file
in the work tree from whatever index it is told. The hashes, which are comments in the neutral form, say whether that
index has the same files. Git stores only the neutral form: this script is the clean filter that `.gitattributes`
names and `make setup` configures. It needs nothing but Python: git runs it outside the project's environment.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REGISTRY = re.compile(r'registry = "[^"]*"')
HASH = re.compile(r"\bsha256:[0-9a-f]+")
NAMED = re.compile(r'(?:name|version) = "([^"]*)"')
METADATA_TABLE = re.compile(r"\[package\.metadata[.\]]")


def neutral(lock: str) -> str:
    """Return `lock` without addresses and package metadata. The neutral form is returned as it is."""
    return "\n".join(_neutral_lines(lock)).rstrip("\n") + "\n"


def _neutral_lines(lock: str) -> Iterator[str]:
    in_metadata = False
    for line, is_file, _ in _lines(lock):
        if line.startswith("["):
            in_metadata = METADATA_TABLE.match(line) is not None
        if is_file:
            yield from (f"# {each}" for each in HASH.findall(line))
        elif not in_metadata:
            yield REGISTRY.sub('registry = "."', line)


def _lines(lock: str) -> Iterator[tuple[str, bool, str]]:
    """Yield each line, whether it is about files of a package, and the package with its version."""
    # uv writes every table header and every key at the start of a line, and indents the items of an array.
    in_wheels, package = False, ""
    for line in lock.splitlines():
        if line == "[[package]]":
            package = ""
        if match := NAMED.match(line):
            package = f"{package} {match[1]}".strip()
        in_wheels = in_wheels or line.startswith("wheels = [")
        yield line, in_wheels or line.startswith(("sdist = ", "# sha256:")), package
        if in_wheels and line.endswith("]"):
            in_wheels = False


def hashes(lock: str) -> dict[str, list[str]]:
    """Return the hashes of the files of each package, by its name and version."""
    found: dict[str, list[str]] = {}
    for line, is_file, package in _lines(lock):
        if is_file:
            found.setdefault(package, []).extend(HASH.findall(line))
    return found


def keep_known(lock: str, known: Mapping[str, Sequence[str]]) -> str:
    """Return `lock` without files that another lock does not know of a package that it has in the same version.

    What was added to a release later is then not installed, whoever added it.
    """
    kept = (
        line
        for line, is_file, package in _lines(lock)
        if not (is_file and (found := HASH.findall(line)) and known.get(package) and found[0] not in known[package])
    )
    return "\n".join(kept) + "\n"


def addresses(lock: str) -> list[tuple[int, str]]:
    """Return the number and text of every line of `lock` that still holds an address."""
    return [(number, line) for number, line in enumerate(lock.splitlines(), start=1) if "://" in line]


def _read(name: str) -> str:
    # Bytes, not text mode: git hands over what is stored, and no platform may change its line ends.
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode("utf-8")


def _keep_known(lock: Path, known: Mapping[str, Sequence[str]]) -> int:
    whole = keep_known(_read(str(lock)), known)
    lock.write_bytes(whole.encode("utf-8"))
    here = hashes(whole)
    missing = [(package, each) for package in known if package in here for each in {*known[package]} - {*here[package]}]
    for package, each in missing:
        sys.stderr.write(f"{package}: the index does not have the file with {each} that the committed lock pins.\n")
    if missing:
        sys.stderr.write("Use another index, or see why it has other files. Nothing of it should be installed.\n")
    return int(bool(missing))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description="Make a uv.lock index-neutral, or check that it is.")
    parser.add_argument("files", nargs="*", default=["-"], metavar="FILE", help="a lock; '-' (the default) is stdin")
    parser.add_argument("--check", action="store_true", help="only name the lines that hold an address, and exit 1")
    parser.add_argument(
        "--known", metavar="LOCK", help="drop files from LOCK that FILE does not know, and exit 1 where one is missing"
    )
    args = parser.parse_args(argv)
    if args.known is not None:
        return _keep_known(Path(args.known), hashes(_read(args.files[0])))
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

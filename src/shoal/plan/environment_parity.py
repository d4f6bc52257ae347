"""Environment parity: whether machines run the same code with the same packages.

Averaging gradients of two versions of a learner raises no error, so versions and file contents are compared first.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError, counted
from shoal.provenance import CORE, versions
from shoal.tasks import registry

_ABSENT = "absent"
_NAMED_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Versions and files of one machine."""

    host: str
    versions: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]
    """Digest of each file, by package, such as ``shoal``, and by its path in it."""


def fingerprint(host: str, packages: Iterable[str], files: Iterable[str]) -> Fingerprint:
    """Return the fingerprint of this machine, called `host`, with the files of packages, and others."""
    groups = {package: _files_of(package) for package in packages}
    own = {path: _digest(Path(path)) for path in files}
    return Fingerprint(host=host, versions=versions(CORE), files=groups | ({"the task": own} if own else {}))


def code_of(tasks: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the packages and files with the code of these tasks."""
    found = [_code_of(task) for task in tasks]
    packages, files = ({name for each in found for name in each[part]} for part in (0, 1))
    return sorted(packages), sorted(files)


def _code_of(task: str) -> tuple[list[str], list[str]]:
    where = registry.resolve(task).builder.rpartition(":")[0]
    if not where.endswith(".py"):
        return sorted({"shoal", where.partition(".")[0]}), []
    # Its imports from its own directory are in `sys.modules` already.
    beside = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    installed = {Path(sys.prefix), Path(sys.base_prefix)}  # They may be in that directory; versions are compared.
    directory = Path(where).parent
    own = {file for file in beside if file and directory in (above := Path(file).parents) and not installed & {*above}}
    return ["shoal"], sorted({where, *own})


def differences(here: Fingerprint, there: Fingerprint) -> list[str]:
    """Return a clause about each difference between two nodes."""
    found = [
        f"{name} is {theirs} there and {ours} here"
        for name in sorted(here.versions.keys() | there.versions.keys())
        if (ours := here.versions.get(name, _ABSENT)) != (theirs := there.versions.get(name, _ABSENT))
    ]
    for group in sorted(here.files.keys() | there.files.keys()):
        ours, theirs = here.files.get(group, {}), there.files.get(group, {})
        other = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
        if other:
            named = ", ".join(other[:_NAMED_AT_MOST]) + (", ..." if len(other) > _NAMED_AT_MOST else "")
            verb = "differs" if len(other) == 1 else "differ"
            found.append(f"{counted(len(other), 'file')} of {group} {verb}: {named}")
    return found


def refuse_differences(here: Fingerprint, others: Sequence[Fingerprint]) -> None:
    """Refuse machines that differ from this one, with all differences."""
    unlike = {other.host: found for other in others if (found := differences(here, other))}
    if unlike:
        raise UsageError(
            f"Node {', '.join(unlike)} differs from {here.host}, where this was started, in what is listed above: "
            "install the same versions and the same code on all nodes, or let them share one directory.",
            details="\n".join(f"Node {host}: {each}." for host, found in unlike.items() for each in found),
        )


def _files_of(package: str) -> dict[str, str]:
    """Return the digest of each file of a package; empty where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    if root.is_file():
        return {root.name: _digest(root)}
    paths = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(root)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return _ABSENT

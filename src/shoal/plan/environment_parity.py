"""Environment parity: whether machines run the same code with the same packages.

Averaging gradients of two versions of a learner raises no error, so versions and file contents are compared first.
"""

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UsageError
from shoal.provenance import versions
from shoal.tasks import registry

_ABSENT = "absent"
_NAMED_AT_MOST = 5
_NO_CODE = {"__pycache__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Versions and files of one machine, as plain values for JSON."""

    host: str
    versions: Mapping[str, str]
    """Version of each package that affects results."""
    files: Mapping[str, Mapping[str, str]]
    """Digest of each file, by package, such as ``shoal``, and by its path in it."""


def fingerprint(host: str, packages: Iterable[str], files: Iterable[str]) -> Fingerprint:
    """Return this machine's fingerprint.

    Args:
        host: Name of this machine.
        packages: Packages whose files are compared.
        files: Paths of more files.
    """
    groups = {package: _files_of(package) for package in packages}
    own = {path: _digest(Path(path)) for path in files}
    return Fingerprint(host=host, versions=versions(), files=groups | ({"the task": own} if own else {}))


def code_of(task: str) -> tuple[list[str], list[str]]:
    """Return the packages and files with the code of a training of `task`."""
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
    """Return a clause about each difference between two machines."""
    found = [
        f"{name} is {theirs} there and {ours} here"
        for name in sorted(here.versions.keys() | there.versions.keys())
        if (ours := here.versions.get(name, _ABSENT)) != (theirs := there.versions.get(name, _ABSENT))
    ]
    for group in sorted(here.files.keys() | there.files.keys()):
        ours, theirs = here.files.get(group, {}), there.files.get(group, {})
        other = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
        if other:
            found.append(_files_differ(group, other))
    return found


def refuse_differences(here: Fingerprint, others: Sequence[Fingerprint]) -> None:
    """Refuse machines that differ from this one.

    Raises:
        UsageError: Some differ; with all differences.
    """
    unlike = {other.host: found for other in others if (found := differences(here, other))}
    if not unlike:
        return
    details = "\n".join(f"Host {host}: {each}." for host, found in unlike.items() for each in found)
    hosts = ", ".join(unlike)
    message = (
        f"Host {hosts} differs from {here.host}, where this was started, in what is listed above: install the same "
        "versions and the same code on all machines, or let them share one directory."
    )
    raise UsageError(message, details=details)


def _files_differ(group: str, paths: Sequence[str]) -> str:
    named = ", ".join(paths[:_NAMED_AT_MOST]) + (", ..." if len(paths) > _NAMED_AT_MOST else "")
    number = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    return f"{number} of {group} differ: {named}" if len(paths) > 1 else f"{number} of {group} differs: {named}"


def _files_of(package: str) -> dict[str, str]:
    """Return the digest of each file of a package; empty where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    if root.is_file():
        return {root.name: _digest(root)}
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not _NO_CODE & {*path.parts})
    return {str(path.relative_to(root)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return _ABSENT

"""Whatever writes below a run, results, a sweep or a cache does it through `shoal.files`, which follows no link."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent

ELSEWHERE = {
    "files.py": "this is the module",
    "cli/output.py": "opens /dev/null in the place of a closed stream",
    "launch/reaper.py": "a scratch directory of its own; it runs without the package",
    "launch/rendezvous.py": "a secret in a new file of mode 0600, and a directory of its own, of mode 0700",
    "launch/torchrunx_patch.py": "the scratch directory of the launch",
    "learn/checkpoint_transfer.py": "a temporary directory of its own",
    "jobs/recording.py": "HDF5 gets an open file",
    "learn/metrics.py": "TensorBoard makes a new file, whose name has the time, the host and the process",
    "sim/nan/dump.py": "into memory",
    "sim/render/trajectory.py": "an open temporary file",
    "tasks/humanoid/motion.py": "into memory",
}
"""Modules that write otherwise, and where."""

METHODS = {
    "write_text",
    "write_bytes",
    "mkdir",
    "rmdir",
    "unlink",
    "rename",
    "touch",
    "symlink_to",
    "hardlink_to",
    "chmod",
}
OS = {
    "mkdir",
    "makedirs",
    "remove",
    "unlink",
    "rmdir",
    "rename",
    "renames",
    "replace",
    "truncate",
    "link",
    "symlink",
    "chmod",
}
OS |= {"chown", "mkfifo", "mknod"}
SHUTIL = {"rmtree", "copy", "copy2", "copyfile", "copytree", "move"}
LIBRARIES = {"SummaryWriter", "savez", "savez_compressed", "savetxt"}
OPENING = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")


def writing(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and text of each call that writes, renames or removes a file, and not through a `Folder`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(call.lineno, ast.unparse(call)) for call in calls if _writes(call)]


def _writes(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in LIBRARIES or (call.func.id == "open" and _is_for_writing(call, 1))
    if not isinstance(call.func, ast.Attribute):
        return False
    receiver, name = ast.unparse(call.func.value), call.func.attr
    if receiver in ("os", "shutil"):
        opens = name == "open" and any(flag in ast.unparse(call) for flag in OPENING)
        return opens or name in (OS if receiver == "os" else SHUTIL)
    through_folder = receiver.endswith("folder") or receiver.startswith(("Folder(", "folder_of("))
    replaces = name == "replace" and len(call.args) == 1 and not call.keywords  # A string's has two arguments.
    opens = name in ("open", "File") and _is_for_writing(call, int(name != "open"))
    return not through_folder and (name in METHODS | LIBRARIES or replaces or opens)


def _is_for_writing(call: ast.Call, place: int) -> bool:
    given = [each.value for each in call.keywords if each.arg == "mode"] + call.args[place : place + 1]
    return any(isinstance(each, ast.Constant) and set(str(each.value)) & set("wax+") for each in given)


def test_only_named_modules_write_without_the_module_that_follows_no_link() -> None:
    found: dict[str, list[tuple[int, str]]] = {}
    for path in PACKAGE.rglob("*.py"):
        if calls := writing(ast.parse(path.read_text(encoding="utf-8"))):
            found[str(path.relative_to(PACKAGE))] = calls
    others = {module: calls for module, calls in found.items() if module not in ELSEWHERE}
    assert not others, f"Write through shoal.files.Folder: {others}"
    assert found.keys() == ELSEWHERE.keys()


@pytest.mark.parametrize(
    "code",
    [
        *('open(path, "w")', 'open(path, mode="ab")', 'path.open("r+b")', "path.unlink()", "path.rename(other)"),
        *("path.replace(other)", "shutil.rmtree(path)", "os.open(path, os.O_RDWR | os.O_CREAT)", "os.replace(a, b)"),
        *('h5py.File(path, "w")', "np.savez(path)", "path.mkdir()", "SummaryWriter(log_dir=path)"),
    ],
)
def test_a_call_that_writes_is_noticed(code: str) -> None:
    assert writing(ast.parse(code)) == [(1, code.replace('"', "'"))]


@pytest.mark.parametrize(
    "code",
    [
        'open(path, "rb")',
        "path.open()",
        'text.replace("a", "b")',
        "replace(config, a=1)",
        'run.folder.open(path, "w+")',
    ],
)
def test_a_call_that_reads_or_goes_through_a_folder_is_not(code: str) -> None:
    assert writing(ast.parse(code)) == []

"""Only `shoal.reading` opens files from outside. What else opens or parses one is listed here, each with its reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
READS = re.compile(
    r"\.read_text$|\.read_bytes$|(^|\.)open$|(^|\.)(json|yaml|pickle|cloudpickle|np|numpy|torch|torch\.export|tomllib)\.\w*load"
    r"|\.(loadtxt|genfromtxt|fromfile|memmap|from_file|from_xml_path|InferenceSession|ZipFile|copyfile)$|(^|\.)ZipFile$"
    r"|^csv\.(reader|DictReader)$|^ElementTree\.|Unpickler$"
)
"""Functions that read a file, or parse what was read."""
WRITES = re.compile(r"""os\.O_WRONLY|os\.devnull|\(['"]([wax]b?|w\+)['"]|, ['"][wax]b?['"]""")
"""Calls of them that only write."""
THROUGH_FOLDER = re.compile(r"(^|\.)folder\.open$|^(Folder|folder_of)\(.*\)\.open$")
"""What a file is opened with to be written to; lines of it are read by `shoal.reading`."""
KERNEL = "a file of the kernel, in /proc or /sys"
MESSAGE = "a message of another process of the same launch"
PACKAGED = "a file of an installed package"
SCRATCH = "a file that this launch has written into a directory of its own"
EXCEPTIONS = {
    "checks/probe.py json.loads": MESSAGE,
    "doctor/node.py script.read_bytes": "a script on PATH, which the shell would run",
    "envs/mjlab_spec.py OVERRIDES.read_text": PACKAGED,
    "files.py os.open": "what `shoal.files` writes to",
    "heartbeat.py beat_file(directory, rank).read_bytes": SCRATCH,
    "jobs/policies.py onnxruntime.InferenceSession": "protobuf: onnxruntime runs no code of it",
    "jobs/policies.py torch.export.load": "it runs code: `shoal.jobs.entries` has refused programs of others",
    "launch/joined.py json.loads": MESSAGE,
    "launch/joined.py rendezvous.open": "no file: the rendezvous store",
    "launch/reaper.py (entry / 'environ').read_bytes": KERNEL,
    "launch/reaper.py (scratch / OWNER).open": SCRATCH,
    "launch/reaper.py file.open": SCRATCH,
    "launch/reaper.py os.open": SCRATCH,
    "launch/remote/channel.py json.loads": MESSAGE,
    "launch/remote/node_agent.py json.loads": MESSAGE,
    "launch/remote/node_agent.py path.open": SCRATCH,
    "launch/rendezvous.py file.read_text": SCRATCH,
    "launch/rendezvous.py os.open": "the secret of the launch, which must be a file of this user",
    "launch/status_store.py json.loads": MESSAGE,
    "launch/torchrunx_patch.py cloudpickle.loads": MESSAGE,
    "launch/torchrunx_patch.py self._log.read_bytes": SCRATCH,
    "launch/rank.py json.loads": MESSAGE,
    "learn/groups.py comm.read_text": KERNEL,
    "learn/groups.py json.loads": MESSAGE,
    "learn/run_json.py json.loads": "its own entry, as JSON has it",
    "machine/host.py file.read_text": KERNEL,
    "mdp/scene.py mujoco.MjSpec.from_file": "MJCF: MuJoCo's parser has limits of its own, and runs no code",
    "plan/environment_parity.py path.read_bytes": PACKAGED,
    "plan/received.py json.loads": MESSAGE,
    "procfs.py Path(f'/proc/{pid}/stat').read_text": KERNEL,
    "sim/render/trajectory.py np.load": SCRATCH,
    "sim/engines/model_copies.py mujoco.MjSpec.from_file": "MJCF or URDF: the same",
    "sim/render/marks.py json.loads": SCRATCH,
    "sweep/study.py json.loads": "a choice of the sweep's file, which Optuna takes as text",
    "tasks/cartpole/model.py mujoco.MjSpec.from_file": PACKAGED,
    "tasks/gymnasium_v5/tasks.py mujoco.MjSpec.from_file": PACKAGED,
    "tasks/manipulation/reorient_task.py (hand / name).read_bytes": PACKAGED,
    "tasks/manipulation/reorient_task.py mujoco.MjSpec.from_file": PACKAGED,
    "tasks/manipulation/task.py mujoco.MjSpec.from_file": PACKAGED,
}


def readers_in(source: str) -> set[str]:
    """The functions that a module reads files with."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    calls = [call for call in calls if not THROUGH_FOLDER.search(ast.unparse(call.func))]
    return {
        ast.unparse(call.func)
        for call in calls
        if READS.search(ast.unparse(call.func))
        and not WRITES.search(ast.unparse(call).removeprefix(ast.unparse(call.func)))
    }


def test_only_one_module_reads_files_from_outside() -> None:
    found = {
        f"{path.relative_to(PACKAGE)} {reader}"
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "reading.py"
        for reader in readers_in(path.read_text(encoding="utf-8"))
    }
    assert found - EXCEPTIONS.keys() == set(), "read it with shoal.reading, or add it above, with the reason"
    assert EXCEPTIONS.keys() - found == set(), "nothing reads there any more"


@pytest.mark.parametrize(
    "line",
    [
        "Path('x').read_text()",
        "file.open()",
        "file.open('rb')",
        "open(name)",
        "os.open(name, os.O_RDONLY)",
        "json.load(stream)",
        "yaml.safe_load(text)",
        "np.load(file)",
        "torch.load(file)",
        "csv.reader(stream)",
        "zipfile.ZipFile(file)",
    ],
)
def test_a_reader_is_found(line: str) -> None:
    assert readers_in(line)


@pytest.mark.parametrize("line", ["file.open('wb')", "open(name, 'a')", "os.open(name, os.O_WRONLY)", "json.dumps(1)"])
def test_a_writer_is_none(line: str) -> None:
    assert not readers_in(line)

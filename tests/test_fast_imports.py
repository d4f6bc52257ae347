"""What a start may not load, and that what is left out is loaded by whatever needs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, Ended, run
from support.watched_env import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TASK = str(Path(__file__).parent / "support" / "watched_env.py") + ":build"

UNUSED = {
    *("torch._dynamo.eval_frame", "torch._inductor", "torch._export.db", "torch.onnx", "sympy", "triton"),
    *("git.cmd", "wandb", "mujoco_warp", "onnx", "onnxruntime", "gymnasium", "matplotlib", "pandas", "scipy", "h5py"),
}
"""Modules that neither rollout nor update uses."""


def loaded(where: Path, command: str, *flags: str, processes: int = 1) -> set[str]:
    """Run a command on the watched environment, and return which of the unused modules its processes have loaded."""
    seen = where / command
    seen.mkdir()
    words = (sys.executable, "-m", "shoal", command, TASK, *flags)
    ended: Ended = run(words, where, {DIRECTORY: str(seen)})
    assert ended.code == 0, ended.stderr
    found = [set(file.read_text(encoding="utf-8").split()) for file in seen.iterdir()]
    assert len(found) == processes
    assert all("torch.optim" in names for names in found)
    return UNUSED & set().union(*found)


def test_no_command_loads_what_it_does_not_use(tmp_path: Path) -> None:
    assert loaded(tmp_path, "train", *SMALL, "--max-iterations", "2") == set()
    assert loaded(tmp_path, "play", "--gpu-ids", "None", "--episodes", "1") == set()
    assert loaded(tmp_path, "evaluate", "--gpu-ids", "None", "--num-envs", "2", "--num-episodes", "2") == set()


@pytest.mark.soak
@pytest.mark.spawn
def test_spawned_workers_load_no_more(tmp_path: Path) -> None:
    flags = (*SMALL, "--max-iterations", "2", "--nproc-per-node", "2")
    assert loaded(tmp_path, "train", *flags, processes=2) == set()


def test_threads_sleep_while_they_wait_though_a_file_of_ones_own_loads_torch(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "shoal", "train", TASK, "--gpu-ids", "None", "--dry-run")
    ended = run(words, tmp_path, {"OMP_DISPLAY_ENV": "VERBOSE"})  # OpenMP writes it when torch loads it.
    assert "GOMP_SPINCOUNT = '0'" in ended.stderr


START = """
import sys
from shoal.fast_imports import speed_up_imports
speed_up_imports()
import tensordict, torch
network = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(network.parameters())
def update(optimizer=optimizer):
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
update()
assert "torch._dynamo.eval_frame" not in sys.modules
"""
"""What a training does before anything is compiled."""


SERVE = """
import json, os, traceback
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            exec(json.loads(line))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each script in a fork: the imports take seconds."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process after an update, and the file of its errors."""
    errors = tmp_path_factory.mktemp("started") / "errors.txt"
    with errors.open("w") as file:
        command = [sys.executable, "-c", START + SERVE]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
    with process:
        yield process, errors
        process.terminate()


@pytest.fixture
def after_start(started: tuple[subprocess.Popen[str], Path]) -> Callable[[str], None]:
    """Runs a script after an update."""
    process, errors = started

    def run_script(script: str) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(script) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "0\n", errors.read_text()

    return run_script


def test_what_is_compiled_later_is_compiled_by_the_real_compiler(after_start: Callable[[str], None]) -> None:
    after_start("""
import torch._dynamo.testing
counter = torch._dynamo.testing.CompileCounter()
assert torch.compile(lambda x: x.sin() * 2, backend=counter)(torch.zeros(2)).tolist() == [0, 0]
assert counter.frame_count == 1
allowed = torch._dynamo.trace_rules._allowed_callable_ids
assert id(tensordict.base._foreach_copy_compiled) in allowed  # Marked before.
assert tensordict.utils._lock_warn._dynamo_marked_constant
torch.compile(lambda: update() or torch.ones(1), backend="eager")()
assert optimizer.add_param_group.__wrapped__.__dynamo_disable._torchdynamo_disable  # Disabled by the real one.
""")


def test_policies_are_exported_after_a_start(after_start: Callable[[str], None]) -> None:
    after_start("assert torch.export.export(network, (torch.ones(1, 2),)).graph_module is not None")


@pytest.mark.parametrize(
    "script",
    [
        "import torch._dynamo.config as config",
        "from torch._dynamo import config",
        "import torch._dynamo; config = torch._dynamo.config",
        "from importlib.util import find_spec; assert find_spec('torch._dynamo').origin; config = torch._dynamo.config",
        "from torch._dynamo.utils import counters; config = torch._dynamo.config",
    ],
)
def test_however_it_is_imported_there_is_one_module(script: str, after_start: Callable[[str], None]) -> None:
    after_start(f"""
{script}
import types
assert type(sys.modules["torch._dynamo"]) is types.ModuleType
assert config is torch._dynamo.config is sys.modules["torch._dynamo.config"]
config.suppress_errors = True
from torch._dynamo.eval_frame import config as used
assert used.suppress_errors
assert config.__spec__.loader.get_filename() == config.__file__
""")


def test_several_threads_load_it_once(after_start: Callable[[str], None]) -> None:
    after_start("""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    assert len(set(pool.map(lambda _: id(torch._dynamo.config), range(8)))) == 1
""")


def test_looking_for_the_source_of_a_class_loads_nothing(after_start: Callable[[str], None]) -> None:
    after_start("""
import inspect, cloudpickle
inspect.getmodule(update), inspect.getsource(torch.nn.Linear), cloudpickle.dumps(update)
assert "torch._dynamo.eval_frame" not in sys.modules
""")


def test_a_package_is_imported_by_its_modules_and_its_names(after_start: Callable[[str], None]) -> None:
    after_start("import git\nimport git.repo\nfrom git import Repo\nassert Repo is git.repo.Repo")


def test_what_is_imported_already_stays(after_start: Callable[[str], None]) -> None:
    after_start("import git\nreal = git.Repo\nspeed_up_imports()\nassert git.Repo is real")

"""Options, rungs and guards shared by all tests. What builds test objects lives in `support/`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.plan.rundir import RunDir

LAUNCH_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
"""What a launcher tells its workers. Left over, it makes every later test look like a rank."""

_IS_EMULATED = "SHOAL_EMULATED_GPU" in os.environ
"""Whether the tests run on emulated GPUs: those that need a GPU, and those that run on any device."""

# Other processes share the cores of a small machine, so the time of one example says nothing.
hypothesis.settings.register_profile("shoal", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("shoal")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the same tests run on the CPU or on a GPU."""
    parser.addoption("--device", help="device of the tests that run on any: cpu or cuda:0")
    parser.addoption("--soak-kills", type=int, default=50, help="how many ranks the soak test kills")
    parser.addoption("--soak-seed", type=int, default=1, help="seed of the soak tests")
    parser.addoption("--soak-cases", type=int, default=3000, help="how many files the soak test changes")
    parser.addoption("--soak-case", type=int, help="the only one of them to run")
    parser.addoption("--soak-archs", default="75,90", help="CUDA architectures that the soak test compiles for")
    parser.addoption("--soak-tasks", default="InvertedPendulum-v5", help="tasks that the soak test trains, or all")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a GPU that is not there before any test runs, and hear signals also under nohup and in the background."""
    # What nohup, or a script that runs something in the background, ignores every process below ignores, too.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    device = _device_of(config)
    if device.startswith("cuda") and _visible_gpu_count() == 0:
        message = f"--device {device} was asked for, but no GPU is visible: leave it out to test on the CPU."
        raise pytest.UsageError(message)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes many minutes unless asked for, and skip what needs more GPUs."""
    if "soak" not in config.option.markexpr:
        soak = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]
    if _IS_EMULATED:
        kept = [item for item in items if _runs_on_a_gpu(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    # Files that start processes first: the short ones then fill the time in which the last long ones end.
    spawning = {item.path for item in items if item.get_closest_marker("spawn")}
    items.sort(key=lambda item: item.path not in spawning)
    needs = [(item, marker.kwargs) for item in items if (marker := item.get_closest_marker("gpu"))]
    visible = _visible_gpu_count() if needs else 0
    for item, need in needs:
        count, real = need.get("count", 1), need.get("real")
        if real and _IS_EMULATED:
            item.add_marker(pytest.mark.skip(reason=f"a real GPU is needed: {real}"))
        elif count > visible:
            item.add_marker(pytest.mark.skip(reason=f"{count} GPU(s) needed, {visible} visible"))
    for item in items:
        if item.get_closest_marker("emulated_gpu") and not _IS_EMULATED:
            item.add_marker(pytest.mark.skip(reason="emulated GPUs are needed: make test-emulated"))


def _runs_on_a_gpu(item: pytest.Item) -> bool:
    """Whether a test needs a GPU or runs on any device."""
    marked = item.get_closest_marker("gpu") or item.get_closest_marker("emulated_gpu")
    return marked is not None or "device" in getattr(item, "fixturenames", ())


def _device_of(config: pytest.Config) -> str:
    """Return the device of the tests that run on any."""
    return str(config.getoption("--device") or ("cuda:0" if _IS_EMULATED else "cpu"))


def _visible_gpu_count() -> int:
    # Imported here, so that a broken module fails its own tests and not the collection of all others.
    from shoal.machine.gpus import visible_gpus

    return len(visible_gpus())


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """The device of tests that run on any."""
    return _device_of(request.config)


@pytest.fixture
def log_root(tmp_path: Path) -> Path:
    """An empty directory to pass as `--log-root`."""
    path = tmp_path / "logs"
    path.mkdir()
    return path


@pytest.fixture
def run_dir(log_root: Path) -> RunDir:
    """An empty run directory, under `log_root`."""
    from shoal.plan.rundir import RunDir

    path = log_root / "experiment" / "2026-01-01_00-00-00"
    path.mkdir(parents=True)
    return RunDir(path)


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    """Put back what a test changed for the whole process, and fail the test where that would hide a bug.

    It is set up before the other fixtures of a test, and so torn down after them: what `monkeypatch` puts
    back is no trace.
    """
    environ, cwd = dict(os.environ), Path.cwd()
    root, ours = logging.getLogger(), logging.getLogger("shoal")
    root_level, our_level, our_propagate, our_handlers = (
        root.level,
        ours.level,
        ours.propagate,
        ours.handlers[:],
    )
    yield
    changed = (name for name in LAUNCH_VARIABLES if os.environ.get(name) != environ.get(name))
    traces = [f"the variable {name}" for name in sorted(changed)]
    if root.level != root_level:
        traces.append("the root logger's level")
    if _process_group_was_open():
        traces.append("an open process group")
    _restore_environ(environ)
    os.chdir(cwd)
    root.setLevel(root_level)
    # Our own logger is put back without a word: commands that run inside a test configure it by design.
    ours.setLevel(our_level)
    ours.propagate, ours.handlers = our_propagate, our_handlers
    if traces:
        pytest.fail(f"The test left a trace: {', '.join(traces)}. Undo it where it was done.")


@pytest.fixture(autouse=True)
def _a_new_account() -> None:
    """Let each test look at what itself did with emulated GPUs."""
    if _IS_EMULATED:
        from support import emulated_gpu

        emulated_gpu.machine().forget()


def _restore_environ(before: dict[str, str]) -> None:
    # pytest itself changes this one between the phases of a test.
    before["PYTEST_CURRENT_TEST"] = os.environ.get("PYTEST_CURRENT_TEST", "")
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _process_group_was_open() -> bool:
    # A test that never imported torch opened no group, and must not pay for the import.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    distributed.destroy_process_group()
    return True

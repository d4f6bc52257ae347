"""The guards of conftest.py, shown on tests that break them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

LEAKY_TESTS = """
import logging, os, pytest, torch.distributed

def test_leaks_rank(): os.environ["RANK"] = "1"
def test_rank_was_restored(): assert "RANK" not in os.environ
def test_moves(tmp_path): os.chdir(tmp_path); os.environ["OTHER"] = "1"
def test_moved_back(): assert os.path.exists("test_leaky.py") and "OTHER" not in os.environ
def test_removes(): del os.environ["KEPT"]
def test_removed_is_back(): assert os.environ["KEPT"] == "1"
def test_borrows_rank(monkeypatch): monkeypatch.setenv("RANK", "1")
def test_silences(): logging.getLogger().setLevel(logging.CRITICAL)
def test_speaks_again(): assert logging.getLogger().level == logging.WARNING
def test_configures_ours(): logging.getLogger("shoal").propagate = False
def test_ours_is_restored(): assert logging.getLogger("shoal").propagate
def test_opens_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
def test_group_was_closed(): assert not torch.distributed.is_initialized()
@pytest.mark.gpu(count=1000)
def test_wants_many_gpus(): pass
"""


def run_pytest(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of `directory` under our conftest, with no GPU visible."""
    shutil.copy(CONFTEST, directory)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--config-file", os.devnull]
    return subprocess.run(
        [*command, "--rootdir", str(directory), *args],
        cwd=directory,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "KEPT": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says about LEAKY_TESTS."""
    directory = tmp_path_factory.mktemp("leaky")
    (directory / "test_leaky.py").write_text(LEAKY_TESTS)
    return run_pytest(directory).stdout


@pytest.mark.parametrize(
    ("test", "trace"),
    [
        ("test_leaks_rank", "the variable RANK"),
        ("test_silences", "the root logger's level"),
        ("test_opens_group", "an open process group"),
    ],
)
def test_a_test_that_leaves_a_trace_fails_and_names_it(report: str, test: str, trace: str) -> None:
    assert f"ERROR test_leaky.py::{test} - Failed: The test left a trace: {trace}." in report


def test_only_those_fail_and_the_next_test_finds_all_restored(report: str) -> None:
    assert report.splitlines()[-1].startswith("=") and " 13 passed, 1 skipped, " in report  # noqa: PT018
    assert " 3 errors in " in report


def test_a_gpu_test_is_skipped_with_its_reason(report: str) -> None:
    assert "1000 GPU(s) needed, 0 visible" in report


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--device", "cuda:0")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device cuda:0 was asked for, but no GPU is visible" in done.stderr

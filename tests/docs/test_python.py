"""Python on the pages and in the examples: the blocks of the guide run, and only public names are imported."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
from typing import TYPE_CHECKING

import matplotlib as mpl
import pytest
import torch
from support.documented import ROOT, pages
from support.venvs import python_with

import shoal
from shoal import mdp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = ROOT / "docs" / "examples"
GUIDE = (ROOT / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
NOTEBOOK = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
PUBLIC = {"shoal", "shoal.gym", "shoal.mdp", *(f"shoal.{name}" for name in (*shoal.__all__, "mdp"))}
PUBLIC |= {f"shoal.mdp.{name}" for name in mdp.__all__}


def imported_from_shoal(source: str) -> set[str]:
    """The names of Shoal that a module imports, with those of their modules before them."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    names |= {f"{node.module}.{alias.name}" for node in modules for alias in node.names}
    return {name for name in names if name.partition(".")[0] == "shoal"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_imports_public_names_of_shoal_alone(file: Path) -> None:
    assert imported_from_shoal(file.read_text(encoding="utf-8")) - PUBLIC == set()


def test_other_names_are_seen() -> None:
    source = "import shoal.sim\nfrom shoal.learn.learner import Learner\nfrom shoal import Learner as L, mdp\n"
    assert imported_from_shoal(source) - PUBLIC == {"shoal.sim", "shoal.learn.learner.Learner"}


def test_the_guide_is_short() -> None:
    assert len(GUIDE.splitlines()) <= 100


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_a_page_imports_public_names_of_shoal_alone(page: Path) -> None:
    lines = re.findall(r"^(?:from|import) shoal.*", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert imported_from_shoal("\n".join(lines)) - PUBLIC == set()


def test_the_blocks_of_the_guide_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        exec(compile(block, "python.md", "exec"), names)  # noqa: S102
    assert isinstance(names["returns"], list)
    assert len(names["returns"]) == 2


def test_the_cells_of_the_notebook_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    assert any("max_iterations=150" in cell for cell in CELLS)
    names: dict[str, object] = {}
    for cell in CELLS:
        exec(compile(cell.replace("max_iterations=150", "max_iterations=2, num_envs=64"), "cell", "exec"), names)  # noqa: S102
    assert isinstance(names["rows"], list)
    assert [row["iteration"] for row in names["rows"]] == [1, 2]


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """Small networks on a busy machine: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_one_thread")
def test_the_ppo_of_the_example_learns_to_swing_the_pole_up() -> None:
    assert len((EXAMPLES / "ppo.py").read_text(encoding="utf-8").splitlines()) <= 150
    train = runpy.run_path(str(EXAMPLES / "ppo.py"))["train"]
    # A pole that hangs earns 0.4, one that turns round and round 10, and after 150 iterations they earn 40.
    assert train("Cartpole-Swingup", iterations=14, device="cpu") > 2


@pytest.mark.slow
@pytest.mark.soak
def test_stable_baselines3_learns_on_a_task_of_shoal(tmp_path: Path) -> None:
    python = python_with(tmp_path, "stable-baselines3")
    words = [python, str(EXAMPLES / "train_with_sb3.py"), "Cartpole-Balance", "--steps", "100000"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    # Random pushes topple the pole, and earn 0.6; an episode that is balanced 10.
    assert float(said.split()[-1]) > 1.5

"""Python on the pages and in the examples: the blocks of the guide run, and only public names are imported."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
import pytest
import torch
from support.documented import ROOT, pages
from support.venvs import python_beside, python_with

import shoal
from shoal import mdp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.figure import Figure

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


class Display:
    """What a notebook's `display` returns: it draws what changes."""

    def __init__(self) -> None:
        self.drawn: list[list[float]] = []

    def __call__(self, _: Figure, *, display_id: bool) -> Display:
        assert display_id
        return self

    def update(self, figure: Figure) -> None:
        """Keep the steps of the curve."""
        figure.canvas.draw()
        self.drawn.append(np.asarray(figure.axes[0].lines[0].get_xdata()).tolist())


def test_the_cells_of_the_notebook_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(mpl.rcParams, "backend", "agg")
    assert any("max_iterations=150" in cell for cell in CELLS)
    display = Display()
    names: dict[str, object] = {"display": display}
    for cell in CELLS:
        exec(compile(cell.replace("max_iterations=150", "max_iterations=2, num_envs=64"), "cell", "exec"), names)  # noqa: S102
    (steps,) = {float(row["Train/total_steps"]) / row["iteration"] for row in shoal.metrics(str(names["run"]))}
    assert display.drawn == [[steps], [steps, 2 * steps]]


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with kernels of notebooks, and pandas."""
    return python_beside(tmp_path_factory.mktemp("jupyter"), "nbclient", "ipykernel", "pandas")


@pytest.mark.soak
@pytest.mark.slow
def test_the_notebook_plots_as_it_trains_and_the_interrupt_button_ends_with_a_checkpoint(
    jupyter: str, tmp_path: Path
) -> None:
    kernel = EXAMPLES.parents[1] / "tests" / "support" / "notebook.py"
    said = subprocess.run(
        [jupyter, kernel, EXAMPLES / "notebook.ipynb"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    plots, stopped, goes_on = said.splitlines()
    assert int(plots) > 1
    last = re.fullmatch(r"SIGINT ended the run after iteration (\d+), with a checkpoint.*", stopped)
    assert last, stopped
    assert goes_on == f"{int(last[1]) + 1}"


@pytest.mark.soak
@pytest.mark.slow
def test_tables_become_data_frames(jupyter: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss": 0.5}\n{"iteration": 2, "loss": 0.25}\n')
    code = "import shoal; frame = shoal.metrics('.').to_pandas(); print(type(frame).__name__, frame.loss.sum())"
    said = subprocess.run([jupyter, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said == "DataFrame 0.75\n"


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

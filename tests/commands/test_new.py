"""`shoal new` writes a project that trains, tests and plays by its entry point."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.venvs import ROOT, python_beside

from shoal.cli import main
from shoal.errors import UsageError
from shoal.plan.rundir import list_all_runs
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = ("--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "1", "--no-export")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new project, found as an installed one is: by the entry points beside its package."""
    where, before = tmp_path_factory.mktemp("new"), os.getcwd()  # noqa: PTH109
    os.chdir(where)
    main.shoal(["new", "my_robot"])
    project = where / "my_robot"
    points = tomllib.loads((project / "pyproject.toml").read_text())["project"]["entry-points"]["shoal.tasks"]
    installed = project / "src" / "my_robot-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my_robot\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[shoal.tasks]", *lines, ""]))
    sys.path.insert(0, str(project / "src"))
    registry.registered.cache_clear()
    yield project
    sys.path.remove(str(project / "src"))
    registry.registered.cache_clear()
    os.chdir(before)


@pytest.mark.slow
def test_the_new_task_is_registered_trains_and_plays(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert registry.registered()["MyRobot"].builder == "my_robot.task:Raise"
    logs = ("--log-root", str(tmp_path))
    main.shoal(["train", "MyRobot", *SMALL, *logs])
    assert [run.experiment for run in list_all_runs(tmp_path)] == ["MyRobot"]
    main.shoal(["play", "MyRobot", "--gpu-ids", "None", "--episodes", "2", *logs])
    assert "2 episodes, with 95% intervals: return " in capsys.readouterr().out
    assert "MyRobot-Raise" not in (project / "README.md").read_text()


@pytest.mark.slow
def test_its_own_test_passes(project: Path) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(project / "src"), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.soak
@pytest.mark.slow
def test_the_project_is_walked_through_with_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(wheel, check=True)
    built = next(tmp_path.glob("shoal-*.whl"))
    python = python_beside(tmp_path, "--no-deps", "--force-reinstall", str(built))
    installed = Path(python).parent
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def walk(*words: str, where: str = "my_robot") -> str:
        """Type a command of the environment; return what it says."""
        command = [str(installed / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=tmp_path / where, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "train MyRobot, pytest, play MyRobot" in walk("shoal", "new", "my_robot", where=".")
    assert walk("python", "-c", "import shoal; print(shoal.__file__)").startswith(str(installed.parent))
    walk("python", "-m", "pip", "install", "--quiet", "-e", ".")
    assert "Finished 1 iterations" in walk("train", "MyRobot", *SMALL)
    assert "2 passed" in walk("python", "-m", "pytest", "-q")
    shown = walk("play", "MyRobot", "--gpu-ids", "None", "--episodes", "2")
    assert "2 episodes, with 95% intervals: return " in shown


def test_its_readme_is_short_and_names_its_files(project: Path) -> None:
    lines = (project / "README.md").read_text().splitlines()
    assert len(lines) <= 24
    files = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    named = {"src/my_robot/robot.xml", "src/my_robot/task.py", "tests/test_task.py", "pyproject.toml"}
    assert named <= files
    assert all(any(f"`{name}`" in line for line in lines) for name in named)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "takes the name of a package in lower case, but got ''"),
        (["My-Robot"], "takes the name of a package in lower case, but got 'My-Robot'"),
        (["my", "robot"], "takes the name of a package in lower case, but got 'my robot'"),
        (["class"], "takes the name of a package in lower case, but got 'class'"),
        (["mujoco"], "There is a package or module mujoco already"),
        (["taken"], "There is .*taken already"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError, match=sentence):
        main.shoal(["new", *words])
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]

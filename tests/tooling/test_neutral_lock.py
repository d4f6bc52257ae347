"""The recipe that makes uv.lock neutral: on a small lock, on ours through uv, and as git's clean filter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci" / "neutral_lock.py"

COMPLETED = """\
version = 1
revision = 3
requires-python = ">=3.11"
resolution-markers = [
    "python_full_version >= '3.12'",
    "python_full_version < '3.12'",
]

[options]
prerelease-mode = "allow"

[[package]]
name = "one-line"
version = "1.0"
source = { registry = "https://index.example/simple" }
sdist = { url = "https://files.example/one_line-1.0.tar.gz", hash = "sha256:00" }
wheels = [{ url = "https://files.example/one_line-1.0-py3-none-any.whl", hash = "sha256:01" }]

[package.optional-dependencies]
extra = [
    { name = "numpy", version = "2.1", source = { registry = "https://index.example/simple" }, marker = "a" },
    { name = "numpy", version = "2.2", source = { registry = "https://index.example/simple" }, marker = "b" },
]

[[package]]
name = "ours"
source = { editable = "." }
dependencies = [
    { name = "one-line" },
]

[package.dev-dependencies]
dev = [
    { name = "wheels" },
]

[package.metadata]
requires-dist = [
    { name = "one-line", specifier = ">=1" },
]
provides-extras = ["extra"]

[package.metadata.requires-dev]
dev = [{ name = "wheels", specifier = ">=2" }]

[[package]]
name = "wheels"
version = "2.0"
source = { registry = "https://index.example/simple" }
wheels = [
    { url = "https://files.example/wheels-2.0-cp311.whl", hash = "sha256:02", size = 1 },
    { url = "https://files.example/wheels-2.0-cp312.whl", hash = "sha256:03", size = 1 },
]
"""

NEUTRAL = """\
version = 1
revision = 3
requires-python = ">=3.11"
resolution-markers = [
    "python_full_version >= '3.12'",
    "python_full_version < '3.12'",
]

[options]
prerelease-mode = "allow"

[[package]]
name = "one-line"
version = "1.0"
source = { registry = "." }
# sha256:00
# sha256:01

[package.optional-dependencies]
extra = [
    { name = "numpy", version = "2.1", source = { registry = "." }, marker = "a" },
    { name = "numpy", version = "2.2", source = { registry = "." }, marker = "b" },
]

[[package]]
name = "ours"
source = { editable = "." }
dependencies = [
    { name = "one-line" },
]

[package.dev-dependencies]
dev = [
    { name = "wheels" },
]

[[package]]
name = "wheels"
version = "2.0"
source = { registry = "." }
# sha256:02
# sha256:03
"""


def run_script(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the recipe as git does, with a Python that has nothing installed."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)


def neutral(lock: str) -> str:
    """The neutral form of `lock`."""
    done = run_script(stdin=lock)
    assert done.returncode == 0, done.stderr
    return done.stdout


def versions(lock: str) -> dict[str, set[str]]:
    """The versions of each package; several where they depend on the Python version."""
    found: dict[str, set[str]] = {}
    for package in tomllib.loads(lock)["package"]:
        found.setdefault(package["name"], set()).add(package.get("version", "ours"))
    return found


def test_addresses_and_metadata_go_and_hashes_stay() -> None:
    assert neutral(COMPLETED) == NEUTRAL


def test_neutral_form_is_left_as_it_is() -> None:
    assert neutral(NEUTRAL) == NEUTRAL


def test_metadata_at_the_end_of_the_file_leaves_no_blank_line() -> None:
    assert (
        neutral('[[package]]\nname = "a"\n\n[package.metadata]\nprovides-extras = []\n') == '[[package]]\nname = "a"\n'
    )


def test_a_file_can_be_named_instead_of_piped(tmp_path: Path) -> None:
    lock = tmp_path / "uv.lock"
    lock.write_text(COMPLETED)
    assert run_script(str(lock)).stdout == NEUTRAL
    assert lock.read_text() == COMPLETED


def test_check_names_each_line_that_holds_an_address(tmp_path: Path) -> None:
    clean, dirty = tmp_path / "clean.lock", tmp_path / "dirty.lock"
    clean.write_text(NEUTRAL)
    dirty.write_text('version = 1\nsource = { git = "ssh://git.example/x" }\n')
    done = run_script("--check", str(clean), str(dirty))
    assert done.returncode == 1
    assert done.stderr.startswith(f'{dirty}:2: source = {{ git = "ssh://git.example/x" }}\n')
    assert str(clean) not in done.stderr


def test_check_passes_a_neutral_lock() -> None:
    done = run_script("--check", stdin=NEUTRAL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def restricted(tmp_path: Path, completed: str) -> tuple[int, str, str]:
    """What set-up makes of a lock that an index has completed, given that NEUTRAL is committed: code, lock, errors."""
    lock = tmp_path / "uv.lock"
    lock.write_text(completed)
    done = run_script("--known", str(lock), stdin=NEUTRAL)
    return done.returncode, lock.read_text(), done.stderr


def test_a_package_that_differs_is_refused(tmp_path: Path) -> None:
    code, _, said = restricted(tmp_path, COMPLETED.replace("sha256:03", "sha256:66"))
    assert code == 1
    assert said.startswith("wheels 2.0: the index does not have the file with sha256:03")


def test_a_file_that_an_index_has_more_is_not_installed(tmp_path: Path) -> None:
    more = COMPLETED.replace("    { url = ", '    { url = "more", hash = "sha256:66" },\n    { url = ', 1)
    assert more.count("sha256:66") == 1
    assert restricted(tmp_path, more) == (0, COMPLETED, "")


def test_files_of_a_version_that_is_new_here_are_left(tmp_path: Path) -> None:
    newer = COMPLETED.replace('version = "2.0"', 'version = "2.1"').replace("sha256:03", "sha256:66")
    assert restricted(tmp_path, newer) == (0, newer, "")


def lock_with_uv(project: Path) -> None:
    """Complete the lock of `project`, from uv's cache if that suffices, else from the index."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on PATH")
    for flags in (["--offline"], []):
        done = subprocess.run([uv, "lock", *flags], cwd=project, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    pytest.fail(f"uv could not complete the neutral lock: {done.stderr}")


def test_uv_completes_our_neutral_lock_to_the_same_versions(tmp_path: Path) -> None:
    ours = (ROOT / "uv.lock").read_text()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src/shoal/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "uv.lock").write_text(neutral(ours))
    lock_with_uv(tmp_path)
    completed = (tmp_path / "uv.lock").read_text()
    assert "://" in completed
    done = run_script("--known", str(tmp_path / "uv.lock"), stdin=neutral(ours))
    assert (done.returncode, done.stderr) == (0, "")
    completed = (tmp_path / "uv.lock").read_text()
    assert versions(completed) == versions(ours)
    # Byte for byte, except that another uv may write another revision of its format.
    assert without_revision(neutral(completed)) == without_revision(neutral(ours))


def without_revision(lock: str) -> list[str]:
    """The lines of `lock` but for the one that counts uv's additions to its format."""
    return [line for line in lock.splitlines() if not line.startswith("revision = ")]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone in which the filter is configured and COMPLETED is committed."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/neutral_lock.py", ".gitattributes", "Makefile"):
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    make(tmp_path, "filter")
    (tmp_path / "uv.lock").write_text(COMPLETED)
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=T", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", "lock")
    return tmp_path


def make(repository: Path, target: str) -> None:
    """Run a target of our Makefile in `repository`."""
    subprocess.run(["make", "--quiet", target], cwd=repository, env=deaf_environ(), check=True, timeout=60)


def git(repository: Path, *args: str) -> str:
    """Run git in `repository` and return what it prints."""
    done = subprocess.run(
        ["git", *args],
        cwd=repository,
        env=deaf_environ(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def deaf_environ() -> dict[str, str]:
    """An environment in which git knows no settings, hooks or repository of whoever runs the tests."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def test_git_stores_the_neutral_form(repository: Path) -> None:
    assert git(repository, "show", "HEAD:uv.lock") == NEUTRAL
    assert (repository / "uv.lock").read_text() == COMPLETED


@pytest.mark.parametrize("lock", [NEUTRAL, COMPLETED.replace("index.example", "mirror.example")])
def test_a_lock_with_the_same_pins_does_not_show_as_changed(repository: Path, lock: str) -> None:
    (repository / "uv.lock").write_text(lock)
    assert git(repository, "diff") == ""
    make(repository, "settle")
    assert git(repository, "status", "--porcelain") == ""


def test_another_version_shows_as_changed_and_stays_unstaged(repository: Path) -> None:
    (repository / "uv.lock").write_text(COMPLETED.replace('version = "2.0"', 'version = "2.1"'))
    make(repository, "settle")
    assert git(repository, "status", "--porcelain") == " M uv.lock\n"


def test_a_failing_filter_stops_the_commit_of_addresses(repository: Path) -> None:
    (repository / ".ci" / "neutral_lock.py").write_text("raise SystemExit(1)\n")
    (repository / "uv.lock").write_text(COMPLETED.replace('version = "2.0"', 'version = "2.1"'))
    with pytest.raises(subprocess.CalledProcessError):
        git(repository, "add", "uv.lock")

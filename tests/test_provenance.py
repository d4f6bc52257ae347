"""The git state of the current directory, which may be somebody else's repository."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from shoal.provenance import git_state

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, in which the test stands."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "kept.txt").write_text("as it was\n", encoding="utf-8")
    (folder / "edited.txt").write_text("as it was\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "First")
    return folder


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_state_names_the_commit_and_what_was_changed_since(repository: Path) -> None:
    assert git_state() == {"commit": git("rev-parse", "HEAD"), "changed": []}
    (repository / "edited.txt").write_text("as it is now\n", encoding="utf-8")
    (repository / "new.txt").touch()
    assert git_state() == {"commit": git("rev-parse", "HEAD"), "changed": [" M edited.txt", "?? new.txt"]}


def test_outside_of_a_repository_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_state() is None


def test_no_program_that_a_repository_names_is_started(repository: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\nkept.txt filter=e=v\n", encoding="utf-8")
    (repository / ".git" / "hooks" / "post-index-change").write_text(f"#!/bin/sh\ntouch {ran}.hook\n", encoding="utf-8")
    (repository / ".git" / "hooks" / "post-index-change").chmod(0o755)
    for name in ("filter.evil.clean", "filter.e=v.clean", "core.fsmonitor", "diff.evil.textconv", "diff.external"):
        git("config", name, f"touch {ran}.{name}; cat")
    git("config", "filter.evil.required", "true")
    (repository / "edited.txt").write_text("as it is now\n", encoding="utf-8")
    found = git_state()
    assert found is not None
    assert found["changed"] == [" M edited.txt", "?? .gitattributes"]
    assert not list(tmp_path.glob("ran*"))
    subprocess.run(["git", "status", "--porcelain"], check=False, capture_output=True)
    assert list(tmp_path.glob("ran*"))  # It would have started them.

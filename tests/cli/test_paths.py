"""Paths that are not UTF-8 are printed as a shell takes them, by commands as users start them."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.text import TYPABLE, join_command, printable, typable

if TYPE_CHECKING:
    from pathlib import Path

TASK = "Cartpole-Swingup"
ODD = os.fsdecode(b"l\xff\xfe \xc3(ogs")
"""A name with three bytes that are not UTF-8, as Python holds it."""
SHOWN = r"l$'\xff\xfe' $'\xc3'(ogs"
"""That name, as it is printed in a sentence, which quotes neither spaces nor brackets."""


def typed(text: str) -> list[str]:
    """Return the words that a shell makes of a text that is typed."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def run(*words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `shoal` in a process of its own."""
    program = [sys.executable, "-m", "shoal", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=os.environ | environ)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("words", [[ODD], ["play", f"it's/{ODD}", "", "a b"], [os.fsdecode(b"\xff")], ["plain/path"]])
def test_a_command_is_read_back_by_a_shell(words: list[str]) -> None:
    assert typed(join_command(words)) == words


def test_a_name_in_a_sentence_is_read_back_where_it_needs_no_quotes() -> None:
    name = os.fsdecode(b"/tmp/l\xff\xfe/\x80")
    assert typed(printable(name)) == [name]
    assert printable(f"{name}\x1b[0m") == typable(name) + r"\x1b[0m"


@given(st.text())
def test_text_without_such_bytes_stays_as_it_is(text: str) -> None:
    assert typable(text) == text
    assert join_command([text]) == shlex.quote(text)


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("utf-8", "ä$'\\xff'\\ud800"), ("ascii", "\\xe4$'\\xff'\\ud800"), ("latin-1", "ä$'\\xff'\\ud800")],
)
def test_streams_write_whatever_their_encoding_lacks(encoding: str, written: str) -> None:
    assert codecs.decode("ä\udcff\ud800".encode(encoding, TYPABLE), encoding) == written


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_runs_and_an_error_name_such_a_directory(tmp_path: Path, encoding: str) -> None:
    root = tmp_path / ODD
    done = run("runs", "--log-root", str(root), code=2, PYTHONIOENCODING=encoding)
    assert done.stderr == f"Error: There are no runs in {tmp_path}/{SHOWN} yet: train first, or pass --log-root.\n"
    name = os.fsdecode(b"2026-01-01_00-00-00_\xff")
    (root / TASK / name).mkdir(parents=True)
    done = run("runs", "--log-root", str(root), PYTHONIOENCODING=encoding)
    title, row = done.stdout.splitlines()
    assert typed(row.split()[0]) == [name]
    assert title.index("state") == row.index("unreadable")
    assert row.endswith(f"No such file or directory: {tmp_path}/{SHOWN}/{TASK}/{row.split()[0]}/run.json")
    done = run("runs", "--log-root", str(root), "--json", PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout)["runs"][0]["run"] == str(root / TASK / name)


@pytest.mark.slow
def test_results_lie_in_such_a_directory_and_their_report_has_the_command(tmp_path: Path) -> None:
    out = tmp_path / ODD
    words = ["evaluate", TASK, "--policy", "zero", "--num-episodes", "1", "--gpu-ids", "None", "--out", str(out)]
    done = run(*words)
    assert f"{tmp_path}/{SHOWN}" in done.stdout + done.stderr
    report = (out / "report.html").read_text(encoding="utf-8")
    command = re.search("<code>(.*)</code>", report)
    assert command is not None
    assert typed(unescape(command[1]))[-2:] == ["--out", str(out)]


def test_no_training_begins_in_such_a_directory(tmp_path: Path) -> None:
    done = run("train", TASK, "--gpu-ids", "None", "--log-root", str(tmp_path / ODD), code=2)
    assert done.stderr.splitlines()[-1] == (
        f"Error: The run would be in {tmp_path}/{SHOWN}, which is not UTF-8, and TensorBoard and a run's configuration "
        "hold no such names: pass another --log-root, or rename it."
    )
    assert list(tmp_path.iterdir()) == []

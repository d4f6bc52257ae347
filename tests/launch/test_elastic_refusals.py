"""Launchers of `--nnodes` of which one refuses before the others have met it, on loopback."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, has_loaded, start, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spawn, pytest.mark.slow]


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_launcher_that_refuses_ends_the_other_at_once(tmp_path: Path, refusing: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    nodes = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port, "--startup-timeout", "60")
    words = (*TRAIN, "Cartpole-Swingup", *SMALL, *nodes, "--node-rank")
    waiting = start((*words, str(1 - refusing)), tmp_path / "waiting")
    assert wait_until(lambda: has_loaded(waiting.leader, "libtorch"), timeout=60)
    refused = start((*words, str(refusing), "--gpu-ids", "7"), tmp_path / "refused").end()
    told = waiting.end()
    assert refused.code == 2, refused.stderr
    assert refused.last_line.startswith("Error: GPU 7 was asked for, but ")
    sentence = refused.last_line.removeprefix("Error: ")
    assert told.code == 2, told.stderr
    assert told.last_line.startswith(f"Error: Machine {refusing} (")
    assert told.last_line.endswith(f") refuses: {sentence}")
    assert (told.left_processes, told.left_files) == ([], [])
    assert told.runs == []

"""torchrun starts its workers again, which go on with the run of the attempt before; and two agents on one machine."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, run, start, torchrun

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.soak]


@pytest.mark.parametrize("rank", [1, 0])
@pytest.mark.parametrize("interval", [2, 100])
def test_the_next_attempt_goes_on_from_the_newest_checkpoint(tmp_path: Path, rank: int, interval: int) -> None:
    command = [*torchrun(2), f"{FAULTY}:DiesOnce", *SMALL, "--logger", "none", "--max-iterations", "8"]
    command.insert(command.index("-m", 2), "--max-restarts=1")
    ended = run((*command, "--save-interval", str(interval)), tmp_path, {"SHOAL_TEST_FAULTY_RANK": str(rank)})
    assert ended.code == 0, ended.stdout + ended.stderr
    launches = json.loads((ended.run / "run.json").read_text(encoding="utf-8"))["launches"]
    assert len(launches) == 2
    # Rank 0 may still have been writing its newest checkpoint when the other rank was killed.
    assert launches[1]["plan"]["start_iteration"] in ((2, 4) if interval == 2 else (0,))
    assert launches[-1]["ended"]["exit_code"] == 0
    assert [row["iteration"] for row in ended.rows] == list(range(1, 9))
    assert [row["Train/total_steps"] for row in ended.rows] == [16 * 8 * 2 * count for count in range(1, 9)]
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_two_agents_on_one_machine_train(tmp_path: Path) -> None:
    """As with containers that have the host's network: every rank knows the store by an address of its own machine."""
    agent = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=1", "--nnodes=2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        nodes = ("--master_addr=127.0.0.1", f"--master_port={free.getsockname()[1]}")
    work = ("-m", "shoal", "train", "Cartpole-Swingup", *SMALL, "--logger", "none", "--max-iterations", "3")
    running = [start((*agent, f"--node_rank={node}", *nodes, *work), tmp_path / f"node {node}") for node in range(2)]
    first, second = (each.end() for each in running)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert len(first.record["ended"]["digests"]) == 2
    assert len(first.rows) == 3

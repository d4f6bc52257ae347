"""Several commands that want one run at once."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, rows_of, start, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.spawn]

ENDLESS = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--max-iterations", "100000")
WORDS = (*TRAIN, *ENDLESS, "--agent.save-interval", "1", "--keep-last", "2")
REFUSED_S = 20.0


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("--nproc-per-node", "2"), marks=pytest.mark.soak)], ids=["in process", "spawned"]
)
@pytest.mark.soak
def test_of_several_resumes_of_a_run_one_goes_on_and_the_others_name_it(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    first = start((*WORDS, *workers), tmp_path)
    assert wait_until(lambda: any(tmp_path.glob("logs/*/*/checkpoints/0*")), timeout=120)
    first.signal_itself(signal.SIGKILL)  # What it leaves keeps nobody out.
    first.end(timeout=60)
    (run,) = tmp_path.glob("logs/*/*")
    before = len(rows_of(run))
    several = [start((*WORDS, *workers, "--resume", str(run)), tmp_path) for _ in range(3)]
    assert wait_until(lambda: sum(each.process.poll() is None for each in several) == 1, timeout=60)
    (winner,) = (each for each in several if each.process.poll() is None)
    for each in several:
        if each is not winner:
            ended = each.end()
            assert ended.code == 2, ended.stderr
            assert f"The run {run} is in use by process {winner.leader} on " in ended.last_line
            assert "Traceback" not in ended.stderr
    assert wait_until(lambda: len(rows_of(run)) > before + 2, timeout=60)
    winner.signal_itself(signal.SIGTERM)
    ended = winner.end(timeout=60)
    assert ended.code == 143, ended.stderr
    assert ended.left_processes == []
    iterations = [row["iteration"] for row in rows_of(run)]
    assert iterations == list(range(1, len(iterations) + 1))

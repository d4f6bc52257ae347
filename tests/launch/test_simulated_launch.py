"""The supervisor of 128 machines with eight ranks each; clocks differ by hours, and some links are slow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.simulated_launch import SimulatedLaunch, cut, deadlock, killed, raises, sleeps, stopped

from shoal.timing import NODE_SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.plan.rundir import RunDir

STALL = 60.0


@pytest.mark.parametrize(
    ("fault", "within", "cause"),
    [
        (killed, 10, r"Lost rank 31 on n3 in rollout \(iteration 3\): killed by SIGKILL"),
        (raises, 10, r"Rank 31 on n3 failed in rollout \(iteration 3\): ValueError: mine"),
        (sleeps, STALL + 15, r"Rank 31 on n3: no progress for 60 s in rollout \(iteration 3\)"),
        (stopped, STALL + 15, r"Rank 31 on n3: no progress for 6\d s in rollout \(iteration 3\)"),
        (
            cut,
            NODE_SILENCE_S + 15,
            r"Lost node n3 \(rank 24, .*31\) in rollout \(iteration 3\): it was silent for 30 s",
        ),
        (deadlock, STALL + 15, "all 1024 ranks only wait"),
    ],
)
def test_the_first_cause_is_found_among_a_thousand_ranks(
    fault: Callable[[SimulatedLaunch], None],
    within: float,
    cause: str,
    run_dir: RunDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took, error = SimulatedLaunch(run_dir, monkeypatch, stall_timeout=STALL).supervise(fault)
    assert re.search(cause, error), error
    assert took <= within


def test_messages_to_the_head_grow_with_the_number_of_machines_only(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[int, int]] = []
    for num_nodes in (16, 64):
        with monkeypatch.context() as patched:
            launch = SimulatedLaunch(run_dir, patched, num_nodes=num_nodes)
            launch.supervise(end=30.0)
            counts.append((launch.messages, launch.bytes))
    (few, few_bytes), (many, many_bytes) = counts
    assert many <= 4.1 * few
    assert many_bytes <= 4.4 * few_bytes  # Names and numbers of more digits.
    assert few <= 16 * 40  # One message a second.

"""How ranks talk: the order of trials, what becomes of each, and the search for NCCL's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.doctor import talk
from shoal.doctor.settings import CANDIDATES, export_line, smallest_settings
from shoal.doctor.steps import GRADIENT, TINY, steps_of
from shoal.doctor.trial import Timing, Trial

if TYPE_CHECKING:
    from collections.abc import Mapping


def timings(seconds: float, *sizes: int) -> list[Timing]:
    return [
        Timing(size=size, elements=elements, seconds=seconds, right=True)
        for size in sizes
        for elements in (TINY, GRADIENT)
    ]


def told(backend: str, trial: Trial, settings: dict[str, str] | None = None) -> list[tuple[str, str, str, bool]]:
    found = talk.judge_trial(backend, trial, settings)
    return [(finding.topic, finding.level, finding.sentence, finding.transient) for finding in found]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (2, [2]),
        (4, [2, 3, 4]),
        (8, [2, 3, 4, 5, 6, 7, 8]),
        (9, [2, 4, 8, 9]),
        (16, [2, 4, 8, 16]),
        (64, [2, 4, 8, 16, 32, 64]),
    ],
)
def test_numbers_of_ranks_grow_up_to_the_asked(most: int, expected: list[int]) -> None:
    assert talk.sizes(most) == expected


def test_every_number_of_ranks_has_its_line() -> None:
    assert told("gloo", Trial(timings(0.001, 2, 3))) == [
        ("gloo, 2 ranks", "ok", "1.00 ms for a number, 1.00 ms for 1.76 MB of gradients.", False),
        ("gloo, 3 ranks", "ok", "1.00 ms for a number, 1.00 ms for 1.76 MB of gradients.", False),
    ]


def test_slow_talk_is_noted() -> None:
    ((_, level, sentence, _),) = told("gloo", Trial(timings(0.1, 2)))
    assert level == "note"
    assert sentence.startswith("all_reduce is slow: 100.00 ms for a number, 100.00 ms for 1.76 MB of gradients: ")


def test_what_was_timed_before_a_failure_is_told_too() -> None:
    hung = "rank 2 of 3 made no progress for 30 s while making a group of 3"
    assert told("gloo", Trial(timings(0.001, 2), failure=hung)) == [
        ("gloo, 2 ranks", "ok", "1.00 ms for a number, 1.00 ms for 1.76 MB of gradients.", False),
        (
            "gloo",
            "problem",
            (
                f"all_reduce through gloo failed: {hung}: train with one worker, and look for a firewall, "
                "a stopped process, or a machine that is far too busy."
            ),
            False,
        ),
    ]


def test_settings_that_help_are_the_remedy() -> None:
    found = told("nccl", Trial(failure="it hung"), {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})
    sentence = "all_reduce through nccl failed: it hung: export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1."
    assert found == [("nccl", "problem", sentence, False)]


def test_a_rank_that_was_killed_is_worth_another_try() -> None:
    ((_, level, _, transient),) = told("gloo", Trial(failure="rank 1 was killed by SIGKILL", killed=True))
    assert (level, transient) == ("problem", True)


def test_no_setting_helps_a_broken_nccl() -> None:
    ((_, _, sentence, _),) = told("nccl", Trial(failure="it hung"))
    assert "no setting that was tried helps" in sentence


# The search


def searched(*working: set[str], taken: tuple[str, ...] = ()) -> tuple[dict[str, str] | None, int]:
    """The settings that are found where these sets of variables, and what includes them, work; and the tries."""
    tries = 0

    def works(candidate: Mapping[str, str]) -> bool:
        nonlocal tries
        tries += 1
        return any(needed <= candidate.keys() for needed in working)

    return smallest_settings(works, taken), tries


def test_one_setting_is_found_before_two() -> None:
    assert searched({"NCCL_IB_DISABLE"}) == ({"NCCL_IB_DISABLE": "1"}, 3)
    assert searched({"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}, {"NCCL_NVLS_ENABLE"}) == ({"NCCL_NVLS_ENABLE": "0"}, 5)


def test_two_settings_are_found_where_one_does_not_do() -> None:
    both = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}
    found, tries = searched(set(both))
    assert found == both
    assert tries == len(CANDIDATES) + 3


def test_the_search_ends() -> None:
    assert searched() == (None, 5 + 10)


def test_what_the_user_has_set_is_left_alone() -> None:
    assert searched({"NCCL_P2P_DISABLE"}, taken=("NCCL_P2P_DISABLE",)) == (None, 4 + 6)


def test_settings_are_told_as_a_line_for_the_shell() -> None:
    assert export_line({"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}) == (
        "export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1"
    )


def test_the_steps_of_a_rank_are_in_order() -> None:
    assert steps_of([2, 3]) == [
        "starting",
        "about to join the others",
        "joining the others",
        "making a group of 2",
        "in an all_reduce of 4 bytes among 2",
        "in an all_reduce of 1,760,000 bytes among 2",
        "making a group of 3",
        "in an all_reduce of 4 bytes among 3",
        "in an all_reduce of 1,760,000 bytes among 3",
        "leaving the others",
        "done",
    ]

"""When a slow rank is worth a warning, by hand-written times."""

from __future__ import annotations

from shoal.learn.stragglers import Stragglers

EVEN = [0.5, 0.5]
SLOW = [0.5, 1.5]


def warnings(*iterations: list[float]) -> list[str | None]:
    """The warnings after each of these iterations, which follow a first one."""
    stragglers = Stragglers()
    assert stragglers.check([9.0, 60.0]) is None  # Rank 1 compiles.
    return [stragglers.check(seconds) for seconds in iterations]


def numbers(*iterations: list[float]) -> list[int]:
    """The iterations with a warning, counted from 1."""
    return [number for number, warning in enumerate(warnings(*iterations), start=1) if warning]


def test_a_rank_three_times_slower_is_named_in_its_second_iteration_with_all_times() -> None:
    silence, warning = warnings(SLOW, SLOW)
    assert silence is None
    assert warning == (
        "Rank 1 straggled for 2 iterations, 3.0 times slower than the others, which wait. "
        "The last rollout took: rank 0 0.50 s, rank 1 1.50 s."
    )


def test_it_is_said_once() -> None:
    assert numbers(SLOW, SLOW, SLOW, SLOW) == [2]


def test_it_is_said_again_when_it_begins_anew() -> None:
    assert numbers(SLOW, SLOW, EVEN, SLOW, SLOW) == [2, 5]


def test_one_slow_iteration_is_no_straggler() -> None:
    assert numbers(SLOW, EVEN, SLOW, EVEN) == []


def test_ranks_that_are_slow_in_turn_are_no_stragglers() -> None:
    assert numbers([1.5, 0.5], SLOW, [1.5, 0.5], SLOW) == []


def test_tiny_iterations_say_nothing() -> None:
    assert numbers([0.02, 0.10], [0.02, 0.10]) == []


def test_what_a_busy_machine_does_says_nothing() -> None:
    assert numbers([1.0, 2.0], [1.0, 2.2]) == []


def test_the_others_are_many() -> None:
    half = [0.5, 0.6, 0.5, 0.7, 5.0, 0.5, 4.0, 0.5]
    warning = warnings(half, half)[1]
    assert warning is not None
    assert warning.startswith("Ranks 4, 6 straggled for 2 iterations, 10.0 times slower")


def test_one_rank_alone_never_straggles() -> None:
    assert numbers([1.0], [50.0], [50.0]) == []

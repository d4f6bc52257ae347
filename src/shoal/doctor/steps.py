"""What a rank of a trial does, in order: said by the ranks, and understood by the process that watches them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TINY = 1
GRADIENT = 440_000
"""Numbers in the gradients of an actor and a critic of usual size: 1.76 MB."""
ELEMENTS = (TINY, GRADIENT)
"""Sizes of the messages that are timed, in numbers of four bytes."""

STARTING, READY, JOINING = "starting", "about to join the others", "joining the others"
LEAVING, DONE = "leaving the others", "done"


def grouping(size: int) -> str:
    """Return the step of making a group of so many ranks."""
    return f"making a group of {size}"


def reducing(elements: int, size: int) -> str:
    """Return the step of an all_reduce."""
    return f"in an all_reduce of {elements * 4:,} bytes among {size}"


def steps_of(sizes: Iterable[int]) -> list[str]:
    """Return all steps of a rank that takes part in groups of `sizes`."""
    groups = [step for size in sizes for step in (grouping(size), *(reducing(each, size) for each in ELEMENTS))]
    return [STARTING, READY, JOINING, *groups, LEAVING, DONE]

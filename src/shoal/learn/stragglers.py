"""Ranks that keep all others waiting, told from the time that each rank's rollout takes.

A slow rank is worth a warning and never a kill: the run goes on, at its pace.
"""

from __future__ import annotations

from statistics import median

SLOWER = 2.5
"""How many times slower than the others a straggler is. Two workers on one busy core differ by less."""
LEAST_S = 0.1
"""What it must cost in an iteration; below that, chance decides who is last [s]."""
IN_A_ROW = 2
"""Iterations for which the same rank must be slow: one may be a checkpoint, or a page of memory."""


class Stragglers:
    """Warns once when a rank begins to straggle, and again when it has caught up and begins anew."""

    def __init__(self) -> None:
        self._warm = False  # Kernels are compiled in the first iteration.
        self._row: dict[int, int] = {}  # Iterations in a row in which each rank was slow.

    def look(self, seconds: list[float]) -> str | None:
        """Take the times of one iteration, and return a warning if one is due.

        Args:
            seconds: Duration of each rank's rollout [s].
        """
        if not self._warm:
            self._warm = True
            return None
        slow = [rank for rank in range(len(seconds)) if _is_slow(rank, seconds)]
        self._row = {rank: self._row.get(rank, 0) + 1 for rank in slow}
        fresh = [rank for rank, row in self._row.items() if row == IN_A_ROW]
        return _warning(fresh, seconds) if fresh else None


def _is_slow(rank: int, seconds: list[float]) -> bool:
    others = seconds[:rank] + seconds[rank + 1 :]
    usual = median(others) if others else seconds[rank]
    return seconds[rank] > SLOWER * usual and seconds[rank] - usual > LEAST_S


def _warning(ranks: list[int], seconds: list[float]) -> str:
    slowest = max(ranks, key=lambda rank: seconds[rank])
    usual = median(seconds[:slowest] + seconds[slowest + 1 :])
    told = ", ".join(f"rank {rank} {each:.2f} s" for rank, each in enumerate(seconds))
    word = "Rank" if len(ranks) == 1 else "Ranks"
    return (
        f"{word} {', '.join(map(str, ranks))} straggled for {IN_A_ROW} iterations, {seconds[slowest] / usual:.1f} "
        f"times slower than the others, which wait. The last rollout took: {told}."
    )

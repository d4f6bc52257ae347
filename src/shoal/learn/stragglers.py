"""Straggler detection: warns of ranks whose rollouts take much longer than the others'.

A slow rank never ends the run.
"""

from statistics import median

SLOWER = 2.5
"""A straggler is so many times slower than the median of the others. Two workers on one busy core differ by less."""
LEAST_S = 0.1
"""Least delay in an iteration [s]; shorter ones are chance."""
IN_A_ROW = 2
"""Iterations in a row in which the same rank must be slow: a single one may be due to a checkpoint."""


class Stragglers:
    """Warns once when a rank begins to straggle, and again if it does so after it has caught up."""

    def __init__(self) -> None:
        self._is_warm = False  # Kernels are compiled in the first iteration.
        self._slow_iterations: dict[int, int] = {}  # In a row, by rank.

    def check(self, seconds: list[float]) -> str | None:
        """Return a warning if one is due after an iteration in which the ranks' rollouts took `seconds`."""
        if not self._is_warm:
            self._is_warm = True
            return None
        slow = [rank for rank in range(len(seconds)) if _is_slow(rank, seconds)]
        self._slow_iterations = {rank: self._slow_iterations.get(rank, 0) + 1 for rank in slow}
        new = [rank for rank, count in self._slow_iterations.items() if count == IN_A_ROW]
        return _warning(new, seconds) if new else None


def _is_slow(rank: int, seconds: list[float]) -> bool:
    others = seconds[:rank] + seconds[rank + 1 :]
    usual = median(others) if others else seconds[rank]
    return seconds[rank] > SLOWER * usual and seconds[rank] - usual > LEAST_S


def _warning(ranks: list[int], seconds: list[float]) -> str:
    slowest = max(ranks, key=lambda rank: seconds[rank])
    usual = median(seconds[:slowest] + seconds[slowest + 1 :])
    times = ", ".join(f"rank {rank} {each:.2f} s" for rank, each in enumerate(seconds))
    word = "Rank" if len(ranks) == 1 else "Ranks"
    return (
        f"{word} {', '.join(map(str, ranks))} straggled for {IN_A_ROW} iterations, {seconds[slowest] / usual:.1f} "
        f"times slower than the others, which wait. The last rollout took: {times}."
    )

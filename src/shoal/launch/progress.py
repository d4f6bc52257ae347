"""What a door tells the person in front of the terminal. How it is shown is `shoal.cli.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.errors import ShoalError


class ProgressReporter(Protocol):
    """Follows one training from the launching process."""

    def on_phase(self, phase: str) -> None:
        """Take the phase of the slowest rank, one of `heartbeat.PHASES`; shown until the first iteration is done."""
        ...

    def on_row(self, row: Mapping[str, float]) -> None:
        """Take the pooled metrics of one more iteration."""
        ...

    def on_line(self, line: str) -> None:
        """Take one line of rank 0's output, or one of Shoal's own remarks."""
        ...

    def leave(self, error: ShoalError) -> NoReturn:
        """End this process with an error, from any thread: the one that should tell of it is stuck."""
        ...

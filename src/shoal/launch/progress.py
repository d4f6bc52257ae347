"""The protocol of a progress reporter, which shows a training to the user (`shoal.cli.report`)."""

from collections.abc import Mapping
from typing import Protocol


class ProgressReporter(Protocol):
    """Shows one training in the launching process."""

    def on_phase(self, phase: str) -> None:
        """Take the phase of the slowest rank, one of `heartbeat.PHASES`; shown until the first iteration is done."""

    def on_row(self, row: Mapping[str, float]) -> None:
        """Show the pooled metrics of one more iteration."""

    def on_line(self, line: str) -> None:
        """Show one line of rank 0's output, or of Shoal's own."""

    def close(self) -> None:
        """Show what was held back, and release the terminal."""

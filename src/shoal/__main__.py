"""`python -m shoal`, the same as the `shoal` command."""

from __future__ import annotations

from shoal.cli.start import shoal

if __name__ == "__main__":
    shoal()

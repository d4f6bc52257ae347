"""`python -m shoal`, the same as the `shoal` command."""

from shoal.cli.start import shoal

if __name__ == "__main__":
    shoal()

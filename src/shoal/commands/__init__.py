"""The commands: one module each. Only `shoal.cli` prints and exits."""

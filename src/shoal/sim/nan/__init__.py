"""Diverged environments: their last steps are kept, written to a file, and replayed by `shoal replay`."""

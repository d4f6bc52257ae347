"""Shoal: one command trains a robot policy on the CPU, on one GPU, or on every GPU there is."""

import os

__version__ = "0.1.0"

PARENT = os.getppid()
"""The process that started this one. It is read before anything that takes seconds: a parent may end meanwhile."""

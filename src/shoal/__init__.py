"""Shoal: one command trains a robot policy on the CPU, on one GPU, or on every GPU there is."""

__version__ = "0.1.0"

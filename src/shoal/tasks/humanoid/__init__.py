"""Humanoids: velocity tracking, and motion tracking."""

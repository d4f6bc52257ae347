"""Velocity tasks of four-legged robots."""

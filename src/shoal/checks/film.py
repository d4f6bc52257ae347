"""The name by which earlier scripts, such as the kit of `make gpu-proof`, import what chooses OpenGL."""

from shoal.checks.optional import choose_gl

__all__ = ["choose_gl"]

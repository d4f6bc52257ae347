"""The name by which earlier scripts, such as the kit of `make gpu-proof`, import what builds environments."""

from shoal.envs.vec_env import build_vec_env

__all__ = ["build_vec_env"]

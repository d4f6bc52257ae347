"""Metrics of terms: logged as means, beside the rewards."""

from shoal.mdp.levels import terrain_level, walked_share
from shoal.mdp.rewards import average_error_ang_vel, error_ang_vel, error_lin_vel, mean_action_acc

__all__ = [
    "average_error_ang_vel",
    "error_ang_vel",
    "error_lin_vel",
    "mean_action_acc",
    "terrain_level",
    "walked_share",
]

"""Sweeps: many trainings of one task, whose flags Optuna proposes."""

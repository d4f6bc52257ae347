"""Simulation: engines, captured step graphs, rendering, diagnosis of NaN, and base classes of tasks.

Only this package and the task families import Warp and MuJoCo.
"""

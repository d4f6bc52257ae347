"""The simulated world: devices, arrays shared with torch, recorded steps, and tasks made of kernels.

Together with the task families this is the only home of Warp and MuJoCo. Importing the package starts
neither.
"""

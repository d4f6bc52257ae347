"""Decisions, taken before anything heavy is loaded: devices, ranks, the run directory, the job of a worker.

Pure functions over what the machine and the environment say. Nothing here imports torch, writes to disk or
starts a process.
"""

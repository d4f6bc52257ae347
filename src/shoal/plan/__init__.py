"""Decisions before a start: devices, ranks, the run directory, the specification of a worker.

Nothing here imports torch, writes to disk or starts a process. What cannot be done raises a `UsageError`.
"""

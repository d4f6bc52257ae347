"""Time constants of launching [s], each with its meaning, and the inequalities between them (tests/test_timing.py)."""

POLL_S = 0.1
"""Time between two looks at workers, nodes or signals."""

# Spawned workers ------------------------------------------------------------------------------------------------------

START_S = 180.0
"""How long workers may take to show their first sign of life: importing torch from a busy disk is slow."""
FAILURE_GRACE_S = 3.0
"""How long the other ranks may take to end by themselves after one has failed."""
STOP_S = 60.0
"""How long ranks may take to finish an iteration and a checkpoint after a signal."""
EXIT_STATUS_S = 5.0
"""How long a child process whose pipe has closed may take to exit."""
LONGEST_PAUSE_S = 60.0
"""Longest pause before a restart."""

# The reaper of a launch whose launching process was killed ------------------------------------------------------------

REAPER_SAVE_S = 3.0
"""How long ranks may take to finish an iteration and a checkpoint."""
REAPER_KILL_S = 10.0
"""How long processes that appear again are killed."""
REAPER_EXIT_S = 5.0
"""How long the launching process waits for its reaper to exit, which takes milliseconds."""

# Nodes of --hosts -----------------------------------------------------------------------------------------------------

CHANNEL_BEAT_S = 1.0
"""Longest time between two messages of either end of a channel."""
CHANNEL_FLUSH_S = 5.0
"""How long the last messages of a channel may take to be written."""
SSH_CONNECT_S = 15
"""ssh's ConnectTimeout."""
SSH_ALIVE_S = 5
"""ssh's ServerAliveInterval."""
SSH_ALIVE_COUNT = 6
"""ssh's ServerAliveCountMax."""
REACH_S = 3.0
"""How long one node may take to connect to an address of another."""
ANSWER_S = 60.0
"""How long a node may take to answer the host probe, the login included."""
NODE_GREETING_S = 120.0
"""How long a node agent may take to send its first bytes: Python may come from a busy file server."""
NODE_SILENCE_S = 30.0
"""Longest silence of a node before it counts as lost; `--stall-timeout` if that is shorter."""
NODE_LEAST_SILENCE_S = 5.0
"""Shortest such limit: a network switch may restart."""
NODE_CLOSE_S = 15.0
"""How long a node agent may take to clean up and to send its files."""
CLOCK_OFFSET_S = 5.0
"""Clocks that differ by more are worth a note: times in files and log lines of two nodes cannot be compared."""

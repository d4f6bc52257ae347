"""Learning: rsl_rl's PPO and runner over one process or many, with pooled statistics and safe checkpoints."""

import sys
from types import ModuleType

# rsl_rl imports wandb wherever that is installed, for a writer that is not used here: 0.7 s in each rank, and two
# temporary directories, which a process that is killed leaves behind.
_writer = ModuleType("rsl_rl.utils.wandb_log_writer")
_writer.WandbLogWriter = type("WandbLogWriter", (), {})  # pyright: ignore[reportAttributeAccessIssue]
sys.modules.setdefault(_writer.__name__, _writer)

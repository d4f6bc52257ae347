"""Learning with rsl_rl on one rank or many: training loop, statistics, checkpoints, export."""

import sys
from types import ModuleType

# rsl_rl imports wandb if it is installed, for a writer that is not used here: 0.7 s in each rank, and two temporary
# directories that a killed process leaves behind.
_writer = ModuleType("rsl_rl.utils.wandb_log_writer")
_writer.WandbLogWriter = type("WandbLogWriter", (), {})  # pyright: ignore[reportAttributeAccessIssue]
sys.modules.setdefault(_writer.__name__, _writer)

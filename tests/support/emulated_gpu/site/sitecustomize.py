"""Gives a process emulated GPUs as it starts, see `support.emulated_gpu`. Python imports this by its name."""

import os
import sys
from pathlib import Path

if "SHOAL_EMULATED_GPU" in os.environ:
    sys.path.append(str(Path(__file__).parents[3]))
    from support.emulated_gpu import install

    install()

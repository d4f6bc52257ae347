"""The models of Gymnasium's MuJoCo tasks, read from the installed package and never copied."""

from __future__ import annotations

import logging
import warnings

import mujoco

from shoal.tasks.registry import require_extra

logger = logging.getLogger(__name__)

_MEMORY = 2**20
"""What each simulation has for its contacts and constraints [bytes]. They took 51 kB at most in 45,000 random steps of
each humanoid, and MuJoCo's own guess is 15 MB: a few hundred simulations that are kept whole would be more than the
machine has, and Linux then refuses to fork, although none of it is used."""


def load_model(file: str, engine: str) -> mujoco.MjModel:
    """Return one of Gymnasium's models.

    Two of them ask for the PGS solver, which MuJoCo Warp does not have; there they get Newton.

    Args:
        file: Its name among Gymnasium's assets.
        engine: What will simulate it.

    Raises:
        UsageError: Gymnasium is not installed.
    """
    path = require_extra("gymnasium") / "envs" / "mujoco" / "assets" / file
    # MuJoCo 4 calls an attribute of the half-cheetah deprecated: on the terminal, in a file MUJOCO_LOG.TXT, and as a
    # warning of Python's.
    mujoco.set_mju_user_warning(logger.debug)
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        spec.memory = _MEMORY
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            model = spec.compile()
    finally:
        mujoco.set_mju_user_warning(None)
    if engine == "warp" and model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model

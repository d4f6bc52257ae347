"""The models of Gymnasium's MuJoCo tasks, read from the installed package and never copied."""

from __future__ import annotations

import logging

import mujoco

from shoal.tasks.registry import require_extra

logger = logging.getLogger(__name__)


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
    # MuJoCo 4 calls an attribute of the half-cheetah deprecated, on the terminal and in a file MUJOCO_LOG.TXT.
    mujoco.set_mju_user_warning(logger.debug)
    try:
        model = mujoco.MjModel.from_xml_path(str(path))
    finally:
        mujoco.set_mju_user_warning(None)
    if engine == "warp" and model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return model

"""The eleven tasks: the model of each, and its room for contacts and constraints in MuJoCo Warp."""

import logging
import warnings
from typing import ClassVar

import mujoco

from shoal.mdp.config import TermsConfig
from shoal.mdp.task import TermsTask
from shoal.sim.render.surroundings import add_surroundings
from shoal.tasks.gymnasium_v5 import config as configs
from shoal.tasks.registry import require_extra

logger = logging.getLogger(__name__)

_MEMORY = 2**20
"""Memory of each simulation for contacts and constraints [bytes]. They took 51 kB at most in 45,000 random steps of
each humanoid. MuJoCo's default is 15 MB: with a few hundred persistent simulations Linux then refuses to fork, although
none of it is used."""


class GymnasiumTask(TermsTask[TermsConfig]):
    """A task with a model of Gymnasium's."""

    reward_per_step = True
    file: ClassVar[str]
    """File of the model in Gymnasium's assets."""

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        """Return Gymnasium's model. Two ask for the PGS solver, which MuJoCo Warp does not have; there they get Newton.

        Raises:
            UsageError: Gymnasium is not installed.
        """
        path = require_extra("gymnasium") / "envs" / "mujoco" / "assets" / cls.file
        # MuJoCo 4 calls an attribute of the half-cheetah deprecated: on the terminal, in a file MUJOCO_LOG.TXT, and as
        # a warning of Python's.
        mujoco.set_mju_user_warning(logger.debug)
        try:
            spec = mujoco.MjSpec.from_file(str(path))
            spec.memory = _MEMORY
            for key in spec.keys:  # Episodes begin in the model's own pose.
                spec.delete(key)
            for number, each in enumerate((*spec.bodies, *spec.actuators)):  # Terms select by name.
                each.name = each.name or f"unnamed_{number}"
            add_surroundings(spec)
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                model = spec.compile()
        finally:
            mujoco.set_mju_user_warning(None)
        if config.engine == "mjwarp" and model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        return model


def _task(name: str, config: TermsConfig, file: str, *capacities: int) -> type[GymnasiumTask]:
    """Return a task, with its room for contacts and constraints."""
    declared = {"config": config, "file": file, "capacities": capacities, "__module__": __name__}
    return type(name, (GymnasiumTask,), declared)


InvertedPendulum = _task("InvertedPendulum", configs.INVERTED_PENDULUM, "inverted_pendulum.xml", 8, 16)
InvertedDoublePendulum = _task(
    "InvertedDoublePendulum", configs.INVERTED_DOUBLE_PENDULUM, "inverted_double_pendulum.xml", 8, 16
)
Reacher = _task("Reacher", configs.REACHER, "reacher.xml", 8, 16)
Pusher = _task("Pusher", configs.PUSHER, "pusher_v5.xml", 16, 32)
HalfCheetah = _task("HalfCheetah", configs.HALF_CHEETAH, "half_cheetah.xml", 12, 48)
Swimmer = _task("Swimmer", configs.SWIMMER, "swimmer.xml", 8, 16)
Hopper = _task("Hopper", configs.HOPPER, "hopper.xml", 8, 16)
Walker2d = _task("Walker2d", configs.WALKER2D, "walker2d_v5.xml", 16, 48)
Ant = _task("Ant", configs.ANT, "ant.xml", 16, 64)
Humanoid = _task("Humanoid", configs.HUMANOID, "humanoid.xml", 32, 64)
HumanoidStandup = _task("HumanoidStandup", configs.HUMANOID_STANDUP, "humanoidstandup.xml", 40, 64)

"""Building a learner by its name. Its library is imported only then."""

from rsl_rl.env import VecEnv

from shoal.config import ExportConfig, PlayConfig, TrainConfig
from shoal.config.learners import resolve_learner
from shoal.learn.groups import World
from shoal.learn.learner import Learner
from shoal.user_code import load


def build_learner(env: VecEnv, config: TrainConfig | PlayConfig | ExportConfig, world: World) -> Learner:
    """Return the learner that a configuration names, with new weights drawn from torch's random state.

    Raises:
        UsageError: A package that it needs is not installed.
    """
    spec = resolve_learner(config.learner)
    spec.require()
    return load(spec.builder)(env, config.agent, world)

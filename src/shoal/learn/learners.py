"""The learners by name, each imported only when it is built."""

from rsl_rl.env import VecEnv

from shoal.config import AgentConfig
from shoal.learn.groups import World
from shoal.learn.learner import Learner
from shoal.learn.rsl_rl.learner import RslRlLearner


def build_learner(env: VecEnv, config: AgentConfig, world: World) -> Learner:
    """Return the learner that a configuration asks for, with new weights drawn from torch's random state."""
    return RslRlLearner(env, config, world)

"""Tasks `gym:ENV_ID`: an environment of Gymnasium as a task with a learner for its actions. Imports no torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoal.config import BaseEnvConfig, CnnConfig, DistributionConfig, RslRlConfig, ppo
from shoal.config.checks import at_least
from shoal.errors import UsageError, did_you_mean
from shoal.tasks.registry import TaskSpec, require_extra
from shoal.user_code import load_file

if TYPE_CHECKING:
    import gymnasium

_CNN = CnnConfig(output_channels=(16, 32), kernel_size=(8, 4), stride=(4, 2))
"""For images: that of Mnih et al., arXiv:1312.5602."""
_LEAST_SIDE = 20
"""Of images [pixels]; smaller ones are flattened."""
CATEGORICAL = "shoal.learn.rsl_rl.categorical:CategoricalDistribution"


@dataclass(frozen=True, slots=True, kw_only=True)
class GymConfig(BaseEnvConfig):
    """Settings of an environment of Gymnasium."""

    env_id: str = ""
    """Gymnasium's name of the environment, which the task names."""
    vectorization: Literal["sync", "async"] = "sync"
    """Whether environments are stepped one after another, or each in a process of its own."""
    max_episode_steps: Annotated[int | None, at_least(1)] = None
    """Longest episode [steps]; then it is truncated. None: Gymnasium's own."""


def spec_of(env_id: str) -> TaskSpec:
    """Return the task of a registered environment of Gymnasium.

    `path/to/file.py:ENV_ID` imports the file, which registers it, and `module:ENV_ID` the module, perhaps one of the
    working directory.

    Raises:
        UsageError: There is no such environment, or its actions or observations are of a kind that no learner has.
    """
    require_extra("gymnasium")
    name = f"gym:{env_id}"
    where, colon, own = env_id.rpartition(":")
    if where.endswith(".py"):
        file = Path(where).expanduser().absolute()
        if not file.is_file():
            raise UsageError(f"gym:{env_id} asks for the file {file}, which does not exist: pass gym:file.py:ENV_ID.")
        load_file(file)
        env_id, name = own, f"gym:{file.name}:{own}"
    elif colon and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return TaskSpec(
        name=name,
        summary=f"{env_id} of Gymnasium.",
        env=GymConfig(env_id=env_id),
        agent=_agent_for(env_id, *_spaces_of(env_id)),
        num_envs=32,
        max_iterations=300,
        builder="shoal.envs.gymnasium_env:GymEnv",
    )


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Whether observations are images large enough for `_CNN`; their channels are the first or the last axis."""
    from gymnasium.spaces import Box

    return isinstance(space, Box) and len(space.shape) == 3 and sorted(space.shape)[1] >= _LEAST_SIDE  # noqa: PLR2004


def _spaces_of(env_id: str) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Return actions and observations of one environment, which is made for that; the latter must have a fixed size."""
    import gymnasium

    try:
        env = gymnasium.make(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        hint = "" if env_id in gymnasium.registry else did_you_mean(env_id, gymnasium.registry)
        raise UsageError(f"Gymnasium does not make '{env_id}' ({error}).{hint}") from error
    env.close()
    if not env.observation_space.is_np_flattenable:
        raise UsageError(
            f"gym:{env_id} has observations of the kind {type(env.observation_space).__name__}, or with such a part, "
            "that are no row of a fixed number of columns: wrap it, so that they are, as those of a Box or a Dict are."
        )
    return env.action_space, env.observation_space


def _agent_for(env_id: str, space: gymnasium.Space[Any], seen: gymnasium.Space[Any]) -> RslRlConfig:
    """Return a learner of what is `seen`, whose actions are distributed as a space has them."""
    from gymnasium import spaces

    # The bound on the critic's change is in units of the return, which may be hundreds.
    agent = ppo(64, 64, init_std=0.5, steps=128, num_mini_batches=8, use_clipped_value_loss=False)
    if is_image(seen):
        looks: Any = {"class_name": "CNNModel", "obs_normalization": False, "cnn": _CNN}
        agent = replace(agent, actor=replace(agent.actor, **looks), critic=replace(agent.critic, **looks))
    if isinstance(space, spaces.Discrete):
        return replace(agent, actor=replace(agent.actor, distribution=DistributionConfig(class_name=CATEGORICAL)))
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return agent
    raise UsageError(
        f"gym:{env_id} has actions of the kind {type(space).__name__}, which no learner has: wrap it, so that they are "
        "Discrete, MultiDiscrete, MultiBinary or a Box."
    )

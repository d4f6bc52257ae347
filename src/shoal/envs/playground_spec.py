"""Tasks `playground:ENV`: an environment of MuJoCo Playground, with its own agent for rsl_rl if it has one."""

# pyright: reportMissingImports=false
# MuJoCo Playground is not installed where types are checked.

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Self

from shoal.config import BaseEnvConfig, DistributionConfig, ModelConfig, PpoConfig, RslRlConfig
from shoal.envs.library_settings import change_all
from shoal.errors import UsageError, did_you_mean
from shoal.provenance import installed_version
from shoal.tasks.registry import TaskSpec

PLAYGROUND = "0.2.0"
"""The version that was tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaygroundConfig(BaseEnvConfig):
    """Settings of an environment of MuJoCo Playground."""

    env_name: str = ""
    """Playground's name of the environment, which the task names."""
    set: dict[str, str] = field(default_factory=dict[str, str])
    """Changes of the environment's own configuration, by path: `--env.set impl jax reward_config.scales.pose -0.5`."""
    full_reset: bool = False
    """Draw a new start for each episode. Playground's default repeats the first of each environment, and is faster."""
    randomize: bool = True
    """Draw the environment's domain randomization, if it has one. Play and evaluate do without."""

    def in_play(self) -> Self:
        """Return the same without domain randomization."""
        return replace(self, randomize=False)


def spec_of(env_name: str) -> TaskSpec:
    """Return the task of an environment of MuJoCo Playground.

    Raises:
        UsageError: Playground is not installed, or another version of it, or it has no such environment.
    """
    params = _params_of(env_name)
    brax, agent = params.brax_ppo_config(env_name), RslRlConfig()
    if hasattr(params, "rsl_rl_config"):
        agent = _agent_of(params.rsl_rl_config(env_name))
    else:
        agent = replace(agent, algorithm=replace(agent.algorithm, gamma=brax.discounting))
    return TaskSpec(
        name=f"playground:{env_name}",
        summary=f"{env_name} of MuJoCo Playground.",
        env=PlaygroundConfig(env_name=env_name),
        agent=agent,
        num_envs=brax.num_envs,
        max_iterations=1000,
        builder="shoal.envs.playground_env:PlaygroundEnv",
        check="shoal.envs.playground_spec:check",
    )


def check(config: PlaygroundConfig, default: PlaygroundConfig) -> tuple[str, ...]:
    """Check that changes of the configuration name what is there.

    Raises:
        UsageError: They do not.
    """
    del default
    changed_config(config)
    return ()


def changed_config(config: PlaygroundConfig) -> Any:  # noqa: ANN401  A ConfigDict.
    """Return Playground's configuration of an environment, with the changes of `config`."""
    from ml_collections import ConfigDict

    settings = import_playground().registry.get_default_config(config.env_name).to_dict()
    change_all(settings, config.set)
    return ConfigDict(settings)


def import_playground() -> Any:  # noqa: ANN401  The package.
    """Import Playground. JAX then takes memory of a GPU only as it needs it: torch has its own there."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import mujoco_playground

    return mujoco_playground


def _params_of(env_name: str) -> Any:  # noqa: ANN401  A module.
    """Return the module with the learners' configurations of the group of environments that has this one."""
    mend = f"run `uv pip install playground=={PLAYGROUND}`"
    installed = installed_version("playground")
    if installed is None:
        raise UsageError(f"The task needs MuJoCo Playground, which is not installed: {mend}.")
    if installed != PLAYGROUND:
        raise UsageError(f"The task was not tested with MuJoCo Playground {installed}: {mend}.")
    playground = import_playground()
    from mujoco_playground.config import dm_control_suite_params, locomotion_params, manipulation_params

    groups = {
        dm_control_suite_params: playground.dm_control_suite,
        locomotion_params: playground.locomotion,
        manipulation_params: playground.manipulation,
    }
    for params, group in groups.items():
        if env_name in group.ALL_ENVS:
            return params
    known = playground.registry.ALL_ENVS
    raise UsageError(
        f"MuJoCo Playground has no environment '{env_name}'.{did_you_mean(env_name, known)} It has {', '.join(known)}."
    )


def _agent_of(theirs: Any) -> RslRlConfig:  # noqa: ANN401  A ConfigDict, as rsl_rl 2 had it.
    """Return Playground's configuration of an agent as Shoal's."""
    policy, ppo = theirs.policy, theirs.algorithm.to_dict()
    ppo.pop("class_name")
    shared = {"activation": policy.activation, "obs_normalization": theirs.empirical_normalization}
    noise = DistributionConfig(class_name="GaussianDistribution", init_std=policy.init_noise_std)
    return RslRlConfig(
        num_steps_per_env=theirs.num_steps_per_env,
        actor=ModelConfig(hidden_dims=tuple(policy.actor_hidden_dims), distribution=noise, **shared),
        critic=ModelConfig(hidden_dims=tuple(policy.critic_hidden_dims), **shared),
        algorithm=PpoConfig(**ppo),
    )

"""The learners by name: configuration, class, and the packages that each needs."""

import importlib.util
from dataclasses import dataclass

from shoal.config.agent import AgentConfig
from shoal.config.fast_sac import FastSacConfig
from shoal.config.grpo import GrpoConfig
from shoal.config.rl_games import RlGamesConfig
from shoal.config.rsl_rl import DistillationConfig, RslRlConfig
from shoal.config.skrl import SkrlConfig, SkrlJaxConfig
from shoal.errors import UsageError, did_you_mean
from shoal.user_code import find_class


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """One learner: its defaults, and where it is built."""

    name: str
    """Name on the command line."""
    config: AgentConfig
    """Defaults where a task has none for this learner."""
    builder: str
    """A `shoal.learn.learner.Learner`, as `module:Class` or `/path/to/file.py:Class`; called as
    `builder(env, config, world)`."""
    extra: str | None = None
    """Extra of Shoal that installs `packages`."""
    packages: tuple[str, ...] = ()
    """Import names of the packages that the learner needs."""

    def require(self) -> None:
        """Refuse a learner whose packages are not installed, without importing them."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise UsageError(
                f"The learner {self.name} needs the package {missing[0]}, which is not installed: run "
                f"`uv add 'shoal[{self.extra}]'`."
            )


_SKRL = "shoal.learn.skrl.library:build"
LEARNERS = {
    spec.name: spec
    for spec in (
        LearnerSpec("rsl_rl", RslRlConfig(), "shoal.learn.rsl_rl.learner:RslRlLearner"),
        LearnerSpec("distillation", DistillationConfig(), "shoal.learn.rsl_rl.distillation:DistillationLearner"),
        LearnerSpec("grpo", GrpoConfig(), "shoal.learn.grpo:GrpoLearner"),
        LearnerSpec("fast_sac", FastSacConfig(), "shoal.learn.fast_sac:FastSacLearner"),
        LearnerSpec("skrl", SkrlConfig(), _SKRL, "skrl", ("skrl", "gymnasium")),
        LearnerSpec("skrl_jax", SkrlJaxConfig(), _SKRL, "skrl-jax", ("skrl", "gymnasium", "jax", "flax", "optax")),
        LearnerSpec(
            "rl_games", RlGamesConfig(), "shoal.learn.rl_games.learner:RlGamesLearner", "rl-games", ("rl_games",)
        ),
    )
}
"""Shoal's own; the first is the default."""


def resolve_learner(name: str) -> LearnerSpec:
    """Return the learner of a name, or of `path/to/file.py:Class`.

    Raises:
        UsageError: There is none of that name, or the file has no such learner.
    """
    if ".py:" in name or name.endswith(".py"):
        found, path = find_class("learner", name, lambda value: isinstance(getattr(value, "config", None), AgentConfig))
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        if missing:
            raise UsageError(
                f"The learner {name} has no {' and no '.join(missing)}: define what `shoal.learn.learner.Learner` "
                "leaves to its subclasses."
            )
        return LearnerSpec(name, getattr(found, "config"), f"{path}:{found.__name__}")  # noqa: B009
    if name not in LEARNERS:
        raise UsageError(
            f"There is no learner '{name}'.{did_you_mean(name, LEARNERS)} Pass one of {', '.join(LEARNERS)}, or "
            "path/to/file.py:Class."
        )
    return LEARNERS[name]

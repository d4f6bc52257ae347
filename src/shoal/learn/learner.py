"""The seam between the training loop and a learner: one iteration on counted environments, and the learner's state.

`shoal.learn.loop` keeps what all learners share: statistics, stops, checkpoints, replica checks. A learner owns its
rollout, because several libraries do.
"""

import io
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
import torch.distributed as dist
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.config import AgentConfig, ExportConfig, ModelConfig, PlayConfig, RslRlConfig, TrainConfig
from shoal.config.checks import is_custom
from shoal.config.learners import resolve_learner
from shoal.config.rsl_rl import to_rsl_rl
from shoal.errors import TrainingFailedError, UsageError
from shoal.learn.episodes import Policy
from shoal.learn.groups import World
from shoal.learn.health import refuse_non_finite_update
from shoal.learn.rsl_rl.cnn import encoder_of
from shoal.learn.training_env import TrainingEnv
from shoal.plan.training import refuse_unknown_groups
from shoal.user_code import load

logger = logging.getLogger(__name__)


class Learner(ABC):
    """One replica of a learner. Every rank holds the same, and trains it on environments of its own."""

    steps_per_iteration: int
    """Steps of each environment in one iteration."""
    learning_rate_flag: str | None = None
    """Flag that sets the learning rate, for messages."""

    @abstractmethod
    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Collect experience from `env`, learn from it, and return mean losses by name.

        `env.end_rollout()` goes before each update: it checks for NaN, and separates the times of the two.
        """

    @abstractmethod
    def policy(self) -> Policy:
        """Return the policy without exploration noise."""

    @abstractmethod
    def broadcast(self) -> None:
        """Send rank 0's weights and normalisers to all ranks."""

    @abstractmethod
    def replicated(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and value of each tensor that must be equal on all ranks."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state for `restore`, of tensors and plain values, in the library's own layout."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore a saved state: everything, or with `weights_only` only networks and normalisers.

        Raises:
            UsageError: Its networks have other shapes.
            TrainingFailedError: It does not fit this learner.
        """

    def env_rows(self) -> dict[str, torch.Tensor]:
        """Return what the learner remembers of each environment, by name. Shapes (num_envs, ...)."""
        return {}

    def put_env_rows(self, rows: Mapping[str, torch.Tensor], num_envs: int) -> None:
        """Restore such rows of the first environments; the others begin without memory."""
        del rows, num_envs

    def metrics(self) -> dict[str, float]:
        """Return further metrics of an iteration, under rsl_rl's names where it has one."""
        return {}

    def refuse_non_finite(self, losses: Mapping[str, float], *, iteration: int) -> None:
        """Refuse weights or losses that are not finite.

        Raises:
            TrainingFailedError: On all ranks alike, as gradients are averaged and losses pooled.
        """
        del losses, iteration


class TorchLearner(Learner):
    """A learner of torch modules and optimizers, which are its whole state unless a subclass adds to it."""

    check_for_nan: bool
    """Whether weights and losses are checked after each iteration."""

    @property
    @abstractmethod
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Networks and normalisers by name."""

    @property
    @abstractmethod
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """Optimizers by name."""

    def broadcast(self) -> None:
        """Send rank 0's weights and normalisers to all ranks."""
        for module in self.modules.values():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, src=0)

    def replicated(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield weights, normalisers, optimizer moments and learning rates."""
        for owner, module in self.modules.items():
            for name, tensor in module.state_dict().items():
                yield f"{owner}.{name}", tensor
        for owner, optimizer in self.optimizers.items():
            state = optimizer.state_dict()
            for index, moments in state["state"].items():
                for name, value in moments.items():
                    yield f"{owner}.{index}.{name}", torch.as_tensor(value)
            rates = [float(group["lr"]) for group in state["param_groups"]]
            yield f"{owner}.learning_rate", torch.tensor(rates, dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        """Return the state dict of each module and optimizer."""
        parts: dict[str, Any] = {**self.modules, **self.optimizers}
        return {name: part.state_dict() for name, part in parts.items()}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore modules, and unless `weights_only` optimizers."""
        parts: dict[str, Any] = {**self.modules} if weights_only else {**self.modules, **self.optimizers}
        with does_not_fit(self.modules, state):
            for name, part in parts.items():
                part.load_state_dict(state[name])

    def refuse_non_finite(self, losses: Mapping[str, float], *, iteration: int) -> None:
        """Refuse weights or losses that are not finite, if the configuration wants it."""
        if self.check_for_nan:
            groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
            weights = [weight for group in groups for weight in group["params"]]
            refuse_non_finite_update(weights, losses, iteration=iteration, flag=self.learning_rate_flag)


def build_learner(env: VecEnv, config: TrainConfig | PlayConfig | ExportConfig, world: World) -> Learner:
    """Return the learner that a configuration names, with new weights drawn from torch's random state.

    Its library is imported only then.

    Raises:
        UsageError: A package that it needs is not installed, or an observation group is not there.
    """
    spec = resolve_learner(config.learner)
    spec.require()
    observations = env.get_observations()
    refuse_unknown_groups(config.agent, [*map(str, observations.keys())])
    _refuse_other_models(config.agent, observations)
    return load(spec.builder)(env, config.agent, world)


def _refuse_other_models(agent: AgentConfig, observations: TensorDict) -> None:
    """Refuse networks of rsl_rl's that do not take the observation groups they are given, or make nothing of them."""
    for name, groups in agent.obs_groups.items():
        model, images = getattr(agent, name, None), [group for group in groups if observations[group].dim() > 2]  # noqa: PLR2004
        if not isinstance(model, ModelConfig) or is_custom(model.class_name):
            continue
        path = f"agent.{name}"
        if bool(images) != (model.class_name == "CNNModel"):
            what, mend = (
                (f"'{images[0]}' is images", "CNNModel") if images else ("none of its groups is images", "MLPModel")
            )
            raise UsageError(
                f"{path}.class_name is {model.class_name!r}, but {what}: set it to '{mend}', or name other groups in "
                f"agent.obs_groups.{name}."
            )
        for group in images:
            shape = observations[group].shape[1:]
            try:
                encoder_of(shape, to_rsl_rl(model.cnn))(torch.zeros(1, *shape))
            except RuntimeError as error:
                raise UsageError(
                    f"{path}.cnn does not fit the images of '{group}', {shape[1]} rows of {shape[2]} pixels "
                    f"({error}): give it smaller kernels or strides, or fewer layers."
                ) from error
    if isinstance(agent, RslRlConfig) and agent.algorithm.share_cnn_encoders:
        actor, critic = ({*agent.obs_groups[name]} for name in ("actor", "critic"))
        alone = [group for group in sorted(actor ^ critic) if observations[group].dim() > 2]  # noqa: PLR2004
        if alone:
            raise UsageError(
                f"agent.algorithm.share_cnn_encoders is True, but one of actor and critic does not observe the images "
                f"'{alone[0]}': add them to its agent.obs_groups, or set share_cnn_encoders to False."
            )


@contextmanager
def does_not_fit(modules: Mapping[str, torch.nn.Module], state: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of loading a state into the sentence that it does not fit, with the first shape that differs."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        for name, module in modules.items():
            saved = state.get(f"{name}_state_dict", state.get(name))
            if isinstance(saved, Mapping):
                refuse_other_shapes(name, module.state_dict(), saved)
        raise TrainingFailedError(
            f"The checkpoint does not fit the networks of this training ({error}). "
            "Pass the observation groups and hidden sizes that it was trained with."
        ) from error


def refuse_other_moments(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments of an optimizer that some weights lack, or of other shapes, which loading does not notice."""
    for group in optimizer.param_groups:
        saved = [(weights, optimizer.state[weights]) for weights in group["params"] if weights in optimizer.state]
        kinds = [{key: type(each) for key, each in moments.items()} for _, moments in saved]
        other = next((each for each in kinds if each != kinds[0]), None)
        if other is not None:
            raise ValueError(f"{name} has {[*other]!r:.100} for some weights, and {[*kinds[0]]!r:.100} for others")
        for weights, moments in saved:
            for key, each in moments.items():
                if isinstance(each, torch.Tensor) and each.ndim and each.shape != weights.shape:
                    raise ValueError(
                        f"{key} of {name} has the shape {tuple(each.shape)}, its weights {tuple(weights.shape)}"
                    )


def refuse_other_shapes(name: str, here: Mapping[Any, Any], saved: Mapping[Any, Any]) -> None:
    """Refuse a network whose tensors, by name, have other shapes than the saved ones.

    Raises:
        UsageError: It names the first one, with both shapes.
    """
    for key in (*here, *saved):
        shapes = [
            "x".join(map(str, getattr(each[key], "shape", "?"))) or "one number" if key in each else "missing"
            for each in (here, saved)
        ]
        if shapes[0] != shapes[1]:
            raise UsageError(
                f"The checkpoint does not fit the network '{name}' of this training: its '{key}' is {shapes[0]}, and "
                f"in the checkpoint {shapes[1]}. Pass the settings of its run, or train a new run without it."
            )


@contextmanager
def prints_to_log() -> Iterator[None]:
    """Log at DEBUG what a library prints in the body."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            logger.debug("%s", line)

"""The contract of environments, held against a task by stepping it with random actions: `shoal check-env`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.config.commands import CheckEnvConfig
from shoal.envs.capabilities import capabilities_of, costs_of
from shoal.envs.vec_env import build_vec_env
from shoal.errors import ShoalError
from shoal.sim.isolation import isolated
from shoal.tasks.registry import TaskSpec

_FEW = 8
"""Steps of checks that compare two runs of the same steps."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    """What has to hold."""
    fault: str | None = None
    """What is wrong, and what to do; None if it holds."""
    offered: bool = True
    """Whether the environments offer what is checked."""


@dataclass(frozen=True, slots=True)
class EnvReport:
    """Results of all checks of a task's environments."""

    findings: list[Finding]
    missing: list[str]
    """What is lost because the environments do not offer it."""
    episodes: int
    """Episodes that ended meanwhile."""
    steps_per_second: float
    """Steps of all environments together, with random actions [1/s]."""

    @property
    def failed(self) -> list[Finding]:
        """The checks that failed."""
        return [each for each in self.findings if each.fault is not None]


class Fault(Exception):  # noqa: N818  It is the result of a check.
    """What a check found wrong."""


def check_env(config: CheckEnvConfig, spec: TaskSpec, device: str) -> EnvReport:
    """Build environments on `device`, step them, and return what was found.

    Raises:
        ShoalError: They cannot be built.
    """
    with isolated(device):
        subject = _Subject(config, spec, device)
        findings = [_finding(check, subject) for check in _CHECKS]
        return EnvReport(
            findings=findings,
            missing=costs_of(subject.env),
            episodes=subject.episodes,
            steps_per_second=config.num_envs * config.steps / subject.seconds,
        )


@dataclass(slots=True)
class _Step:
    """One step, copied as it was returned."""

    observations: dict[str, torch.Tensor]
    rewards: torch.Tensor
    dones: torch.Tensor
    extras: dict[str, Any]
    lengths: torch.Tensor


class _Subject:
    """Environments of the task, and a rollout with random actions."""

    def __init__(self, config: CheckEnvConfig, spec: TaskSpec, device: str) -> None:
        self.config, self.spec, self.device = config, spec, device
        self.env = self.build(config.seed)
        self.seconds, self.episodes = math.inf, 0

    def build(self, seed: int) -> VecEnv:
        """Build environments."""
        config = self.config
        return build_vec_env(self.spec, config.env, num_envs=config.num_envs, device=self.device, seed=seed)

    def actions(self, steps: int) -> Iterator[torch.Tensor]:
        """Yield uniform random actions in [-1, 1], the same in each call."""
        random = torch.Generator().manual_seed(0)
        for _ in range(steps):
            drawn = torch.rand(self.config.num_envs, self.env.num_actions, generator=random) * 2 - 1
            yield drawn.to(self.device)

    @cached_property
    def steps(self) -> list[_Step]:
        """A rollout of `--steps` steps; it took `seconds`, copies included, and `episodes` ended."""
        started = time.perf_counter()
        steps = list(self.rollout(self.env, self.config.steps))
        self.seconds = time.perf_counter() - started
        self.episodes = sum(int((step.dones != 0).sum()) for step in steps)
        return steps

    def rollout(self, env: VecEnv, steps: int) -> Iterator[_Step]:
        """Step with random actions."""
        for actions in self.actions(steps):
            observations, rewards, dones, extras = env.step(actions)
            copies = {key: value.clone() for key, value in extras.items() if isinstance(value, torch.Tensor)}
            yield _Step(
                _copied(observations),
                rewards.clone(),
                dones.clone(),
                {**extras, **copies, "log": dict(extras.get("log") or {})},
                env.episode_length_buf.clone(),
            )

    def trace(self, env: VecEnv) -> list[dict[str, torch.Tensor]]:
        """Return the observations before and after each of a few steps with random actions."""
        begun = _copied(env.get_observations())
        return [begun, *(step.observations for step in self.rollout(env, _FEW))]

    def repeats(self, begin: Callable[[], None], first: int = 0) -> bool:
        """Whether the traces of two such beginnings are equal from their `first` observations on."""
        runs: list[list[dict[str, torch.Tensor]]] = []
        for _ in range(2):
            begin()
            runs.append(self.trace(self.env)[first:])
        return _equal(*runs)


def _copied(observations: TensorDict) -> dict[str, torch.Tensor]:
    return {name: group.clone() for name, group in observations.items()}  # pyright: ignore[reportReturnType]  No TensorDict lies in it.


def _finding(check: Callable[[_Subject], bool | None], subject: _Subject) -> Finding:
    """Run a check, whose docstring says what has to hold. It returns False if that is not offered."""
    text = " ".join((check.__doc__ or "").split()).removesuffix(".")
    try:
        offered = check(subject) is not False
    except Fault as fault:
        return Finding(text, str(fault))
    except ShoalError:
        raise
    except Exception as error:  # noqa: BLE001  The environment's own code.
        return Finding(text, f"it raised {type(error).__name__}: {error}")
    return Finding(text, offered=offered)


def _fields(subject: _Subject) -> None:
    """Everything that rsl_rl reads is there: num_envs, num_actions, max_episode_length, episode_length_buf, device."""
    for name in ("num_envs", "num_actions", "max_episode_length", "episode_length_buf", "device", "cfg"):
        if not hasattr(subject.env, name):
            raise Fault(f"the attribute {name} is missing: set it in __init__.")
    if torch.device(subject.env.device) != torch.device(subject.device):
        raise Fault(f"`device` is {subject.env.device}, but the environments were asked for on {subject.device}.")


def _shapes(subject: _Subject) -> None:
    """Observations, rewards and dones have a row for each environment, in 32 bits, on the device."""
    step, rows = subject.steps[0], subject.config.num_envs
    for name, group in step.observations.items():
        if group.shape[0] != rows or group.dtype != torch.float32:
            raise Fault(
                f"the observations '{name}' are {_kind(group)}, not float32 of {rows} rows: convert them in step()."
            )
    for name, values in (("rewards", step.rewards), ("dones", step.dones)):
        if values.shape != (rows,):
            raise Fault(f"{name} have the shape {tuple(values.shape)}, not ({rows},).")
    if step.rewards.dtype != torch.float32:
        raise Fault(f"rewards are {_kind(step.rewards)}, not float32.")
    tensors = {**step.observations, "rewards": step.rewards, "dones": step.dones}
    elsewhere = [name for name, tensor in tensors.items() if tensor.device != torch.device(subject.device)]
    if elsewhere:
        raise Fault(f"{', '.join(elsewhere)} are not on {subject.device}: move them there in step().")
    if any(tensor.requires_grad for tensor in tensors.values()):
        raise Fault("step() returns tensors that require a gradient: call `actions.detach()` first.")


def _finite(subject: _Subject) -> None:
    """Observations and rewards are finite."""
    for number, step in enumerate(subject.steps):
        for name, values in (*step.observations.items(), ("rewards", step.rewards)):
            if not values.isfinite().all():
                raise Fault(f"{name} are not finite after step {number + 1}.")


def _kept(subject: _Subject) -> None:
    """Observations stay as they are during the next step: rsl_rl stores those it acted on only then."""
    before = subject.env.get_observations()
    kept = _copied(before)
    for actions in subject.actions(_FEW):
        after, *_ = subject.env.step(actions)
        changed = [name for name, group in kept.items() if not torch.equal(before[name], group)]
        if changed:
            raise Fault(f"step() wrote '{changed[0]}' of the step before again: return new tensors, or a copy.")
        before, kept = after, _copied(after)


def _ends(subject: _Subject) -> None:
    """Episodes end: with a failure, or with `time_outs` when they have lasted `max_episode_length` steps."""
    limit = int(torch.as_tensor(subject.env.max_episode_length).max())
    longest = max(int(step.lengths.max()) for step in subject.steps)
    if longest > limit:
        raise Fault(f"an episode has lasted {longest} steps, but `max_episode_length` is {limit}.")
    if not subject.episodes and subject.config.steps > limit:
        raise Fault(f"no episode ended in {subject.config.steps} steps, but `max_episode_length` is {limit}.")


def _time_outs(subject: _Subject) -> None:
    """`extras["time_outs"]` says which of the ended episodes only ran out of time."""
    for number, step in enumerate(subject.steps):
        if "time_outs" not in step.extras:
            raise Fault('extras["time_outs"] is missing: without it a learner takes the end of the time for a failure.')
        time_outs, dones = step.extras["time_outs"], step.dones
        if time_outs.shape != dones.shape:
            raise Fault(f'extras["time_outs"] has the shape {tuple(time_outs.shape)}, not {tuple(dones.shape)}.')
        if (time_outs.bool() & (dones == 0)).any():
            raise Fault(f"after step {number + 1} an episode is said to be out of time that has not ended.")


def _lengths(subject: _Subject) -> None:
    """`episode_length_buf` counts the steps of each episode, and is 0 after its end."""
    lengths = None
    for number, step in enumerate(subject.steps):
        if lengths is not None:
            expected = torch.where(step.dones != 0, 0, lengths + 1)
            if not torch.equal(step.lengths.to(torch.int64), expected):
                raise Fault(
                    f"it is {step.lengths.tolist()[:4]}... after step {number + 1}, not {expected.tolist()[:4]}..."
                )
        lengths = step.lengths.to(torch.int64)


def _differ(subject: _Subject) -> None:
    """Environments differ from each other after a while."""
    if subject.config.num_envs == 1:
        return
    last = torch.cat([group.flatten(1) for group in subject.steps[-1].observations.values()], dim=1)
    if len(last.unique(dim=0)) == 1:
        raise Fault("all have the same observations in spite of different actions.")


def _seeded(subject: _Subject) -> None:
    """The same seed and actions give the same episodes, and another seed gives others."""
    seed = subject.config.seed
    one, same, other = (subject.trace(subject.build(each)) for each in (seed, seed, seed + 1))
    if not _equal(one, same):
        raise Fault("two builds with the same seed differ: draw all random numbers from generators with that seed.")
    if _equal(one, other):
        raise Fault("another seed gives the same episodes: each rank has another one, and would repeat the others.")


def _restarted(subject: _Subject) -> bool:
    """`restart(seed)` begins the same episodes again, if `can_restart` says so."""
    environments = capabilities_of(subject.env)
    if environments.can_restart and not subject.repeats(lambda: environments.restart(subject.config.seed)):
        raise Fault("after restart() with the same seed the same actions lead elsewhere.")
    return environments.can_restart


def _resumed(subject: _Subject) -> bool:
    """`rows()` holds all that the next step depends on, if there are any: restored, they repeat it."""
    environments = capabilities_of(subject.env)
    saved = {name: row.clone() for name, row in environments.rows().items()}
    # Without the observations before the first step, which are no row.
    if saved and not subject.repeats(lambda: environments.put_rows(saved), first=1):
        raise Fault("after put_rows() with the same rows the same actions lead elsewhere.")
    return bool(saved)


def _terms(subject: _Subject) -> bool:
    """`extras["episode_sums"]` has a column for each of `episode_terms`, which add up to the return."""
    terms = capabilities_of(subject.env).episode_terms
    if not terms:
        return False
    returns = torch.full((subject.config.num_envs,), torch.nan, device=subject.device)  # Unknown until a first end.
    for step in subject.steps:
        sums = step.extras.get("episode_sums")
        if sums is None or sums.shape != (subject.config.num_envs, len(terms)):
            raise Fault(f"it has not the shape {(subject.config.num_envs, len(terms))}.")
        ended = step.dones != 0
        returns = returns + step.rewards
        known = ended & returns.isfinite()
        if not torch.allclose(sums.sum(dim=1)[known], returns[known], rtol=1e-3, atol=1e-3):
            raise Fault(f"it adds up to {sums.sum(dim=1)[known][:4].tolist()}, not {returns[known][:4].tolist()}.")
        returns = torch.where(ended, 0.0, returns)
    return True


def _logged(subject: _Subject) -> None:
    """`extras["log"]` has numbers, or tensors of them."""
    for step in subject.steps:
        for name, value in step.extras["log"].items():
            if not torch.as_tensor(value).isfinite().all():
                raise Fault(f"'{name}' is {value}.")


_CHECKS = (
    *(_fields, _shapes, _finite, _kept, _ends, _time_outs, _lengths, _differ, _terms, _logged),
    *(_restarted, _resumed, _seeded),
)


def _equal(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return all(torch.equal(mine[name], theirs[name]) for mine, theirs in zip(one, other, strict=True) for name in mine)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of {tensor.shape[0] if tensor.dim() else 'no'} rows"

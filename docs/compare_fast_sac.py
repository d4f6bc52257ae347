"""Compares Shoal's FastSAC with that of the package holosoma, by the algorithm's authors: one update, and trainings.

    uv pip install --no-deps --target published holosoma==0.0.3
    PYTHONPATH=published uv run --with loguru --with omegaconf python docs/compare_fast_sac.py --parts update time learn

`update` gives both the same weights, batches and random numbers and compares losses and gradients, and what the replay
buffers return for the same steps. `time` measures an update with its sampling. `learn` trains both on
`Cartpole-Swingup`, with networks of equal sizes and the task's settings. The package is used as it is, its training
loop included; it sees Shoal's environments through `PublishedEnv`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from tensordict import TensorDict

from shoal.config import FastSacConfig, TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.fast_sac import FastSacLearner
from shoal.learn.groups import World
from shoal.learn.inference import concatenated
from shoal.learn.loop import TrainingLoop
from shoal.learn.replay import Batch, Replay
from shoal.sim.isolation import isolated
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rsl_rl.env import VecEnv

    from shoal.sim.kernel_task import KernelTask

logger = logging.getLogger(__name__)

TASK = "Cartpole-Swingup"
NUM_ENVS = 512
ACTOR_WIDTH, CRITIC_WIDTH = 96, 192
"""Units of the first hidden layer: the published networks have three, of this, half and a quarter of it."""
UNSCALED_RETURN = 20.0
"""Support of the critics where rewards are not scaled: the published default."""
GOOD_RETURN = 35.0
PARTS = ("update", "time", "learn")
LEARNERS = ("shoal", "shoal-unscaled", "published")


def main() -> None:
    """Print the tables of the chosen parts."""
    chosen = flags().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with isolated("cpu", threads=1):
        if "update" in chosen.parts:
            show("| quantity | largest difference | of values up to |", "| --- | --- | --- |")
            compare_updates()
            compare_replays()
            compare_batches()
        if "time" in chosen.parts:
            compare_times()
        if "learn" in chosen.parts:
            compare_trainings(chosen.learners, chosen.seeds, chosen.steps)


def flags() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=LEARNERS, help="learners to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=3_072_000, help="environment steps of a training")
    return parser


def show(*lines: str) -> None:
    """Print at once: a training takes minutes."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def settings(**changes: Any) -> FastSacConfig:  # noqa: ANN401  Any field of the configuration.
    """Return the task's settings, with networks that the published learner can have."""
    agent = next(each for each in registry.resolve(TASK).other_agents if isinstance(each, FastSacConfig))
    widths = {"actor_hidden_dims": halved(ACTOR_WIDTH), "critic_hidden_dims": halved(CRITIC_WIDTH)}
    return replace(agent, **(widths | changes))


def halved(width: int) -> tuple[int, ...]:
    """Return the widths of the published networks."""
    return (width, width // 2, width // 4)


class Blank:
    """Environments without simulation, with several actions: what learners ask for when they are built."""

    num_envs, num_actions, size, device = 32, 6, 17, "cpu"

    def get_observations(self) -> TensorDict:
        """Return zeros."""
        return TensorDict({"policy": torch.zeros(self.num_envs, self.size)}, batch_size=[self.num_envs])


def groups_of(env: VecEnv | Blank) -> list[str]:
    """Return the names of the observation groups."""
    return [str(name) for name in env.get_observations().keys()]  # noqa: SIM118  A TensorDict iterates over rows.


class PublishedEnv:
    """Environments as the published learner expects them: actions in [-1, 1], one group of observations."""

    def __init__(self, env: VecEnv | Blank) -> None:
        self.env, self.num_envs, self.device = env, env.num_envs, "cpu"
        self.groups = groups_of(env)
        names = [f"action_{number}" for number in range(env.num_actions)]
        self.robot_config = SimpleNamespace(
            actions_dim=env.num_actions,
            dof_names=names,
            dof_pos_lower_limit_list=[-1.0] * len(names),
            dof_pos_upper_limit_list=[1.0] * len(names),
            init_state=SimpleNamespace(default_joint_angles={}),
            control=SimpleNamespace(action_scale=1.0),
        )
        size = concatenated(env.get_observations(), self.groups).shape[1]
        self.observation_manager = SimpleNamespace(
            get_obs_dims=lambda: {"actor_obs": size, "critic_obs": size}, cfg=SimpleNamespace(groups={})
        )

    def _named(self, observations: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401  A mapping, or a TensorDict.
        values = concatenated(observations, self.groups)
        return {"actor_obs": values, "critic_obs": values}

    def reset_all(self) -> dict[str, torch.Tensor]:
        """Return the present observations."""
        return self._named(self.env.get_observations())

    def step(
        self, action_state: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment."""
        assert not isinstance(self.env, Blank)  # noqa: S101  It has no simulation.
        observations, rewards, dones, extras = self.env.step(action_state["actions"])
        ended, last = dones.to(torch.bool).unsqueeze(1), self._named(extras["final_observation"])
        new = self._named(observations)
        info = {
            "time_outs": extras["time_outs"].clone(),
            "final_observations": {name: torch.where(ended, last[name], new[name]) for name in new},
            "episode": {},
            "episode_all": {},
            "to_log": {},
        }
        return new, rewards.clone(), dones.clone(), info


def new_published(env: VecEnv | Blank, agent: FastSacConfig, num_iterations: int, directory: str) -> Any:  # noqa: ANN401
    """Return the published learner, with the settings of `agent`."""
    os.environ["LOGURU_LEVEL"] = "ERROR"
    module: Any = importlib.import_module("holosoma.agents.fast_sac.fast_sac_agent")
    torch.set_float32_matmul_precision("highest")  # The module chose another.
    configs: Any = importlib.import_module("holosoma.config_types.algo")
    config = configs.FastSACConfig(
        num_learning_iterations=num_iterations,
        critic_learning_rate=agent.learning_rate,
        actor_learning_rate=agent.learning_rate,
        alpha_learning_rate=agent.learning_rate,
        buffer_size=agent.replay_steps,
        num_steps=agent.num_step_returns,
        gamma=agent.gamma,
        tau=agent.tau,
        batch_size=agent.batch_size,
        learning_starts=agent.warmup_steps,
        policy_frequency=agent.policy_delay,
        num_updates=agent.updates_per_step,
        target_entropy_ratio=-agent.target_entropy,
        num_atoms=agent.num_atoms,
        v_min=-agent.max_return,
        v_max=agent.max_return,
        critic_hidden_dim=agent.critic_hidden_dims[0],
        actor_hidden_dim=agent.actor_hidden_dims[0],
        alpha_init=agent.initial_temperature,
        max_grad_norm=agent.max_grad_norm,
        weight_decay=agent.weight_decay,
        compile=False,
        amp=False,
        save_interval=0,
        logging_interval=num_iterations + 1,
    )
    with redirect_stdout(io.StringIO()):
        learner = module.FastSACAgent(PublishedEnv(env), config, "cpu", directory)
        learner.setup()
    learner.save = learner.export = lambda *_, **__: None  # They ask for a robot's description.
    return learner


@contextmanager
def both(agent: FastSacConfig) -> Iterator[tuple[FastSacLearner, Any]]:
    """Yield both learners on `Blank`, with the same weights, normalisers and temperature."""
    torch.manual_seed(0)
    blank: Any = Blank()
    ours = FastSacLearner(blank, agent, World())
    with tempfile.TemporaryDirectory() as directory:
        theirs = new_published(blank, agent, 1, directory)
    for layer in (theirs.actor.fc_mu[0], theirs.actor.fc_logstd):
        torch.nn.init.normal_(layer.weight, std=0.02)  # They begin as zero.
        torch.nn.init.normal_(layer.bias, std=0.1)
    for weights in theirs.qnet_target.parameters():
        weights.data += 0.1 * torch.randn_like(weights)
    for normaliser in (theirs.obs_normalizer, theirs.critic_obs_normalizer):
        normaliser.update(0.5 + 2 * torch.randn(1000, Blank.size))
    copy_weights(ours, theirs)
    yield ours, theirs


def copy_weights(ours: FastSacLearner, theirs: Any) -> None:  # noqa: ANN401
    """Give our learner the weights and normalisers of the published one."""
    heads = {
        f"9.{name}": torch.cat([getattr(theirs.actor.fc_mu[0], name), getattr(theirs.actor.fc_logstd, name)])
        for name in ("weight", "bias")
    }
    ours.actor.network.load_state_dict({**theirs.actor.net.state_dict(), **heads})
    for mine, its in ((ours.critics, theirs.qnet), (ours.targets, theirs.qnet_target)):
        for network, other in zip(mine.networks, its.qnets, strict=True):
            network.load_state_dict(other.net.state_dict())
    ours.actor.normaliser.load_state_dict(theirs.obs_normalizer.state_dict())
    ours.critics.normaliser.load_state_dict(theirs.critic_obs_normalizer.state_dict())


def compare_updates() -> None:
    """Print differences of losses, gradients and targets in one update of each learner."""
    agent = settings(max_return=UNSCALED_RETURN, max_grad_norm=1e9)
    for are_equal in (True, False):  # The two target critics.
        with both(agent) as (ours, theirs):
            if are_equal:
                theirs.qnet_target.qnets[1].load_state_dict(theirs.qnet_target.qnets[0].state_dict())
                copy_weights(ours, theirs)
            batch, data = same_batch(agent, theirs)
            targets = captured(ours.targets, "projected"), captured(theirs.qnet_target, "projection")
            with targets[0] as mine, targets[1] as its:
                torch.manual_seed(1)
                critic_loss = ours._critic_loss(batch)  # noqa: SLF001
                ours._critic_gradients.compute(critic_loss)  # noqa: SLF001
                torch.manual_seed(1)
                _, _, its_critic_loss, *_, its_temperature_loss = theirs._update_main(data)  # noqa: SLF001
            if not are_equal:
                differ("target distribution, mean of the published two", mine[0], its[0].mean(dim=0))
                differ("target distribution, each of the published two", mine[0].expand_as(its[0]), its[0])
                continue
            differ("target distribution, target critics equal", mine[0].expand_as(its[0]), its[0])
            differ("critic loss", critic_loss, its_critic_loss)
            critics = (
                (network, other.net) for network, other in zip(ours.critics.networks, theirs.qnet.qnets, strict=True)
            )
            differ("gradient of the critics", *(flat(networks) for networks in zip(*critics, strict=True)))
            temperature_gradient = theirs.log_alpha.grad.clone()
            theirs.log_alpha.data.fill_(ours.temperature.log_value.item())  # It was updated before the actor.
            copy_weights(ours, theirs)
            torch.manual_seed(1)
            its_actor_loss = theirs._update_pol(data)[1]  # noqa: SLF001
            torch.manual_seed(1)
            actor_loss, temperature_loss, entropy = ours._actor_losses(batch.observations)  # noqa: SLF001
            ours._actor_gradients.compute(actor_loss + temperature_loss)  # noqa: SLF001
            differ("actor loss", actor_loss, its_actor_loss)
            differ("gradient of the actor", flat([ours.actor.network]), its_actor_gradient(theirs.actor))
            differ("temperature loss", entropy * agent.initial_temperature, its_temperature_loss)
            differ("gradient of the temperature", ours.temperature.log_value.grad, temperature_gradient[0])
    compare_log_probs(agent)


def compare_log_probs(agent: FastSacConfig) -> None:
    """Print differences of log-probabilities for actions close to the limits."""
    with both(agent) as (ours, theirs):
        theirs.actor.fc_mu[0].bias.data.fill_(5.0)
        copy_weights(ours, theirs)
        raw = torch.randn(agent.batch_size, Blank.size)
        torch.manual_seed(1)
        mine = ours.actor.sample(raw)
        torch.manual_seed(1)
        its = theirs.actor.get_actions_and_log_probs(theirs.obs_normalizer(raw, update=False))
        differ("actions, where tanh saturates", mine[0], its[0])
        differ("log-probabilities, where tanh saturates", mine[1], its[1])


def same_batch(agent: FastSacConfig, theirs: Any) -> tuple[Batch, dict[str, Any]]:  # noqa: ANN401
    """Return one batch for both learners. Next and present observations are equal: see the temperature."""
    size = agent.batch_size
    observations, actions = torch.randn(size, Blank.size), torch.rand(size, Blank.num_actions) * 2 - 1
    rewards, steps = torch.randn(size) * 3, torch.randint(1, agent.num_step_returns + 1, (size,))
    ended, timed_out = torch.rand(size) < 0.3, torch.rand(size) < 0.5  # noqa: PLR2004
    normalised = theirs.obs_normalizer(observations, update=False)
    critic_normalised = theirs.critic_obs_normalizer(observations, update=False)
    batch = Batch(
        observations={"policy": observations},
        following={"policy": observations},
        actions=actions,
        rewards=rewards,
        discounts=agent.gamma**steps,
        terminated=ended & ~timed_out,
    )
    following = {
        "observations": normalised,
        "critic_observations": critic_normalised,
        "rewards": rewards,
        "dones": ended,
        "truncations": ended & timed_out,
        "effective_n_steps": steps,
    }
    data = {"observations": normalised, "critic_observations": critic_normalised, "actions": actions, "next": following}
    return batch, data


@contextmanager
def captured(owner: object, name: str) -> Iterator[list[torch.Tensor]]:
    """Yield the list of what the method returns in the body."""
    method, results = getattr(owner, name), list[torch.Tensor]()

    def call(*args: torch.Tensor) -> torch.Tensor:
        results.append(method(*args))
        return results[-1]

    with patch.object(owner, name, call):
        yield results


def flat(networks: Sequence[torch.nn.Module]) -> torch.Tensor:
    """Return all gradients in a row."""
    gradients = [weights.grad for network in networks for weights in network.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def its_actor_gradient(actor: Any) -> torch.Tensor:  # noqa: ANN401
    """Return the gradients of the published actor in the order of ours, which has both heads in one layer."""
    heads = [getattr(head, name).grad for name in ("weight", "bias") for head in (actor.fc_mu[0], actor.fc_logstd)]
    return torch.cat([flat([actor.net]), *(gradient.flatten() for gradient in heads)])


def differ(name: str, mine: torch.Tensor | None, its: torch.Tensor) -> None:
    """Print a row of the table."""
    assert mine is not None and mine.shape == its.shape, name  # noqa: S101, PT018
    show(f"| {name} | {(mine - its).abs().max():.1e} | {its.abs().max():.3g} |")


def compare_batches(updates: int = 8, delay: int = 4) -> None:
    """Print of how many environments the batches are that one step of training updates the actor with."""
    agent = settings(updates_per_step=updates, policy_delay=delay, num_step_returns=1, batch_size=64 * Blank.num_envs)
    with both(agent) as (_, theirs):
        number = torch.arange(Blank.num_envs, dtype=torch.float32)
        observations = number.unsqueeze(1).expand(-1, Blank.size)
        row = dict.fromkeys(("actor", "critic", "next_actor", "next_critic"), observations)
        row |= {"actions": torch.zeros(Blank.num_envs, Blank.num_actions), "rewards": number}
        row |= {"ended": number < 0, "terminated": number < 0}
        replay = new_replay(row, 64)
        for _ in range(64):
            add(replay, row)
            theirs.rb.extend(renamed(row))
        batches = theirs._sample_and_prepare_batches(64, updates, torch.nn.Identity(), torch.nn.Identity())  # noqa: SLF001
    # The published loop updates the actor with each `delay`-th batch from the second on; ours from the first on.
    its = torch.cat([batch["observations"][:, 0] for batch in batches[1::delay]]).unique()
    drawn = replay.draw(updates, agent.batch_size, 1)
    mine = replay.observations_of(drawn[::delay].flatten())["policy"][:, 0].unique()
    show(
        f"\nOf {Blank.num_envs} environments, {updates} updates a step, {updates // delay} of them the actor's: its "
        f"batches are from {len(mine)} in Shoal's and from {len(its)} in the published one."
    )


def new_replay(row: dict[str, torch.Tensor], capacity: int) -> Replay:
    """Return our replay buffer for such steps."""
    observations, num_actions = {"policy": row["actor"]}, row["actions"].shape[1]
    return Replay(
        observations, num_actions, capacity=capacity, steps_per_iteration=capacity, max_episode_length=capacity
    )


def add(replay: Replay, row: dict[str, torch.Tensor]) -> None:
    """Add a step of all environments, and make room for as many."""
    following = {"policy": row["next_actor"]}
    extras = {"time_outs": row["ended"] & ~row["terminated"], "final_observation": following}
    replay.begin({"policy": row["actor"]})
    replay.add(row["actions"], following, row["rewards"], row["ended"], extras)
    replay.reserve(int(replay.finals_in_use))


Sample = tuple[float, float, float]
"""Sum of rewards, discount of the critic's estimate, and next observation, which is a number here."""


def compare_replays(num_steps: int = 3, capacity: int = 16, num_envs: int = 64, gamma: float = 0.9) -> None:
    """Print how many samples of both replay buffers are wrong, before and after the oldest steps were overwritten."""
    module: Any = importlib.import_module("holosoma.agents.fast_sac.fast_sac_utils")
    torch.manual_seed(0)
    ours = None
    theirs = module.SimpleReplayBuffer(num_envs, capacity, 1, 1, 1, num_steps, gamma, "cpu")
    history: list[dict[str, torch.Tensor]] = []
    for step in range(capacity + capacity // 2):
        number = (step * num_envs + torch.arange(num_envs, dtype=torch.float32)).unsqueeze(1)
        ended = torch.rand(num_envs) < 0.15  # noqa: PLR2004
        terminated = ended & (torch.rand(num_envs) < 0.5)  # noqa: PLR2004
        after = {"next_actor": number + num_envs, "next_critic": number + num_envs}
        rewards = {"rewards": torch.rand(num_envs), "ended": ended, "terminated": terminated}
        history.append({"actor": number, "critic": number, "actions": number} | after | rewards)
        ours = new_replay(history[-1], capacity) if ours is None else ours
        add(ours, history[-1])
        theirs.extend(renamed(history[-1]))
        if step + 1 in {capacity - 1, capacity + capacity // 2}:
            mine, its = samples(ours, theirs, num_steps, gamma)
            wrong = [
                sum(not near(sample, expected(history, key, num_steps, gamma)) for key, sample in found.items())
                for found in (mine, its)
            ]
            show(
                f"\nReplay buffers of {capacity} steps, {step + 1} steps added: {wrong[0]} of {len(mine)} samples are "
                f"wrong in Shoal's, {wrong[1]} of {len(its)} in the published one."
            )


def renamed(row: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return a step of all environments as the published replay buffer takes it."""
    following = {
        "observations": row["next_actor"],
        "critic_observations": row["next_critic"],
        "rewards": row["rewards"],
        "dones": row["ended"].long(),
        "truncations": (row["ended"] & ~row["terminated"]).long(),
    }
    return {
        "observations": row["actor"],
        "critic_observations": row["critic"],
        "actions": row["actions"],
        "next": following,
    }


def samples(ours: Replay, theirs: Any, num_steps: int, gamma: float) -> Iterator[dict[float, Sample]]:  # noqa: ANN401
    """Yield many samples of our buffer, and of the published one, by their first observation."""
    batch, data = ours.batch(ours.draw(1, 200_000, num_steps)[0], num_steps, gamma), theirs.sample(3_000)
    after = data["next"]
    bootstraps = after["truncations"].bool() | ~after["dones"].bool()
    first, following = batch.observations["policy"], batch.following["policy"]
    yield by_first(first, batch.rewards, batch.discounts * ~batch.terminated, following)
    discounts = gamma ** after["effective_n_steps"] * bootstraps
    yield by_first(data["observations"], after["rewards"], discounts, after["observations"])


def by_first(first: torch.Tensor, *columns: torch.Tensor) -> dict[float, Sample]:
    """Return rows by the first column."""
    rows = torch.stack([column.flatten() for column in columns], dim=1).tolist()
    return {number: (row[0], row[1], row[2]) for number, row in zip(first.flatten().tolist(), rows, strict=True)}


def expected(history: Sequence[dict[str, torch.Tensor]], number: float, num_steps: int, gamma: float) -> Sample:
    """Return the sample that begins with an observation, by its definition."""
    first, env = divmod(int(number), len(history[0]["rewards"]))
    total, discount, last = 0.0, 1.0, number
    for row in history[first : first + num_steps]:
        total += discount * float(row["rewards"][env])
        discount *= gamma
        last = float(row["next_actor"][env])
        if row["ended"][env]:
            return total, 0.0 if row["terminated"][env] else discount, last
    return total, discount, last


def near(sample: Sample, other: Sample) -> bool:
    """Return whether two samples are equal but for rounding."""
    return all(abs(a - b) < 1e-5 for a, b in zip(sample, other, strict=True))  # noqa: PLR2004


def compare_times(rounds: int = 7, updates: int = 40) -> None:
    """Print the time of an update with its sampling, a median of alternating rounds."""
    agent = settings()
    ours, theirs = filled(agent)
    seconds: dict[str, list[tuple[float, float]]] = {"Shoal": [], "published": []}
    for _ in range(rounds):
        for name, update in (("Shoal", ours), ("published", theirs)):
            began = time.perf_counter(), time.process_time()
            update(updates)
            ended = time.perf_counter(), time.process_time()
            seconds[name].append(((ended[0] - began[0]) / updates, (ended[1] - began[1]) / updates))
    for number, clock in enumerate(("wall", "CPU")):
        medians = {name: statistics.median(each[number] for each in rows) for name, rows in seconds.items()}
        shown = ", ".join(f"{name} {1e3 * each:.1f} ms" for name, each in medians.items())
        ratio = medians["published"] / medians["Shoal"]
        show(f"\nAn update with {agent.batch_size} samples [{clock} time]: {shown}; ratio {ratio:.2f}.")


def filled(agent: FastSacConfig) -> tuple[Callable[[int], object], Callable[[int], object]]:
    """Return functions that take updates from replay buffers with random steps, by each learner."""
    env: Any = new_env(NUM_ENVS, 0)
    ours = FastSacLearner(env, replace(agent, num_steps_per_env=1), World())
    size = ours._inputs.sizes["actor"]  # noqa: SLF001
    with tempfile.TemporaryDirectory() as directory:
        theirs = new_published(env, agent, 1, directory)
    for _ in range(64):
        row = {name: torch.randn(NUM_ENVS, size) for name in ("actor", "critic", "next_actor", "next_critic")}
        ended = torch.rand(NUM_ENVS) < 0.01  # noqa: PLR2004
        row |= {"actions": torch.rand(NUM_ENVS, env.num_actions), "rewards": torch.rand(NUM_ENVS)}
        row |= {"ended": ended, "terminated": ended}
        if ours._replay is None:  # noqa: SLF001
            ours._replay = new_replay(row, agent.replay_steps)  # noqa: SLF001
        add(ours._replay, row)  # noqa: SLF001
        theirs.rb.extend(renamed(row))

    def update_ours(number: int) -> None:
        for _ in range(number):
            ours._update()  # noqa: SLF001

    def update_theirs(number: int) -> None:
        per_env = agent.batch_size // NUM_ENVS
        for step in range(number):
            normalisers = theirs.obs_normalizer.forward, theirs.critic_obs_normalizer.forward
            (data,) = theirs._sample_and_prepare_batches(per_env, 1, *normalisers)  # noqa: SLF001
            theirs._update_main(data)  # noqa: SLF001
            if step % agent.policy_delay == 0:
                theirs._update_pol(data)  # noqa: SLF001
            with torch.no_grad():
                torch._foreach_lerp_(list(theirs.qnet_target.parameters()), list(theirs.qnet.parameters()), agent.tau)

    return update_ours, update_theirs


class RecordedEnv(WarpVecEnv):
    """Environments that keep the mean returns of whole episodes by time."""

    def __init__(self, task: KernelTask[Any]) -> None:
        super().__init__(task)
        self.keep_final_observations()
        self.returns: list[float] = []
        """Mean return of the episodes that ended within each episode length."""
        self._running, self._whole = torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)
        self._steps, self._sum, self._count = 0, 0.0, 0

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment, and record."""
        result = super().step(actions)
        _, rewards, dones, _ = result
        ended = dones.to(torch.bool)
        self._running += rewards
        self._sum += float(self._running[ended & self._whole].sum())
        self._count += int((ended & self._whole).sum())
        self._running[ended] = 0.0
        self._whole |= ended
        self._steps += 1
        if self._steps % int(self.max_episode_length) == 0:
            self.returns.append(self._sum / max(1, self._count))
            self._sum, self._count = 0.0, 0
            logger.info("%.2f M steps: return %.1f", 1e-6 * self._steps * self.num_envs, self.returns[-1])
        return result


def new_task(num_envs: int, seed: int) -> KernelTask[Any]:
    """Return the simulation of the task."""
    spec = registry.resolve(TASK)
    return spec.build(spec.env, num_envs=num_envs, device="cpu", seed=1 + seed)


def new_env(num_envs: int, seed: int) -> RecordedEnv:
    """Return environments of the task."""
    return RecordedEnv(new_task(num_envs, seed))


class Unscaled(FastSacLearner):
    """Our learner without its scale of rewards."""

    def _learn_scales(self, seen: Mapping[str, torch.Tensor], rewards: torch.Tensor, ended: torch.Tensor) -> None:
        """Leave the scale of rewards at 1."""
        begun = copy.deepcopy(self.scale.state_dict())
        super()._learn_scales(seen, rewards, ended)
        self.scale.load_state_dict(begun)


def train_ours(name: str, env: RecordedEnv, seed: int, steps: int) -> Callable[[TensorDict], torch.Tensor]:
    """Train our learner; return its policy."""
    unscaled = name == "shoal-unscaled"
    agent = settings(max_return=UNSCALED_RETURN) if unscaled else settings()
    iterations = steps // NUM_ENVS // agent.num_steps_per_env
    spec = registry.resolve(TASK)
    config = TrainConfig(
        task=TASK,
        learner="fast_sac",
        env=spec.env,
        agent=agent,
        num_envs=NUM_ENVS,
        max_iterations=iterations,
        seed=seed,
    )
    learner = (Unscaled if unscaled else FastSacLearner)(env, agent, World())
    TrainingLoop(env, learner, config, World()).train(on_row=lambda _: None, save=lambda _: None, stop_requests=dict)
    return learner.policy()


def train_published(env: RecordedEnv, steps: int) -> Callable[[TensorDict], torch.Tensor]:
    """Train the published learner; return its policy."""
    # As the training loop does.
    env.episode_length_buf = torch.randint_like(env.episode_length_buf, high=int(env.max_episode_length))
    with tempfile.TemporaryDirectory() as directory:
        learner = new_published(env, settings(max_return=UNSCALED_RETURN), steps // NUM_ENVS - 1, directory)
        with redirect_stderr(io.StringIO()):  # A progress bar.
            learner.learn()
    policy, groups = learner.get_inference_policy(), groups_of(env)
    return lambda observations: policy({"actor_obs": concatenated(observations, groups)})


def compare_trainings(learners: Sequence[str], seeds: Sequence[int], steps: int) -> None:
    """Print a table of returns, one row for each training."""
    stretch = NUM_ENVS * int(new_env(1, 0).max_episode_length)
    marks = range(2, steps // stretch + 1, 2)
    header = [millions(mark * stretch) for mark in marks]
    show("\n| learner, seed | " + " | ".join(header) + f" | {GOOD_RETURN:g} after | without noise |")
    show("| --- |" + " --- |" * (len(header) + 2))
    for seed in seeds:
        for name in learners:
            torch.manual_seed(seed)
            env = new_env(NUM_ENVS, seed)
            policy = train_published(env, steps) if name == "published" else train_ours(name, env, seed, steps)
            cells = [f"{env.returns[mark - 1]:.1f}" for mark in marks]
            good = next((number for number, value in enumerate(env.returns, 1) if value >= GOOD_RETURN), None)
            cells.append(millions(good * stretch) if good else "not reached")
            cells.append(f"{evaluated(policy):.1f}")
            show(f"| {name}, {seed} | " + " | ".join(cells) + " |")


def millions(steps: int) -> str:
    """Return a number of steps in words."""
    return f"{1e-6 * steps:.2f} M"


def evaluated(policy: Callable[[TensorDict], torch.Tensor]) -> float:
    """Return the mean return of an episode in new environments."""
    env = WarpVecEnv(new_task(256, 1000))
    total = torch.zeros(env.num_envs)
    running = torch.ones(env.num_envs, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(int(env.max_episode_length)):
            _, rewards, dones, _ = env.step(policy(env.get_observations()))
            total += rewards * running
            running &= ~dones.to(torch.bool)
    return float(total.mean())


if __name__ == "__main__":
    main()

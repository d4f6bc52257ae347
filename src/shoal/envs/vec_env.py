"""The boundary to rsl_rl: building the environments of a task, and a kernel task as the library's `VecEnv`.

The contract, beyond the library's own:

- Observations are valid until the step after next. Everything else that `step` returns shares the memory of the task's
  arrays, and is valid until the next step. On a GPU a step queues work and returns at once.
- Where `dones` is set, the episode ended with this step: reward and `time_outs` are the old episode's last,
  and the observations are the new episode's first.
- `time_outs` is set where the episode ended because its time was up and not because it failed; it implies
  `dones`.
- `extras["episode_sums"]` holds, where `dones` is set, the contribution of each reward term to the return of the
  episode that ended, in the order of `episode_terms`. They add up to the return.
- ``extras["final_observation"]``, after `keep_final_observations`, holds where `dones` is set the last observations of
  the episode that ended.
- The same seed and actions give the same episodes, bit for bit, on the CPU, and on a GPU for tasks without MuJoCo.
  MuJoCo Warp on a GPU orders contacts and sums by threads: two runs differ by rounding first, and soon by whole
  trajectories. With `--env.deterministic` they are equal on an emulated GPU; no real one has shown it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.config import BaseEnvConfig
from shoal.envs.capabilities import BAD_REWARD, Capabilities
from shoal.errors import ShoalError, UsageError, shown
from shoal.heartbeat import Heartbeat
from shoal.sim.bridge import to_torch
from shoal.sim.graphs import torch_stream
from shoal.sim.nan.dump import Dump
from shoal.sim.render.images import Images
from shoal.sim.render.rows import Picture
from shoal.sim.task import CommandRange, Task
from shoal.tasks.registry import TaskSpec


class WarpVecEnv(Capabilities, VecEnv):
    """A kernel task for rsl_rl's algorithms and runners."""

    can_restart = True

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.num_envs = task.num_envs
        self.num_actions = task.num_actions
        self.max_episode_length = task.max_episode_length
        """Steps after which an episode is cut off."""
        self.device = task.device.alias
        self.cfg = task.config
        self.step_dt = task.step_dt
        """Simulated time between two actions [s]; rsl_rl's RND scales its reward with it."""
        self.episode_terms = task.reward_terms
        self.terminations = task.terminations
        self.observation_terms = task.observation_terms
        self.metrics = task.metrics
        """Names of the metrics in ``extras["log"]``, where ``Metrics/`` stands before them."""
        self.best_metric = f"Metrics/{task.best_metric}" if task.best_metric else None
        self._actions = to_torch(task.actions)
        self._rewards = to_torch(task.reward)
        self._dones = to_torch(task.done)
        self._episode_length = to_torch(task.episode_length)
        self._extras: dict[str, Any] = {
            "time_outs": to_torch(task.time_out),
            "episode_sums": to_torch(task.finished_sums),
            "diverged": to_torch(task.divergences),
            "log": {},
        }
        if task.terminations:
            self._extras["done_terms"] = to_torch(task.done_terms)
        if task.metrics:
            columns = to_torch(task.metric_values).unbind(dim=1)
            self._extras["log"] = {
                f"Metrics/{name}": column for name, column in zip(task.metrics, columns, strict=True)
            }
        self._live = self._tensors(task.obs)
        # Locked: a group that a caller added would come back two steps later with old values.
        self._observations = [
            TensorDict(
                {group: tensor.clone() for group, tensor in self._live.items()},
                batch_size=[task.num_envs],
                device=self._actions.device,
            ).lock_()
            for _ in range(2)
        ]
        """Copies of the observations, written in turn: rsl_rl stores those it acted on only after the next step."""

    def keep_final_observations(self) -> None:
        """Give ``extras["final_observation"]``, a tensor for each group, from now on."""
        self.task.keep_final_observations()
        self._extras["final_observation"] = self._tensors(self.task.final_obs)

    def _tensors(self, groups: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return observation groups as live tensors. Shapes (num_envs, columns), of images (num_envs, C, H, W)."""
        shapes = self.task.image_shapes
        return {name: to_torch(array).view(self.num_envs, *shapes.get(name, (-1,))) for name, array in groups.items()}

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps since each episode began. Shape (num_envs,)."""
        return self._episode_length

    # rsl_rl declares an attribute and assigns to it; a property serves it as well.
    @episode_length_buf.setter
    def episode_length_buf(self, lengths: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Copy `lengths` into the shared array: the captured step reads no other."""
        self._episode_length.copy_(lengths)

    @property
    def unwrapped(self) -> WarpVecEnv:
        """This environment: rsl_rl's RND looks for `step_dt` on the innermost of Gymnasium-like wrappers."""
        return self

    def get_observations(self) -> TensorDict:
        """Return the observations of the last step or reset."""
        copies = self._observations[0]
        for group, tensor in self._live.items():
            copies[group].copy_(tensor)
        return copies

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action.

        Args:
            actions: Shape (num_envs, num_actions).

        Returns:
            observations: One tensor for each group, shape (num_envs, columns), of images (num_envs, channels,
                height, width).
            rewards: Shape (num_envs,).
            dones: Booleans, shape (num_envs,).
            extras: ``time_outs``, booleans of shape (num_envs,); ``episode_sums``, shape (num_envs,
                num_terms); ``log``, the task's metrics, each of shape (num_envs,); ``diverged``, the number of
                divergences since `take_warnings`, shape (num_envs,); ``done_terms``, which terminations hold, booleans
                of shape (num_envs, number of terminations), if it has any.
        """
        if actions.shape != self._actions.shape:
            raise ShoalError(
                f"The actions have the shape {tuple(actions.shape)}, but {self.num_envs} environments with "
                f"{self.num_actions} actions each need {tuple(self._actions.shape)}."
            )
        self._actions.copy_(actions.detach())
        self.task.step()
        self._observations.reverse()
        extras = {**self._extras, "log": {**self._extras["log"], **self.task.log}}
        return self.get_observations(), self._rewards, self._dones, extras

    @property
    def steps_in_any_thread(self) -> bool:
        """Whether another thread may run the steps: one captured graph, and no Python of a task's author.

        Curricula may write numbers between two steps. Waits for the device.
        """
        is_ours = type(self) is WarpVecEnv and type(self.task).step.__module__.startswith("shoal.")
        return is_ours and self.task.graph.is_whole and not self.task.curriculum()

    def take_warnings(self) -> tuple[int, dict[str, str]]:
        """Return the number of environments that diverged since the last call, and warnings: a sentence by kind.

        It waits for the device, and so belongs between two rollouts.
        """
        warnings = dict(self.task.take_warnings())
        bad = self.task.bad_terms.numpy().copy()
        self.task.bad_terms.zero_()
        if bad.any():
            named = " and ".join(
                f"'{self.task.reward_terms[term - 1]}' of environments {shown(np.flatnonzero(bad == term).tolist())}"
                for term in np.unique(bad[bad > 0])
            )
            warnings[BAD_REWARD] = (
                f"the state was finite, but the reward term {named} was NaN or infinite: look at its function"
            )
        return int(np.count_nonzero(self.task.take_divergences())), warnings

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the state of the curriculum, see `Task.curriculum`."""
        return self.task.curriculum()

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Restore such counts, and begin a new episode in every environment."""
        self.task.set_curriculum(counts)
        self.task.restart()

    def follow_metrics(self, means: Mapping[str, float]) -> None:
        """Let a curriculum go on by the metrics of an iteration, see `Task.follow_metrics`."""
        self.task.follow_metrics(means)

    def rows(self) -> dict[str, torch.Tensor]:
        """Return all that the next step depends on, live, by name. Shapes (num_envs, ...)."""
        rows = {name: to_torch(array) for name, array in self.task.arrays.items()}
        return rows | {f"host/{name}": torch.from_numpy(array) for name, array in self.task.host_state.items()}

    def put_rows(self, rows: Mapping[str, torch.Tensor]) -> None:
        """Restore rows of the first environments; the others keep theirs."""
        live = self.rows()

        def copy() -> None:
            for name, values in rows.items():
                live[name][: len(values)].copy_(values)

        copy()
        self.task.apply_parameters()
        copy()  # Again: applying parameters may have derived something from an older state.

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment, see `Task.restart`."""
        self.task.restart(seed, first)

    def reset(self, seed: int | None = None) -> TensorDict:
        """Begin a new episode in every environment, and return its first observations."""
        self.restart(seed)
        return self.get_observations()

    def dump(self, name: str, *, rank: int, iteration: int) -> Dump | None:
        """Return the last steps of the environments that diverged, see `Task.dump`."""
        return self.task.dump(name, rank=rank, iteration=iteration)

    def picture(self) -> Picture:
        """Return what videos and viewers draw, see `Task.scene`."""
        task = self.task
        images = {name: Images(self._live[name], tiles) for name, tiles in task.image_tiles.items()}
        return Picture(task.scene(), task.positions(), task.step_dt, task.arrays, task.marks, task.scan, images)

    def commands(self) -> tuple[Mapping[str, CommandRange], torch.Tensor | None]:
        """Return name and range of each command, and their live tensor, which a viewer writes."""
        return self.task.commands, to_torch(self.task.command_array) if self.task.commands else None

    def hold_commands(self, *, held: bool) -> None:
        """Leave the commands as a viewer has written them, or draw and update them again."""
        self.task.commands_held.fill_(int(held))

    def term_rewards(self) -> dict[str, torch.Tensor]:
        """Return what each reward term added to the reward of the last step, by name. Shapes (num_envs,)."""
        added = to_torch(self.task.terms) * to_torch(self.task.weights)
        return dict(zip(self.task.reward_terms, added.unbind(dim=1), strict=True))

    def records(self) -> dict[str, torch.Tensor]:
        """Return what a recording has beside the rest, at present, see `Task.record`."""
        with torch_stream(self.task.device):
            return {name: to_torch(array) for name, array in self.task.record().items()}

    def deployment(self) -> dict[str, Any]:
        """Return what a controller needs beside the network, see `Task.deployment`."""
        return self.task.deployment()


def build_vec_env(  # noqa: PLR0913  By name.
    spec: TaskSpec, config: BaseEnvConfig, *, num_envs: int, device: str, seed: int, beat: Heartbeat | None = None
) -> VecEnv:
    """Build environments, inside `isolated(device)`, which enters the phase `queue` of `beat` during waits.

    torch's random state begins with `seed`, too.

    Raises:
        UsageError: The task cannot be built, or its builder returns something else than environments.
    """
    if beat is not None:
        beat.enter("compile")
    torch.manual_seed(seed)
    built = spec.build(config, num_envs=num_envs, device=device, seed=seed)
    env = WarpVecEnv(built) if isinstance(built, Task) else built
    if not isinstance(env, VecEnv):
        raise UsageError(
            f"{spec.builder} returned a {type(env).__name__} for the task {spec.name}: return a subclass of "
            "rsl_rl.env.VecEnv, or of Shoal's KernelTask or TermsTask."
        )
    if env.num_envs != num_envs:
        raise UsageError(
            f"{spec.builder} was asked for {num_envs} environments, and returned {env.num_envs} for the task "
            f"{spec.name}: make as many as its argument num_envs says."
        )
    return env

"""The boundary to rsl_rl: a kernel task as the library's `VecEnv`.

The contract, beyond the library's own:

- Every tensor lives on the task's device and shares the memory of the task's arrays. A step copies the
  actions in, and nothing out; on a GPU it queues work and returns at once.
- Observations are valid until the step after next, everything else that `step` returns until the next step.
  Whoever needs them longer makes a copy.
- Where `dones` is set, the episode ended with this step: reward and `time_outs` are the old episode's last,
  and the observations are the new episode's first.
- `time_outs` says that the episode ended because its time was up and not because it failed; it implies
  `dones`.
- `extras["episode_sums"]` holds, where `dones` is set, what each reward term added to the return of the
  episode that ended, in the order of `episode_terms`. They add up to the return.
- On the CPU the same seed gives the same episodes for the same actions, bit for bit. So it does on a GPU for tasks
  without MuJoCo, whose kernels use one thread for each environment. MuJoCo Warp on a GPU numbers contacts, and adds
  forces, in the order in which threads arrive: two runs differ by rounding first, and soon by whole trajectories. With
  `--env.deterministic` they are equal on an emulated GPU; no real one has shown it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.errors import ShoalError
from shoal.sim.bridge import to_torch
from shoal.sim.task_state import put_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch

    from shoal.sim.kernel_task import KernelTask


class WarpVecEnv(VecEnv):
    """A kernel task for rsl_rl's algorithms and runners."""

    def __init__(self, task: KernelTask[Any]) -> None:
        """Take hold of the task's arrays."""
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
        """Names of the columns of ``extras["episode_sums"]``."""
        self._actions = to_torch(task.actions)
        self._rewards = to_torch(task.reward)
        self._dones = to_torch(task.done)
        self._time_outs = to_torch(task.time_out)
        self._episode_sums = to_torch(task.finished_sums)
        self._episode_length = to_torch(task.episode_length)
        columns = to_torch(task.measured).unbind(dim=1) if task.metrics else ()
        self._log = {f"Metrics/{name}": column for name, column in zip(task.metrics, columns, strict=True)}
        self.best_metric = f"Metrics/{task.best_metric}" if task.best_metric else None
        """What scores a checkpoint; None for the mean return of whole episodes, or with a curriculum for nothing."""
        self._lost = to_torch(task.losses)
        # Locked: a group that a caller added would come back two steps later with old values.
        self._observations = tuple(
            TensorDict(
                {group: to_torch(array) for group, array in arrays.items()},
                batch_size=[task.num_envs],
                device=self._actions.device,
            ).lock_()
            for arrays in task.observation_sets
        )

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps since each episode began. Shape (num_envs,)."""
        return self._episode_length

    # rsl_rl declares an attribute and assigns to it; a property serves it as well.
    @episode_length_buf.setter
    def episode_length_buf(self, lengths: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Copy `lengths` into the shared array: the recorded step reads no other."""
        self._episode_length.copy_(lengths)

    @property
    def unwrapped(self) -> WarpVecEnv:
        """This environment: rsl_rl's RND looks for `step_dt` on the innermost of Gymnasium-like wrappers."""
        return self

    def get_observations(self) -> TensorDict:
        """Return the observations that the last step or reset wrote."""
        return self._observations[self.task.newest]

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action.

        Args:
            actions: Shape (num_envs, num_actions).

        Returns:
            observations: One tensor for each group, shape (num_envs, columns).
            rewards: Shape (num_envs,).
            dones: Booleans, shape (num_envs,).
            extras: ``time_outs``, booleans of shape (num_envs,); ``episode_sums``, shape (num_envs,
                num_terms); ``log``, what the task measures, each of shape (num_envs,); ``lost``, how often each
                environment was lost since `take_trouble`, shape (num_envs,), if the task measures anything.
        """
        if actions.shape != self._actions.shape:
            message = (
                f"The actions have the shape {tuple(actions.shape)}, but {self.num_envs} environments with "
                f"{self.num_actions} actions each need {tuple(self._actions.shape)}."
            )
            raise ShoalError(message)
        self._actions.copy_(actions.detach())
        self.task.step()
        extras = {"time_outs": self._time_outs, "episode_sums": self._episode_sums, "log": self._log}
        if self._log:
            extras["lost"] = self._lost
        return self.get_observations(), self._rewards, self._dones, extras

    def take_trouble(self) -> tuple[int, dict[str, str]]:
        """Return how many environments were lost since the last call, and what else went wrong, a sentence by kind.

        It waits for the device, and so belongs between two rollouts.
        """
        return int(self.task.take_losses().sum()), self.task.trouble()

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return what the task's curriculum has come to, see `KernelTask.curriculum`."""
        return self.task.curriculum()

    def take_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Take up such counts, and begin a new episode in every environment."""
        self.task.take_curriculum(counts)
        self.task.restart()

    def rows(self) -> dict[str, torch.Tensor]:
        """Return all that the next step depends on, live, by name. Shapes (num_envs, ...)."""
        return rows_of(self.task)

    def put_rows(self, rows: Mapping[str, torch.Tensor]) -> None:
        """Give the first environments such states; the others keep theirs."""
        put_rows(self.task, rows)

    def reset(self, seed: int | None = None) -> TensorDict:
        """Begin a new episode in every environment, and return its first observations.

        Args:
            seed: Starts the random numbers anew; None goes on with those at hand.
        """
        self.task.restart(seed)
        return self.get_observations()

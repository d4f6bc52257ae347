"""A task of `shoal.tasks.gymnasium_v5` on MuJoCo's C engine, and for each of its environments one of Gymnasium's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from shoal.sim.engines.mujoco_engine import MujocoEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.tasks.gymnasium_v5.tasks import GymnasiumTask
    from shoal.tasks.registry import TaskSpec


class Twins:
    """Both, always in the same state."""

    def __init__(self, spec: TaskSpec, num_envs: int, seed: int) -> None:
        self.task: GymnasiumTask = spec.load_builder()(spec.env, num_envs=num_envs, device="cpu", seed=seed)
        assert isinstance(self.task.engine, MujocoEngine)
        self.engine = self.task.engine
        self.originals: list[Any] = [gymnasium.make(spec.name).unwrapped for _ in range(num_envs)]
        self.positions = self.engine._batch.bind("qpos")
        """MuJoCo's own, 64 bits wide. Shape (num_envs, nq)."""
        self.speeds = self.engine._batch.bind("qvel")
        self.observations = np.zeros((num_envs, *self.originals[0].observation_space.shape))
        """Gymnasium's. Shape (num_envs, columns)."""
        for index, original in enumerate(self.originals):
            original.reset(seed=seed + index)
        self.begin(range(num_envs))

    def begin(self, envs: Sequence[int]) -> None:
        """Begin new episodes, as Gymnasium does: from its own first state, and with what follows from it."""
        if not len(envs):
            return
        for env in envs:
            self.observations[env], _ = self.originals[env].reset()
        ids = np.array(envs)
        batch = self.engine._batch
        batch.reset(ids)
        self.positions[ids] = [self.originals[env].data.qpos for env in envs]
        self.speeds[ids] = [self.originals[env].data.qvel for env in envs]
        batch.forward(ids)
        for theirs, ours in self.engine._state + self.engine._controls + self.engine._derived:
            ours[ids] = theirs[ids]
        if self.engine._after_constraints:
            self.engine._after_constraints.compute(envs)
        self.task.age.numpy()[ids] = 0
        self.task.run("observe")

    def random_actions(self, rng: np.random.Generator) -> np.ndarray:
        """Return actions from all over the action space. Shape (num_envs, num_actions)."""
        low, high = self.task.model.actuator_ctrlrange.T
        return rng.uniform(low, high, self.task.actions.shape).astype(np.float32)

    def step(self, actions: np.ndarray) -> list[tuple[float, bool, dict[str, Any]]]:
        """Step both, and return Gymnasium's rewards, terminations and infos."""
        self.task.actions.assign(actions)
        self.task.step()
        results = []
        for env, original in enumerate(self.originals):
            self.observations[env], reward, terminated, _, info = original.step(actions[env])
            results.append((float(reward), bool(terminated), info))
        return results

"""Environments of Shoal as a vector environment of Gymnasium, with arrays of NumPy, torch or JAX."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from rsl_rl.env import VecEnv

from shoal.envs.capabilities import capabilities_of
from shoal.errors import ShoalError, UsageError
from shoal.learn.training_env import endings


class GymnasiumVectorEnv(VectorEnv[Any, Any, Any]):
    """Environments that begin a new episode in the step that ends one (`AutoresetMode.SAME_STEP`).

    `infos["final_obs"]` has the last observations of the episodes that ended, and `infos["_final_obs"]` where. With
    NumPy the first is an array of objects, and both are there if episodes ended, as in Gymnasium's own environments.
    With torch and JAX both are always there, with a row for each environment: nothing waits for a GPU.
    """

    def __init__(  # noqa: PLR0913  By name.
        self,
        env: VecEnv,
        *,
        observations: str = "policy",
        arrays: Literal["numpy", "torch", "jax"] = "numpy",
        copy: bool = True,
        action_limit: float = 1.0,
        render_mode: str | None = None,
        render_size: tuple[int, int] = (640, 480),
    ) -> None:
        """Take over environments.

        Args:
            env: The environments, as `shoal.make` builds them.
            observations: The observation group that is returned; `all` returns a dict of all.
            arrays: The kind of all arrays that are returned. Actions may be of any.
            copy: Whether arrays stay as they are. Without, they share the memory of the environments where the device
                allows, and observations hold until the step after next, all others until the next step.
            action_limit: Ends of the space of actions, which many learners need. Actions beyond are passed on.
            render_mode: `rgb_array`, for `render`; each environment that is drawn has a renderer of its own.
            render_size: Width and height of a picture [pixels].
        """
        self._env, self._of, self._copy = env, capabilities_of(env), copy
        self.num_envs, self.render_mode, self._size = env.num_envs, render_mode, render_size
        rate = round(1 / getattr(env, "step_dt", 1 / 30))
        self.metadata = {
            "autoreset_mode": AutoresetMode.SAME_STEP,
            "render_modes": ["rgb_array"],
            "render_fps": rate,
        }
        seen: Any = env.get_observations()
        for name, value, known in (
            ("observations", observations, (*seen.keys(), "all")),
            ("arrays", arrays, ("numpy", "torch", "jax")),
            ("render_mode", render_mode, (None, "rgb_array")),
        ):
            if value not in known:
                raise UsageError(f"{name} is {value!r}, but must be one of {', '.join(map(str, known))}.")
        self._arrays = arrays
        self._group = None if observations == "all" else observations
        boxes: dict[str, Any] = {name: Box(-np.inf, np.inf, rows.shape[1:]) for name, rows in seen.items()}
        self.single_observation_space = boxes[self._group] if self._group else Dict(boxes)
        self.single_action_space = Box(-action_limit, action_limit, (env.num_actions,))
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        try:
            self._of.keep_final_observations()
        except UsageError as error:
            raise UsageError(
                "Gymnasium's final_obs are the last observations of each episode, which these environments do not "
                "keep: give them keep_final_observations(), see docs/guide/your_own_environment.md."
            ) from error
        self._is_new, self._cameras = True, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere; with a seed, each follows from it and its index."""
        super().reset(seed=seed)
        if options and "reset_mask" in options:
            raise UsageError("reset_mask was passed, but episodes begin in the step that ends one: leave it out.")
        if not self._of.can_restart and not (self._is_new and seed is None):
            raise UsageError("These environments cannot begin new episodes: make new ones, with another seed.")
        self._of.restart(seed)
        return self._observed(self._env.get_observations()), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401
        """Advance every environment by one action. Shape (num_envs, number of actions)."""
        self._is_new = False
        through_dlpack = hasattr(actions, "__dlpack__") and not isinstance(actions, np.ndarray | torch.Tensor)
        given = torch.from_dlpack(actions) if through_dlpack else torch.as_tensor(actions)
        seen, rewards, dones, extras = self._env.step(given.to(self._env.device, torch.float32))
        done, cut = endings(dones, extras)
        ended, last = self._out(done), extras["final_observation"]
        infos: dict[str, Any] = {}
        if self._arrays != "numpy":
            infos = {"final_obs": self._observed(last), "_final_obs": ended}
        elif ended.any():
            infos = {"final_obs": np.full(self.num_envs, None, dtype=object), "_final_obs": ended}
            last = {name: rows.cpu() for name, rows in last.items()}
            for index in np.flatnonzero(ended):
                infos["final_obs"][index] = self._observed({name: rows[index] for name, rows in last.items()})
        return self._observed(seen), self._out(rewards), self._out(done & ~cut), self._out(cut), infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return a picture of each environment. Shapes (height, width, 3)."""
        if self.render_mode != "rgb_array":
            return None
        picture = self._of.picture()
        positions, read = picture.tensors()
        if not self._cameras:
            self._cameras = [_camera(picture.scene, self._size) for _ in range(self.num_envs)]
        rows = [{name: tensor[index].cpu().numpy() for name, tensor in read.items()} for index in range(self.num_envs)]
        drawn = zip(self._cameras, positions.cpu().numpy(), map(picture.marks, rows), strict=True)
        return tuple(camera.picture(row, marks) for camera, row, marks in drawn)

    def close_extras(self, **_: Any) -> None:  # noqa: ANN401
        """Close the renderers."""
        for camera in self._cameras:
            camera.__exit__()
        self._cameras = []

    def _out(self, tensor: torch.Tensor) -> Any:  # noqa: ANN401
        tensor = tensor.clone() if self._copy else tensor
        if self._arrays == "jax":
            import jax.dlpack

            return jax.dlpack.from_dlpack(tensor)
        return tensor if self._arrays == "torch" else tensor.numpy(force=True)

    def _observed(self, groups: Any) -> Any:  # noqa: ANN401  A mapping, or a TensorDict.
        if self._group:
            return self._out(groups[self._group])
        return {name: self._out(rows) for name, rows in groups.items()}


def _camera(scene: Any, size: tuple[int, int]) -> Any:  # noqa: ANN401
    """Open a renderer."""
    try:
        from shoal.sim.render.camera import Camera

        return Camera(scene, size)
    except Exception as error:
        raise ShoalError(
            f"No picture can be drawn ({error}): set MUJOCO_GL to egl or osmesa before Python imports mujoco."
        ) from error

"""The last steps of every environment, kept on the device until one of them is lost: what `shoal replay` starts from.

Before the physics of each step, all that they start from is copied into a ring. It is part of the recorded step and
nothing is read back; an environment that was lost is recorded no further. `shoal.sim.nan.dump` writes what is kept.
"""

from __future__ import annotations

import logging
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import warp as wp

from shoal import __version__
from shoal.sim.bookkeeping import count_recorded, mark_written, record_rows
from shoal.sim.engines.engine import LARGEST, STATE_ROWS
from shoal.sim.nan.dump import About, Dump, LostEnv
from shoal.sim.render.clip import save_scene

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.sim.mujoco_task import MujocoTask

logger = logging.getLogger(__name__)

MOST_ENVIRONMENTS = 16
"""Environments in a dump. They fail alike, and the first are the cause."""

_PACKAGES = ("mujoco", "mujoco-warp", "warp-lang", "numpy")
_WORD_BYTES = 4


class History:
    """Room for the last `steps` steps of every environment: `num_envs` x `steps` x the bytes of a row."""

    def __init__(self, inputs: Mapping[str, wp.array], losses: wp.array, steps: int, device: wp.Device) -> None:
        """Make room.

        Args:
            inputs: What the physics start from, by name, see `Engine.step_inputs`. Each (num_envs, n) and live.
            losses: How often each environment was lost, (num_envs,). Those that were are recorded no further.
            steps: For how many steps.
            device: Where all of that lives.
        """
        self._losses = losses
        self._device = device
        num_envs = losses.shape[0]
        self._inputs = {name: (array, _words_of(array)) for name, array in inputs.items()}
        self._rings = {
            name: wp.zeros((num_envs, steps, words.shape[1]), dtype=wp.uint32, device=self._device)
            for name, (_, words) in self._inputs.items()
        }
        self._taken = wp.zeros(num_envs, dtype=wp.int32, device=self._device)
        """Steps that were recorded of each environment, since `clear`."""
        self._begins = wp.zeros((num_envs, steps), dtype=wp.bool, device=self._device)
        """Where a recorded state does not follow from the one before it."""
        logger.info(
            "The last %d steps of %s environments are kept for `shoal replay`: %.1f MB.",
            steps,
            f"{num_envs:,}",
            self.num_bytes / 1e6,
        )

    @property
    def num_bytes(self) -> int:
        """The memory that it takes on the device."""
        return sum(ring.size * _WORD_BYTES for ring in self._rings.values())

    def record(self) -> None:
        """Launch what records a step. The controls are set, and the physics come next."""
        for name, (_, words) in self._inputs.items():
            self._launch(record_rows, words.shape, [self._losses, self._taken, words, self._rings[name]])
        self._launch(count_recorded, self._losses.shape, [self._losses, self._taken])

    def mark(self, done: wp.array, moved: wp.array) -> None:
        """Launch what notes the environments whose state the task has written since the physics.

        Args:
            done: Where an episode begins. Shape (num_envs,).
            moved: Where one goes on elsewhere. Shape (num_envs,).
        """
        self._launch(mark_written, self._losses.shape, [done, moved, self._losses, self._taken, self._begins])

    def clear(self) -> None:
        """Forget all steps."""
        self._taken.zero_()
        self._begins.zero_()

    def taken(self) -> np.ndarray:
        """Return how many steps were recorded of each environment since `clear`. Shape (num_envs,). Waits."""
        return self._taken.numpy().copy()

    def of(self, env: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return what is kept of one environment, oldest first. Waits for the device.

        Returns:
            The rows of each input, (steps, n); and whether the task has written the state since the step before,
            (steps,).
        """
        taken, places = int(self.taken()[env]), self._begins.shape[1]
        order = [step % places for step in range(max(0, taken - places), taken)]
        rows = {
            name: self._rings[name][env].numpy()[order].view(wp.dtype_to_numpy(array.dtype))
            for name, (array, _) in self._inputs.items()
        }
        return rows, self._begins[env].numpy()[order]

    def _launch(self, kernel: Callable[..., None], dim: tuple[int, ...], arguments: list[wp.array]) -> None:
        wp.launch(
            kernel,  # pyright: ignore[reportArgumentType] - the decorator turns a function into a kernel
            dim=dim,
            inputs=arguments,
            device=self._device,
        )


def _words_of(array: wp.array) -> wp.array:
    """Return the same memory as words of 32 bits. Shape (num_envs, words)."""
    words = wp.types.type_size_in_bytes(array.dtype) * array.shape[1] // _WORD_BYTES
    return wp.array(ptr=array.ptr, dtype=wp.uint32, shape=(array.shape[0], words), device=array.device)


def dump_of(task: MujocoTask[Any], history: History, name: str, *, rank: int, iteration: int) -> Dump | None:
    """Return what led to the environments that a task has lost since `take_losses`. Waits for the device.

    Args:
        task: The rank's environments.
        history: Their last steps.
        name: What is trained.
        rank: The rank.
        iteration: The iteration that runs, counted from 1.

    Returns:
        None where it has lost none.
    """
    engine = task.engine
    lost, taken = np.flatnonzero(task.losses.numpy()), history.taken()
    if not lost.size:
        return None
    envs: list[LostEnv] = []
    for env in sorted(lost.tolist(), key=lambda each: int(taken[each]))[:MOST_ENVIRONMENTS]:
        rows, begins = history.of(env)
        states = _integration_states(engine.model, rows)
        own = {field: array.numpy()[env] for field, array in engine.parameters.items()}
        envs.append(LostEnv(env=env, step=int(taken[env]), states=states, begins=begins, parameters=own))
    versions = {"shoal": __version__, "python": platform.python_version()}
    about = About(
        task=name,
        engine=engine.name,
        decimation=engine.decimation,
        largest=LARGEST,
        rank=rank,
        num_envs=task.num_envs,
        iteration=iteration,
        lost=len(lost),
        seed=task.seed,
        versions=versions | {package: version(package) for package in _PACKAGES},
    )
    model, scene = save_scene(engine.model), task.scene()
    return Dump(about=about, model=model, scene=model if scene is task.model else save_scene(scene), envs=tuple(envs))


def _integration_states(model: mujoco.MjModel, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return state and controls in MuJoCo's own order, mjSTATE_INTEGRATION.

    Args:
        model: The model.
        rows: What the physics start from, by name, see `Engine.step_inputs`. Each (steps, n).

    Returns:
        64-bit numbers. Shape (steps, size).
    """
    data, spec = mujoco.MjData(model), int(mujoco.mjtState.mjSTATE_INTEGRATION)
    fields = {name: values for name, values in rows.items() if name != STATE_ROWS}
    steps = len(next(iter(rows.values())))
    states = np.empty((steps, mujoco.mj_stateSize(model, spec)))
    for step, state in enumerate(states):
        if STATE_ROWS in rows:
            mujoco.mj_setState(model, data, rows[STATE_ROWS][step], spec)
        for name, values in fields.items():
            setattr(data, name, values[step].reshape(np.shape(getattr(data, name))))
        mujoco.mj_getState(model, data, state, spec)
    return states

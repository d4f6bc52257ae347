"""Step history: the last inputs of the physics of every environment, on the device, until one diverges.

Before the physics of each step, all their inputs are copied into a ring. It is part of the captured step and nothing
is read back. History of an environment that diverged is kept until the next `clear`.
"""

import logging
from collections.abc import Mapping

import mujoco
import numpy as np
import warp as wp

from shoal.provenance import versions
from shoal.sim.bookkeeping import LARGEST, advance, keep_rows
from shoal.sim.engines.engine import STATE_ROWS, Engine, rows_of
from shoal.sim.nan.dump import DivergedEnv, Dump, DumpInfo
from shoal.sim.render.trajectory import save_scene

logger = logging.getLogger(__name__)

MOST_ENVIRONMENTS = 16
"""Environments in a dump. They fail alike, and the first are the cause."""


class History:
    """A ring of the last `steps` steps of every environment: `num_envs` x `steps` x the bytes of a row."""

    def __init__(self, inputs: Mapping[str, wp.array], divergences: wp.array, steps: int, device: wp.Device) -> None:
        """Allocate for `steps` steps of the `Engine.step_inputs`. Nothing is kept where `divergences` is not 0."""
        self._divergences = divergences
        self._device = device
        num_envs = divergences.shape[0]
        self._inputs = {name: (array, rows_of(array, wp.uint32)) for name, array in inputs.items()}
        self._rings = {
            name: wp.zeros((num_envs, steps, words.shape[1]), dtype=wp.uint32, device=device)
            for name, (_, words) in self._inputs.items()
        }
        self._kept = wp.zeros(num_envs, dtype=wp.int32, device=device)
        """Steps of each environment since `clear`; without the one in which it diverged, which is kept too."""
        self._begins = wp.zeros((num_envs, steps), dtype=wp.bool, device=device)
        """Where a kept state does not follow from the one before it."""
        envs, size = f"{num_envs:,}", self.num_bytes / 1e6
        logger.info("The last %d steps of %s environments are kept for `shoal replay`: %.1f MB.", steps, envs, size)

    @property
    def num_bytes(self) -> int:
        """Memory of the ring on the device."""
        return sum(ring.capacity for ring in self._rings.values())

    def keep(self) -> None:
        """Launch kernels that keep a step. The controls are set, and the physics come next."""
        for name, (_, words) in self._inputs.items():
            arguments = [self._divergences, self._kept, words, self._rings[name]]
            wp.launch(keep_rows, words.shape, arguments, device=self._device)

    def mark(self, done: wp.array, moved: wp.array) -> None:
        """Launch the kernel that ends a step, and marks states that the task has written since: `done` or `moved`."""
        arguments = [done, moved, self._divergences, self._kept, self._begins]
        wp.launch(advance, self._divergences.shape, arguments, device=self._device)

    def clear(self) -> None:
        """Forget all steps."""
        self._kept.zero_()
        self._begins.zero_()

    def _of(self, env: int, kept: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the rows of each input of one environment, (steps, n), of the last of `kept` steps, oldest first.

        Also returns, (steps,), whether the task has written the state since the step before.
        """
        slots = self._begins.shape[1]
        order = [step % slots for step in range(max(0, kept - slots), kept)]
        rows = {
            name: self._rings[name][env].numpy()[order].view(wp.dtype_to_numpy(array.dtype))
            for name, (array, _) in self._inputs.items()
        }
        return rows, self._begins[env].numpy()[order]

    def dump(
        self, engine: Engine, scene: mujoco.MjModel | None, *, task: str, rank: int, iteration: int, seed: int
    ) -> Dump | None:
        """Return the kept steps of the environments that diverged first; None where none did. Waits for the device.

        `scene` is the model that videos show, if that is not the engine's. Other arguments are fields of `DumpInfo`.
        """
        diverged, kept = np.flatnonzero(self._divergences.numpy()), self._kept.numpy() + 1
        if not diverged.size:
            return None
        envs: list[DivergedEnv] = []
        for env in sorted(diverged.tolist(), key=lambda each: int(kept[each]))[:MOST_ENVIRONMENTS]:
            rows, begins = self._of(env, int(kept[env]))
            states = _integration_states(engine.model, rows)
            own = {field: array.numpy()[env] for field, array in engine.parameters.items()}
            envs.append(DivergedEnv(env=env, step=int(kept[env]), states=states, begins=begins, parameters=own))
        info = DumpInfo(
            task=task,
            engine=engine.name,
            decimation=engine.decimation,
            largest=LARGEST,
            rank=rank,
            num_envs=engine.num_envs,
            iteration=iteration,
            diverged=len(diverged),
            seed=seed,
            versions=versions(),
        )
        model = save_scene(engine.model)
        return Dump(info=info, model=model, scene=model if scene is None else save_scene(scene), envs=tuple(envs))


def _integration_states(model: mujoco.MjModel, rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return state and controls in MuJoCo's own order, mjSTATE_INTEGRATION, as 64-bit numbers, (steps, size).

    `rows` has the inputs of the physics by name, see `Engine.step_inputs`, each (steps, n).
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

"""MuJoCo's C engine, for many environments on this rank's share of the cores.

MuJoCo computes in 64 bits and keeps the state. Kernels and torch see 32-bit copies of the fields that the task asked
for, each refreshed once a step in one vectorised copy. Only controls and parameters that change flow back, and the
state of environments that were reset or marked as moved: all else is MuJoCo's to the last bit.
"""

import ctypes
import logging
from collections.abc import Callable
from copy import copy

import mujoco
import numpy as np
import warp as wp
from mujoco.batch import Batch, SimulationError

from shoal.errors import ShoalError, TrainingFailedError
from shoal.sim.engines.engine import AFTER_CONSTRAINTS, CONTROLS, STATE, STATE_ROWS, Engine, rows_of, some_of
from shoal.sim.engines.post_constraint import LIBRARY, PostConstraint

_Pair = tuple[np.ndarray, np.ndarray]

logger = logging.getLogger(__name__)

_FULL = {mujoco.mjtWarning.mjWARN_CONTACTFULL: "contacts", mujoco.mjtWarning.mjWARN_CNSTRFULL: "constraints"}


class MujocoEngine(Engine):
    """Environments in one `mujoco.batch.Batch`."""

    name = "mujoco"
    title = "MuJoCo C"
    is_on_host = True

    def __init__(
        self, model: mujoco.MjModel, *, num_envs: int, decimation: int, device: wp.Device, threads: int
    ) -> None:
        """Copy the model; `threads` is the number of cores to use. For the rest see `Engine`."""
        model = copy(model)
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET  # The task resets diverged environments.
        model.opt.disableflags |= _needless(model)
        # MuJoCo's bindings install a clock for its profiler. Reading it took up to half of a small model's step.
        ctypes.c_void_p.in_dll(LIBRARY, "mjcb_time").value = None
        super().__init__(model, num_envs=num_envs, decimation=decimation, device=device)
        self._threads = min(threads, num_envs)
        # MuJoCo's array and ours, of each field and parameter that its batch serves.
        self._state: list[_Pair] = []
        self._controls: list[_Pair] = []
        self._derived: list[_Pair] = []
        self._expanded: list[_Pair] = []
        self._changing: list[_Pair] = []
        self._after_constraints: PostConstraint | None = None
        """The other fields."""

    def _open(self, name: str) -> wp.array:
        return self._allocate(name, getattr(self._template, name))

    def start(self) -> None:
        """Make the batch, and bind its arrays."""
        fields = {name: array.numpy() for name, array in self.fields.items()}
        after = {name: fields.pop(name) for name in AFTER_CONSTRAINTS & fields.keys()}
        # These are computed from one simulation's own MjData, which only a persistent batch keeps.
        self._batch = Batch(self.model, nsim=self.num_envs, nthread=self._threads, persistent=bool(after))
        if after:
            self._after_constraints = PostConstraint(self._batch, self._template, after)
        self._initial = self._batch.state.copy()
        self._warned = self._batch.warning[:, :, 1].copy()
        self._stage = self.stage(self.derived)
        # Without it MuJoCo writes warnings to a file in the working directory.
        mujoco.set_mju_user_warning(lambda message: logger.debug("MuJoCo: %s", message))
        for name, ours in fields.items():
            theirs = _array_of(self._batch.bind, name)
            kind = self._state if name in STATE else self._controls if name in CONTROLS else self._derived
            kind.append((theirs, ours.reshape(theirs.shape)))
        for name, array in self.parameters.items():
            theirs = _array_of(self._batch.expand, name)
            pair = theirs, array.numpy().reshape(theirs.shape)
            self._expanded.append(pair)
            if name in self.changing:
                self._changing.append(pair)

    def step(self) -> None:
        """Advance all environments."""
        size = self.decimation if self.actuate is None and self.sensor_history is None else 1
        for at in range(self.decimation // size):
            if self.actuate:
                self.actuate(at)
            for theirs, ours in self._controls + self._changing:
                np.copyto(theirs, ours)
            self._run(lambda: self._batch.step(nstep=size))
            if self.sensor_history is not None:
                np.copyto(self.kept_sensors(at).numpy(), self._batch.bind("sensordata"), casting="same_kind")
            if self.actuate or at == self.decimation // size - 1:
                for theirs, ours in self._state + self._derived:
                    np.copyto(ours, theirs, casting="same_kind")
        if self._after_constraints:
            self._after_constraints.compute(range(self.num_envs))

    def reset(self, done: wp.array) -> None:
        """Set environments to the model's own state."""
        ids = np.flatnonzero(done.numpy())
        if ids.size:
            self._batch.state[ids] = self._initial[ids]
            for theirs, ours in self._state + self._controls:
                ours[ids] = theirs[ids]

    def forward(self, done: wp.array, moved: wp.array, *, everywhere: bool = False) -> None:
        """Read the state and the parameters of some environments, and derive the rest."""
        mask = moved.numpy()
        ids = np.flatnonzero(done.numpy() | mask)
        if not ids.size and not everywhere:
            return
        mask.fill(False)  # noqa: FBT003  numpy names no such argument.
        for theirs, ours in self._state + self._controls + self._changing:
            theirs[ids] = ours[ids]
        if self.derives_constants and ids.size:
            self._run(lambda: self._batch.set_const(ids))
        # Fields that are read later only cost little where few environments are derived.
        stage = self.stage(self.derived & self.begun) if everywhere else self._stage
        if stage is None:
            return
        ids = np.arange(self.num_envs) if everywhere else ids
        self._run(lambda: self._batch.forward(ids, stage=stage))
        for theirs, ours in self._derived:
            ours[ids] = theirs[ids]
        if self._after_constraints:
            self._after_constraints.compute(ids.tolist())

    def apply_parameters(self) -> None:
        """Read the parameters of all environments."""
        for theirs, ours in self._expanded:
            np.copyto(theirs, ours)
        if self._expanded:
            self._run(self._batch.set_const)

    def bare(self) -> Callable[[], None]:
        """Return the steps of a new batch, each from the present states with the last controls."""
        batch = Batch(self.model, nsim=self.num_envs, nthread=self._threads)

        def step() -> None:
            batch.state[...] = self._batch.state
            batch.step(nstep=self.decimation)

        return step

    @property
    def host_state(self) -> dict[str, np.ndarray]:
        """The state of all simulations, in MuJoCo's own order."""
        return {"state": self._batch.state}

    def step_inputs(self) -> dict[str, wp.array]:
        """Return the state of all simulations, and the controls that they have not read yet."""
        state = self._batch.state
        rows = wp.array(ptr=state.ctypes.data, dtype=wp.float64, shape=state.shape, device=self.device)
        controls = {name: self.fields[name] for name in CONTROLS if name in self.fields}
        return {STATE_ROWS: rows} | {name: rows_of(array) for name, array in controls.items() if array.size}

    def take_warnings(self) -> dict[str, str]:
        """Return which environments ran out of memory for contacts or constraints since the last call."""
        counts = self._batch.warning[:, :, 1]
        risen = counts > self._warned
        self._warned = counts.copy()
        return {
            what: f"{some_of(np.flatnonzero(risen[:, int(kind)]))} had more {what} than MuJoCo's memory holds, and "
            'some were dropped: give the model more, as with <size memory="64M"/>.'
            for kind, what in _FULL.items()
            if risen[:, int(kind)].any()
        }

    def _run(self, call: Callable[[], None]) -> None:
        """Run MuJoCo, and translate its errors."""
        try:
            call()
        except SimulationError as error:
            raise TrainingFailedError(
                f"MuJoCo gave up on {some_of(error.ids)}: {' '.join(self._batch.error(int(error.ids[0])).split())}. "
                "Look at the model, and at what the task writes to its state."
            ) from error


def _needless(model: mujoco.MjModel) -> int:
    """Return flags that disable searches which find nothing in this model. Results stay the same, to the bit."""
    flags = 0
    if model.ntree == 1:  # All constraints are in one island. The search for others takes 5 to 10 % of a step.
        flags |= mujoco.mjtDisableBit.mjDSBL_ISLAND
    may_touch = np.bitwise_or.reduce(model.geom_contype) & np.bitwise_or.reduce(model.geom_conaffinity)
    if not (may_touch or model.npair or model.nflex):
        flags |= mujoco.mjtDisableBit.mjDSBL_CONTACT
    return flags


def _array_of(give: Callable[[str], np.ndarray], name: str) -> np.ndarray:
    """Return MuJoCo's array of a field."""
    try:
        return give(name)
    except ValueError as error:
        message = f"The field '{name}' was asked for, but MuJoCo does not give it: {str(error).strip()}"
        raise ShoalError(message) from error

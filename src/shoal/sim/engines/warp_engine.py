"""MuJoCo Warp, the engine of GPUs: every physics step is kernels, and so part of the captured step.

It computes in 32 bits, and fields of the state are its own arrays. Derived fields are copied, so that they describe
the same time as MuJoCo's own (see `shoal.sim.engines.engine`), although the pass over reset environments runs over all.

Its capacities are fixed: `nconmax` contacts for each environment in the mean, and `njmax` constraints for each. An
environment that needs more drops the rest, with a warning.
"""

from collections.abc import Callable, Iterable

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError
from shoal.sim.bookkeeping import copy_rows_where
from shoal.sim.engines.deterministic import make_deterministic
from shoal.sim.engines.engine import AFTER_CONSTRAINTS, CONTROLS, KINEMATIC, STATE, Engine, rows_of, some_of
from shoal.sim.graphs import CapturedGraph

_FOLLOW_FROM_MASSES = ("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0")
"""Fields that `mujoco_warp.set_const` writes: they differ between environments when parameters do."""

_REST_OF_STATE = ("time", "history", "plastic")
"""State that no task writes."""

_FULL = {
    mjw.OverflowType.NEFC: ("njmax", "constraints"),
    mjw.OverflowType.NARROWPHASE: ("nconmax", "contacts"),
    mjw.OverflowType.BROADPHASE: ("nconmax", "pairs of geoms that may touch"),
}
"""Capacity and content of each kind of overflow."""

SOLVER_LIMITS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS
"""No overflows, but limits that a model sets, `mjOption.iterations` and `ls_iterations`: MuJoCo stops there, too."""


class WarpEngine(Engine):
    """Environments as worlds of one `mujoco_warp.Data`."""

    name = "warp"
    title = "MuJoCo Warp"

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        num_envs: int,
        decimation: int,
        device: wp.Device,
        nconmax: int | None,
        njmax: int | None,
        deterministic: bool = False,
    ) -> None:
        """Allocate. For `nconmax`, `njmax` and `deterministic` see `MujocoConfig`, for the rest `Engine`.

        Raises:
            UsageError: The model needs a feature that MuJoCo Warp does not have.
        """
        super().__init__(model, num_envs=num_envs, decimation=decimation, device=device)
        # On the CPU a graph would keep memory that MuJoCo Warp has allocated for the time of a call.
        self.is_on_host = not device.is_cuda
        self._is_deterministic = deterministic
        self._capacities = {"nconmax": nconmax, "njmax": njmax}
        self._copies: list[tuple[wp.array, wp.array]] = []
        """MuJoCo Warp's array and ours, of each derived field, as rows of numbers."""
        self._parameter_copies: dict[str, tuple[wp.array, wp.array]] = {}
        try:
            self._data = mjw.make_data(model, nworld=num_envs, **self._capacities)
        except (NotImplementedError, ValueError) as error:
            raise _refused(error) from error
        self._overflow = wp.clone(self._data.overflow)

    def _open(self, name: str) -> wp.array:
        theirs = getattr(self._data, name, None)
        if theirs is None:
            raise ShoalError(f"The field '{name}' was asked for, but MuJoCo Warp does not have it.")
        if name in STATE + _REST_OF_STATE + CONTROLS:
            return _view(theirs)
        ours = self._allocate(name, getattr(self._template, name))
        if ours.size:
            self._copies.append((rows_of(theirs), rows_of(ours)))
        return ours

    def start(self) -> None:
        """Put the model on the device, and make all of the state fields."""
        self._controls = [name for name in CONTROLS if name in self.fields]
        self._stage, self._is_kinematic = self.stage(), self.derived <= KINEMATIC
        for name in STATE + _REST_OF_STATE + CONTROLS:
            if np.size(getattr(self._template, name)):
                self.data(name)
        follows = _FOLLOW_FROM_MASSES if self.parameters else ()
        sizes = dict.fromkeys((*(name for name in self.parameters if "." not in name), *follows), self.num_envs)
        try:
            self._model = mjw.put_model(self.model, batch_sizes=sizes)
        except (NotImplementedError, ValueError) as error:
            raise _refused(error) from error
        self._model.opt.warn_overflow = 0  # `take_warnings` reports it.
        self._model.opt.run_rne_postconstraint = bool(self.fields.keys() & AFTER_CONSTRAINTS)
        if self._is_deterministic:
            make_deterministic(self.model, self._model, self._data)
        self._parameter_copies = {
            name: (rows_of(ours), rows_of(self._own_parameter(name))) for name, ours in self.parameters.items()
        }
        kept = (self._data.qacc_warmstart, self._data.history)
        self._kept = [(wp.clone(array), array) for array in kept if array.size]
        """Copies, and arrays that `forward` must not change."""

    def _own_parameter(self, name: str) -> wp.array:
        """Return MuJoCo Warp's array of a parameter, with a row for each environment."""
        holder, _, field = name.rpartition(".")
        holder = getattr(self._model, holder) if holder else self._model
        array = getattr(holder, field)
        if array.shape[0] != self.num_envs:  # Of the options: `batch_sizes` is for the model's own fields.
            array = wp.array(np.repeat(array.numpy(), self.num_envs, axis=0), dtype=array.dtype, device=self.device)
            setattr(holder, field, array)
        return array

    def step(self) -> None:
        """Advance all environments."""
        for _ in range(self.decimation):
            mjw.step(self._model, self._data)
        if self._model.opt.run_rne_postconstraint:  # The last stage of a Runge-Kutta step leaves them out.
            mjw.rne_postconstraint(self._model, self._data)
        for theirs, ours in self._copies:
            wp.copy(ours, theirs)

    def reset(self, done: wp.array) -> None:
        """Set environments to the model's own state. Earlier overflows are kept for `take_warnings`."""
        if self.is_on_host and not done.numpy().any():
            return
        wp.copy(self._overflow, self._data.overflow)
        mjw.reset_data(self._model, self._data, reset=done)
        wp.copy(self._data.overflow, self._overflow)

    def forward(self, done: wp.array, moved: wp.array) -> None:
        """Derive the rest for some environments. The pass runs over all; its results for the others are dropped."""
        if self.changing and not (self.is_on_host and not (done.numpy() | moved.numpy()).any()):
            self._read_parameters(self.changing, derive=self.derives_constants)
        self._derive()
        for theirs, ours in self._copies:
            wp.launch(copy_rows_where, dim=ours.shape, inputs=[done, moved, theirs], outputs=[ours], device=self.device)
        moved.zero_()

    def _derive(self) -> None:
        """Compute what follows from the state, up to the stage that fields need: forces cost most of a step."""
        if self._stage is None:
            return
        if self._is_kinematic:
            mjw.kinematics(self._model, self._data)
            return
        for copy, array in self._kept:
            wp.copy(copy, array)
        if self._stage == mujoco.mjtStage.mjSTAGE_ACC:
            mjw.forward(self._model, self._data)
        else:
            mjw.fwd_position(self._model, self._data)
            mjw.sensor_pos(self._model, self._data)
        if self._stage == mujoco.mjtStage.mjSTAGE_VEL:
            mjw.fwd_velocity(self._model, self._data)
            mjw.sensor_vel(self._model, self._data)
        for copy, array in self._kept:
            wp.copy(array, copy)

    def apply_parameters(self) -> None:
        """Read the parameters of all environments."""
        self._read_parameters(self.parameters, derive=bool(self.parameters))

    def _read_parameters(self, names: Iterable[str], *, derive: bool) -> None:
        for name in names:
            ours, theirs = self._parameter_copies[name]
            wp.copy(theirs, ours)
        if derive:
            mjw.set_const(self._model, self._data)

    def bare(self) -> Callable[[], None]:
        """Return captured steps of the model, on the present states."""

        def steps() -> None:
            for _ in range(self.decimation):
                mjw.step(self._model, self._data)

        return steps if self.is_on_host else CapturedGraph(steps, self.device).launch

    @property
    def host_state(self) -> dict[str, np.ndarray]:
        """Empty: all state is in fields."""
        return {}

    def step_inputs(self) -> dict[str, wp.array]:
        """Return the state, and the controls in use: the task can have changed no others."""
        names = (*STATE, *_REST_OF_STATE, *self._controls)
        arrays = {name: getattr(self._data, name) for name in names if np.size(getattr(self._template, name))}
        return {name: rows_of(array) for name, array in arrays.items()}

    def take_warnings(self) -> dict[str, str]:
        """Return which environments needed more than the capacities since the last call."""
        overflow = self._data.overflow.numpy() & ~int(SOLVER_LIMITS)
        self._data.overflow.zero_()
        warnings: dict[str, str] = {}
        for bit, (flag, what) in _FULL.items():
            envs = np.flatnonzero(overflow & int(bit))
            if envs.size:
                has = self._capacities[flag] or "MuJoCo Warp's own guess"
                warnings[what] = (
                    f"{some_of(envs)} had more {what} than there is room for, and some were dropped: "
                    f"--env.{flag} is {has}, pass more."
                )
        others = np.flatnonzero(overflow & ~sum(int(bit) for bit in _FULL))
        if others.size:
            kinds = str(mjw.OverflowType(int(np.bitwise_or.reduce(overflow[others]))).name)
            warnings[kinds] = (
                f"{some_of(others)} overflowed a buffer of MuJoCo Warp ({kinds}): simplify the collisions."
            )
        return warnings


def _refused(error: Exception) -> UsageError:
    return UsageError(
        f"MuJoCo Warp cannot simulate this model ({str(error).strip().rstrip('.')}): change the model, or pass "
        "--env.engine native to simulate it with MuJoCo's C engine on the CPU."
    )


def _view(array: wp.array) -> wp.array:
    """Return MuJoCo Warp's array; quaternions as four numbers, since Warp's own put the real part last."""
    if array.dtype is not wp.quat:
        return array
    return wp.array(ptr=array.ptr, dtype=wp.vec4, shape=array.shape, device=array.device)

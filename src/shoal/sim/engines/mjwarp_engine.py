"""MuJoCo Warp, the engine of GPUs: every physics step is kernels, and so part of the captured step.

It computes in 32 bits, and fields are its own arrays. The pass over reset environments runs over all: it writes derived
fields to other arrays, of which the rows of these environments are copied. So the others describe the same time as
MuJoCo's own (see `shoal.sim.engines.engine`).

It has room for `nconmax` contacts for each environment in the mean, and for `njmax` constraints for each. An
environment that needs more drops the rest, with a warning; `enlarge` then makes room, unless the user has chosen it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from copy import copy

import mujoco
import mujoco_warp as mjw
import numpy as np
import warp as wp

from shoal.errors import ShoalError, UsageError
from shoal.sim.bookkeeping import copy_rows_where
from shoal.sim.engines.capacities import capacities_of
from shoal.sim.engines.deterministic import make_deterministic
from shoal.sim.engines.engine import (
    AFTER_CONSTRAINTS,
    CAMERAS_AND_LIGHTS,
    CONTROLS,
    KINEMATIC,
    STATE,
    Engine,
    decides_constants,
    dtype_of,
    row_copies,
    rows_of,
    some_of,
    use_parameter,
)
from shoal.sim.graphs import CapturedGraph

_CONSTANTS = (
    *("body_subtreemass", "body_invweight0", "dof_invweight0", "tendon_invweight0", "actuator_acc0", "tendon_length0"),
    *("geom_aabb", "geom_rbound", "eq_data", "cam_pos0", "cam_poscom0", "cam_mat0"),
    *("light_pos0", "light_poscom0", "light_dir0"),
)
"""Fields that `mujoco_warp.set_const` writes: they differ between environments when parameters do."""

_CENTRES = KINEMATIC | {"subtree_com", "cinert", "cdof", "cvel", "cdof_dot"} | CAMERAS_AND_LIGHTS
"""Fields that follow from forward kinematics by centres of mass and their velocities, cameras and lights."""

_REST_OF_STATE = ("time", "history", "plastic")
"""State that no task writes."""

_FULL = {
    mjw.OverflowType.NEFC: ("njmax", "constraints"),
    mjw.OverflowType.NJMAX_NNZ: ("njmax", "numbers in the Jacobian of constraints"),
    mjw.OverflowType.NARROWPHASE: ("nconmax", "contacts"),
    mjw.OverflowType.BROADPHASE: ("nconmax", "pairs of geoms that may touch"),
    mjw.OverflowType.CCD: ("nconmax", "pairs of geoms to search for contacts"),
}
"""Capacity and content of each kind of overflow."""

_GROWTH = 1.5
"""How much more room `enlarge` makes than there was, and than was needed last."""

_MOST_ENLARGEMENTS = 5
"""After this many, overflows are only reported."""

SOLVER_LIMITS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS
"""No overflows, but limits that a model sets, `mjOption.iterations` and `ls_iterations`: MuJoCo stops there, too."""


class MjwarpEngine(Engine):
    """Environments as worlds of one `mujoco_warp.Data`."""

    name = "mjwarp"
    title = "MuJoCo Warp"

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        num_envs: int,
        decimation: int,
        device: wp.Device,
        declared: Mapping[str, int],
        chosen: Mapping[str, int],
        deterministic: bool = False,
    ) -> None:
        """Allocate. For `deterministic` see `MujocoConfig`, for the rest `Engine`.

        `declared` are the task's `nconmax` and `njmax`; without them they are computed from the model. `chosen` are the
        user's, and hold.

        Raises:
            UsageError: The model needs a feature that MuJoCo Warp does not have.
        """
        super().__init__(model, num_envs=num_envs, decimation=decimation, device=device)
        # On the CPU a graph would keep memory that MuJoCo Warp has allocated for the time of a call.
        self.is_on_host = not device.is_cuda
        self._is_deterministic = deterministic
        self._chosen = chosen
        try:
            self._data = mjw.make_data(model, nworld=num_envs, **{**(declared or capacities_of(model)), **chosen})
        except (NotImplementedError, ValueError) as error:
            raise _refused(error) from error
        self.capacities = {"nconmax": self._data.naconmax // num_envs, "njmax": self._data.njmax}
        self._enlargements = 0
        self._everywhere = wp.full(num_envs, value=True, dtype=wp.bool, device=device)

    def _open(self, name: str) -> wp.array:
        row = np.asarray(getattr(self._template, name))
        dtype, theirs = dtype_of(name, row), getattr(self._data, name, None)
        if theirs is None or rows_of(theirs).shape[1] != row.size:
            raise ShoalError(f"The field '{name}' was asked for, but MuJoCo Warp does not have it.")
        # Quaternions as four numbers, since Warp's own put the real part last.
        return wp.array(ptr=theirs.ptr, dtype=dtype, shape=(self.num_envs, *row.shape[:1]), device=self.device)

    def start(self) -> None:
        """Put the model on the device, and make all of the state fields."""
        self._controls = [name for name in CONTROLS if name in self.fields]
        for name in STATE + _REST_OF_STATE + CONTROLS:
            if np.size(getattr(self._template, name)):
                self.data(name)
        names = [name for name in self.parameters if self._differs(name)]
        sizes = dict.fromkeys((*names, *_CONSTANTS) if self.parameters else (), self.num_envs)
        try:
            self._model = mjw.put_model(self.model, batch_sizes=sizes)
        except (NotImplementedError, ValueError) as error:
            raise _refused(error) from error
        self._model.opt.warn_overflow = 0  # `take_warnings` reports it.
        # Solves begin with the last acceleration. They take as many iterations as from the better of that and the one
        # without constraints, which costs a factorisation of the mass matrix in each physics step.
        self._model.opt.run_qacc_smooth = "qacc_smooth" in self.fields
        if not self._needs_cameras():
            self._model.ncam = self._model.nlight = 0  # Rendering computes its own on the host.
        if self._is_deterministic:
            make_deterministic(self.model, self._model, self._data)
        self._usual = copy(self._model)
        """The model without parameters: episodes begin in its state."""
        for name, ours in self.parameters.items():
            use_parameter(self._model, name, ours)
        self._prepare_passes()

    def _prepare_passes(self) -> None:
        """Make the data of `forward` and of `reset`: MuJoCo Warp's, but for arrays that these must not change.

        Constants are derived with that of `forward` too: MuJoCo Warp does it in the pose `qpos0`.
        """
        self._pass, self._cleared = copy(self._data), copy(self._data)
        derived = self.derived - {*_REST_OF_STATE}
        for name in derived:
            own = wp.clone(getattr(self._data, name))
            setattr(self._pass, name, own)
            setattr(self._cleared, name, own)
        self._kept = [name for name in ("qacc_warmstart", "history") if getattr(self._data, name).size]
        for name in self._kept:
            setattr(self._pass, name, wp.clone(getattr(self._data, name)))
        self._cleared.overflow = wp.clone(self._data.overflow)  # `take_warnings` reports the earlier ones, too.
        # Each step computes contacts and the mass matrix before it reads them.
        self._cleared.naconmax, self._cleared.M = 0, self._data.M[:, :0]
        self._begun = derived & self.begun
        """What `forward` derives."""
        self._copies = row_copies((getattr(self._pass, name), self.fields[name]) for name in self._begun)

    def _needs_cameras(self) -> bool:
        """Return whether a field or a sensor needs the poses of cameras or lights."""
        objects = {*self.model.sensor_objtype.tolist(), *self.model.sensor_reftype.tolist()}
        return mujoco.mjtObj.mjOBJ_CAMERA in objects or not CAMERAS_AND_LIGHTS.isdisjoint(self.fields)

    def _differs(self, name: str) -> bool:
        """Return whether a parameter is of the model, and not of its options.

        Raises:
            UsageError: MuJoCo Warp has one value of it for all environments.
        """
        holder, _, field = name.rpartition(".")
        kinds = {each.name: each.type for each in dataclasses.fields(mjw.Option if holder else mjw.Model)}
        if "*" not in getattr(kinds.get(field), "shape", ()):
            raise UsageError(
                f"The environments were to differ in the field '{name}' of the model, of which MuJoCo Warp has one for "
                "all: leave it as it is, or pass --env.engine mujoco."
            )
        return not holder

    def step(self) -> None:
        """Advance all environments."""
        self._advance(self.actuate)
        self._compute_after_constraints(self._data)

    def _advance(self, actuate: Callable[[int], None] | None = None) -> None:
        """Make the physics steps, without the sensors of all but the last, unless these are read too."""
        flags = self._model.opt.disableflags
        for at in range(self.decimation):
            skips = at < self.decimation - 1 and self.sensor_history is None and not self.model.nhistory
            self._model.opt.disableflags = flags | (mujoco.mjtDisableBit.mjDSBL_SENSOR if skips else 0)
            if actuate:
                actuate(at)
            mjw.step(self._model, self._data)
            if self.sensor_history is not None:
                wp.copy(self.kept_sensors(at), self._data.sensordata)

    def _compute_after_constraints(self, data: mjw.Data) -> None:
        if self.fields.keys() & AFTER_CONSTRAINTS:
            mjw.rne_postconstraint(self._model, data)

    def reset(self, done: wp.array) -> None:
        """Set environments to the model's own state. Earlier overflows are kept for `take_warnings`."""
        if not self.is_on_host or done.numpy().any():
            mjw.reset_data(self._usual, self._cleared, reset=done)

    def forward(self, done: wp.array, moved: wp.array, *, everywhere: bool = False) -> None:
        """Derive the rest for some environments. The pass runs over all; its results for the others are dropped."""
        if self.is_on_host and not everywhere and not (done.numpy() | moved.numpy()).any():
            return
        if self.derives_constants:
            mjw.set_const(self._model, self._pass, restore=False)  # It ends with kinematics of all environments.
        if self._begun:
            self._derive(self._begun)
            dim = (self.num_envs, sum(rows_of(self.fields[name]).shape[1] for name in self._begun))
            chosen = self._everywhere if everywhere else done
            wp.launch(copy_rows_where, dim=dim, inputs=[chosen, moved, self._copies], device=self.device)
        moved.zero_()

    def _derive(self, names: set[str]) -> None:
        """Compute fields from the state, up to the stage that they need: forces cost most of a step."""
        model, data, stage = self._model, self._pass, self.stage(names)
        if names <= _CENTRES:
            mjw.kinematics(model, data)
            if not names <= KINEMATIC:
                mjw.com_pos(model, data)
                mjw.com_vel(model, data)
                if model.ncam or model.nlight:
                    mjw.camlight(model, data)
            return
        for name in self._kept:
            wp.copy(getattr(data, name), getattr(self._data, name))
        if stage == mujoco.mjtStage.mjSTAGE_ACC:
            mjw.forward(model, data)
            self._compute_after_constraints(data)
            return
        mjw.fwd_position(model, data)
        mjw.sensor_pos(model, data)
        if stage == mujoco.mjtStage.mjSTAGE_VEL:
            mjw.fwd_velocity(model, data)
            mjw.sensor_vel(model, data)

    def apply_parameters(self) -> None:
        """Derive constants from the parameters, which MuJoCo Warp reads from our arrays."""
        # Its inverse weights of a slide joint with armature are not those that MuJoCo compiles.
        if decides_constants(self.parameters):
            mjw.set_const(self._model, self._pass, restore=False)

    def bare(self) -> Callable[[], None]:
        """Return captured steps of the model, on the present states."""
        return self._advance if self.is_on_host else CapturedGraph(self._advance, self.device).launch

    def step_inputs(self) -> dict[str, wp.array]:
        """Return the state, and the controls in use: the task can have changed no others."""
        names = (*STATE, *_REST_OF_STATE, *self._controls)
        arrays = {name: getattr(self._data, name) for name in names if np.size(getattr(self._template, name))}
        return {name: rows_of(array) for name, array in arrays.items()}

    def take_warnings(self) -> dict[str, str]:
        """Return which environments needed more than the capacities since the last call, and plan to enlarge these."""
        overflow = self._data.overflow.numpy() & ~int(SOLVER_LIMITS)
        self._data.overflow.zero_()
        warnings: dict[str, str] = {}
        for bit, (flag, what) in _FULL.items():
            envs = np.flatnonzero(overflow & int(bit))
            if not envs.size:
                continue
            sentence = f"{some_of(envs)} had more {what} than there is room for, and some were dropped: --env.{flag} "
            if flag in self._chosen or self._enlargements == _MOST_ENLARGEMENTS:
                warnings[what] = f"{sentence}is {self.capacities[flag]}, pass more."
                continue
            self.planned[flag] = more = math.ceil(_GROWTH * max(self.capacities[flag], self._needed(flag)))
            warnings[f"{what} {more}"] = (
                f"{sentence}was {self.capacities[flag]}, and is {more} from now on. Pass --env.{flag} {more} to begin "
                "with it."
            )
        others = np.flatnonzero(overflow & ~sum(int(bit) for bit in _FULL))
        if others.size:
            kinds = str(mjw.OverflowType(int(np.bitwise_or.reduce(overflow[others]))).name)
            warnings[kinds] = (
                f"{some_of(others)} overflowed a buffer of MuJoCo Warp ({kinds}): simplify the collisions."
            )
        return warnings

    def _needed(self, flag: str) -> int:
        """Return how much of a capacity the last physics step asked for."""
        if flag == "njmax":
            return int(self._data.nefc.numpy().max())
        counts = (self._data.nacon, self._data.ncollision)
        return math.ceil(max(int(count.numpy()[0]) for count in counts) / self.num_envs)

    def enlarge(self) -> None:
        """Make the room that is planned. All other arrays stay where they are, with what is in them."""
        super().enlarge()
        self._enlargements += 1
        larger = mjw.make_data(self.model, nworld=self.num_envs, **self.capacities)
        for field in dataclasses.fields(larger):
            ours, theirs = getattr(self._data, field.name), getattr(larger, field.name)
            if not isinstance(ours, wp.array) or ours.shape != theirs.shape:
                setattr(self._data, field.name, theirs)
        if self._is_deterministic:
            make_deterministic(self.model, self._model, self._data)
        self._prepare_passes()
        # Some kernels are others now: a step compiles them, which is not possible in every capture.
        kept = [(wp.clone(array), array) for array in self.fields.values() if array.size]
        self._advance()
        self._compute_after_constraints(self._data)
        for before, array in kept:
            wp.copy(array, before)
        self._data.overflow.zero_()


def _refused(error: Exception) -> UsageError:
    return UsageError(
        f"MuJoCo Warp cannot simulate this model ({str(error).strip().rstrip('.')}): change the model, or pass "
        "--env.engine mujoco to simulate it with MuJoCo's C engine on the CPU."
    )

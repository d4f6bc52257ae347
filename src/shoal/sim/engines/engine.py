"""The interface of both physics engines: fields of `MjData` and `MjModel` by name, as Warp arrays.

Field names are MuJoCo's, and so is their meaning. A field has one row for each environment: `qpos` has the shape
(num_envs, nq), `xpos` the shape (num_envs, nbody) of `wp.vec3`. What MuJoCo stores as rows of numbers is a vector, or
of 9 a matrix, of as many; a quaternion is a `wp.vec4`, with its real part first.

After a step, derived fields describe the state before its last physics step, as after MuJoCo's own `mj_step`. Where
events or commands wrote the state, or with `--env.fresh-observations` everywhere, those that are read
before the next step describe the new one.
`qpos`, `qvel` and the other fields of the state are always current.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar

import mujoco
import numpy as np
import warp as wp
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS

from shoal.errors import ShoalError, did_you_mean
from shoal.sim.bookkeeping import RowCopy

STATE = ("qpos", "qvel", "act", "qacc_warmstart")
"""State that a physics step changes, beside the time."""

CONTROLS = ("ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat")
"""Inputs that a physics step does not change."""

STATE_ROWS = "mjSTATE_INTEGRATION"
"""Name of all of MuJoCo's state and controls in MuJoCo's own order, in `Engine.step_inputs`."""

_DTYPES: dict[tuple[int, ...], Any] = {
    (): wp.float32,
    (2,): wp.vec2,
    (3,): wp.vec3,
    (4,): wp.vec4,
    (6,): wp.spatial_vector,
    (9,): wp.mat33,
}
"""Types of entries with a name of their own, by their shape."""

KINEMATIC = frozenset(
    {f"{kind}_{what}" for kind in ("geom", "site") for what in ("xpos", "xmat", "xquat")}
    | {"xpos", "xquat", "xmat", "xipos", "xiquat", "ximat", "xanchor", "xaxis"}
)
"""Fields of forward kinematics."""

CAMERAS_AND_LIGHTS = frozenset({"cam_xpos", "cam_xmat", "light_xpos", "light_xdir"})
_AT_POSITIONS = KINEMATIC | {"subtree_com", "cdof", "cinert", "ten_length", "actuator_length"} | CAMERAS_AND_LIGHTS
_AT_SPEEDS = frozenset({"cvel", "cdof_dot", "ten_velocity", "actuator_velocity", "subtree_linvel", "subtree_angmom"})

AFTER_CONSTRAINTS = frozenset({"cacc", "cfrc_int", "cfrc_ext"})
"""Fields that only `mj_rnePostConstraint` computes."""

SETCONST_INPUTS = frozenset(mujoco.MjModel._setconst_inputs)  # noqa: SLF001  Its batch's documentation names it.
"""Fields of `MjModel` from which `mj_setConst` derives others."""

_NAMED_AT_MOST = 5


class Engine(ABC):
    """`num_envs` simulations of one model on one device."""

    name: ClassVar[str]
    """Its value of `--env.engine`."""

    title: ClassVar[str]
    """Its name in messages."""

    is_on_host: bool
    """Whether `step`, `reset` and `forward` do more than launch kernels, and so cannot be captured."""

    def __init__(self, model: mujoco.MjModel, *, num_envs: int, decimation: int, device: wp.Device) -> None:
        """Prepare; `start` begins. `decimation` is the number of physics steps for each `step`."""
        self.model = model
        self.num_envs = num_envs
        self.decimation = decimation
        self.device = device
        self.fields: dict[str, wp.array] = {}
        """The fields of `MjData` in use."""
        self.begun: set[str] = set()
        """Those among them that are read between the end of a step and the next physics step, as by observations."""
        self.parameters: dict[str, wp.array] = {}
        """The fields of `MjModel` in use."""
        self.changing: set[str] = set()
        """Those among them that kernels write during a training too. What follows from `SETCONST_INPUTS` is derived
        where an environment was reset or moved."""
        self.capacities: dict[str, int] = {}
        """Room for contacts and constraints of each environment, by the flags that set it, such as `njmax`."""
        self.planned: dict[str, int] = {}
        """Those among them that `enlarge` is to change, and their new values."""
        self.sensor_history: Any = None
        """Where ``sensordata`` of each physics step of the last `step` is kept, one after the other, if anywhere.
        Shape (num_envs, decimation * nsensordata)."""
        self.actuate: Callable[[int], None] | None = None
        """Called before each physics step of `step`, with its number: it reads fields and writes controls."""
        self._template = mujoco.MjData(model)
        mujoco.mj_resetData(model, self._template)

    def data(self, name: str, *, after_physics_only: bool = False) -> wp.array:
        """Return a field of `MjData`. Shape (num_envs,) or (num_envs, rows), see above.

        Kernels may write controls at any time, and the state in events and commands. A field
        that is read only until then, as by rewards, need not be derived from what they write.
        """
        if name not in self.fields:
            if name not in DATA_FIELDS:
                hint = " Ask for it by parameter()." if name in MODEL_FIELDS else did_you_mean(name, DATA_FIELDS)
                raise ShoalError(f"data('{name}') was asked for, but MuJoCo's MjData has no field of that name.{hint}")
            self.fields[name] = self._open(name)
        if not after_physics_only:
            self.begun.add(name)
        return self.fields[name]

    def keep_sensors(self, allocate: Callable[[str, int], wp.array]) -> wp.array:
        """Return `sensor_history`, made by `allocate` from a name and columns, and keep it from now on."""
        self.sensor_history = allocate("sensor_history", self.decimation * self.model.nsensordata)
        return self.sensor_history

    def kept_sensors(self, physics_step: int) -> wp.array:
        """Return the part of `sensor_history` that is of a physics step. Shape (num_envs, nsensordata)."""
        count = self.model.nsensordata
        return self.sensor_history[:, physics_step * count : (physics_step + 1) * count]

    def parameter(self, name: str) -> wp.array:
        """Return a field of `MjModel`, with values of its own for each environment, at first the model's.

        A field of ``MjOption`` is named ``opt.gravity``. Kernels may write it in events of mode `startup`, and if
        `changing` names it, in others.
        """
        if name not in self.parameters:
            if name not in MODEL_FIELDS:
                hint = " Ask for it by data()." if name in DATA_FIELDS else did_you_mean(name, MODEL_FIELDS)
                message = f"parameter('{name}') was asked for, but MuJoCo's MjModel has no field of that name.{hint}"
                raise ShoalError(message)
            self.parameters[name] = self._allocate(name, attrgetter(name)(self.model))
        return self.parameters[name]

    def constant(self, name: str) -> wp.array:
        """Return a field of `MjModel` as the model has it, (rows,): what `parameter` had at first; or whole numbers."""
        row = np.asarray(attrgetter(name)(self.model))
        dtype = wp.int32 if row.dtype.kind in "iu" and row.ndim == 1 else dtype_of(name, row)
        return wp.array(row, dtype=dtype, device=self.device)

    def _allocate(self, name: str, row: Any) -> wp.array:  # noqa: ANN401  MuJoCo has no types.
        """Return a new array for a field of floating-point numbers, with `row` in every environment."""
        row = np.asarray(row)
        rows = np.broadcast_to(row, (self.num_envs, *row.shape))
        return wp.array(rows, dtype=dtype_of(name, row), device=self.device)

    @property
    def derives_constants(self) -> bool:
        """Whether constants of the model follow from a parameter that changes."""
        return decides_constants(self.changing)

    @property
    def derived(self) -> set[str]:
        """The fields in use that follow from the state."""
        return self.fields.keys() - {*STATE, *CONTROLS}

    def stage(self, names: Iterable[str]) -> int | None:
        """Return the last stage of `mj_forward` that derived fields need; None for none."""
        return max(map(self._stage_of, names), default=None)

    def _stage_of(self, name: str) -> int:
        if name in _AT_POSITIONS:
            return int(mujoco.mjtStage.mjSTAGE_POS)
        if name in _AT_SPEEDS:
            return int(mujoco.mjtStage.mjSTAGE_VEL)
        if name == "sensordata":
            return max((int(stage) for stage in self.model.sensor_needstage), default=0)
        return int(mujoco.mjtStage.mjSTAGE_ACC)

    @abstractmethod
    def _open(self, name: str) -> wp.array:
        """Return the array of a field of `MjData`. Called once for each field."""

    @abstractmethod
    def start(self) -> None:
        """Begin. All fields and parameters in use are known.

        Raises:
            ShoalError: One of them is not available.
        """

    @abstractmethod
    def step(self) -> None:
        """Advance all environments by `decimation` physics steps with the present controls."""

    @abstractmethod
    def reset(self, done: wp.array) -> None:
        """Set the state of the environments of the mask `done`, (num_envs,), to the model's own, and clear controls."""

    @abstractmethod
    def forward(self, done: wp.array, moved: wp.array, *, everywhere: bool = False) -> None:
        """Read what kernels wrote where `done` or `moved`, each (num_envs,), and derive the fields of `begun` there.

        That is the state, and the parameters that change. `moved` is cleared. `everywhere` they are derived for all
        environments.
        """

    @abstractmethod
    def apply_parameters(self) -> None:
        """Read the parameters that kernels wrote, and derive the constants that follow from them."""

    @abstractmethod
    def bare(self) -> Callable[[], None]:
        """Return a function that makes the same physics steps, and nothing else: the reference of a benchmark."""

    @property
    def host_state(self) -> dict[str, np.ndarray]:
        """State in arrays of the host, live, by name. Empty where all state is in `fields`."""
        return {}

    @abstractmethod
    def step_inputs(self) -> dict[str, wp.array]:
        """Return all inputs of the next `step`: fields by name, live, as rows of numbers. Each (num_envs, n).

        Among them may be `STATE_ROWS`; where other fields are too, theirs are the newer numbers.
        """

    @abstractmethod
    def take_warnings(self) -> dict[str, str]:
        """Return what went wrong in some environments since the last call: a sentence by kind. Waits for the device."""

    def enlarge(self) -> None:
        """Change capacities as planned by `take_warnings`. A step that was captured before must be captured again."""
        self.capacities |= self.planned
        self.planned.clear()


def use_parameter(model: Any, name: str, ours: wp.array) -> None:  # noqa: ANN401  MuJoCo Warp's.
    """Let a model of MuJoCo Warp's use our array of a parameter, which has a row for each environment."""
    holder, _, field = name.rpartition(".")
    holder = getattr(model, holder) if holder else model
    theirs = getattr(holder, field)
    shape = (ours.shape[0], *theirs.shape[1:])
    setattr(holder, field, wp.array(ptr=ours.ptr, dtype=theirs.dtype, shape=shape, device=ours.device))


def dtype_of(name: str, row: np.ndarray) -> Any:  # noqa: ANN401  A type of Warp's.
    """Return the type of the entries of a field, from its `row` of one environment.

    Raises:
        ShoalError: They are no floating-point numbers.
    """
    if row.dtype.kind != "f":
        message = f"The field '{name}' was asked for, but holds no floating-point numbers: read it from the model."
        raise ShoalError(message)
    shape = row.shape[1:]
    return _DTYPES.get(shape) or wp.types.vector(length=math.prod(shape), dtype=wp.float32)


def rows_of(array: wp.array, dtype: type = wp.float32) -> wp.array:
    """Return the same memory as rows of numbers of a type, one row for each environment. Shape (num_envs, n)."""
    count = array.size * wp.types.type_size_in_bytes(array.dtype) // wp.types.type_size_in_bytes(dtype)
    shape = (array.shape[0], count // array.shape[0])
    return wp.array(ptr=array.ptr, dtype=dtype, shape=shape, device=array.device)


def row_copies(pairs: Iterable[tuple[wp.array, wp.array]]) -> wp.array:
    """Return what `copy_rows_where` takes, from arrays and those that their rows are copied to."""
    copies: list[Any] = []
    for source, target in pairs:
        copies.append(RowCopy())
        copies[-1].source, copies[-1].target = rows_of(source), rows_of(target)
    return wp.array(copies, dtype=RowCopy)


def decides_constants(names: Iterable[str]) -> bool:
    """Whether `mj_setConst` derives others from any of these parameters of the model."""
    return any(name in SETCONST_INPUTS or name.startswith("opt.") for name in names)


def some_of(envs: np.ndarray) -> str:
    """Return a list of environments by their indices, (n,), shortened for a message."""
    if len(envs) == 1:
        return f"environment {envs[0]}"
    shown = ", ".join(str(env) for env in envs[:_NAMED_AT_MOST])
    return f"{len(envs):,} environments ({shown}{', ...' if len(envs) > _NAMED_AT_MOST else ''})"

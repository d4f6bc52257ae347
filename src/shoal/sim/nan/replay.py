"""Replay of a diverged environment with MuJoCo's C engine: every physics step is inspected.

Each step starts from the recorded state, so that differences between engines do not add up. Where both engines
are MuJoCo C, the recorded states and so the whole trajectory are reproduced to the last bit.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import mujoco
import numpy as np

from shoal.sim.nan.dump import DivergedEnv, Dump, read_dump
from shoal.sim.render.trajectory import load_scene

TOLERANCE = 1e-3
"""Largest allowed difference of one step of MuJoCo Warp, in 32 bits, from MuJoCo C's: relative to the number, or to 1
if it is less. The largest seen was 1.1e-5, of a quadruped that stumbled under random actions."""

_ALL = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_EXACT = int(mujoco.mjtState.mjSTATE_FULLPHYSICS) | int(mujoco.mjtState.mjSTATE_WARMSTART)
_NEARLY = int(mujoco.mjtState.mjSTATE_PHYSICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the replay: largest magnitudes after it, and the worst contacts within it."""

    number: int
    qpos: float
    qvel: float
    qacc: float
    ctrl: float
    fastest: str
    """The joint with the largest velocity."""
    contacts: int
    """The most contacts in a physics step."""
    penetration: float
    """The deepest of any contact [m]."""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFault:
    """The first number that is not finite, or too large."""

    step: int
    physics_step: int
    """The physics step within it, counted from 1; 0 for the state before them."""
    what: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of a replay."""

    steps: tuple[Step, ...]
    """Up to the one in which the environment diverged, if it did."""
    positions: np.ndarray
    """Joint positions after each physics step, as long as they are finite. Shape (physics steps, nq)."""
    fault: FirstFault | None
    compared: int
    """Number of recorded states that were compared with the result of the step before them."""
    bound: float
    """Largest allowed difference, see `TOLERANCE`; 0 where both engines are MuJoCo C."""
    difference: float
    differs_in: int | None
    """The first step with a larger difference, if there is one."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self) | {"positions": self.positions.tolist()}

    @classmethod
    def from_plain(cls, fields: dict[str, Any]) -> Self:
        """Return the replay of which `to_plain` made these."""
        fields["steps"] = tuple(Step(**each) for each in fields["steps"])
        fields["fault"] = fields["fault"] and FirstFault(**fields["fault"])
        fields["positions"] = np.array(fields["positions"])
        return cls(**fields)


def replay(dump: Dump, diverged: DivergedEnv) -> Replay:
    """Step an environment from its recorded states, under its recorded controls."""
    simulation = _Simulation(dump, diverged)
    is_exact = dump.info.engine == "mujoco"
    spec, bound = (_EXACT, 0.0) if is_exact else (_NEARLY, TOLERANCE)
    steps: list[Step] = []
    differences: dict[int, float] = {}
    for at, state in enumerate(diverged.states):
        number = diverged.first_step + at
        steps.append(simulation.step(number, state))
        if simulation.fault is not None:
            break
        if at + 1 < len(diverged.states) and not diverged.begins[at + 1]:
            differences[number] = simulation.difference(diverged.states[at + 1], spec)
    return Replay(
        steps=tuple(steps),
        positions=np.array(simulation.positions).reshape(-1, simulation.model.nq),
        fault=simulation.fault,
        compared=len(differences),
        bound=bound,
        difference=float(np.max([0.0, *differences.values()])),
        differs_in=next((number for number, apart in differences.items() if not apart <= bound), None),
    )


class _Simulation:
    """The environment, simulated by MuJoCo C."""

    def __init__(self, dump: Dump, diverged: DivergedEnv) -> None:
        """Load the model, with the environment's own parameters."""
        self.model = load_scene(dump.model)
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.data = mujoco.MjData(self.model)
        for name, values in diverged.parameters.items():
            getattr(self.model, name)[...] = values
        if diverged.parameters:
            mujoco.mj_setConst(self.model, self.data)
        self.info = dump.info
        self.positions: list[np.ndarray] = []
        self.fault: FirstFault | None = None

    def step(self, number: int, state: np.ndarray) -> Step:
        """Make one step from a recorded state, mjSTATE_INTEGRATION; stop at the first fault."""
        model, data = self.model, self.data
        mujoco.mj_setState(model, data, state, _ALL)
        warned = self._warnings()
        contacts, penetration = 0, 0.0
        self._inspect(number, 0, ("qvel", "qpos"))
        for physics_step in range(1, self.info.decimation + 1):
            if self.fault is not None:
                break
            mujoco.mj_step(model, data)
            contacts = max(contacts, data.ncon)
            penetration = max(penetration, -float(data.contact.dist.min(initial=0.0)))
            self._inspect(number, physics_step, ("qacc", "qvel", "qpos"))
            if self.fault is None:
                self.positions.append(data.qpos.copy())
        fields = ("qpos", "qvel", "qacc", "ctrl")
        return Step(
            number=number,
            **{name: float(np.abs(getattr(data, name)).max(initial=0.0)) for name in fields},
            fastest=_of_dof(model, int(np.abs(data.qvel).argmax())),
            contacts=contacts,
            penetration=penetration,
            warnings=tuple(name for name, count in self._warnings().items() if count > warned[name]),
        )

    def difference(self, recorded: np.ndarray, spec: int) -> float:
        """Return the difference of the state and a recorded one, in the components `spec`: see `TOLERANCE`."""
        size = mujoco.mj_stateSize(self.model, spec)
        here, there = np.empty(size), np.empty(size)
        mujoco.mj_getState(self.model, self.data, here, spec)
        mujoco.mj_extractState(self.model, recorded, _ALL, there, spec)
        if here.tobytes() == there.tobytes():
            return 0.0
        return float((np.abs(here - there) / np.maximum(1.0, np.abs(there))).max())

    def _inspect(self, number: int, physics_step: int, fields: tuple[str, ...]) -> None:
        """Keep the first faulty number, if a position or velocity is faulty: accelerations come before both."""
        bad = {name: ~(np.abs(getattr(self.data, name)) < self.info.largest) for name in fields}
        if not (bad["qpos"].any() or bad["qvel"].any()):
            return
        field = next(name for name in fields if bad[name].any())
        index = int(bad[field].argmax())
        self.fault = FirstFault(
            step=number,
            physics_step=physics_step,
            what=f"{field} of {(_of_position if field == 'qpos' else _of_dof)(self.model, index)}",
            value=float(getattr(self.data, field)[index]),
        )

    def _warnings(self) -> dict[str, int]:
        """Return the number of MuJoCo's warnings so far, by kind."""
        kinds = range(int(mujoco.mjtWarning.mjNWARNING))
        return {mujoco.mjtWarning(kind).name.removeprefix("mjWARN_"): self.data.warning[kind].number for kind in kinds}


def _of_dof(model: mujoco.MjModel, dof: int) -> str:
    """Name a degree of freedom by its joint."""
    joint = int(model.dof_jntid[dof])
    return _joint(model, joint, dof - int(model.jnt_dofadr[joint]))


def _of_position(model: mujoco.MjModel, index: int) -> str:
    """Name one of the positions by its joint."""
    joint = int(np.searchsorted(model.jnt_qposadr, index, side="right")) - 1
    return _joint(model, joint, index - int(model.jnt_qposadr[joint]))


def _joint(model: mujoco.MjModel, joint: int, component: int) -> str:
    """Name a joint, by its body where it has no name, and one of its numbers where it has several."""
    named = model.joint(joint)
    body = model.body(int(model.jnt_bodyid[joint])).name
    title = f"joint '{named.name}'" if named.name else f"the joint of body '{body}'"
    return title if named.qpos0.size == 1 else f"{title}, number {component}"


def replay_file(asked: list[Any]) -> dict[str, Any]:
    """Replay a file and one of its environments, for `Probe`: MuJoCo does not check the model in it, and may crash."""
    file, env = asked
    dump = read_dump(Path(file))
    return replay(dump, dump.find(env)).to_plain()

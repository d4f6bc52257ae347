"""Steps one lost environment again, with MuJoCo's C engine, and looks at every physics step.

It is also the program `python -m shoal.sim.nan.replay FILE ENV`: MuJoCo does not check the model in a file, and may crash.

Each step starts from the recorded state, so that what an engine does otherwise does not add up. Where both engines
are MuJoCo's own, the recorded states come out to the last bit, and then it is the whole trajectory that does.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from shoal.sim.nan.dump import read_dump
from shoal.sim.render.clip import load_scene

if TYPE_CHECKING:
    from shoal.sim.nan.dump import Dump, LostEnv

TOLERANCE = 1e-3
"""How far one step of MuJoCo Warp, in 32 bits, may be from MuJoCo C's: relative to the number, or to 1 if it is less.
The most that was seen was 1.1e-5, of a quadruped that stumbled under random actions."""

_ALL = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_EXACT = int(mujoco.mjtState.mjSTATE_FULLPHYSICS) | int(mujoco.mjtState.mjSTATE_WARMSTART)
_NEARLY = int(mujoco.mjtState.mjSTATE_PHYSICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the replay: numbers after it, and the worst within it."""

    number: int
    """As the training has counted it."""
    qpos: float
    """The largest magnitude of a position; so for the next three."""
    qvel: float
    qacc: float
    ctrl: float
    fastest: str
    """The joint with the largest speed."""
    contacts: int
    """The most contacts in a physics step."""
    penetration: float
    """The deepest of any contact [m]."""
    warnings: tuple[str, ...]
    """What MuJoCo has warned of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The first number that is not finite, or too large."""

    step: int
    """The step, as the training has counted it."""
    physics_step: int
    """The physics step within it, counted from 1; 0 where the step began like this."""
    what: str
    """The number: its field, and its joint."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came out."""

    steps: tuple[Step, ...]
    """Up to the one in which the environment was lost, if it was."""
    positions: np.ndarray
    """Where the joints stood after each physics step, as long as they are finite. Shape (physics steps, nq)."""
    wrong: Wrong | None
    """What was wrong first, if anything was."""
    compared: int
    """Recorded states that were compared with what the step before them led to."""
    bound: float
    """How far they may be from it, as `TOLERANCE` says; 0 where both are MuJoCo's own."""
    difference: float
    """The largest difference that was found, measured so."""
    differs_in: int | None
    """The first step that led elsewhere than it was recorded to, if one did."""

    def to_json(self) -> str:
        """Return it as a string."""
        return json.dumps(asdict(self) | {"positions": self.positions.tolist()})

    @classmethod
    def from_json(cls, text: str) -> Replay:
        """Return what `to_json` made into a string."""
        told = json.loads(text)
        told["steps"] = tuple(Step(**each) for each in told["steps"])
        told["wrong"] = told["wrong"] and Wrong(**told["wrong"])
        return cls(**told | {"positions": np.array(told["positions"])})


def replay(dump: Dump, lost: LostEnv) -> Replay:
    """Step an environment from its recorded states, under its recorded controls."""
    simulation = _Simulation(dump, lost)
    is_exact = dump.about.engine == "native"
    spec, bound = (_EXACT, 0.0) if is_exact else (_NEARLY, TOLERANCE)
    steps: list[Step] = []
    differences: dict[int, float] = {}
    for at, state in enumerate(lost.states):
        number = lost.first_step + at
        steps.append(simulation.step(number, state))
        if simulation.wrong is not None:
            break
        if at + 1 < len(lost.states) and not lost.begins[at + 1]:
            differences[number] = simulation.difference(lost.states[at + 1], spec)
    return Replay(
        steps=tuple(steps),
        positions=np.array(simulation.positions).reshape(-1, simulation.model.nq),
        wrong=simulation.wrong,
        compared=len(differences),
        bound=bound,
        difference=float(np.max([0.0, *differences.values()])),
        differs_in=next((number for number, apart in differences.items() if not apart <= bound), None),
    )


class _Simulation:
    """The environment, simulated by MuJoCo C."""

    def __init__(self, dump: Dump, lost: LostEnv) -> None:
        """Take the model as the environment had it."""
        mujoco.set_mju_user_warning(lambda _: None)  # They are counted. MuJoCo's own way is a file in this directory.
        self.model = load_scene(dump.model)
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.data = mujoco.MjData(self.model)
        for name, values in lost.parameters.items():
            getattr(self.model, name)[...] = values
        if lost.parameters:
            mujoco.mj_setConst(self.model, self.data)
        self.about = dump.about
        self.positions: list[np.ndarray] = []
        self.wrong: Wrong | None = None

    def step(self, number: int, state: np.ndarray) -> Step:
        """Make one step from a recorded state, or as much of it as there is before something is wrong.

        Args:
            number: The step, as the training has counted it.
            state: State and controls, mjSTATE_INTEGRATION. Shape (size,).
        """
        model, data = self.model, self.data
        mujoco.mj_setState(model, data, state, _ALL)
        warned = self._warnings()
        contacts, penetration = 0, 0.0
        self._look(number, 0, ("qvel", "qpos"))
        for physics_step in range(1, self.about.decimation + 1):
            if self.wrong is not None:
                break
            mujoco.mj_step(model, data)
            contacts = max(contacts, data.ncon)
            penetration = max(penetration, -float(data.contact.dist.min(initial=0.0)))
            self._look(number, physics_step, ("qacc", "qvel", "qpos"))
            if self.wrong is None:
                self.positions.append(data.qpos.copy())
        fields = (data.qpos, data.qvel, data.qacc, data.ctrl)
        qpos, qvel, qacc, ctrl = (float(np.abs(values).max(initial=0.0)) for values in fields)
        return Step(
            number=number,
            qpos=qpos,
            qvel=qvel,
            qacc=qacc,
            ctrl=ctrl,
            fastest=_of_dof(model, int(np.abs(data.qvel).argmax())),
            contacts=contacts,
            penetration=penetration,
            warnings=tuple(name for name, count in self._warnings().items() if count > warned[name]),
        )

    def difference(self, recorded: np.ndarray, spec: int) -> float:
        """Return how far the state is from a recorded one, in the components `spec`: see `TOLERANCE`."""
        size = mujoco.mj_stateSize(self.model, spec)
        here, there = np.empty(size), np.empty(size)
        mujoco.mj_getState(self.model, self.data, here, spec)
        mujoco.mj_extractState(self.model, recorded, _ALL, there, spec)
        if here.tobytes() == there.tobytes():
            return 0.0
        return float((np.abs(here - there) / np.maximum(1.0, np.abs(there))).max())

    def _look(self, number: int, physics_step: int, fields: tuple[str, ...]) -> None:
        """Remember the first number that is wrong, where position or speed is: accelerations come before both."""
        bad = {name: ~(np.abs(getattr(self.data, name)) < self.about.largest) for name in fields}
        if not (bad["qpos"].any() or bad["qvel"].any()):
            return
        field = next(name for name in fields if bad[name].any())
        index = int(bad[field].argmax())
        self.wrong = Wrong(
            step=number,
            physics_step=physics_step,
            what=f"{field} of {(_of_position if field == 'qpos' else _of_dof)(self.model, index)}",
            value=float(getattr(self.data, field)[index]),
        )

    def _warnings(self) -> dict[str, int]:
        """Return how often MuJoCo has warned so far, by the kind."""
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
    told = f"joint '{named.name}'" if named.name else f"the joint of body '{body}'"
    return told if named.qpos0.size == 1 else f"{told}, number {component}"


if __name__ == "__main__":
    _dump = read_dump(Path(sys.argv[1]))
    sys.stdout.write(replay(_dump, _dump.find(int(sys.argv[2]))).to_json())

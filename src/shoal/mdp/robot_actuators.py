"""The actuators of a robot, as its configuration asks for them by patterns of names. Needs no Warp."""

from collections.abc import Iterable, Mapping
from typing import Any

import mujoco
import numpy as np

from shoal.errors import UsageError
from shoal.mdp.actuators import JOINT, SCALAR, kind_of_control
from shoal.mdp.config import RobotConfig
from shoal.mdp.patterns import matches, numbers_by_pattern

_JOINT, _TENDON, _SITE = (int(getattr(mujoco.mjtTrn, f"mjTRN_{each}")) for each in ("JOINT", "TENDON", "SITE"))

KP = 1.5
"""Stiffness of a position actuator that replaces a motor, as a share of its largest torque [1/rad]."""
KD = 0.025
"""Damping of such an actuator, as a share of its stiffness [s]."""
_DIRECT = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The gear of an actuator that acts on its joint directly."""
_KP_WITHOUT_LIMIT = 50.0
"""Its stiffness where nothing limits the torque [N m/rad]."""
_PASSIVE = ("armature", "frictionloss", "viscous_damping")
"""Numbers of joints and tendons, which sites do not have."""
_ACTIVE = ("stiffness", "damping", "effort_limit")
"""Numbers of actuators."""
_REPLACED = ("position", "velocity", "effort")
"""Kinds of actuators that become another one which is asked for."""


def give_actuators(spec: mujoco.MjSpec, config: RobotConfig) -> int:
    """Give each joint the actuator that `config.actuators` asks for, or a position actuator; return how many of these.

    Without being asked, velocity actuators and muscles of the model stay.

    MuJoCo computes the torque of a position actuator at each physics step, stiffness (target - angle) - damping speed,
    and limits it as the actuator before it was. Without numbers in the configuration, stiffness is `KP` of the largest
    torque, and damping `KD` of that. Tendons and sites get the actuators that the configuration names.

    Raises:
        UsageError: What the configuration asks for does not fit the model.
    """
    targets = _targets(spec, config)
    names = [name for _, name in targets]
    moved = [name for trn, name in targets if trn != _SITE]
    numbers = {flag: _given(config, flag, names) for flag in _ACTIVE}
    numbers |= {flag: _given(config, flag, moved) for flag in _PASSIVE}
    present = {
        (_JOINT if int(each.trntype) in JOINT else int(each.trntype), each.target): each for each in spec.actuators
    }
    taken = {actuator.name for actuator in spec.actuators}
    positions: dict[str, Any] = {}
    made = 0
    for (trn, name), (target, asked) in targets.items():
        own = {flag: found.get(name) for flag, found in numbers.items()}
        _set_passive(target, own)
        actuator: Any = present.get((trn, name))
        has = kind_of_control(actuator) if actuator is not None else ""
        kind = asked or (has if has in ("velocity", "muscle") else "position")
        if kind == "none":
            if actuator is not None:
                spec.delete(actuator)
            continue
        if actuator is None:
            called = f"{name}_{kind}" if name in taken else name
            actuator = spec.add_actuator(name=called, target=name, trntype=mujoco.mjtTrn(trn))
        if actuator.gaintype != mujoco.mjtGain.mjGAIN_DCMOTOR or any(own[each] is not None for each in _ACTIVE):
            made += _become(actuator, target, kind, own) and kind == "position"
            if kind == "position":
                positions[name] = actuator
    _give_curves(spec, positions, config)
    if made or "velocity" in config.actuators.values():
        # Euler's method diverges with the damping of an actuator that moves little mass.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return made


def _given(config: RobotConfig, flag: str, names: Iterable[str]) -> dict[str, float]:
    """Return the numbers of a flag, by name."""
    return numbers_by_pattern(f"--env.{flag.replace('_', '-')}", getattr(config, flag), names)


def _set_passive(target: Any, own: Mapping[str, float | None]) -> None:
    """Set numbers of a joint or tendon, instead of the model's."""
    for field in ("armature", "frictionloss"):
        if own[field] is not None:
            setattr(target, field, own[field])
    if own["viscous_damping"] is not None:
        target.damping[0] = own["viscous_damping"]


def _become(actuator: Any, target: Any, kind: str, own: Mapping[str, float | None]) -> bool:
    """Give an actuator its kind, gains and limits; return whether it was of another kind before."""
    before, (stiffness, damping, limit) = kind_of_control(actuator), (own[each] for each in _ACTIVE)
    if before != kind:
        if before not in _REPLACED:
            raise UsageError(
                f"The robot's actuator {actuator.name} cannot become a {kind} actuator, which {target.name} is to have"
                ": make it a <motor> in the model, or name its kind with --env.actuators, or 'none'."
            )
        _replace(actuator, _torques(actuator, target, before), target.name, kind, own)
    elif kind in ("position", "velocity"):
        _act_directly(actuator)
    if kind == "position" and stiffness is not None:
        actuator.gainprm[0], actuator.biasprm[1] = stiffness, -stiffness
    if kind in ("position", "velocity") and damping is not None:
        actuator.biasprm[2] = -damping
        actuator.gainprm[0] = damping if kind == "velocity" else actuator.gainprm[0]
    if kind == "muscle" and limit is not None:
        actuator.gainprm[2] = actuator.biasprm[2] = limit
    elif limit is not None:
        _limit(actuator, target, limit)
    return before != kind


def _targets(spec: mujoco.MjSpec, config: RobotConfig) -> dict[tuple[int, str], tuple[Any, str]]:
    """Return what may get an actuator, by its transmission and name, and the kind that is asked for, if any."""
    elements = {
        _JOINT: [each for each in spec.joints if int(each.type) in SCALAR and each.name],
        _TENDON: spec.tendons,
        _SITE: spec.sites,
    }
    targets = {(_JOINT, each.name): (each, "") for each in elements[_JOINT]}
    for pattern, kind in reversed(config.actuators.items()):  # Of two that match, the first.
        for trn, those in elements.items():
            matching = [each for each in those if each.name and matches(pattern, each.name, "A key of --env.actuators")]
            if matching and trn == _SITE and kind not in ("effort", "none"):
                raise UsageError(
                    f"--env.actuators makes the site {matching[0].name} a {kind} actuator, but a site has forces only: "
                    "pass 'effort'."
                )
            targets |= {(trn, each.name): (each, kind) for each in matching}
            if matching:
                break
        else:
            raise UsageError(
                f"--env.actuators {pattern} matches no joint, tendon or site of the robot, whose joints are "
                f"{', '.join(each.name for each in elements[_JOINT])}: pass patterns of their names."
            )
    return targets


def _act_directly(actuator: Any) -> None:
    """Give a position or velocity actuator a gear of 1, with the same torques of its joint for the same targets."""
    gear = float(actuator.gear[0])
    actuator.gainprm[0] *= gear**2
    actuator.biasprm[1] *= gear**2
    actuator.biasprm[2] *= gear**2 if actuator.biasprm[2] < 0.0 else 1.0  # Above 0 it is a ratio.
    actuator.forcerange = np.sort(actuator.forcerange * gear)
    actuator.ctrlrange = np.sort(actuator.ctrlrange / gear)
    actuator.gear = _DIRECT


def _replace(actuator: Any, limits: np.ndarray, name: str, kind: str, own: Mapping[str, float | None]) -> None:
    """Turn an actuator into one of another kind with limits [N m], (2,), and with the gains of `give_actuators`."""
    stiffness, damping, limit = (own[each] for each in _ACTIVE)
    largest = float(np.abs(limits).max()) if limit is None else limit
    if kind == "position":
        if stiffness is None:
            stiffness = KP * largest if largest < np.inf else _KP_WITHOUT_LIMIT
        actuator.set_to_position(kp=stiffness, kv=KD * stiffness)
    elif kind == "velocity" and damping is None:
        raise UsageError(
            f"--env.actuators makes {name} a velocity actuator, whose gain nothing says: pass --env.damping."
        )
    elif kind == "velocity":
        actuator.set_to_velocity(kv=damping)
    elif kind == "effort":
        actuator.set_to_motor()
    else:
        actuator.set_to_muscle(tausmooth=0.0)
    actuator.gear, actuator.ctrllimited = _DIRECT, kind == "muscle"
    actuator.ctrlrange = (0.0, float(kind == "muscle"))
    actuator.forcelimited = kind != "muscle" and bool(np.isfinite(limits).all())
    actuator.forcerange = limits if actuator.forcelimited else (0.0, 0.0)


def _limit(actuator: Any, target: Any, limit: float) -> None:
    """Limit the torque of an actuator at its joint, tendon or site to a number, instead of the model's."""
    if hasattr(target, "actfrclimited"):
        target.actfrclimited = False
    if kind_of_control(actuator) == "effort":
        actuator.ctrllimited = False
    force = limit / abs(float(actuator.gear[0]))
    actuator.forcelimited, actuator.forcerange = True, (-force, force)


def _torques(actuator: Any, target: Any, kind: str) -> np.ndarray:
    """Return lowest and highest torque of an actuator at its joint, which may be infinite [N m]. Shape (2,)."""
    gear = float(actuator.gear[0])
    limits = [_limits(actuator.forcerange * gear, actuator.forcelimited)]
    if kind == "effort":
        limits.append(_limits(actuator.ctrlrange * actuator.gainprm[0] * gear, actuator.ctrllimited))
    if hasattr(target, "actfrclimited"):
        limits.append(_limits(target.actfrcrange, target.actfrclimited))
    return np.array([max(low for low, _ in limits), min(high for _, high in limits)])


def _limits(limits: np.ndarray, limited: Any) -> np.ndarray:
    """Return two limits in their order, (2,); 0 and 0 are none."""
    is_limited = limited != mujoco.mjtLimited.mjLIMITED_FALSE and np.any(limits)
    return np.sort(limits) if is_limited else np.array([-np.inf, np.inf])


def _give_curves(spec: mujoco.MjSpec, actuators: Mapping[str, Any], config: RobotConfig) -> None:
    """Limit the torques of actuators, by the names of their joints, by the speed too, if the configuration does.

    The torque lies between S (-1 - v/V) and S (1 - v/V), with the stall torque S and the speed without load V, as in
    mjlab's `DcMotorActuator` and Isaac Lab's `DCMotor`. It is MuJoCo's DC motor, whose torque is K/R (voltage - K v)
    with the voltage within V K, for K = 1 and R = V/S.
    """
    flags = ("saturation_effort", "velocity_limit")
    numbers = [_given(config, flag, actuators) for flag in flags]
    curves = {name: [each.get(name) for each in numbers] for name in sorted({*numbers[0], *numbers[1]})}
    if any(actuators[name].biasprm[2] > 0.0 for name in curves):  # A ratio, of which MuJoCo makes the damping.
        model = spec.copy().compile()
        for name in curves:
            actuators[name].biasprm[2] = model.actuator(actuators[name].name).biasprm[2]
    for name, (stall, speed) in curves.items():
        if not (stall and speed and stall > 0 and speed > 0):
            raise UsageError(
                f"The joint {name} has --env.saturation-effort {stall} and --env.velocity-limit {speed}, but a "
                "torque-speed curve needs both, above 0: pass patterns that match the same joints."
            )
        kp, kd = actuators[name].gainprm[0], -actuators[name].biasprm[2]
        actuators[name].set_to_dcmotor(
            motorconst=(1.0, 1.0),
            resistance=speed / stall,
            controller=(kp, 0.0, kd, 0.0, 0.0, speed),
            ctrlspec=mujoco.mjtCtrlInput.mjINPUT_POS,
        )

"""Reward terms of contacts: feet, and what must not touch. `shoal.mdp.rewards` names them too."""

from typing import Any

import warp as wp

from shoal.mdp.annotations import CommandColumn, Contacts, Memory, Numbers
from shoal.mdp.base import command_at, is_commanded, periods_of
from shoal.mdp.contacts import has_just_landed, largest_force, largest_force_in
from shoal.mdp.ground import clearance_of


@wp.func
def is_standing(state: Any, env: int, command: CommandColumn, threshold: float) -> bool:
    """Whether the command is to stand still: the sum of its speeds is below a threshold."""
    wanted = command_at(state, env, command)
    return wp.abs(wanted[0]) + wp.abs(wanted[1]) + wp.abs(wanted[2]) < threshold


@wp.func
def feet_swing_time(
    state: Any, env: int, contact: Contacts, command: CommandColumn, threshold: float, swing_time: float
) -> float:
    """Reward air time beyond `swing_time` [s] at touch-down, unless the command is to stand."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if has_just_landed(contact, env, foot, state.step_dt) and contact.last_air_time[env, foot] > 0.0:
            total += contact.last_air_time[env, foot] - swing_time
    return wp.where(is_standing(state, env, command, threshold), 0.0, total / state.step_dt)


@wp.func
def feet_slip(
    state: Any, env: int, contact: Contacts, command: CommandColumn, command_threshold: float = 0.01
) -> float:
    """Penalise the horizontal velocity of feet in contact since more than a step, squared."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if contact.found[env, foot] and not has_just_landed(contact, env, foot, state.step_dt):
            velocity = contact.velocity[env, foot]
            total += velocity[0] * velocity[0] + velocity[1] * velocity[1]
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_air_time(
    state: Any,
    env: int,
    contact: Contacts,
    command: CommandColumn,
    threshold_min: float = 0.05,
    threshold_max: float = 0.5,
    command_threshold: float = 0.5,
) -> float:
    """Reward feet in the air for a time between two [s], where a speed is commanded."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        since = contact.air_time[env, foot]
        total += wp.where(since > threshold_min and since < threshold_max, 1.0, 0.0)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_clearance(
    state: Any,
    env: int,
    contact: Contacts,
    command: CommandColumn,
    target_height: float,
    command_threshold: float = 0.01,
) -> float:
    """Penalise (distance of a foot's height above the ground from the target) times its horizontal speed [m²/s]."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        velocity = contact.velocity[env, foot]
        speed = wp.length(wp.vec2(velocity[0], velocity[1]))
        total += wp.abs(clearance_of(state.ground, contact.position[env, foot]) - target_height) * speed
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_swing_height(
    state: Any,
    env: int,
    contact: Contacts,
    command: CommandColumn,
    target_height: float,
    memory: Memory,
    command_threshold: float = 0.01,
) -> float:
    """Penalise (largest height of a swing / target - 1)², when the foot lands."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if has_just_landed(contact, env, foot, state.step_dt):
            error = memory[env, foot] / target_height - 1.0
            total += wp.where(contact.last_air_time[env, foot] > 0.0, error * error, 0.0)
            memory[env, foot] = 0.0
        elif not contact.found[env, foot]:
            height = clearance_of(state.ground, contact.position[env, foot])
            memory[env, foot] = wp.max(memory[env, foot], height)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def feet_gait(
    state: Any,
    env: int,
    contact: Contacts,
    command: CommandColumn,
    period: float,
    offset: Numbers,
    threshold: float = 0.5,
    command_threshold: float = 0.1,
) -> float:
    """Reward each foot that touches in the first share `threshold` of its period [s], or is in the air in the rest.

    The period of a foot begins `offset`, a share of it, before that of `gait_phase`; where a speed is commanded.
    """
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        phase = periods_of(state, env, period) + offset[foot]
        stands = phase - wp.floor(phase) < threshold
        total += wp.where(stands == contact.found[env, foot], 1.0, 0.0)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def soft_landing(
    state: Any,
    env: int,
    contact: Contacts,
    command: CommandColumn,
    command_threshold: float = 0.05,
) -> float:
    """Penalise the force of feet that land [N]."""
    total = wp.float32(0.0)
    for foot in range(contact.found.shape[1]):
        if has_just_landed(contact, env, foot, state.step_dt):
            total += largest_force(state, env, contact, foot)
    return total * is_commanded(state, env, command, command_threshold)


@wp.func
def undesired_contacts(state: Any, env: int, contact: Contacts, threshold: float) -> float:
    """Penalise each of the geoms or bodies that is touched with more than `threshold` [N]."""
    total = wp.float32(0.0)
    for i in range(contact.found.shape[1]):
        total += wp.where(largest_force(state, env, contact, i) > threshold, 1.0, 0.0)
    return total


@wp.func
def self_collision_cost(state: Any, env: int, contact: Contacts) -> float:  # noqa: ARG001
    """Penalise each contact, such as that of a robot with itself."""
    total = wp.float32(0.0)
    for i in range(contact.found.shape[1]):
        total += wp.where(contact.found[env, i], 1.0, 0.0)
    return total


@wp.func
def self_collision_substeps(state: Any, env: int, contact: Contacts, force_threshold: float = 10.0) -> float:
    """Penalise each physics step of an action with a force above a threshold [N]; mjlab's with a history of forces.

    MuJoCo Warp computes the model's sensors in each physics step then, and not in the last alone.
    """
    total = wp.float32(0.0)
    for physics_step in range(state.sensor_history.shape[1] // state.sensordata.shape[1]):
        largest = wp.float32(0.0)
        for i in range(contact.found.shape[1]):
            largest = wp.max(largest, largest_force_in(state, env, contact, i, physics_step))
        total += wp.where(largest > force_threshold, 1.0, 0.0)
    return total

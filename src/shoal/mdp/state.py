"""What the generated kernels and the functions of terms read as `state.<name>`.

The functions of terms read from their first parameter, `state`: fields of `MjData` and `MjModel` by MuJoCo's names,
with one row for each environment; a field of `MjModel` with ``default_`` before it, without rows; and

| name | shape | meaning |
| --- | --- | --- |
| `action`, `last_action` | (num_envs, num_actions) | the clipped actions of this step and of the one before |
| `commands` | (num_envs, columns) | all commands |
| `home` | (nq,) | the default pose |
| `ground` | | the ground, see `shoal.mdp.ground` |
| `episode_length` | (num_envs,) | steps since the episode began; 0 after its last |
| `age` | (num_envs,) | steps of the episode, with the present one |
| `time_out` | (num_envs,) | in events of mode `reset`: the episode before was cut off, and has not failed |
| `first_env` | (1,) | index of the first environment, see `Task.restart` |
| `rng` | (num_envs,) | random state, see `shoal.mdp.random` |
| `step_dt` | | time between two actions [s] |
| `terminated` | (num_envs,) | in rewards and metrics: a termination holds that is no time-out |
| `encoder_bias` | (num_envs, nv) | constant errors of joint encoders [rad or m] |
| `gravity` | (num_envs, 3) | gravity [m/s²] |
| `sensor_history` | (num_envs, decimation * n) | after a step: `sensordata` of each of its physics steps |
| `hulls` | (n,) of `wp.vec3` | points of meshes, see `shoal.mdp.shapes` |

Events, commands and actions may write fields of `MjModel` and controls, events and commands the state too; no term
writes another field of `MjData`. A field of `MjData` that neither observations nor actions read may describe the
last episode until the first physics step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import warp as wp
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS

from shoal.errors import ShoalError, did_you_mean
from shoal.mdp.accesses import model_field, uses

if TYPE_CHECKING:
    from shoal.mdp.kernels import Source
    from shoal.mdp.task import TermsTask

_FIELD = re.compile(r"\bstate\.(\w+)")
_DEFAULT = "default_"
"""Before the name of a field of `MjModel`: its values in the model, the same for all environments."""


def state_of(task: TermsTask[Any], sources: Iterable[Source]) -> dict[str, Any]:
    """Return what is read, by name; fields of the engine are opened.

    Raises:
        ShoalError: A term reads what is not there.
    """
    names = ("action", "rng", "age", "episode_length", "time_out", "first_env", "step_dt", "terminated")
    own: dict[str, Any] = {**{name: getattr(task, name) for name in names}, **task.own_state()}
    own["last_action"] = task.array("last_action", task.num_actions)
    if task.commands:
        own["commands"] = task.command_array
    made = {
        "ground": task.build_ground,
        "home": lambda: wp.array(task.home(), dtype=wp.float32, device=task.device),
        "encoder_bias": lambda: task.array("encoder_bias", task.model.nv),
        "shared_rng": lambda: task.array("shared_rng", dtype=wp.uint32),
        "sensor_history": lambda: task.engine.keep_sensors(task.array),
        "hulls": lambda: wp.array(task.binder.names.hulls[0], dtype=wp.vec3, device=task.device),
    }
    fresh = _read_after_reset(task, sources)
    in_text = (_FIELD.findall(source.body) for source in sources)
    values: dict[str, Any] = {}
    for name in sorted(set[str]().union(*in_text, *map(uses, task.binder.all_functions()))):
        if name in own:
            values[name] = own[name]
        elif name in made:
            values[name] = made[name]()
        elif name in DATA_FIELDS:
            values[name] = task.engine.data(name, after_physics_only=name not in fresh)
        elif field := model_field(name):
            values[name] = task.parameter(field)
        elif name.startswith(_DEFAULT) and (field := model_field(name.removeprefix(_DEFAULT))):
            values[name] = task.engine.constant(field)
        else:
            hint = did_you_mean(name, [*own, *made, *DATA_FIELDS, *MODEL_FIELDS])
            raise ShoalError(f"A term reads state.{name}, which neither MuJoCo nor the task has.{hint}")
    return values


def _read_after_reset(task: TermsTask[Any], sources: Iterable[Source]) -> set[str]:
    """Return what observations, recorders and actions read: between a reset and the next physics step."""
    functions = task.binder.functions
    observing = [each for each in task.binder.torch if each.group in {"observations", "recorders"}]
    fresh = set[str]().union(*(uses(each.function) for each in observing))
    for source in sources:
        if source.name.startswith(("act", "place", "observe", "record")):
            fresh |= {*_FIELD.findall(source.body)}.union(*(uses(functions[name]) for name in source.used(functions)))
    return fresh

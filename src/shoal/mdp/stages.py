"""The text of the kernels of a step, from the terms of each stage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError, UsageError
from shoal.mdp.accesses import model_field, uses, writes
from shoal.mdp.annotations import before_of
from shoal.mdp.binding import Binder, Bound, TorchBound
from shoal.mdp.config import TermsConfig
from shoal.mdp.contacts import clear_contact, count_time, touches_by_physics_step, track_contact
from shoal.mdp.kernels import Source
from shoal.mdp.observing import observe
from shoal.mdp.random import happens, uniform, uniform_int
from shoal.mdp.rings import Rings, recall, remember
from shoal.sim.engines.engine import SETCONST_INPUTS, STATE

_Terms = Mapping[str, Bound]


@dataclass(slots=True)
class BoundTerms:
    """The terms of a task, bound, by group and name."""

    actions: _Terms
    commands: _Terms
    contacts: _Terms
    rewards: _Terms
    terminations: _Terms
    metrics: _Terms
    events: _Terms
    observations: Mapping[str, _Terms]
    recorders: _Terms
    followed: Mapping[str, Any]
    """See `TermsTask.followed`."""
    rings: Rings = field(default_factory=Rings)
    """What is kept of the last values of observations and actions."""


WRITTEN = ("actions", "terms", "metric_values", "done_terms", "terminated", "truncated", "done", "moved", "age")
WRITTEN += ("commands_held", "command_left", "event_left")
"""Arrays of the task that the text names, beside `lags`, `obs_<group>`, and arrays of its own."""


def stages_of(config: TermsConfig, terms: BoundTerms, binder: Binder, first: Iterable[str]) -> list[Source]:
    """Return the kernels of all stages. Episodes begin with the array `first_<name>` of each field of `MjData` here."""
    called: tuple[Any, ...] = (track_contact, count_time, clear_contact)
    called += (happens, uniform, uniform_int, remember, recall)
    binder.functions |= {function.func.__name__: function for function in called}
    place, observing = _place(terms, binder), observe(config, terms.observations, terms.rings, binder)
    after_physics = [_sense(terms, binder), _end(config, terms), _reward(terms, binder)]
    if not binder.torch:  # No torch function reads contacts or ends in between.
        after_physics = [Source("reward", [line for each in after_physics for line in each.lines])]
        if not observing[0].columns:  # A kernel of single columns has an `i` of its own.
            place, observing[0].lines = Source("place"), place.lines + observing[0].lines
    return [
        *_act(config, terms, binder),
        *after_physics,
        _reset(config, terms, binder, first),
        _interval(config, terms, binder),
        Source("startup", [bound.call() for _, bound in _of_mode(config, terms, "startup")]),
        place,
        *observing,
        _record(terms),
    ]


def _act(config: TermsConfig, terms: BoundTerms, binder: Binder) -> tuple[Source, Source]:
    """Actions to controls, once and before each physics step."""
    source, actuate = Source("act"), Source("actuate")
    source.add(
        "age[env] = age[env] + 1",
        "for column in range(actions.shape[1]):",
        "    state.last_action[env, column] = state.action[env, column]",
    )
    for bound in terms.rewards.values():
        for name, before in before_of(bound.function).items():
            source.add(f"{bound.name}_{name}[env, 0] = {binder.name_function(before)}(state, env)")
    first = 0
    for name, bound in terms.actions.items():
        clip, count = binder.number(f"actions.{name}.clip", getattr(config.actions, name).clip), len(bound.columns)
        if not bound.is_by_column:
            vector = {3: "wp.vec3", 6: "wp.spatial_vector"}[count]
            source.add(f"{bound.name} = {vector}()")
        source.add(
            f"for i in range({count}):",
            f"    value = wp.clamp(actions[env, {first} + i], -{clip}, {clip})",
            f"    state.action[env, {first} + i] = value",
        )
        path, term = f"actions.{name}", getattr(config.actions, name)
        kept, acting = terms.rings.delayed(binder, path, term, count, "value")
        if kept:
            binder.memories.append(f"{path.replace('.', '_')}_delay")
            source.add(*kept, f"value = {acting}", depth=1)
        if bound.is_updated:
            if config.on_nan == "stop":
                raise UsageError(
                    f"--env.on-nan stop was asked for, but {path} acts before each physics step, which a replay does "
                    "not: pass --env.on-nan reset."
                )
            binder.arrays["physics_step"] = 0  # The task passes another.
            acting = acting if kept else f"state.action[env, {first} + i]"
            actuate.add(f"if i < {count}:", f"    {bound.call('i', acting, 'physics_step')}")
            actuate.columns = max(actuate.columns, count)
        elif bound.is_by_column:
            source.add(bound.call("i", "value"), depth=1)
        else:
            source.add(f"    {bound.name}[i] = value", bound.call(bound.name))
        source.add(*_moves(bound))
        first += count
    source.lines[1:1] = terms.rings.next
    return source, actuate


def _moves(bound: Bound) -> list[str]:
    """Return the line after a call that writes the state, or what constants of the model follow from."""
    written = writes(bound.function)
    inputs = {*STATE, *SETCONST_INPUTS}
    moves = any(name in inputs or (model_field(name) or "").startswith("opt.") for name in written)
    return ["moved[env] = True"] if moves else []


def _sense(terms: BoundTerms, binder: Binder) -> Source:
    """Contacts after a step."""
    source = Source("sense")
    for name, bound in terms.contacts.items():
        source.add(
            f"for i in range({len(bound.columns)}):",
            f"    track_contact({binder.contact(name)}, env, i, {bound.call('i')}, {_position(bound)}, state.step_dt, "
            "age[env] == 1)",
        )
        if bound.function is not touches_by_physics_step:
            found = f"{binder.contact(name)}.found[env, i]"
            source.add(f"count_time({binder.contact(name)}, env, i, {found}, state.step_dt, 0.0)", depth=1)
    return source


def _place(terms: BoundTerms, binder: Binder) -> Source:
    """Where contacts that observations ask for are when an episode begins."""
    source = Source("place")
    observed = {each for group in terms.observations.values() for bound in group.values() for each in bound.arguments}
    for name, bound in terms.contacts.items():
        if binder.contact(name) in observed:
            source.add(
                "if age[env] == 0:",
                f"    for i in range({len(bound.columns)}):",
                f"        {binder.contact(name)}.position[env, i] = {_position(bound)}",
            )
    return source


def _position(bound: Bound) -> str:
    """Return the expression of where geom, body or site `i` of a contact is."""
    if bound.of.startswith("geom"):
        return f"state.geom_xpos[env, {bound.of}[i].index]"
    return f"state.{'site_' * bound.of.startswith('site')}xpos[env, {bound.of}[i]]"


def _end(config: TermsConfig, terms: BoundTerms) -> Source:
    """Terminations."""
    source = Source("end")
    for column, (name, bound) in enumerate(terms.terminations.items()):
        flag = "truncated" if getattr(config.terminations, name).time_out else "terminated"
        source.add(
            f"done_terms[env, {column}] = {bound.call()}",
            f"if done_terms[env, {column}]:",
            f"    {flag}[env] = True",
        )
    return source


def _reward(terms: BoundTerms, binder: Binder) -> Source:
    """Rewards, what is followed, and metrics."""
    source = Source("reward")
    source.add(*(f"terms[env, {column}] = {bound.call()}" for column, bound in enumerate(terms.rewards.values())))
    read = frozenset[str]().union(*map(uses, binder.all_functions()))
    followed = [binder.name_function(each) for name, each in terms.followed.items() if name in read]
    source.add(*(f"{name}(state, env)" for name in followed))
    for column, bound in enumerate(terms.metrics.values()):
        source.add(f"metric_values[env, {column}] = {bound.call()}")
    return source


def _reset(config: TermsConfig, terms: BoundTerms, binder: Binder, first: Iterable[str]) -> Source:
    """The first state, reset events, commands, and all that is remembered of the episode before."""
    source = Source("reset")
    source.add(
        "if not done[env]:",
        "    return",
        "age[env] = 0",
        "for column in range(state.action.shape[1]):",
        "    state.action[env, column] = 0.0",
        "    state.last_action[env, column] = 0.0",
    )
    for memory in binder.memories:
        source.add(f"for i in range({memory}.shape[1]):", f"    {memory}[env, i] = {memory}.dtype(0.0)")
    if any("sensor_history" in uses(each) for each in binder.all_functions()):
        source.add("for i in range(state.sensor_history.shape[1]):", "    state.sensor_history[env, i] = 0.0")
    for name in first:
        source.add(f"for i in range(first_{name}.shape[0]):", f"    state.{name}[env, i] = first_{name}[i]")
    source.add(*(bound.call() for _, bound in _of_mode(config, terms, "reset")))
    drawn = [_command(config, terms, binder, at, name, is_new="True") for at, name in enumerate(terms.commands)]
    source.add(*_unless_held(drawn))
    for at, (name, _) in enumerate(_of_mode(config, terms, "interval")):
        source.add(f"event_left[env, {at}] = {_time(config.events, binder, f'events.{name}.interval')}")
    for name, bound in terms.contacts.items():
        source.add(f"for i in range({len(bound.columns)}):", f"    clear_contact({binder.contact(name)}, env, i)")
    source.add(*terms.rings.first)
    return source


def _interval(config: TermsConfig, terms: BoundTerms, binder: Binder) -> Source:
    """Commands and events whose time has come, and events of mode `step`, in running episodes."""
    source = Source("interval")
    drawn = list[list[str]]()
    for at, name in enumerate(terms.commands):
        source.add(f"command_left[env, {at}] = command_left[env, {at}] - state.step_dt")
        is_new = f"command_left[env, {at}] <= 0.0"
        drawn.append(_command(config, terms, binder, at, name, is_new, _moves(terms.commands[name])))
    source.add(*_unless_held(drawn))
    for at, (name, bound) in enumerate(_of_mode(config, terms, "interval")):
        path = f"events.{name}.interval"
        longest = binder.number(f"{path}.1", getattr(config.events, name).interval[1])
        source.add(
            f"event_left[env, {at}] = event_left[env, {at}] - state.step_dt",
            f"if {longest} > 0.0 and event_left[env, {at}] <= 0.0:",
            f"    {bound.call()}",
            f"    event_left[env, {at}] = {_time(config.events, binder, path)}",
            "    moved[env] = True",
        )
    for name, bound in _of_mode(config, terms, "step"):
        longest = binder.number(f"events.{name}.interval.1", getattr(config.events, name).interval[1])
        source.add(f"if {longest} > 0.0:")
        source.add(bound.call(), *_moves(bound), depth=1)
    if source.lines:
        source.lines[:0] = ["if done[env]:", "    return"]
    return source


def _record(terms: BoundTerms) -> Source:
    """Recorders, which no step runs."""
    source = Source("record")
    for name, bound in terms.recorders.items():
        if isinstance(bound, TorchBound):
            raise ShoalError(f"recorders.{name} is a function on torch tensors, but must be a wp.func.")
        value, count = bound.value, len(bound.columns)
        if not bound.is_by_column:
            source.add(f"{bound.name}_value = {value}")
            value = f"{bound.name}_value[i]" if count > 1 else f"{bound.name}_value"
        source.add(f"for i in range({count}):", f"    recorders_{name}[env, i] = {value}")
    return source


def _of_mode(config: TermsConfig, terms: BoundTerms, mode: str) -> list[tuple[str, Bound]]:
    return [(name, bound) for name, bound in terms.events.items() if getattr(config.events, name).mode == mode]


def _command(
    config: TermsConfig, terms: BoundTerms, binder: Binder, at: int, name: str, is_new: str, then: Sequence[str] = ()
) -> list[str]:
    """Return the lines that draw a command where `is_new`, and call the function in any case if it asks for that."""
    bound, first = terms.commands[name], str(binder.commands[name])
    time = f"command_left[env, {at}] = {_time(config.commands, binder, f'commands.{name}.resampling_time')}"
    drawn = [f"if {is_new}:", *(f"    {line}" for line in (time, *then))]
    if bound.is_updated:
        return [bound.call(first, is_new), *drawn]
    return [drawn[0], f"    {bound.call(first)}", *drawn[1:]]


def _unless_held(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of commands, which do nothing while a viewer holds those that it has written."""
    lines = [f"    {line}" for command in commands for line in command]
    return ["if commands_held[0] == 0:", *lines] if lines else []


def _time(group: object, binder: Binder, path: str) -> str:
    """Return the expression of a time that is drawn between the two of a field [s]."""
    _, name, item = path.split(".")
    low, high = getattr(getattr(group, name), item)
    return f"uniform(state, env, {binder.number(f'{path}.0', low)}, {binder.number(f'{path}.1', high)})"

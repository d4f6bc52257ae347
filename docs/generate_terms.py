"""Write docs/reference/terms.md: every function of terms that ships, from its docstring and its parameters.

    python docs/generate_terms.py

A test compares the page with the output of this script.
"""

# ruff: noqa: ANN401

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import mujoco
import numpy as np
import warp as wp

from shoal.cli.flags import docstring_of
from shoal.mdp.accesses import python_of
from shoal.mdp.annotations import hints_of, takes
from shoal.mdp.terms import (
    CHOICES,
    ActionTerm,
    CommandTerm,
    ContactTerm,
    DoneTerm,
    EventTerm,
    ObjectTerm,
    ObsTerm,
    RewardTerm,
    SubTerrainTerm,
)

PAGE = Path(__file__).parent / "reference" / "terms.md"

KINDS: dict[str, tuple[str, str, type, tuple[Any, ...]]] = {
    "actions": ("Actions", "Action", ActionTerm, (None,)),
    "commands": ("Commands", "Command", CommandTerm, (None,)),
    "observations": ("Observations", "Obs", ObsTerm, (float, wp.vec2, wp.vec3, wp.vec4, wp.spatial_vector)),
    "rewards": ("Rewards and metrics", "Reward", RewardTerm, (float,)),
    "terminations": ("Terminations", "Done", DoneTerm, (bool,)),
    "events": ("Events", "Event", EventTerm, (None,)),
    "contacts": ("Contacts", "Contact", ContactTerm, (bool,)),
    "objects": ("Objects of a scene", "Object", ObjectTerm, (mujoco.MjSpec,)),
    "sub_terrains": ("Sub-terrains", "SubTerrain", SubTerrainTerm, (np.ndarray,)),
}
"""Title, declaration, its class, and what its functions return, by the module of the functions."""
HELPERS = {"command_at", "put_root", "add_root_velocity", "next_action_acc", "net_force", "to_base", "uniform"}
HELPERS |= {"periods_of", "is_commanded"}
"""Functions that other functions call."""

HEAD = """# Terms

<!-- Written by docs/generate_terms.py; do not edit. -->

Functions that a declaration may name by a string, as in `Reward("lin_vel_z_l2", weight=-2.0)`; each parameter is a
field of the task's configuration, and a flag. Names are mjlab's where it has the term, and
[terms against mjlab](mjlab_terms.md) compares their values. A parameter takes a *pattern* of names, the *name* of a
command or contact, or numbers. Functions of your own are written in the same way: see
[a task made of terms](../guide/task_of_terms.md).
"""

GIVEN = {"state", "env", "i", "first", "is_new", "action", "plot"}
"""Parameters that the task passes itself."""
TYPES = {"str": "text", "float": "number", "int": "integer", "bool": "true or false"}


def functions_of(library: str) -> dict[str, Any]:
    """Return the functions that a string of this kind may name, by name."""
    returned = KINDS[library][3]
    found: dict[str, Any] = {}
    for name, value in vars(import_module(f"shoal.mdp.{library}")).items():
        function = python_of(value)
        if name.startswith("_") or name in HELPERS or not inspect.isfunction(function):
            continue
        first = next(iter(inspect.signature(function).parameters), "")
        if first in {"state", "plot", "type", "file"} and inspect.signature(function).return_annotation in returned:
            found[name] = function
    return found


def describe(name: str, annotation: Any, default: Any) -> str | None:
    """Return a parameter with what it takes, or None for one that the task passes itself."""
    rule = takes(annotation)
    if name in GIVEN or (rule and not rule.said):
        return None
    taken = re.sub(r"^(wp\.|warp\.)", "", str(getattr(annotation, "__name__", annotation)))
    if rule:
        what = rule.said
    elif "tuple" in taken or taken == "vec2f":
        what = "lowest and highest"
    elif vector := re.search(r"vec(\d)", taken):
        what = f"{vector[1]} numbers"
    else:
        what = TYPES[taken]
    shown = "" if default is inspect.Parameter.empty else f" = {_shown(name, default)}"
    return f"`{name}`{shown}: {what}"


def _shown(name: str, default: Any) -> Any:
    if name in CHOICES:
        return get_args(CHOICES[name])[int(default)]
    return " ".join(f"{each:g}" for each in default) if isinstance(default, wp.vec2) else default


def row(name: str, function: Any) -> str:
    """Return the row of a function."""
    text = " ".join((inspect.getdoc(function) or "").split()).replace("|", "\\|")
    hints, parameters = hints_of(function), inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD and name != "touches"]
    described = [describe(each.name, hints[each.name], each.default) for each in named]
    return f"| `{name}` | {text} | {'; '.join(each for each in described if each)} |".replace("|  |", "| |")


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for library, (title, declaration, owner, _returned) in KINDS.items():
        own = [name for name in owner.__dataclass_fields__ if docstring_of(owner, name) and name != "parameters"]
        parts.append(f"\n## {title}\n\nDeclared by `{declaration}`")
        parts.append(", each with these fields:\n\n| field | what it is |\n| --- | --- |\n" if own else ".\n")
        parts += [f"| `{name}` | {docstring_of(owner, name)} |\n" for name in own]
        parts.append("\n| function | what it is | parameters |\n| --- | --- | --- |\n")
        parts += [f"{row(name, function)}\n" for name, function in sorted(functions_of(library).items())]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8")

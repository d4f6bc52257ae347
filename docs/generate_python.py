"""Write docs/reference/python.md: the public names of Shoal, from their docstrings.

    python docs/generate_python.py

A test compares the page with the output of this script.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import warp as wp

import shoal
from shoal import mdp
from shoal.mdp.binding import python_of

PAGE = Path(__file__).parent / "reference" / "python.md"
HEAD = """# Python

<!-- Written by docs/generate_python.py; do not edit. -->

The public names of `shoal`, as shown in [Shoal from Python](../guide/python.md). Other names may change at any time.
"""
FUNCTIONS = ("make", "train", "evaluate", "load_policy", "runs", "metrics")


def signature(name: str, function: Any) -> str:  # noqa: ANN401
    """Return a call with the types of its parameters."""
    return f"{name}{inspect.signature(function)}".replace("'", "").replace(" = <factory>", "")


def described(text: str) -> str:
    """Return a docstring as Markdown: its sections in bold, their entries as lists."""
    text = re.sub(r"^(Args|Raises):$", r"**\1**\n", inspect.cleandoc(text), flags=re.MULTILINE)
    text = re.sub(r"\n +(?=[^ ].*?: )", "\n- ", text)
    return re.sub(r"^- (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)


def summary(value: Any) -> str:  # noqa: ANN401
    """Return the first paragraph of a docstring; of an annotation of a term's parameter what is declared for it."""
    if get_origin(value) is Annotated:
        said = get_args(value)[1].said or "nothing: the task makes it"
        return f"Annotation of a parameter of a term, whose declaration gives: {said}."
    text = inspect.getdoc(value) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def table(module: Any, names: list[str]) -> str:  # noqa: ANN401
    """Return a row for each name."""
    values = [(name, getattr(module, name)) for name in names]
    plain = [(name, python_of(value) if isinstance(value, wp.Function) else value) for name, value in values]
    rows = [f"| `{name}` | {summary(value)} |" for name, value in plain]
    return "\n".join(["| name | what it is |", "| --- | --- |", *rows, ""])


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for name in FUNCTIONS:
        function = getattr(shoal, name)
        parts.append(
            f"## `shoal.{name}`\n\n```python\n{signature(name, function)}\n```\n\n{described(function.__doc__)}\n"
        )
    others = sorted(name for name in shoal.__all__ if name not in FUNCTIONS)
    parts.append(f"## Other names of `shoal`\n\n{table(shoal, others)}")
    parts.append(f"## Names of `shoal.mdp`\n\n{table(mdp, sorted(mdp.__all__))}")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")

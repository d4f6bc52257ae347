"""Write src/shoal/config/jobs.schema.json: the JSON schema of a jobs file, with which editors check and complete it.

    python docs/generate_schema.py

A test compares the file with the output of this script.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from shoal.config import evaluate
from shoal.config.checks import Rule
from shoal.config.evaluate import JobEntry, JobSettings

FILE = Path(evaluate.__file__).with_name("jobs.schema.json")
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
_LIMITS = {"at least": "minimum", "above": "exclusiveMinimum"}


def render() -> str:
    """Return the file."""
    entry = {
        "type": "object",
        "properties": _properties(),
        "required": [each.name for each in fields(JobEntry) if each.default is each.default_factory is MISSING],
        "additionalProperties": False,
        "not": {"required": ["num_steps", "num_episodes"]},
    }
    entries = {"type": "array", "items": {"$ref": "#/$defs/entry"}, "minItems": 1}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Jobs of `evaluate --jobs`",
        "anyOf": [
            entries,
            {
                "type": "object",
                "properties": {"$schema": {"type": "string"}, "jobs": entries},
                "required": ["jobs"],
                "additionalProperties": False,
            },
        ],
        "$defs": {"entry": entry},
    }
    return json.dumps(schema, indent=2) + "\n"


def _properties() -> dict[str, Any]:
    """Return the schema of each key: type, limits, default, and the docstring as its description."""
    docs: dict[str, ast.stmt] = {}
    for each in (JobSettings, JobEntry):
        body = ast.parse(inspect.getsource(each)).body[0].body  # pyright: ignore[reportAttributeAccessIssue]
        docs |= {ast.unparse(field.target): doc for field, doc in pairwise(body) if isinstance(field, ast.AnnAssign)}
    hints = get_type_hints(JobEntry, include_extras=True)
    properties: dict[str, Any] = {}
    for each in fields(JobEntry):
        default = {} if each.default is MISSING else {"default": each.default}
        description = " ".join(ast.literal_eval(ast.unparse(docs[each.name])).split())
        properties[each.name] = {**_schema(hints[each.name]), **default, "description": description}
    return properties


def _schema(kind: Any) -> dict[str, Any]:  # noqa: ANN401  An annotation.
    """Return the schema of an annotation."""
    members = get_args(kind)
    if get_origin(kind) is Annotated:
        limits = [re.match(r"be (at least|above) (\d+)", rule.must) for rule in members[1:] if isinstance(rule, Rule)]
        return _schema(members[0]) | {_LIMITS[limit[1]]: int(limit[2]) for limit in limits if limit}
    if get_origin(kind) is tuple:
        return {"type": "array", "items": _schema(members[0]), "minItems": 1}
    if get_origin(kind) is dict:
        return {"type": "object"}
    return {"anyOf": [_schema(each) for each in members]} if members else {"type": _TYPES[kind]}


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")

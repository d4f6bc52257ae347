"""The schema of a jobs file is that of its keys, with a description of each."""

from __future__ import annotations

import json
from dataclasses import fields

from support.documented import ROOT, script

from shoal.config import evaluate

FILE = ROOT / "src" / "shoal" / "config" / "jobs.schema.json"


def test_the_schema_is_up_to_date() -> None:
    assert script(ROOT / "docs" / "generate_schema.py").render() == FILE.read_text(encoding="utf-8"), (
        "Run: python docs/generate_schema.py"
    )


def test_the_schema_tells_what_each_key_takes() -> None:
    entry = json.loads(FILE.read_text(encoding="utf-8"))["$defs"]["entry"]
    keys = entry["properties"]
    assert list(keys) == [field.name for field in fields(evaluate.JobEntry)]
    assert all(key["description"].endswith(".") for key in keys.values())
    assert entry["required"] == ["name", "task"]
    assert {name: keys["num_envs"][name] for name in ("type", "minimum", "default")} == {
        "type": "integer",
        "minimum": 1,
        "default": 64,
    }
    assert keys["seed"]["anyOf"] == [
        {"type": "integer"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    ]
    assert (keys["timeout"]["exclusiveMinimum"], keys["record"]["type"]) == (0, "boolean")

"""Numbers by pattern of names."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.mdp.patterns import numbers_by_pattern

MJLAB = find_spec("mjlab")
NAMES = ("left_hip", "left_knee", "right_hip", "right_knee")


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({".*": 1.0}, dict.fromkeys(NAMES, 1.0)),
        ({".*_hip": 1.0, ".*_knee": 2.0}, {"left_hip": 1.0, "right_hip": 1.0, "left_knee": 2.0, "right_knee": 2.0}),
        ({"left_knee": 3.0}, {"left_knee": 3.0}),
        ({"right_.*": 1.0, "left_hip": -2.0}, {"right_hip": 1.0, "right_knee": 1.0, "left_hip": -2.0}),
        ({"hip": 1.0}, "has the pattern 'hip', which matches none of left_hip, left_knee, right_hip, right_knee."),
        ({".*": 1.0, "ankle": 2.0}, "the pattern 'ankle', which matches none of"),
        (
            {".*": 1.0, "left_.*": 2.0},
            "x has two patterns for 'left_hip', '.*' and 'left_.*': each name must match one.",
        ),
    ],
)
def test_a_number_by_pattern_is_what_mjlab_resolves(
    numbers: dict[str, float], expected: dict[str, float] | str
) -> None:
    try:
        found: dict[str, float] | str = numbers_by_pattern("x", numbers, NAMES)
    except UsageError as refused:
        found = str(refused)
    assert found == expected if isinstance(expected, dict) else expected in found
    if MJLAB is None or MJLAB.origin is None:
        return
    mjlab = runpy.run_path(str(Path(MJLAB.origin).parent / "utils" / "lab_api" / "string.py"))
    try:
        _, names, values = mjlab["resolve_matching_names_values"](numbers, NAMES)
    except ValueError:
        assert isinstance(expected, str)
    else:
        assert dict(zip(names, values, strict=True)) == expected

"""Bars and plots of rewards and metrics on the page."""

from __future__ import annotations

import re

import numpy as np

from shoal.viewer.terms import bars


def test_a_bar_begins_in_the_middle_and_is_as_long_as_its_part_of_the_scale() -> None:
    values, scales = np.array([1.0, -2.0, 9.0, np.nan, 0.0]), np.array([4.0, 4.0, 4.0, 4.0, 0.0])
    drawn = bars(("up", "down", "huge", "bad", "<none>"), values, scales)
    assert re.findall(r"#[\w]{6} (\d+)%, #\w{6} (\d+)%", drawn) == [
        ("50", "62"),
        ("25", "50"),
        ("50", "100"),
        ("50", "50"),
        ("50", "50"),
    ]
    assert re.findall(r"right\">([^<]*)<", drawn) == ["1", "-2", "9", "nan", "0"]
    assert "&lt;none&gt;" in drawn

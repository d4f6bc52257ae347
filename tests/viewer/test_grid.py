"""Where environments stand side by side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.viewer.grid import NARROWEST, ROOM, offsets


def test_square_things_stand_in_a_square() -> None:
    places = offsets(4, (1.0, 1.0)) / ROOM
    assert places.tolist() == pytest.approx(np.array([[-0.5, -0.5, 0], [0.5, -0.5, 0], [-0.5, 0.5, 0], [0.5, 0.5, 0]]))


def test_wide_things_stand_one_behind_the_other() -> None:
    places = offsets(4, (4.0, 0.1)) / ROOM
    assert places[:, 0].tolist() == [0, 0, 0, 0]
    assert np.diff(places[:, 1]).tolist() == pytest.approx([4.0 * NARROWEST] * 3)


def test_one_stands_in_the_middle() -> None:
    assert offsets(1, (4.0, 2.0)).tolist() == [[0, 0, 0]]


def test_things_without_a_size_do_not_stand_in_each_other() -> None:
    assert len(np.unique(offsets(9, (0.0, 0.0)), axis=0)) == 9


@given(st.integers(1, 64), st.floats(0.01, 100), st.floats(0.01, 100))
def test_none_stands_in_another(num_envs: int, width: float, depth: float) -> None:
    places = offsets(num_envs, (width, depth))
    apart = np.abs(places[:, None] - places[None])
    clear = (apart[..., 0] > width) | (apart[..., 1] > depth)
    assert clear[~np.eye(num_envs, dtype=bool)].all()

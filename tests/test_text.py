"""Sizes in words."""

from __future__ import annotations

import pytest

from shoal.text import size


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 * 2**20, "200 MiB"), (3 * 2**50, "3072.0 TiB")],
)
def test_sizes_have_units(count: int, words: str) -> None:
    assert size(count) == words

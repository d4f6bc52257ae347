"""The doctor's one small kernel, on the device of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.sim import graphs
from shoal.sim.probe import probe

if TYPE_CHECKING:
    import pytest


def test_a_kernel_runs_and_is_captured(device: str) -> None:
    answer = probe(device)
    assert answer["right"]
    assert answer["why_not_captured"] is None
    assert answer["loaded_s"] > 0


def test_the_cause_is_given_where_a_kernel_cannot_be_captured(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        message = "no capture here"
        raise RuntimeError(message)

    monkeypatch.setattr(graphs.wp, "ScopedCapture", refuse)
    answer = probe(device)
    assert answer["right"]
    assert answer["why_not_captured"] == "no capture here"

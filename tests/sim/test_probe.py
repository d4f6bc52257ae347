"""The doctor's one small kernel, on the device of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.sim import graphs
from shoal.sim.probe import probe

if TYPE_CHECKING:
    import pytest


def test_a_kernel_runs_and_is_recorded(device: str) -> None:
    told = probe(device)
    assert told["right"]
    assert told["recorded"]
    assert told["loaded_s"] > 0


def test_a_step_that_cannot_be_recorded_is_told(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        message = "no capture here"
        raise RuntimeError(message)

    monkeypatch.setattr(graphs.wp, "ScopedCapture", refuse)
    told = probe(device)
    assert told["right"]
    assert not told["recorded"]

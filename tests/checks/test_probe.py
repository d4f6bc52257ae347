"""Child processes that call one function."""

from __future__ import annotations

from shoal.checks.probe import Probe


def test_a_probe_that_has_ended_may_be_killed_again() -> None:
    probe = Probe("builtins:len", [1, 2])
    assert probe.result() == 2  # pyright: ignore[reportUnnecessaryComparison]  Any JSON.
    probe.kill()


def test_a_probe_that_fails_says_why() -> None:
    assert Probe("builtins:int", "a").result() == (
        "it left with exit code 1: ValueError: invalid literal for int() with base 10: 'a'"
    )


def test_a_probe_has_a_time_limit() -> None:
    assert Probe("time:sleep", 60).result(timeout_s=1.0) == "it did not end within 1 s"

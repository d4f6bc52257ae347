"""Stop signals in this process, however soon one follows another."""

from __future__ import annotations

import os
import signal
import time

import pytest

from shoal.signals import stop_requests

ANOTHER_KEY_S = 0.4
"""After this time a SIGINT is another one."""


def test_a_ctrl_c_that_arrives_twice_at_once_is_one() -> None:
    """`timeout -s INT 60 train ...` signals its child, and then the group of both."""
    with stop_requests(insist=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.counts["SIGINT"] == 1
        time.sleep(ANOTHER_KEY_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_second_ctrl_c_that_answers_the_announcement_interrupts() -> None:
    announced: list[str] = []

    def announce(name: str) -> None:
        announced.append(name)
        time.sleep(ANOTHER_KEY_S)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted() -> None:
        with stop_requests(insist=True, announce=announce):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert announced == ["SIGINT"]

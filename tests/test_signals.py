"""Stop signals in this process, however soon one follows another."""

from __future__ import annotations

import os
import signal
import time

import pytest

from shoal.signals import stop_requests


def test_a_second_ctrl_c_that_answers_the_announcement_at_once_interrupts() -> None:
    announced: list[str] = []

    def announce(name: str) -> None:
        announced.append(name)
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted() -> None:
        with stop_requests(insist=True, announce=announce):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert announced == ["SIGINT"]

"""The inequalities between the time constants of `shoal.timing`: which limit must be reached before which."""

from __future__ import annotations

import pytest

from shoal import timing as t


@pytest.mark.parametrize(
    ("shorter", "longer", "why"),
    [
        (t.POLL_S, t.CHANNEL_BEAT_S, "A poll is not late for a beat."),
        (5 * t.CHANNEL_BEAT_S, t.NODE_LEAST_SILENCE_S, "A few beats may be late before a node counts as lost."),
        (t.NODE_LEAST_SILENCE_S, t.NODE_SILENCE_S, "The limit has a range."),
        (t.NODE_SILENCE_S, t.SSH_ALIVE_S * t.SSH_ALIVE_COUNT, "Shoal names a silent node before ssh ends."),
        (t.SSH_CONNECT_S, t.ANSWER_S, "ssh's own message comes before the probe's limit."),
        (t.REACH_S, t.ANSWER_S, "A node tries an address and still answers in time."),
        (t.NODE_GREETING_S, t.START_S, "A node without a greeting is named before its ranks are."),
        (t.FAILURE_GRACE_S, t.STOP_S, "After a failure there is no checkpoint to wait for."),
        (t.FAILURE_GRACE_S, t.NODE_CLOSE_S, "A node agent is not given up while it ends ranks."),
        (t.CHANNEL_FLUSH_S, t.NODE_CLOSE_S, "It also sends its files."),
        (t.REAPER_SAVE_S, t.REAPER_KILL_S, "Ranks that do not end are killed for longer than they were asked."),
    ],
)  # fmt: skip
def test_the_first_limit_is_not_longer(shorter: float, longer: float, why: str) -> None:
    assert shorter <= longer, why

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
        (t.FAILURE_GRACE_S, t.STOP_S, "After a failure there is no checkpoint to wait for."),
        (t.FAILURE_GRACE_S, t.NODE_CLOSE_S, "A node agent is not given up while it ends ranks."),
        (t.CHANNEL_FLUSH_S, t.NODE_CLOSE_S, "It also sends its files."),
        (t.REAPER_SAVE_S, t.REAPER_KILL_S, "Ranks that do not end are killed for longer than they were asked."),
    ],
)  # fmt: skip
def test_the_first_limit_is_not_longer(shorter: float, longer: float, why: str) -> None:
    assert shorter <= longer, why


def test_a_stuck_rank_reports_itself_before_others_report_it() -> None:
    assert t.HANG_GRACE_S > t.DUMP_GRACE_S + t.BEAT_S


def test_a_pause_is_longer_than_a_late_heartbeat_and_shorter_than_a_silence() -> None:
    assert 2 * t.BEAT_S < t.OWN_PAUSE_S < t.PROCESS_SILENCE_S


def test_all_ranks_read_the_failure_of_rank_0_before_its_store_ends() -> None:
    assert t.STATUS_LINGER_S >= 2 * t.BEAT_S
    assert t.PEER_FAILURE_S > t.STATUS_LINGER_S


def test_a_refresh_outlasts_a_request_that_is_not_answered() -> None:
    assert t.STATUS_REFRESH_S > t.STATUS_ANSWER_S


def test_the_silence_of_others_is_known_before_the_grace_is_over() -> None:
    assert t.BEAT_S < t.IDLE_BEFORE_READING_S < t.HANG_GRACE_S


def test_a_rank_that_refuses_waits_for_a_slow_start_of_rank_0() -> None:
    assert t.REFUSAL_S >= t.NODE_GREETING_S > t.ACKNOWLEDGE_S > t.POLL_S


def test_a_wait_ends_with_what_was_found_or_with_the_last_look() -> None:
    looks = iter([0, 0, 7, 8])
    assert t.wait_for(lambda: next(looks), timeout=60, poll=0) == 7
    assert t.wait_for(lambda: "", timeout=0.01, poll=0.001) == ""
    assert next(looks) == 8

"""Inequalities that must hold between time constants."""

from __future__ import annotations

from shoal import timing as t


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


def test_rank_0_waits_for_acknowledgements_longer_than_a_refusing_rank_looks_for_it() -> None:
    assert t.ACKNOWLEDGE_S > t.REFUSAL_S > t.RENDEZVOUS_POLL_S
    assert t.ELASTIC_REFUSAL_S > 2 * t.ELASTIC_POLL_S


def test_an_elastic_launcher_outlasts_its_workers() -> None:
    assert t.ELASTIC_MARGIN_S > t.HANG_GRACE_S + t.PEER_FAILURE_S

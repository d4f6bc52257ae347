"""What ranks of several nodes learn of each other through a store, and when they do not reach it any more."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import wait_until
from torch.distributed import HashStore

from shoal.heartbeat import Beat
from shoal.launch import joined, status_store
from shoal.launch.exit_records import ExitRecord
from shoal.launch.rendezvous import SignedStore
from shoal.launch.status_store import TcpStatusStore
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch.distributed import Store


def beat(rank: int, **more: Any) -> Beat:
    seen: dict[str, Any] = {"iteration": 3, "marks": 9, "idle": 1.0, "silent": 0.0, "limit": 60.0}
    return Beat(rank=rank, phase="rollout", host=f"host {rank}", pid=1, started=1, **(seen | more))


def failed(rank: int) -> ExitRecord:
    return ExitRecord(rank=rank, host=f"host {rank}", ending="failed", time=1.0, exit_code=1, error="ValueError: no")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[..., list[TcpStatusStore]]]:
    """Makes a statuses for each of two ranks, each on a machine with a disk of its own."""
    with ExitStack() as stack:

        def make(connect: Callable[[], Store]) -> list[TcpStatusStore]:
            made: list[TcpStatusStore] = []
            for number in (0, 1):
                run = RunDir(tmp_path / str(number))
                run.ranks_dir.mkdir(parents=True)
                rank = Rank(rank=number, local_rank=0, world_size=2, local_world_size=1)
                made.append(
                    stack.enter_context(closing(TcpStatusStore(run, rank, lambda: SignedStore(connect(), None))))
                )
            return made

        yield make


def seen_by(statuses: TcpStatusStore, rank: int) -> Beat | None:
    statuses.refresh()
    return next(iter(statuses.beats([rank])), None)


def test_a_rank_is_seen_as_it_tells_and_its_silence_is_counted_here(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    store = HashStore()
    first, second = stores(lambda: store)
    first.publish(beat(0), read_others=True)
    assert seen_by(first, 1) is None
    second.publish(beat(1, idle=5.0), read_others=False)
    assert wait_until(lambda: seen_by(first, 1) is not None, timeout=10)
    second.close()
    time.sleep(0.2)
    seen = seen_by(first, 1)
    assert seen is not None
    assert (seen.phase, seen.host) == ("rollout", "host 1")
    assert seen.silent >= 0.2
    assert seen.idle == pytest.approx(5.0 + seen.silent)


def test_a_limit_from_before_the_second_iteration_does_not_excuse_one_that_is_silent(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    store = HashStore()
    first, second = stores(lambda: store)
    first.publish(beat(0, limit=10.0), read_others=True)
    second.publish(beat(1, limit=900.0), read_others=True)
    assert wait_until(lambda: seen_by(first, 1) is not None, timeout=10)
    seen = seen_by(first, 1)
    assert seen is not None
    assert seen.limit == 10.0


def test_a_failure_is_heard_by_those_who_do_not_ask_and_kept_where_the_run_is(
    stores: Callable[..., list[TcpStatusStore]], tmp_path: Path
) -> None:
    store = HashStore()
    first, second = stores(lambda: store)
    for statuses, number in ((first, 0), (second, 1)):
        statuses.publish(beat(number), read_others=False)
    second.write_exit(failed(1))
    assert wait_until(lambda: first.first_failure() == failed(1), timeout=10)
    first.refresh()
    assert first.ended() == {1}
    assert (tmp_path / "0" / "ranks" / "rank_00001.json").is_file()
    assert (tmp_path / "1" / "ranks" / "rank_00001.json").is_file()


def test_the_first_failure_is_the_first_in_the_store_whatever_the_clocks_say(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    store = HashStore()
    first, second = stores(lambda: store)
    second.write_exit(replace(failed(1), time=2_000_000_000.0))  # Its clock is fast.
    first.write_exit(failed(0))
    earliest = replace(failed(1), time=2_000_000_000.0)
    assert wait_until(lambda: first.first_failure() == second.first_failure() == earliest, timeout=10)


def test_a_failure_that_the_store_did_not_take_is_written_at_the_next_exchange(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    """A rank ends once it has written its exit record, so it waits until the store has it."""
    store, refused = HashStore(), list[str]()

    class Refusing:
        """Loses the connection when an exit record is written for the first time."""

        def set(self, key: str, value: str) -> None:
            if "ValueError" in value and not refused:
                refused.append(key)
                message = "Broken pipe"
                raise RuntimeError(message)
            store.set(key, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    (_, second) = stores(Refusing)  # pyright: ignore[reportArgumentType]
    second.write_exit(failed(1))
    assert refused == ["shoal/status/1"]
    assert second.first_failure() == failed(1)


def test_a_store_that_does_not_answer_is_silent_and_blocks_nobody(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    def connect() -> Store:
        message = "the cable was pulled"
        raise RuntimeError(message)

    first, _second = stores(connect)
    first.publish(beat(0), read_others=True)
    begun = time.monotonic()
    first.refresh()
    assert first.silent >= time.monotonic() - begun
    assert first.ended() == set()
    assert list(first.beats([0, 1])) == []


class Counting:
    """A store that counts requests, and the bytes of its answers."""

    def __init__(self) -> None:
        self._store = HashStore()
        self.requests = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        def count(*arguments: Any) -> Any:
            self.requests += 1
            answer = getattr(self._store, name)(*arguments)
            self.bytes += sum(map(len, answer)) if name == "multi_get" else len(answer) if name == "get" else 1
            return answer

        return count


def load_of(world_size: int, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Requests in a second, and bytes, of ranks that all wait, with eight of them on each node."""
    now = [1000.0]
    monkeypatch.setattr(status_store, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(threading.Thread, "start", lambda _: None)
    store: Any = Counting()
    signed = SignedStore(store, "secret")
    ranks = [
        Rank(rank=rank, local_rank=rank % 8, world_size=world_size, local_world_size=8) for rank in range(world_size)
    ]
    statuses = [TcpStatusStore(run, rank, lambda: signed) for rank in ranks]
    for rank, each in enumerate(statuses):
        each.publish(beat(rank), read_others=True)
        each._exchange(signed, read_others=False)
    store.requests = store.bytes = 0
    seconds = 8
    for _ in range(seconds):
        now[0] += 1
        for each in statuses:
            each._exchange(signed, read_others=True)
    return store.requests // seconds, store.bytes / seconds


@pytest.mark.soak
def test_the_load_of_the_store_grows_no_faster_than_the_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        few, few_bytes = load_of(512, RunDir(tmp_path), patched)
        many, many_bytes = load_of(1024, RunDir(tmp_path), patched)
    assert many <= 2.0 * few
    assert many <= 4 * 1024
    assert many_bytes <= 2.1 * few_bytes  # Numbers of more digits.


def test_ranks_that_do_not_watch_the_others_report_what_those_find_that_do(tmp_path: Path) -> None:
    store = HashStore()
    ranks = [Rank(rank=rank, local_rank=rank % 2, world_size=4, local_world_size=2) for rank in range(4)]
    with ExitStack() as stack:
        statuses = [
            stack.enter_context(closing(TcpStatusStore(RunDir(tmp_path), rank, lambda: SignedStore(store, None))))
            for rank in ranks
        ]
        (tmp_path / "ranks").mkdir()
        for rank, each in enumerate(statuses):
            each.publish(beat(rank), read_others=True)
            each.refresh()
        statuses[3].close()  # It is lost without an exit record.
        secondary = [replace(failed(rank), is_secondary=True) for rank in range(3)]
        with ThreadPoolExecutor(3) as pool:

            def beating(rank: int) -> str:
                return str(joined._first_cause(statuses[rank], {}, secondary[rank]))

            found = [pool.submit(beating, rank) for rank in range(3)]
            number = itertools.count(10)
            while not all(each.done() for each in found):
                for rank in range(3):
                    statuses[rank].publish(beat(rank, marks=next(number)), read_others=True)
                time.sleep(0.2)
    assert {each.result().partition(".")[0] for each in found} == {
        "Lost rank 3 on host 3 in rollout (iteration 3): killed or crashed without a word"
    }

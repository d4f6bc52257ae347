"""What ranks of several machines learn of each other through a store, and when they do not reach it any more."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import wait_until
from torch.distributed import HashStore

from shoal.heartbeat import Beat
from shoal.launch.exit_records import ExitRecord
from shoal.launch.signed_store import SignedStore
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
    assert wait_until(lambda: 1 in first.exit_records(), timeout=10)
    assert first.exit_records()[1] == failed(1)
    assert (tmp_path / "0" / "ranks" / "rank_00001.json").is_file()
    assert (tmp_path / "1" / "ranks" / "rank_00001.json").is_file()


def test_the_first_failure_is_the_first_in_the_statuseswhatever_the_clocks_say(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    store = HashStore()
    first, second = stores(lambda: store)
    second.write_exit(replace(failed(1), time=2_000_000_000.0))  # Its clock is fast.
    first.write_exit(failed(0))
    assert wait_until(lambda: len(first.exit_records()) == len(second.exit_records()) == 2, timeout=10)
    assert [statuses.first_failure() for statuses in (first, second)] == [first.exit_records()[1]] * 2


def test_a_failure_that_the_statusesdid_not_take_is_told_with_the_next_visit(
    stores: Callable[..., list[TcpStatusStore]],
) -> None:
    """A rank ends once it has written its exit record, so it waits until the store has it."""
    store, refused = HashStore(), list[str]()

    class Refusing:
        """Loses the connection when an exit record is written for the first time."""

        def set(self, key: str, value: str) -> None:
            if "/exit/" in key and not refused:
                refused.append(key)
                message = "Broken pipe"
                raise RuntimeError(message)
            store.set(key, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    (_, second) = stores(Refusing)  # pyright: ignore[reportArgumentType]
    second.write_exit(failed(1))
    assert refused == ["shoal/exit/1"]
    assert store.check(["shoal/exit/1"])


def test_a_statusesthat_does_not_answer_is_silent_and_blocks_nobody(
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
    assert first.exit_records() == {}
    assert list(first.beats([0, 1])) == []

"""The status of joined ranks: heartbeats while they run, exit records when they end, over files or a torch store.

Ranks of one node use files. Ranks of several nodes, whose disks may differ, use the store of their rendezvous, each
from its own thread: a broken link blocks neither training nor watchdog. One rank of each node watches all others, so
that the load of the store grows with the number of ranks, not with its square; the other ranks read the first failure.
"""

import json
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from shoal.heartbeat import Beat
from shoal.launch.exit_records import ExitRecord, first_failure, read_exit_records, write_exit_record
from shoal.launch.hang_detector import read_beats
from shoal.launch.rendezvous import SignedStore
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir
from shoal.timing import BEAT_S, STATUS_ANSWER_S, STATUS_LINGER_S, STATUS_READ_S, STATUS_REFRESH_S

_STATUS = "shoal/status"
_CAUSES = "shoal/causes"
"""Counts failures that are not secondary, in the order in which the store received them: no clock matters."""


class StatusStore:
    """Status of the ranks of one node: files."""

    def __init__(self, run: RunDir, rank: Rank, scratch: Path | None = None) -> None:
        """Take the `scratch` of a launching process, which watches all ranks; without one, they watch each other."""
        self.run, self.rank = run, rank
        self.is_supervised = scratch is not None
        self.watches = not self.is_supervised
        """Whether it watches all other ranks. Those that do not wait for the failure that one reports."""
        self.directory = scratch or run.ranks_dir  # Of heartbeats; `scratch` also takes exit records off a full disk.

    def publish(self, beat: Beat, *, read_others: bool) -> None:
        """Publish this rank's heartbeat, and read those of others if `read_others`."""

    def beats(self, ranks: Collection[int]) -> list[Beat]:
        """Return the known heartbeats of `ranks`."""
        return read_beats(self.directory, sorted(ranks))

    def write_exit(self, record: ExitRecord) -> None:
        """Write this rank's exit record."""
        if self.is_supervised and record.ending == "failed":
            # The launching process prints no output of rank 0 beyond this size.
            record = replace(record, log_bytes=os.fstat(1).st_size)
        write_exit_record(self.run, record, spare=self.directory if self.is_supervised else None)

    def ended(self) -> set[int]:
        """Return the ranks that are known to have left an exit record."""
        return set(read_exit_records(self.run, range(self.rank.world_size)))

    def first_failure(self) -> ExitRecord | None:
        """Return the record of the rank that failed first; None without a failure that is not secondary."""
        return first_failure(read_exit_records(self.run, range(self.rank.world_size)).values())

    @property
    def silent(self) -> float:
        """Time since the store last answered [s]."""
        return 0.0

    def refresh(self) -> None:
        """Wait until everything published before this call is known here."""

    def close(self) -> None:
        """Publish no more."""


class TcpStatusStore(StatusStore):
    """Status of the ranks of several nodes: a store. Exit records are written to the run directory too."""

    def __init__(self, run: RunDir, rank: Rank, connect: Callable[[], SignedStore]) -> None:
        """Start the thread that synchronises with the store, over a connection whose requests fail soon."""
        super().__init__(run, rank)
        self.watches = rank.local_rank == 0
        self._connect = connect
        self._store: SignedStore | None = None
        self._own: Beat | None = None
        self._read_others = False
        self._record: ExitRecord | None = None
        self._unsent: deque[ExitRecord] = deque()
        self._beats: dict[int, tuple[Beat, float]] = {}  # With the local time at which each changed.
        self._ended: set[int] = set()
        self._first_failure: ExitRecord | None = None
        self._read_at = -math.inf  # When the statuses of all ranks were read.
        self._answered = time.monotonic()
        self._requests: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._synchronize, name="status store", daemon=True)
        self._thread.start()

    def publish(self, beat: Beat, *, read_others: bool) -> None:
        """Publish a heartbeat with the next synchronisation, the first one at once."""
        is_first, self._own, self._read_others = self._own is None, beat, read_others
        if is_first:
            self._requests.put(threading.Event())

    def beats(self, ranks: Collection[int]) -> list[Beat]:
        """Return the known heartbeats. A rank is silent while its heartbeat does not change."""
        now = time.monotonic()
        # Ranks begin iterations together. The last heartbeat of a lost rank may still have the limit of its startup.
        limit = self._own.limit if self._own else math.inf
        return [
            replace(beat, idle=beat.idle + now - since, silent=now - since, limit=min(beat.limit, limit))
            for beat, since in (self._beats[rank] for rank in sorted(ranks) if rank in self._beats)
        ]

    def write_exit(self, record: ExitRecord) -> None:
        """Write this rank's exit record, and wait until the store has it: this process is about to end."""
        super().write_exit(record)
        self._record = record
        self._unsent.append(record)
        self.refresh()
        if record.ending == "failed" and self.rank.rank == 0:
            time.sleep(STATUS_LINGER_S)

    def ended(self) -> set[int]:
        """Return the ranks that are known to have left an exit record."""
        return set(self._ended)

    def first_failure(self) -> ExitRecord | None:
        """Return the record of the failure that the store received first."""
        return self._first_failure

    @property
    def silent(self) -> float:
        """Time since the store last answered [s]."""
        return time.monotonic() - self._answered

    def refresh(self) -> None:
        """Wait for a synchronisation that begins from now on, and until the store has this rank's exit record."""
        done = threading.Event()
        self._requests.put(done)
        done.wait(STATUS_REFRESH_S)

    def close(self) -> None:
        """Stop synchronising. A thread that connects while this process ends would abort it."""
        self._closed = True
        self._requests.put(threading.Event())
        self._thread.join(2 * STATUS_ANSWER_S)

    def _synchronize(self) -> None:
        waiting: list[threading.Event] = []
        while not self._closed:
            with suppress(queue.Empty):
                waiting.append(self._requests.get(timeout=BEAT_S))
            try:
                self._store = self._store or self._connect()
                self._exchange(self._store, read_others=self._read_others or bool(waiting))
                self._answered = time.monotonic()
            except Exception:  # noqa: BLE001  torch raises many kinds when a link is cut or a store is gone.
                self._store = None  # A late answer would be taken for that of another request.
            while waiting and not self._unsent:
                waiting.pop().set()

    def _exchange(self, store: SignedStore, *, read_others: bool) -> None:
        """Write this rank's status, check that the store answers, and read the first failure and, if due, all ranks."""
        own, unsent = f"{_STATUS}/{self.rank.rank}", list(self._unsent)
        store.set(own, json.dumps([self._own and asdict(self._own), self._record and asdict(self._record)]))
        for record in unsent:
            if record.ending == "failed" and not record.is_secondary:
                store.set(f"{_CAUSES}/{store.raw.add(_CAUSES, 1)}", json.dumps(asdict(record)))
        store.get(own)  # `set` does not wait for an answer.
        for _ in unsent:
            self._unsent.popleft()
        if self._first_failure is None:
            count = min(store.raw.add(_CAUSES, 0), 2 * self.rank.world_size)  # It is not signed.
            causes = [f"{_CAUSES}/{number + 1}" for number in range(count)]
            first = next((key for key in causes if store.raw.check([key])), None)  # A rank may be lost after counting.
            self._first_failure = ExitRecord(**json.loads(store.get(first))) if first else None
        period = self.rank.world_size * STATUS_READ_S
        if read_others and self.watches and time.monotonic() - self._read_at >= period:
            self._read_at = time.monotonic()
            self._read_all(store)

    def _read_all(self, store: SignedStore) -> None:
        keys = {rank: f"{_STATUS}/{rank}" for rank in range(self.rank.world_size) if rank not in self._ended}
        if not store.raw.check(list(keys.values())):  # Some have not begun.
            keys = {rank: key for rank, key in keys.items() if store.raw.check([key])}
        for (rank, _), text in zip(keys.items(), store.get_all(list(keys.values())), strict=True):
            beat, record = json.loads(text)
            if beat and (rank not in self._beats or self._beats[rank][0] != Beat(**beat)):
                self._beats[rank] = Beat(**beat), time.monotonic()
            if record:
                self._ended.add(rank)
            if record and self.rank.rank == 0 and rank != 0:  # The run directory, which is here, has all records.
                write_exit_record(self.run, ExitRecord(**record))

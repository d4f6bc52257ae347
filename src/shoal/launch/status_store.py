"""The status of joined ranks: heartbeats while they run, exit records when they end, over files or a torch store.

Ranks of one node use files. Ranks of several nodes, whose disks may differ, use the store of their rendezvous, each
from its own thread: a broken link blocks neither training nor watchdog.
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
from shoal.launch.signed_store import SignedStore
from shoal.plan.ranks import Rank
from shoal.plan.rundir import RunDir
from shoal.timing import BEAT_S, STATUS_LINGER_S, STATUS_REFRESH_S

_FAILED = "shoal/failed"
"""Set once a rank has failed: all others read its record at once, as the store may not live long."""
_ORDER = "shoal/order"
"""Counts exit records: the order in which they reached the store does not depend on the nodes' clocks."""


class StatusStore:
    """Status of the ranks of one node: files."""

    def __init__(self, run: RunDir, rank: Rank, scratch: Path | None = None) -> None:
        """Take the `scratch` of a launching process, which watches all ranks; without one, they watch each other."""
        self.run, self.rank = run, rank
        self.is_supervised = scratch is not None
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

    def exit_records(self) -> dict[int, ExitRecord]:
        """Return the known exit records, by rank."""
        return read_exit_records(self.run, range(self.rank.world_size))

    def first_failure(self) -> ExitRecord | None:
        """Return the record of the rank that failed first; None without a failure that is not secondary."""
        return first_failure(self.exit_records().values())

    @property
    def silent(self) -> float:
        """Time since the store last answered [s]."""
        return 0.0

    def refresh(self) -> None:
        """Wait until everything published before this call is known here."""


class TcpStatusStore(StatusStore):
    """Status of the ranks of several nodes: a store. Exit records are written to the run directory too."""

    def __init__(self, run: RunDir, rank: Rank, connect: Callable[[], SignedStore]) -> None:
        """Start the thread that synchronises with the store, over a connection whose requests fail soon."""
        super().__init__(run, rank)
        self._connect = connect
        self._store: SignedStore | None = None
        self._own: Beat | None = None
        self._read_others = False
        self._unsent: deque[ExitRecord] = deque()
        self._beats: dict[int, tuple[Beat, float]] = {}  # With the local time at which each changed.
        self._records: dict[int, tuple[int, ExitRecord]] = {}  # With the order in which the store received them.
        self._answered = time.monotonic()
        self._requests: queue.SimpleQueue[threading.Event] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._synchronize, name="status store", daemon=True).start()

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
        self._unsent.append(record)
        self.refresh()
        if record.ending == "failed" and self.rank.rank == 0:
            time.sleep(STATUS_LINGER_S)

    def exit_records(self) -> dict[int, ExitRecord]:
        """Return the known exit records, by rank."""
        return {rank: record for rank, (_, record) in dict(self._records).items()}

    def first_failure(self) -> ExitRecord | None:
        """Return the record of the failure that the store received first."""
        return first_failure(self.exit_records().values(), lambda record: self._records[record.rank][0])

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
        """Stop synchronising."""
        self._closed = True

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
        """Write this rank's status, check that the store answers, and read the others' if wanted or one has failed."""
        own = f"shoal/beat/{self.rank.rank}"
        store.set(own, json.dumps(asdict(self._own)) if self._own else "")
        store.get(own)  # `set` does not wait for an answer.
        while self._unsent:
            record = self._unsent[0]  # Removed once the store has it.
            key = f"shoal/exit/{record.rank}"
            store.set(key, json.dumps([store.raw.add(_ORDER, 1), asdict(record)]))
            if record.ending == "failed":
                store.set(_FAILED, "")
            store.get(key)
            self._unsent.popleft()
        if read_others or store.raw.check([_FAILED]):
            for rank in range(self.rank.world_size):
                self._read(store, rank)

    def _read(self, store: SignedStore, rank: int) -> None:
        """Read the heartbeat and the exit record of a rank."""

        def read(key: str) -> bytes:
            return store.get(key) if store.raw.check([key]) else b""

        beat_text, exit_text = read(f"shoal/beat/{rank}"), read(f"shoal/exit/{rank}")
        beat = Beat(**json.loads(beat_text)) if beat_text else None
        if beat is not None and (rank not in self._beats or self._beats[rank][0] != beat):
            self._beats[rank] = beat, time.monotonic()
        if exit_text and rank not in self._records:
            order, plain = json.loads(exit_text)
            record = ExitRecord(**plain)
            self._records[rank] = order, record
            if self.rank.rank == 0 and rank != 0:  # The run directory, which is here, holds the records of all ranks.
                write_exit_record(self.run, record)

"""What ranks tell each other beside their training: heartbeats while they run, and a note when they end.

On one machine files carry it. Between machines it is the store through which the ranks have met, since their disks may
be their own: each rank has a thread for it, so that a link that was cut blocks nobody who watches.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol

from shoal.heartbeat import Beat
from shoal.launch.exit_records import ExitRecord, first_failure, read_exit_records, write_exit_record
from shoal.launch.hang_detector import read_beats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from shoal.launch.signed_store import SignedStore
    from shoal.plan.ranks import Rank
    from shoal.plan.rundir import RunDir

_TICK_S = 1.0
"""Time between two visits to the store [s]."""
_LINGER_S = 2 * _TICK_S
"""How long rank 0, which may keep the store, stays after its own failure, so that all others hear of it [s]."""
_FRESH_S = 3.0
"""How long somebody waits for what others tell at this moment [s]: for a visit, or for one that fails."""


_ALARM = "shoal/alarm"
"""Set when a rank has failed: its store may not be there for long."""
_ORDER = "shoal/order"
"""Counts notes: in the store they have an order, which the clocks of several machines do not tell."""


class StatusStore(Protocol):
    """Where ranks leave word for each other."""

    def pulse(self, beat: Beat, *, curious: bool) -> None:
        """Tell how this rank is, and whether it wants to know how the others are."""
        ...

    def beats(self, ranks: Collection[int]) -> list[Beat]:
        """Return how others are, those of `ranks` who have told."""
        ...

    def leave(self, note: ExitRecord) -> None:
        """Tell how this rank ended."""
        ...

    def notes(self) -> dict[int, ExitRecord]:
        """Return how others ended, by rank."""
        ...

    def first_failure(self) -> ExitRecord | None:
        """Return the note of the rank that failed first, if one did by itself."""
        ...

    @property
    def silent(self) -> float:
        """For how long nothing has been heard of the place where all of this is kept [s]."""
        ...

    def refresh(self) -> None:
        """Wait a little, until what others have told by now is known here."""
        ...


class FileStatusStore:
    """For ranks of one machine: files in the run directory, and heartbeats wherever they are written."""

    silent = 0.0

    def __init__(self, run: RunDir, directory: Path, world_size: int) -> None:
        """Read there.

        Args:
            run: Where notes are left.
            directory: Where heartbeats are.
            world_size: Number of ranks.
        """
        self._run = run
        self._directory = directory
        self._world_size = world_size

    def pulse(self, beat: Beat, *, curious: bool) -> None:
        """Do nothing: the heartbeat itself has a file."""

    def beats(self, ranks: Collection[int]) -> list[Beat]:
        """Return those that there are."""
        return read_beats(self._directory, sorted(ranks))

    def leave(self, note: ExitRecord) -> None:
        """Leave a note in the run directory."""
        write_exit_record(self._run, note)

    def notes(self) -> dict[int, ExitRecord]:
        """Return those that lie there."""
        return read_exit_records(self._run, self._world_size)

    def first_failure(self) -> ExitRecord | None:
        """Return the note of the rank that failed first, by the clock of this machine."""
        return first_failure(self.notes().values())

    def refresh(self) -> None:
        """Do nothing: files tell at once."""


class TcpStatusStore:
    """For ranks of several machines. Notes are left in the run directory too, as far as this machine has it."""

    def __init__(self, run: RunDir, rank: Rank, connect: Callable[[], SignedStore]) -> None:
        """Begin to visit the store.

        Args:
            run: The run's directory.
            rank: This process's place.
            connect: Opens a connection of its own to the store, whose every question fails soon without an answer.
        """
        self._run = run
        self._rank = rank
        self._connect = connect
        self._store: SignedStore | None = None
        self._told: Beat | None = None
        self._curious = False
        self._to_leave: deque[ExitRecord] = deque()
        self._beats: dict[int, tuple[Beat, float]] = {}  # And when each was new here: clocks are not compared.
        self._notes: dict[int, ExitRecord] = {}
        self._order: dict[int, int] = {}
        self._heard = time.monotonic()
        self._begun = self._done = 0  # Visits.
        self._is_asked = False
        self._due = threading.Event()
        self._visited = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._visit_now_and_then, name="board", daemon=True)
        self._thread.start()

    def pulse(self, beat: Beat, *, curious: bool) -> None:
        """Have this rank's heartbeat told with the next visit."""
        is_first = self._told is None
        self._told = beat
        self._curious = curious
        if is_first:  # Others shall know that there is one.
            self._due.set()

    def beats(self, ranks: Collection[int]) -> list[Beat]:
        """Return the newest that are known. One that has not changed lately is of a rank that has been silent."""
        now = time.monotonic()
        # Ranks begin iterations together, and what one has told last may be from before: of when it started.
        limit = self._told.limit if self._told else math.inf
        return [
            replace(beat, idle=beat.idle + now - since, silent=now - since, limit=min(beat.limit, limit))
            for beat, since in (self._beats[rank] for rank in sorted(ranks) if rank in self._beats)
        ]

    def leave(self, note: ExitRecord) -> None:
        """Tell it at once, since this process is about to end; and leave it here."""
        write_exit_record(self._run, note)
        self._to_leave.append(note)
        self.refresh()
        if note.ending == "failed" and self._rank.rank == 0:
            time.sleep(_LINGER_S)

    def notes(self) -> dict[int, ExitRecord]:
        """Return those that are known."""
        return dict(self._notes)

    def first_failure(self) -> ExitRecord | None:
        """Return the note of the rank that failed first, in the order in which the store has been told."""
        return first_failure(self.notes().values(), lambda note: self._order[note.rank])

    @property
    def silent(self) -> float:
        """For how long the store has not answered [s]."""
        return time.monotonic() - self._heard

    def refresh(self) -> None:
        """Wait until a visit that begins from now on has ended, and any note is told, as far as the store answers."""
        with self._visited:
            self._is_asked = True
            wanted = self._begun + 1
            self._due.set()
            self._visited.wait_for(lambda: self._closed or (self._done >= wanted and not self._to_leave), _FRESH_S)

    def close(self) -> None:
        """Visit no more."""
        self._closed = True
        self._due.set()

    def _visit_now_and_then(self) -> None:
        while not self._closed:
            with self._visited:
                self._begun += 1
                curious = self._curious or self._is_asked
                self._is_asked = False
            try:
                if self._store is None:
                    self._store = self._connect()
                self._visit(self._store, curious=curious)
                self._heard = time.monotonic()
            except Exception:  # noqa: BLE001  torch raises many kinds when a link is cut or a store is gone.
                self._store = None  # What comes late would be taken for the answer to another question.
            with self._visited:
                self._done = self._begun
                self._visited.notify_all()
            self._due.wait(_TICK_S)
            self._due.clear()

    def _visit(self, store: SignedStore, *, curious: bool) -> None:
        """Tell what is to be told, make sure that the store is there, and look at what the others told."""
        own = self._key("beat", self._rank.rank)
        store.set(own, json.dumps(asdict(self._told)) if self._told else "")
        store.get(own)  # To set waits for no answer.
        while self._to_leave:
            note = self._to_leave[0]  # Forgotten when the store has it: this visit may fail.
            key = self._key("note", note.rank)
            store.set(key, json.dumps([store.add(_ORDER, 1), asdict(note)]))
            if note.ending == "failed":
                store.set(_ALARM, "")
            store.get(key)
            self._to_leave.popleft()
        if curious or store.check([_ALARM]):
            self._look(store)

    def _look(self, store: SignedStore) -> None:
        now = time.monotonic()
        for rank in range(self._rank.world_size):
            told = self._read(store, self._key("beat", rank))
            known = self._beats.get(rank)
            if told and (known is None or known[0] != Beat(**told)):
                self._beats[rank] = Beat(**told), now
            told = self._read(store, self._key("note", rank))
            if told and rank not in self._notes:
                self._order[rank], note = told[0], ExitRecord(**told[1])
                self._notes[rank] = note
                if self._rank.rank == 0 and rank != 0:  # The run, which is here, shall tell what became of all.
                    write_exit_record(self._run, note)

    def _read(self, store: SignedStore, key: str) -> Any:  # noqa: ANN401  A heartbeat, or a note and its place.
        text = store.get(key) if store.check([key]) else b""
        return json.loads(text) if text else None

    @staticmethod
    def _key(kind: str, rank: int) -> str:
        return f"shoal/{kind}/{rank}"

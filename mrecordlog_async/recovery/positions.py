"""Replay a log for its positions alone: where each queue begins and ends, and what a table says of it.

A `PositionStore` counts what is appended and keeps no payload, so a log of any size is replayed in little memory, with
every check that a replay with payloads makes. It knows nothing of single records: what a truncate drops is not counted,
and nothing can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.runs import checksum_of
from mrecordlog_async.memory.store import NO_RECORDS
from mrecordlog_async.memory.stores import Left
from mrecordlog_async.model import Run


class PositionStore:
    """The numbers of one queue. The last append is kept until its batch ends, for its checksum: a table has that.

    records, held_bytes: all that were ever appended or counted.
    """

    newest = NO_RECORDS
    memory_bytes = 0

    __slots__ = ("_checksum", "_end", "_last_append", "_stores", "held_bytes", "records")

    def __init__(self, stores: PositionStores) -> None:
        self.records = self.held_bytes = 0
        self._stores = stores
        self._end = 0
        self._last_append: list[Run] = []
        self._checksum = 0

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Count *run*, and keep the runs of the last append."""
        if not continues:
            self._last_append.clear()
        self._last_append.append(run)
        self._stores.appended.add(self)
        self.count(records, size)
        self._end = run.first_position + records
        return 0

    def count(self, records: int, size: int) -> None:
        """Count records that are on the disk."""
        self.records += records
        self.held_bytes += size

    def append_one(self, position: int, payload: bytes) -> int:
        """Append a run of one record."""
        return self.append(Run.of(position, (payload,)), 1, len(payload), False)

    @property
    def can_continue(self) -> bool:
        """True if the last append may get another run: all of an append is in one batch."""
        return bool(self._last_append)

    def digest(self) -> None:
        """Compute the checksum of the last append, and forget its runs."""
        self._checksum = checksum_of(self._last_append)
        self._last_append.clear()

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append."""
        return checksum_of(self._last_append) if self._last_append else self._checksum

    def end(self) -> int | None:
        """Return the position after the newest record that was appended, or None if none was."""
        return self._end or None

    def live_bytes(self) -> int:
        """Return the payload bytes that were counted."""
        return self.held_bytes

    def drop_before(self, position: int) -> None:
        """Do nothing: what is dropped is not counted."""

    def clear(self) -> None:
        """Do nothing: what is dropped is not counted."""

    def seal(self) -> None:
        """Do nothing: there is no tail."""

    # What memory has of the records: nothing.

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return nothing."""
        return []

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield nothing."""
        return iter(())

    def first_record(self) -> int | None:
        """Return None."""
        return None

    def has_runs(self) -> bool:
        """Return False."""
        return False

    def before(self, position: int) -> tuple[int, int]:
        """Never called: nothing is in memory."""
        raise AssertionError("a store of positions has no pieces")

    def leave(self, stop: int) -> Left | None:
        """Never called: nothing is in memory."""
        raise AssertionError("a store of positions has no pieces")


class PositionStores:
    """Makes the stores of a log's queues that keep positions alone.

    appended: those with an append in the batch that is replayed.
    """

    def __init__(self) -> None:
        self.appended: set[PositionStore] = set()

    def new_store(self, queue_id: int) -> PositionStore:
        """Return the store of a new queue."""
        return PositionStore(self)

    def enter_segment(self, segment: int) -> None:
        """Do nothing: it does not matter where records are on the disk."""

    def begin_batch(self, batch: int, offset: int) -> None:
        """Have the appends of the batch before leave memory: only appends of one batch continue each other."""
        for store in self.appended:
            store.digest()
        self.appended.clear()

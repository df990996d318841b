"""The place of a queue's records, as the queue asks it.

A queue has its positions itself and asks its store (`Store`) for records only, always between positions that it names.
`memory.store` has the one of an open log. `recovery.positions` has another one, which notes where on the disk the
records are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.model import Run


class Left(NamedTuple):
    """Runs that left memory: their records and bytes in the sums.

    following: the first position that is still in memory; None if none is.
    """

    records: int
    payload_bytes: int
    following: int | None


class Store(Protocol):
    """The place of one queue's records. The queue owns it, and calls it for what log records append and truncate.

    newest: a single record of up to `NEWEST_BYTES_MAX` bytes that follows the last one may be added to it instead of by
    a call, unless it is empty or has `NEWEST_MAX` records.
    """

    newest: list[bytes]

    @property
    def records(self) -> int:
        """Number of retained records."""

    @property
    def held_bytes(self) -> int:
        """Payload bytes of the pieces that hold them."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the records."""

    def count(self, records: int, size: int) -> None:
        """Count records that are on the disk alone, and their bytes; fewer than 0 if they are dropped."""

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Add *run*, of *records* records and *size* bytes, after the others; return by how much memory grew.

        continues: it belongs to the same append as the run before it, and `can_continue` was true.
        """

    def append_one(self, position: int, payload: bytes) -> int:
        """Add a single record at *position*, the next one; return as `append` does."""

    @property
    def can_continue(self) -> bool:
        """True if the last append may get another run."""

    def drop_before(self, position: int) -> None:
        """Drop what ends before *position*; some record is at it or after it, unless there are gaps."""

    def clear(self) -> None:
        """Drop everything."""

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return what memory has of positions *first* … *last* - 1; the ends are uncut.

        most: at most this many pieces, the first ones. records_max: no more records than this are wanted; what is
        joined only for this read has no more.
        """

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield the runs from *start* on, which must not be truncated. The first may begin before.

        What is joined only for this read has at most *records_max* records and *bytes_max* bytes, but at least one
        record. The store must not change meanwhile.
        """

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""

    def end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""

    def live_bytes(self) -> int:
        """Return the payload bytes of the retained records."""

    def has_runs(self) -> bool:
        """Return whether there is any record in memory."""

    def seal(self) -> None:
        """Have what is there now be in pieces that end before later appends."""

    def before(self, position: int) -> tuple[int, int]:
        """Return the number of records of the oldest piece before *position*, and their payload bytes."""

    def leave(self, stop: int) -> Left | None:
        """Drop the pieces that end at or before *stop*, which are on the disk; None if none does.

        They stay in the sums of records and bytes.
        """

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append, of positions *first* … *stop* - 1, all of which are retained."""


class Stores(Protocol):
    """Makes the stores of a log's queues."""

    def new_store(self, queue_id: int) -> Store:
        """Return the store of a new queue."""

    def enter_segment(self, segment: int) -> None:
        """Note that what is appended next is in *segment*."""

    def begin_batch(self, batch: int, offset: int) -> None:
        """Note that what is appended next is in *batch*, which begins at *offset* of its segment. Replay calls it."""

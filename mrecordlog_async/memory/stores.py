"""The place of a queue's records, as the queue asks it.

A queue has its positions itself and asks its store (`Store`) for records only, always between positions that it names.
`memory.store` has the one of an open log. `recovery.places` has another one, which notes where on the disk the records
are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.loose import Blocks
from mrecordlog_async.model import Record, Run


class Left(NamedTuple):
    """Runs that left memory: by how many bytes the memory in use grew, and their records and bytes in the sums.

    following: the first position that is still in memory; None if none is.
    """

    grown: int
    records: int
    payload_bytes: int
    following: int | None


class Store(Protocol):
    """The place of one queue's records. The queue owns it, and calls it for what log records append and truncate.

    records, held_bytes: how many records are retained, and the payload bytes of the pieces that hold them. loose: the
    places of the loose records, which are the newest ones without a gap, the first of them at `loose_first`. What
    changes a store returns by how many bytes the memory in use grew.
    """

    records: int
    held_bytes: int
    loose: array[int]
    loose_first: int

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Add *run*, of *records* records and *size* bytes, after the others; no record may be loose.

        continues: it belongs to the same append as the run before it, and `can_continue` was true.
        """

    @property
    def can_continue(self) -> bool:
        """True if the last append may get another run."""

    def begin_loose(self, position: int) -> int:
        """Get ready for a loose record at *position*, which comes after the others; none is loose yet."""

    def loose_are_full(self) -> bool:
        """Return whether there are enough loose records for a run."""

    def settle(self) -> int:
        """Join the loose records to a run."""

    def drop_before(self, position: int) -> int:
        """Drop what ends before *position*; some record is at it or after it, unless there are gaps."""

    def clear(self) -> None:
        """Drop everything."""

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return what memory has of positions *first* … *last* - 1; the ends are uncut.

        most: at most this many pieces, the first ones. records_max: no more records than this are wanted; what is
        joined only for this read has no more.
        """

    def head(self, first: int, last: int) -> list[HeldRun]:
        """Return the oldest part of what `pieces` returns: a sealed run, the few open ones, or the loose records."""

    def dense(self, start: int, stop: int, bytes_max: int) -> list[Run] | None:
        """Return the runs of positions *start* … *stop* - 1 if each has a record, with uncut ends; otherwise None.

        None as well if loose records would have to be joined that do not fit into *bytes_max*.
        """

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield the runs from *start* on, which must not be truncated. The first may begin before.

        What is joined only for this read has at most *records_max* records and *bytes_max* bytes, but at least one
        record. The store must not change meanwhile.
        """

    def last_record(self) -> Record | None:
        """Return the newest retained record, if it is in memory."""

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""

    def end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""

    def live_bytes(self) -> int:
        """Return the payload bytes of the retained records."""

    def has_runs(self) -> bool:
        """Return whether there is a record that is not loose."""

    def seal(self) -> int:
        """Join small runs: what is there now is not changed by later appends. Returns as `append` does."""

    def before(self, position: int) -> tuple[int, int]:
        """Return the number of records of the oldest piece before *position*, and their payload bytes."""

    def leave(self, stop: int) -> Left:
        """Drop the pieces that end at or before *stop*, which are on the disk and sealed. They stay in the sums."""

    def loose_ticks(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Return when the loose records from the one with index *start* up to *stop* were stored."""

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append, of positions *first* … *stop* - 1, all of which are retained."""


class Stores(Protocol):
    """Makes the stores of a log's queues. keeps_loose: single records may stay in the blocks of their MANYs."""

    keeps_loose: bool

    def new_store(self, queue_id: int, blocks: Blocks) -> Store:
        """Return the store of a new queue."""

    def enter_segment(self, segment: int) -> None:
        """Note that what is appended next is in *segment*."""

    def begin_batch(self, batch: int, offset: int) -> None:
        """Note that what is appended next is in *batch*, which begins at *offset* of its segment. Replay calls it."""

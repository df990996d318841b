"""Replay: apply the batches of one segment after another to the queues, or raise what does not fit.

The segments of a log are links of a chain: each segment's queue table must equal the state its predecessor left.
They are replayed oldest first, into one state. One that cannot be read, or that the next one contradicts, is
remembered, and the state starts over with the table of the segment after it. Whether that matters is known only once
the last segment was read, because its COMMITs name the oldest live segment: `SegmentChain.check_live_segments`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.gathered import GatheredIndex
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, ParsedBatch
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.queue import ReplayError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.store import RetainedStores
from mrecordlog_async.memory.stores import Stores
from mrecordlog_async.memory.times import NO_TICK
from mrecordlog_async.model import DAY_TICKS, TICK_NS
from mrecordlog_async.recovery.beyond_memory import MemoryBound
from mrecordlog_async.recovery.recovered import ClockJump, Counts
from mrecordlog_async.recovery.segment_files import OpenSegment
from mrecordlog_async.recovery.segment_reader import batches_in
from mrecordlog_async.storage.segment import segment_name

NewStores = Callable[[], Stores]
"""Makes what decides what is kept of the records: `RetainedStores`, or `positions.PositionStores`."""


class Replay:
    """Applies the batches of one segment after another to queues; what does not fit becomes CorruptionError."""

    def __init__(
        self, counts: Counts, new_stores: NewStores = RetainedStores, bound: MemoryBound | None = None
    ) -> None:
        """*new_stores* decides what is kept of the records, and *bound* how many of them stay in memory."""
        self.gathered: list[GatheredIndex] = []  # of the segments before the first one that is replayed, oldest first
        self._bound = bound
        self.queues: Queues | None = None
        self.first_table: Table | None = None
        self.oldest_segment = 0
        self.jump = ClockJump()
        self._counts = counts
        self._new_stores = new_stores

    def begin(self, name: str, table: Table) -> None:
        """Start a segment: the first one's table is the state, every later one must equal the state so far."""
        if self.queues is None:
            self.queues = Queues.from_table(table, self._new_stores())
            self.first_table = table
            self._enter_gathered(self.queues)
        elif self.queues.table() != table:
            raise CorruptionError(
                name, HEADER_BYTES, "its table of queues does not match the end of the previous segment"
            )

    def _enter_gathered(self, queues: Queues) -> None:
        """Give the queues what is on the disk of them. Nothing was appended to them yet."""
        for index in self.gathered:
            for queue_id in index.ids:
                if (queue := queues.by_id(queue_id)) is not None:
                    queue.enter_gathered(index)
            if queues.pins.is_needed(index.head.segment):
                queues.pins.add_gathered(index)

    def add(self, name: str, segment: int, batch: ParsedBatch) -> None:
        """Apply a batch."""
        assert self.queues is not None
        counts = self._counts
        counts.batches += 1
        self.oldest_segment = max(self.oldest_segment, batch.commit.oldest_segment)
        tick, before = batch.commit.time_ns // TICK_NS, self.queues.last_tick
        if tick - before > DAY_TICKS and before != NO_TICK:
            self.jump = ClockJump(before, tick)
        self.queues.last_tick = tick
        self.queues.stores.begin_batch(batch.commit.batch, batch.commit.batch_offset)
        try:
            records, size, _ = self.queues.apply_all(segment, batch.records, tick)
        except ReplayError as error:
            raise CorruptionError(name, batch.commit.batch_offset, str(error)) from None
        if self._bound is not None:
            self._bound.hold(self.queues, segment, batch.commit.batch)
        counts.records += records
        counts.bytes += size


class SegmentChain:
    """State since the last segment that failed or was removed.

    state: the queues. older: (number, bytes) of the segments that are whole. removed: the newest segment that the
    writer removed before it was read, None if there is none. counts: what was read in all, for the report.
    """

    def __init__(self, new_stores: NewStores, bound: MemoryBound | None = None) -> None:
        self.counts = Counts()
        self._new_stores = new_stores
        self._bound = bound
        self.state = Replay(self.counts, new_stores, bound)
        self.older: list[tuple[int, int]] = []
        self.removed: int | None = None
        self._failures: list[tuple[int, CorruptionError | OSError]] = []  # by segment, oldest first

    def replay(self, segment: OpenSegment, pieces: Iterable[tuple[int, bytes]]) -> None:
        """Apply each batch in *pieces*, which begin where the segment's parser stands.

        Raises CorruptionError if the bytes can never have been written by a log.
        """
        parser, name, number, state = segment.parser, segment.name, segment.number, self.state
        begun = parser.table is not None
        try:
            for batch in batches_in(parser, pieces):
                if not begun:
                    begun = self._begin(segment)
                    state = self.state  # another one if the segment before was contradicted
                state.add(name, number, batch)
        except MalformedError as error:
            raise CorruptionError(name, error.offset, error.reason) from None
        if not begun:
            self._begin(segment)

    def _begin(self, segment: OpenSegment) -> bool:
        """Continue with the table of *segment*, which must be what the segment before it left."""
        table = segment.parser.table
        if table is None:
            raise CorruptionError(segment.name, HEADER_BYTES, "its table of queues is damaged")
        try:
            self.state.begin(segment.name, table)
        except CorruptionError as error:
            # Nothing here is damaged by itself: it matters only if the segment before is live.
            self.fail(segment.number - 1, error)
            self.state.begin(segment.name, table)
        return True

    def fail(self, number: int, error: CorruptionError | OSError) -> None:
        """Remember that segment *number* cannot be read, and start over after it."""
        self._failures.append((number, error))
        self._start_over()

    def skip_removed(self, number: int) -> None:
        """Start over after segment *number*, which the writer removed: it held only truncated records."""
        # Segments are removed oldest first: whatever failed before this one is dead as well.
        self._failures.clear()
        self.removed = number
        self._start_over()

    def _start_over(self) -> None:
        """Drop what was replayed: the next segment's table is the state to start from."""
        self.state = Replay(self.counts, self._new_stores, self._bound)
        self.older.clear()

    def check_live_segments(self, present: Collection[int], last: SegmentHeader, oldest: int) -> None:
        """Raise what is wrong with the live segments, from *oldest* to *last*; drop what is wrong with dead ones.

        A dead segment, which a crash kept from being removed, holds nothing that is needed.

        Args:
            present: Numbers of the segments that exist.
            last: Header of the last segment.
            oldest: The oldest live segment, by the last one's header and COMMITs.

        Raises:
            CorruptionError: A live segment is damaged or missing.
            OSError: A live segment cannot be read.
        """
        if oldest > last.segment:
            raise CorruptionError(
                segment_name(last.segment),
                None,
                f"it names segment {oldest} as the oldest live one, but this is the last segment",
            )
        missing = next((number for number in range(oldest, last.segment) if number not in present), None)
        if missing is not None:
            raise CorruptionError(segment_name(missing), None, "the segment is missing, and it held live data")
        for number, error in self._failures:
            if number >= oldest:
                raise error
        if self.removed is not None and self.removed < oldest:
            self.removed = None

"""Read one segment from beginning to end, past any damage, for inspection and for repair. Never writes.

1. Whole batches are yielded unchanged.
2. If the bytes are not a batch, the next valid COMMIT states where its batch begins. Everything before it is a
   `DamagedRange`, and the scan continues there. If that batch itself is damaged, the range ends after its COMMIT.
3. In a damaged range every frame that is still valid is read, at any offset. A checksum is seeded with log, segment and
   offset, so a valid frame was written there by this log. The range carries the records of these frames. The first
   frame of a lost record may still show which positions it held (`LostRun`).
4. In the last segment of a log that was not closed, frames without a COMMIT after them are a torn tail, as in recovery.
   Bytes that are no frames of this segment were there when the file was another one.
   The table of queues is never a torn tail: a segment gets its name only after its table is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrecordlog_async.format.frame import BLOCK_BYTES, FRAME_HEADER_BYTES, Frame, read_frame, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, ParsedBatch, SegmentParser
from mrecordlog_async.format.record import Commit
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.damage import DamagedRange, FrameJoiner
from mrecordlog_async.recovery.segment_reader import batches_in
from mrecordlog_async.recovery.torn_or_damaged import Evidence, SegmentEnd, Verdict, judge, look_after
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import read_exact


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """End that a segment must have, and its last batch, according to its successor's header or `CLOSED`."""

    end: int
    last_batch: int


class SegmentScan:
    """One segment. After `items` was read, `end` is after the last batch, and `torn_bytes` counts an unfinished one."""

    def __init__(
        self, directory: LogDirectory, number: int, log_id: bytes, expected: ExpectedEnd | None, *, is_last: bool
    ) -> None:
        self.number = number
        self.header: SegmentHeader | None = None
        self.size = 0
        self.end = HEADER_BYTES
        self.torn_bytes = 0
        self._directory = directory
        self._log_id = log_id
        self._expected = expected
        self._acknowledged = expected is not None or not is_last  # all of its bytes
        self._seed = segment_seed(log_id, number)
        self._handle = -1
        self._stop = 0
        self._reason = ""

    def items(self) -> Iterator[Table | ParsedBatch | DamagedRange]:
        """Yield the table, whole batches and damaged ranges in the order of the log.

        Raises:
            FileNotFoundError: The segment was removed before or during the read. Its space may already be freed, which
                looks like damage, or its file be another segment.
        """
        files = self._directory.files
        with self._directory.opened(self.number) as self._handle:
            self.size = files.size(self._handle)
            self._stop = min(self.size, self._expected.end) if self._expected else self.size
            yield from self._read_header()
            yield from self._read_batches()
            if self.header is None:
                self._check_not_removed()  # the file may state another number because it is in the wrong place
            elif self._directory.was_rewritten(self._handle, self.number, self.size):
                raise self._directory.removed(self.number)

    def _read_header(self) -> Iterator[DamagedRange]:
        try:
            header = self._directory.header(self._handle, self.number)
            if header.log_id != self._log_id:
                raise HeaderError("the segment belongs to another log")
            self.header = header
        except HeaderError as error:
            self._check_not_removed()
            yield DamagedRange(0, HEADER_BYTES, str(error))

    def _check_not_removed(self) -> None:
        if self._directory.was_removed(self.number):
            raise self._directory.removed(self.number)

    def _read_batches(self) -> Iterator[Table | ParsedBatch | DamagedRange]:
        parser = SegmentParser(self._log_id, self.number, self._first_batch())
        doubted = -1
        while True:
            yield from self._batches(parser)
            self.end = parser.end
            if parser.table is not None and parser.end >= self._stop and not self._is_short():
                return
            damaged = self._damaged_range(parser)
            if damaged is None:
                return
            if doubted != parser.end:
                # While a writer runs, the scan may have read a half-written batch: read it again once.
                doubted = parser.end
                parser.resume()
                continue
            self._check_not_removed()
            yield damaged
            if damaged.end >= self._stop:
                self.end = damaged.end
                return
            parser = self._parser_after(damaged)

    def _batches(self, parser: SegmentParser) -> Iterator[Table | ParsedBatch]:
        begun = parser.table is not None
        self._reason = "a frame is damaged"
        try:
            for batch in batches_in(parser, self._directory.pieces(self._handle, parser.end, self._stop)):
                if not begun and parser.table is not None:
                    begun = True
                    yield parser.table
                yield batch
        except MalformedError as error:
            self._reason = error.reason
        if not begun and parser.table is not None:
            yield parser.table

    def _damaged_range(self, parser: SegmentParser) -> DamagedRange | None:
        """Describe the bytes between the last whole batch and the next readable one; None for a torn tail."""
        due = parser.due_batch
        at = SegmentEnd.of(parser)
        evidence = self._look_after(at)
        is_damaged = judge(evidence, at, acknowledged=self._acknowledged) is Verdict.DAMAGED
        if not is_damaged and parser.table is not None:
            self.torn_bytes = evidence.torn_end - parser.end
            return None
        if evidence.next_commit is not None:
            return self._range_before(parser.end, due, evidence.next_commit)
        # Where the segment ended may be unknown. All of it was acknowledged, so it holds every valid frame in the file.
        is_end_unknown = self._expected is None and is_damaged
        end = self._stop if is_end_unknown else max(evidence.torn_end, parser.end + 1)
        if self._expected is not None:
            end = self._expected.end
        first = due or None  # batches are counted from 1: without a header and a COMMIT, nothing shows which is due
        last = self._expected.last_batch if self._expected else None
        damaged = DamagedRange(parser.end, end, self._end_reason(), first, last)
        reached = self._rescue(damaged, until_commit=None)
        if is_end_unknown:
            if reached == parser.end and parser.table is not None:
                return None  # nothing more of the segment is here
            damaged.end = max(reached, parser.end + 1)
        if not is_damaged:
            damaged.found.clear()  # only the table is certain to have been on the disk; later bytes may be torn
        return damaged

    def _range_before(self, offset: int, due: int, commit: Commit) -> DamagedRange:
        if commit.batch_offset > offset:
            damaged = DamagedRange(offset, commit.batch_offset, self._reason)
            if due < commit.batch:  # otherwise the range holds only the table
                damaged.first_batch, damaged.last_batch = due, commit.batch - 1
            self._rescue(damaged, until_commit=None)
        else:
            damaged = DamagedRange(offset, self._stop, self._reason, commit.batch, commit.batch)
            self._rescue(damaged, until_commit=commit.batch)
        return damaged

    def _parser_after(self, damaged: DamagedRange) -> SegmentParser:
        due = self._next_batch(damaged.end) if damaged.last_batch is None else damaged.last_batch + 1
        return SegmentParser.after_table(self._log_id, self.number, due, damaged.end)

    def _first_batch(self) -> int:
        return self.header.first_batch if self.header else self._next_batch(HEADER_BYTES)

    def _next_batch(self, offset: int) -> int:
        commit = self._look_after(SegmentEnd(self.number, self._log_id, offset, 0, offset)).next_commit
        return commit.batch if commit is not None else 0

    def _look_after(self, end: SegmentEnd) -> Evidence:
        """Collect what lies after *end*."""
        files, acknowledged = self._directory.files, self._acknowledged
        return look_after(files, self._handle, end, self._stop, acknowledged=acknowledged)

    def _is_short(self) -> bool:
        return self._expected is not None and self.size < self._expected.end

    def _end_reason(self) -> str:
        return "the file is cut short" if self._is_short() else self._reason

    # What can still be read in a damaged range.

    def _rescue(self, damaged: DamagedRange, until_commit: int | None) -> int:
        """Read every valid frame in *damaged*; return the offset after the last one.

        If *until_commit* is given, end the range after that batch's COMMIT.
        """
        joiner = FrameJoiner(damaged)
        at = reached = damaged.offset
        while at < min(damaged.end, self._stop):
            base = at - at % BLOCK_BYTES
            block = memoryview(read_exact(self._directory.files, self._handle, BLOCK_BYTES, base))
            frame = self._frame_in(block, base, at, joiner)
            if frame is None:
                at = base + BLOCK_BYTES
                continue
            if frame.offset >= damaged.end:
                break
            at = reached = frame.end
            if joiner.add(frame) == until_commit and until_commit is not None:
                damaged.end = at
                break
        joiner.interrupt()
        return reached

    def _frame_in(self, block: memoryview, base: int, at: int, joiner: FrameJoiner) -> Frame | None:
        """Return the first valid frame of a block at or after *at*, None if there is none."""
        frame = read_frame(block, base, at - base, self._seed) if at - base < len(block) else None
        if frame is not None or not any(block[at - base :]):
            return frame
        if BLOCK_BYTES - (at - base) < FRAME_HEADER_BYTES:
            return None  # only the padding is damaged
        joiner.interrupt()
        joiner.note_damaged(block[at - base :])
        for start in range(at - base + 1, len(block) - FRAME_HEADER_BYTES + 1):
            if 0 < block[start + FRAME_HEADER_BYTES - 1] <= 5:
                frame = read_frame(block, base, start, self._seed)
                if frame is not None:
                    return frame
        return None

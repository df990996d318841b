"""Walk one segment from end to end, around damage: for people who look, and for repair. Never writes.

1. Whole batches come as they are.
2. At a place that is no batch, the next valid COMMIT behind it says where its batch begins: what lies before is a
   `Gap`, and walking goes on there. If that batch is itself the damaged one, the gap ends behind its COMMIT.
3. In a gap every frame that is still valid is read, wherever it begins: a checksum is seeded with log, segment and
   offset, so what passes was written there by this log. The records among them are handed on with the gap. Of a record
   that is lost, its head may still tell which positions it held (`LostRun`).
4. Without a COMMIT behind it, a place in the last segment of a log that was not closed is a torn tail, as in recovery.
   Its table is not: no segment gets its name before its table is on the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass

from mrecordlog_async.format.frame import BLOCK_BYTES, FRAME_HEADER_BYTES, Frame, read_frame, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader, decode_header
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES, Batch, MalformedError, SegmentParser, find_commits
from mrecordlog_async.format.record import Commit, Table
from mrecordlog_async.maintenance.damage import Gap, Joiner
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import open_segment, read_pieces, segment_name


@dataclass(frozen=True, slots=True)
class Expected:
    """Where a segment must end and with which batch, by its successor's header or by `CLOSED`. None: nobody says."""

    end: int
    last_batch: int


class SegmentWalk:
    """One segment. Once `items` is read, `end` is behind the last batch and `tail` counts the bytes of a torn one."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        number: int,
        log_id: bytes,
        expected: Expected | None,
        *,
        is_last: bool,
    ) -> None:
        self.number = number
        self.header: SegmentHeader | None = None
        self.size = 0
        self.end = HEADER_BYTES
        self.tail = 0
        self._files = files
        self._directory = directory
        self._log_id = log_id
        self._expected = expected
        self._acknowledged = expected is not None or not is_last  # all of it, whoever says so
        self._seed = segment_seed(log_id, number)
        self._handle = -1
        self._stop = 0
        self._reason = ""

    def items(self) -> Iterator[Table | Batch | Gap]:
        """Yield the table, whole batches and gaps in the order of the log.

        FileNotFoundError if the segment is removed, also where that shows only while it is read: its space may be given
        back by then, which looks like damage.
        """
        self._handle = open_segment(self._files, self._directory, self.number)
        try:
            self.size = self._files.size(self._handle)
            self._stop = min(self.size, self._expected.end) if self._expected else self.size
            yield from self._read_header()
            yield from self._walk()
            if self._files.size(self._handle) < self.size:
                self._check_not_removed()
        finally:
            self._files.close(self._handle)

    def _read_header(self) -> Iterator[Gap]:
        try:
            header = decode_header(read_exact(self._files, self._handle, HEADER_BYTES, 0))
            if (header.log_id, header.segment) != (self._log_id, self.number):
                raise HeaderError(f"the file holds segment {header.segment} of another log or place")
            self.header = header
        except HeaderError as error:
            self._check_not_removed()
            yield Gap(0, HEADER_BYTES, str(error))

    def _check_not_removed(self) -> None:
        if not self._files.links(self._handle):
            path = f"{self._directory}/{segment_name(self.number)}"
            raise FileNotFoundError(errno.ENOENT, "the segment was removed while it was read", path)

    def _walk(self) -> Iterator[Table | Batch | Gap]:
        parser = SegmentParser(self._log_id, self.number, self._first_batch())
        doubted = -1
        while True:
            yield from self._batches(parser)
            self.end = parser.end
            if parser.table is not None and parser.end >= self._stop and not self._is_short():
                return
            gap = self._gap(parser)
            if gap is None:
                return
            if doubted != parser.end:
                # Beside a living writer half of a batch may have been read while it was written: look again once.
                doubted = parser.end
                parser.resume()
                continue
            self._check_not_removed()
            yield gap
            if gap.end >= self._stop:
                self.end = gap.end
                return
            parser = self._parser_behind(gap)

    def _batches(self, parser: SegmentParser) -> Iterator[Table | Batch]:
        begun = parser.table is not None
        self._reason = "a frame is damaged"
        try:
            for base, piece in read_pieces(self._files, self._handle, parser.end, self._stop):
                for batch in parser.feed(piece, base):
                    if not begun and parser.table is not None:
                        begun = True
                        yield parser.table
                    yield batch
                if parser.stopped:
                    break
        except MalformedError as error:
            self._reason = error.reason
        if not begun and parser.table is not None:
            yield parser.table

    def _gap(self, parser: SegmentParser) -> Gap | None:
        """Describe what lies between the last whole batch and the next one that can be read; None for the tail."""
        due = parser.due_batch
        next_commit, proven, junk_end = self._look_behind(parser.end, parser.due_batch)
        promised = proven or self._acknowledged
        if not promised and parser.table is not None:
            self.tail = max(junk_end - parser.end, 0)
            return None
        if next_commit is not None:
            return self._gap_before(parser.end, due, next_commit)
        if self._expected is None and junk_end <= parser.end and parser.table is not None:
            return None
        end = self._expected.end if self._expected else max(junk_end, parser.end + 1)
        gap = Gap(parser.end, end, self._end_reason(), due, self._expected.last_batch if self._expected else None)
        self._rescue(gap, until_commit=None)
        if not promised:
            gap.found.clear()  # only the table is known to have been on the disk; what lies behind it may be torn
        return gap

    def _gap_before(self, offset: int, due: int, commit: Commit) -> Gap:
        if commit.batch_offset > offset:
            gap = Gap(offset, commit.batch_offset, self._reason)
            if due < commit.batch:  # otherwise only the table lies in here
                gap.first_batch, gap.last_batch = due, commit.batch - 1
            self._rescue(gap, until_commit=None)
        else:
            gap = Gap(offset, self._stop, self._reason, commit.batch, commit.batch)
            self._rescue(gap, until_commit=commit.batch)
        return gap

    def _parser_behind(self, gap: Gap) -> SegmentParser:
        due = self._next_batch(gap.end) if gap.last_batch is None else gap.last_batch + 1
        parser = SegmentParser(self._log_id, self.number, due)
        parser.table = Table(0, ())  # it lies behind us, whatever became of it
        parser.end = gap.end
        parser.resume()
        return parser

    def _first_batch(self) -> int:
        return self.header.first_batch if self.header else self._next_batch(HEADER_BYTES)

    def _next_batch(self, offset: int) -> int:
        found, _, _ = self._look_behind(offset, 0)
        return found.batch if found is not None else 0

    def _look_behind(self, offset: int, due: int) -> tuple[Commit | None, bool, int]:
        """Return the next COMMIT, whether one says that *due* was acknowledged, and the end of what is not zero."""
        found: Commit | None = None
        proven = False
        junk_end, carry = offset, b""
        for base, piece in read_pieces(self._files, self._handle, offset, self._stop):
            start = max(offset - base, 0)
            data = bytes(piece[start:])
            stripped = data.rstrip(b"\0")
            if stripped:
                junk_end = base + start + len(stripped)
            for commit in find_commits(carry + data, base + start - len(carry), self._log_id, self.number):
                found = found or commit
                proven = proven or commit.durable_batch >= due
            if found is not None and (proven or self._acknowledged):
                break
            carry = data[1 - COMMIT_FRAME_BYTES :]
        return found, proven, junk_end

    def _is_short(self) -> bool:
        return self._expected is not None and self.size < self._expected.end

    def _end_reason(self) -> str:
        return "the file is cut short" if self._is_short() else self._reason

    # What can still be read in a gap.

    def _rescue(self, gap: Gap, until_commit: int | None) -> None:
        """Read every valid frame in *gap*; where *until_commit* is given, the gap ends behind that batch's COMMIT."""
        joiner = Joiner(gap)
        at = gap.offset
        while at < min(gap.end, self._stop):
            base = at - at % BLOCK_BYTES
            block = memoryview(read_exact(self._files, self._handle, BLOCK_BYTES, base))
            frame = self._frame_in(block, base, at, joiner)
            if frame is None:
                at = base + BLOCK_BYTES
                continue
            if frame.offset >= gap.end:
                break
            at = frame.end
            if joiner.add(frame) == until_commit and until_commit is not None:
                gap.end = at
                break
        joiner.interrupt()

    def _frame_in(self, block: memoryview, base: int, at: int, joiner: Joiner) -> Frame | None:
        """Return the first valid frame of a block from *at* on, None if there is none left in it."""
        frame = read_frame(block, base, at - base, self._seed) if at - base < len(block) else None
        if frame is not None or not any(block[at - base :]):
            return frame
        if BLOCK_BYTES - (at - base) < FRAME_HEADER_BYTES:
            return None  # it is only the padding that is damaged
        joiner.interrupt()
        joiner.note_damaged(block[at - base :])
        for start in range(at - base + 1, len(block) - FRAME_HEADER_BYTES + 1):
            if 0 < block[start + FRAME_HEADER_BYTES - 1] <= 5:
                frame = read_frame(block, base, start, self._seed)
                if frame is not None:
                    return frame
        return None

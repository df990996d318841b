"""Walk one segment from end to end, around damage: for people who look, and for repair. Never writes.

1. Whole batches come as they are.
2. At a place that is no batch, the next valid COMMIT behind it says where its batch begins: what lies before is a
   `Gap`, and walking goes on there. If that batch is itself the damaged one, the gap ends behind its COMMIT.
3. In a gap every frame that is still valid is read, wherever it begins: a checksum is seeded with log, segment and
   offset, so what passes was written there by this log. The records among them are handed on with the gap. Of a record
   that is lost, its head may still tell which positions it held (`LostRun`).
4. Without a COMMIT behind it, a place in the last segment of a log that was not closed is a torn tail, as in recovery.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.format.frame import (
    BLOCK_BYTES,
    FIRST,
    FRAME_HEADER_BYTES,
    FULL,
    LAST,
    MIDDLE,
    Frame,
    read_frame,
    segment_seed,
)
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader, decode_header
from mrecordlog_async.format.parse import COMMIT_FRAME_BYTES, Batch, MalformedError, SegmentParser, find_commits
from mrecordlog_async.format.record import (
    APPEND,
    QUEUES,
    Commit,
    LogRecord,
    RecordError,
    Table,
    decode_record,
    decode_table,
)
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import read_pieces

_FRAME_HEAD = struct.Struct("<IHB")
_APPEND_HEAD = struct.Struct("<BQQIi")  # kind, queue id, first position, records, and the first offset, which is 0
RUN_RECORDS_MAX = 1 << 24
"""A head that claims more records than this is noise."""


class LostRun(NamedTuple):
    """Positions that a lost append held. certain: its head is in a valid frame, not merely in the damaged one."""

    id: int
    first_position: int
    records: int
    certain: bool


@dataclass(slots=True)
class Gap:
    """Acknowledged bytes offset … end - 1 that are no whole batches, and what of them could still be read.

    first_batch, last_batch: the numbers of the batches in it, None where not known. tables: the segment's table, if it
    lay in here unharmed.
    """

    offset: int
    end: int
    reason: str
    first_batch: int | None = None
    last_batch: int | None = None
    records: list[LogRecord] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    lost: list[LostRun] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Return how long it is."""
        return self.end - self.offset


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
        path: str,
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
        self._path = path
        self._log_id = log_id
        self._expected = expected
        self._acknowledged = expected is not None or not is_last  # all of it, whoever says so
        self._seed = segment_seed(log_id, number)
        self._handle = -1
        self._stop = 0
        self._reason = ""

    def items(self) -> Iterator[Table | Batch | Gap]:
        """Yield the table, whole batches and gaps in the order of the log."""
        self._handle = self._files.open(self._path, write=False)
        try:
            self.size = self._files.size(self._handle)
            self._stop = min(self.size, self._expected.end) if self._expected else self.size
            yield from self._read_header()
            yield from self._walk()
        finally:
            self._files.close(self._handle)

    def _read_header(self) -> Iterator[Gap]:
        try:
            header = decode_header(read_exact(self._files, self._handle, HEADER_BYTES, 0))
            if (header.log_id, header.segment) != (self._log_id, self.number):
                raise HeaderError(f"the file holds segment {header.segment} of another log or place")
            self.header = header
        except HeaderError as error:
            yield Gap(0, HEADER_BYTES, str(error))

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
        if not (proven or self._acknowledged):
            self.tail = max(junk_end - parser.end, 0)
            return None
        if next_commit is not None:
            return self._gap_before(parser.end, due, next_commit)
        if self._expected is None and junk_end <= parser.end and parser.table is not None:
            return None
        end = self._expected.end if self._expected else max(junk_end, parser.end + 1)
        gap = Gap(parser.end, end, self._end_reason(), due, self._expected.last_batch if self._expected else None)
        self._rescue(gap, until_commit=None)
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
        joiner = _Joiner(gap)
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

    def _frame_in(self, block: memoryview, base: int, at: int, joiner: _Joiner) -> Frame | None:
        """Return the first valid frame of a block from *at* on, None if there is none left in it."""
        frame = read_frame(block, base, at - base, self._seed) if at - base < len(block) else None
        if frame is not None or not any(block[at - base :]):
            return frame
        joiner.interrupt()
        joiner.note_damaged(block[at - base :])
        for start in range(at - base + 1, len(block) - FRAME_HEADER_BYTES + 1):
            if 0 < block[start + FRAME_HEADER_BYTES - 1] <= 5:
                frame = read_frame(block, base, start, self._seed)
                if frame is not None:
                    return frame
        return None


class _Joiner:
    """Puts the frames of a gap together into records, as far as they follow each other."""

    def __init__(self, gap: Gap) -> None:
        self._gap = gap
        self._parts: list[bytes] = []

    def add(self, frame: Frame) -> int | None:
        """Take a valid frame; return the number of the batch that it commits, if it does."""
        kind = frame.kind
        if kind in (FULL, FIRST):
            self.interrupt()
            if kind == FULL:
                return self._take(bytes(frame.payload))
            self._parts = [bytes(frame.payload)]
        elif kind in (MIDDLE, LAST) and self._parts:
            self._parts.append(bytes(frame.payload))
            if kind == LAST:
                body = b"".join(self._parts)
                self._parts = []
                return self._take(body)
        return None

    def interrupt(self) -> None:
        """Give up a record whose rest is not there, but keep what its head says."""
        if self._parts:
            self._note_head(self._parts[0], certain=True)
            self._parts = []

    def note_damaged(self, data: memoryview) -> None:
        """Listen to a frame that fails its checksum: one that looks like an append tells which positions it held."""
        if len(data) < FRAME_HEADER_BYTES:
            return
        _, _, kind = _FRAME_HEAD.unpack_from(data)
        if kind in (FULL, FIRST):
            self._note_head(bytes(data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + _APPEND_HEAD.size]), certain=False)

    def _take(self, body: bytes) -> int | None:
        try:
            if body[:1] == bytes((QUEUES,)):
                self._gap.tables.append(decode_table(body))
                return None
            record = decode_record(body)
        except RecordError:
            return None
        if type(record) is Commit:
            return record.batch
        self._gap.records.append(record)  # type: ignore[arg-type]  # a record that is no Commit; mypy keeps the union
        return None

    def _note_head(self, body: bytes, certain: bool) -> None:
        if len(body) < _APPEND_HEAD.size:
            return
        kind, queue_id, first_position, records, first_offset = _APPEND_HEAD.unpack_from(body)
        if kind == APPEND and 1 <= records <= RUN_RECORDS_MAX and first_offset == 0:
            self._gap.lost.append(LostRun(queue_id, first_position, records, certain))

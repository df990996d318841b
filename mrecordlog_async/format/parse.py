"""Parse the bytes of a segment into its table and its whole batches. Pure: pieces go in, batches come out.

The parser stops for good at the first bytes that are not the batch due there, and exposes the offset. Recovery decides
what they mean: the clean end, a torn tail or damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mrecordlog_async.format.fields import RecordError
from mrecordlog_async.format.frame import (
    FILLER,
    FIRST,
    FRAME_HEADER_BYTES,
    FULL,
    LAST,
    MIDDLE,
    Frame,
    block_left,
    read_frame,
    segment_seed,
    skip_padding,
)
from mrecordlog_async.format.header import HEADER_BYTES
from mrecordlog_async.format.record import (
    COMMIT,
    COMMIT_BYTES,
    PATTERN_OFFSET_IN_COMMIT,
    Commit,
    LogRecord,
    commit_pattern,
    decode_parts,
    decode_record,
    encode_commit,
)
from mrecordlog_async.format.table import Table, decode_table

COMMIT_FRAME_BYTES = FRAME_HEADER_BYTES + COMMIT_BYTES
_PATTERN_OFFSET_IN_FRAME = FRAME_HEADER_BYTES + PATTERN_OFFSET_IN_COMMIT


class ParsedBatch(NamedTuple):
    """A whole batch: its records, its COMMIT and the offset after it."""

    records: list[LogRecord]
    commit: Commit
    end: int


class MalformedError(ValueError):
    """A valid frame holds something that is not allowed there: damage, or a later version wrote it."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


class SegmentParser:
    """Parses one segment, starting with its table. Feed it pieces in order, each starting at the start of a block.

    table: None until it was read. end: offset after the last whole batch (or the table), where the next batch is due.
    due_batch: that batch's number. commit: the last COMMIT that was read, None if none was. stopped: other bytes were
    found at `end`, so later pieces are ignored.
    """

    def __init__(self, log_id: bytes, segment: int, first_batch: int) -> None:
        self.table: Table | None = None
        self.table_end = 0
        self.end = HEADER_BYTES
        self.due_batch = first_batch
        self.commit: Commit | None = None
        self.stopped = False
        self.log_id = log_id
        self.segment = segment
        self._seed = segment_seed(log_id, segment)
        self._at = HEADER_BYTES
        self._records: list[LogRecord] = []
        self._parts: list[memoryview] = []
        self._record_offset = 0
        self._table_tail = b""

    @classmethod
    def after_table(cls, log_id: bytes, segment: int, due_batch: int, offset: int) -> SegmentParser:
        """Return a parser of *segment* that is past its table, readable or not, and expects *due_batch* at *offset*."""
        parser = cls(log_id, segment, due_batch)
        parser.table = Table(0, ())
        parser.end = offset
        parser.resume()
        return parser

    @property
    def torn_end(self) -> int:
        """Offset after the last frame of this segment that follows `end` without a gap; `end` itself if none does."""
        return self._at if self._at - self.end >= FRAME_HEADER_BYTES else self.end  # less is padding

    def last_bytes(self) -> bytes:
        """Return the bytes before `end` as far as they tell two logs apart; none if nothing was read yet.

        They are those of a COMMIT, which holds the time, or the end of the table, which holds the last opening's nonce.
        """
        return encode_commit(self.commit) if self.commit is not None else self._table_tail

    def feed(self, piece: bytes | memoryview, base: int) -> Iterator[ParsedBatch]:
        """Yield the batches that end in *piece*, whose first byte is at offset *base*.

        Raises MalformedError if a valid frame holds something that is not allowed there.
        """
        view = memoryview(piece)
        while not self.stopped and self._at < base + len(view):
            at = skip_padding(view, base, self._at - base)
            if at is not None and at >= len(view):
                self._at = base + at  # the frame begins in the next piece
                return
            frame = read_frame(view, base, at, self._seed) if at is not None else None
            if frame is None:
                self.stopped = True
                return
            self._at = frame.end
            parts = self._gather(frame)
            if parts is None:
                continue
            if self.table is None:
                self._begin(parts)
            elif (batch := self._add(parts)) is not None:
                yield batch

    def resume(self) -> None:
        """Discard what was read after `end`, so that parsing resumes there."""
        self.stopped = False
        self._at = self.end
        self._records = []
        self._parts = []

    def _gather(self, frame: Frame) -> Sequence[memoryview] | None:
        """Return the parts of the log record that *frame* completes, or None while more frames are due."""
        kind, parts = frame.kind, self._parts
        if kind == FULL and not parts:
            self._record_offset = frame.offset
            return (frame.payload,)
        if kind == FIRST and not parts:
            self._record_offset = frame.offset
            parts.append(frame.payload)
        elif kind == MIDDLE and parts:
            parts.append(frame.payload)
        elif kind == LAST and parts:
            parts.append(frame.payload)
            self._parts = []
            return parts
        elif not (kind == FILLER and not parts):
            raise MalformedError(frame.offset, "the frames of a log record are out of order")
        return None

    def _begin(self, parts: Sequence[memoryview]) -> None:
        try:
            self.table = decode_table(b"".join(parts))
        except RecordError as error:
            raise MalformedError(self._record_offset, str(error)) from None
        self.end = self.table_end = self._at
        self._table_tail = bytes(parts[-1][-COMMIT_BYTES:])

    def _add(self, parts: Sequence[memoryview]) -> ParsedBatch | None:
        try:
            record = decode_parts(parts)
        except RecordError as error:
            raise MalformedError(self._record_offset, str(error)) from None
        if type(record) is not Commit:
            self._records.append(record)  # type: ignore[arg-type]  # not a Commit here; mypy keeps the union
            return None
        if record[:3] != (self.log_id, self.segment, self.due_batch) or record.batch_offset != self.end:
            self.stopped = True
            return None
        batch = ParsedBatch(self._records, record, self._at)
        self._records = []
        self.end = self._at
        self.due_batch += 1
        self.commit = record
        return batch


def find_commits(data: bytes, base: int, log_id: bytes, segment: int) -> Iterator[tuple[Commit, int]]:
    """Yield every valid COMMIT of *segment* in *data*, which begins at offset *base* of it, and the offset after each.

    Searches every byte, not only where frames are due: after a damaged length, the starts of frames are unknown. The
    pattern is the log id, which no client knows, and the segment's number: a file that was used for another segment
    before holds many COMMITs with the log id, and looking at each of them takes 20 times as long.
    """
    seed = segment_seed(log_id, segment)
    pattern = commit_pattern(log_id, segment)
    view = memoryview(data)
    found = data.find(pattern)
    while found >= 0:
        start = found - _PATTERN_OFFSET_IN_FRAME
        if start >= 0 and block_left(base + start) >= COMMIT_FRAME_BYTES:
            frame = read_frame(view, base, start, seed)
            if frame is not None and frame.kind == FULL and len(frame.payload) == COMMIT_BYTES:
                record = decode_record(frame.payload) if frame.payload[0] == COMMIT else None
                if type(record) is Commit:
                    yield record, frame.end
        found = data.find(pattern, found + 1)

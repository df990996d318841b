"""Damaged ranges: acknowledged bytes that are not a whole batch, and the part of them that can still be read.

Each frame is checked separately. A valid frame does not say which record it belongs to, so intact frames are joined to
a log record only if no byte lies between them. The first frame of a lost record may still show which positions it held.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from mrecordlog_async.format.fields import RecordError
from mrecordlog_async.format.frame import FIRST, FRAME_HEADER_BYTES, FULL, LAST, MIDDLE, Frame, block_left
from mrecordlog_async.format.record import (
    APPEND,
    APPEND_MORE,
    PLACES_BYTES_MAX,
    Commit,
    LogRecord,
    decode_record,
    places_in_many,
)
from mrecordlog_async.format.table import TABLE, Table, decode_table

_FRAME_HEADER = struct.Struct("<IHB")
_APPEND_HEADER = struct.Struct("<BQQIi")  # kind, queue id, first position, records, and the first offset, which is 0


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a file that are no longer a whole batch, as reports name them.

    Attributes:
        segment: the file's name: a segment, or `CLOSED`.
        offset: the first damaged byte.
        bytes: how many bytes; 0 if the whole file is missing.
        reason: what is wrong with them.
        first_batch: the first batch among them, None where not known.
        last_batch: the last batch among them, None where not known.
        rescued_records: how many records among them could still be read.
    """

    segment: str
    offset: int
    bytes: int
    reason: str
    first_batch: int | None = None
    last_batch: int | None = None
    rescued_records: int = 0


class LostRun(NamedTuple):
    """Positions that a lost append held. certain: its header is in a valid frame, not in a damaged one."""

    id: int
    first_position: int
    records: int
    certain: bool


@dataclass(slots=True)
class DamagedRange:
    """Acknowledged bytes offset … end - 1 that are not whole batches, and the part of them that could still be read.

    first_batch, last_batch: the numbers of the batches in it, None if unknown. tables: the segment's table, if it was
    in the range and intact. found: log records, and what is known of lost ones, in the order of the log.
    """

    offset: int
    end: int
    reason: str
    first_batch: int | None = None
    last_batch: int | None = None
    tables: list[Table] = field(default_factory=list)
    found: list[LogRecord | LostRun] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Return the length of the range."""
        return self.end - self.offset

    @property
    def records(self) -> list[LogRecord]:
        """Return the log records that could be read."""
        return [item for item in self.found if not isinstance(item, LostRun)]


class FrameJoiner:
    """Joins those frames of a damaged range that follow each other into records."""

    def __init__(self, damaged: DamagedRange) -> None:
        self._damaged = damaged
        self._parts: list[bytes] = []
        self._due = 0  # where the next part must begin

    def add(self, frame: Frame) -> int | None:
        """Take a valid frame. Return the number of the batch that it commits, None if it is not a COMMIT."""
        kind = frame.kind
        if kind in (FULL, FIRST):
            self.interrupt()
            if kind == FULL:
                return self._take(bytes(frame.payload))
            self._parts = [bytes(frame.payload)]
        elif kind in (MIDDLE, LAST) and self._parts:
            if frame.offset != self._due:
                self.interrupt()  # the frame belongs to another record; the end of this one and its beginning are lost
                return None
            self._parts.append(bytes(frame.payload))
            if kind == LAST:
                body = b"".join(self._parts)
                self._parts = []
                return self._take(body)
        self._due = _next_frame(frame.end)
        return None

    def interrupt(self) -> None:
        """Give up a record whose rest is missing, but keep what its header says."""
        if self._parts:
            self._note_header(self._parts[0], certain=True)
            self._parts = []

    def note_damaged(self, data: memoryview) -> None:
        """Note the positions in a frame that fails its checksum but looks like the beginning of an append."""
        if len(data) < FRAME_HEADER_BYTES:
            return
        _, _, kind = _FRAME_HEADER.unpack_from(data)
        if kind in (FULL, FIRST):
            self._note_header(bytes(data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + PLACES_BYTES_MAX]), certain=False)

    def _take(self, body: bytes) -> int | None:
        try:
            if body[:1] == bytes((TABLE,)):
                self._damaged.tables.append(decode_table(body))
                return None
            record = decode_record(body)
        except RecordError:
            return None
        if type(record) is Commit:
            return record.batch
        self._damaged.found.append(record)  # type: ignore[arg-type]  # not a Commit; mypy keeps the union
        return None

    def _note_header(self, body: bytes, certain: bool) -> None:
        for queue_id, position in places_in_many(body):
            self._damaged.found.append(LostRun(queue_id, position, 1, certain))
        if len(body) < _APPEND_HEADER.size:
            return
        kind, queue_id, first_position, records, first_offset = _APPEND_HEADER.unpack_from(body)
        if kind in (APPEND, APPEND_MORE) and records and first_offset == 0:
            self._damaged.found.append(LostRun(queue_id, first_position, records, certain))


def _next_frame(end: int) -> int:
    """Return where the frame after one that ends at *end* begins: a block's last bytes may be padding."""
    left = block_left(end)
    return end if left >= FRAME_HEADER_BYTES else end + left

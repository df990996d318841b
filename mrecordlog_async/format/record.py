"""Log records of every kind but the table: their union, COMMIT, and the checks when decoding.

Decoding trusts nothing: counts and lengths are checked against the actual bytes before anything is built from them.
Records with payloads are in `runs`, those without in `controls`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mrecordlog_async.format.controls import ConsumerRule, Control, Opened, decode_control, encode_control
from mrecordlog_async.format.fields import unpack_whole
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.runs import (
    APPEND,
    APPEND_MORE,
    MANY,
    Append,
    Many,
    decode_append,
    decode_many,
    encode_append,
    encode_many,
    is_append_head,
)

COMMIT = 6

LOG_ID_BYTES = 16

_COMMIT = struct.Struct(f"<B{LOG_ID_BYTES}sQQQQQQ")
_COMMIT_PATTERN = struct.Struct(f"<{LOG_ID_BYTES}sQ")

COMMIT_BYTES = _COMMIT.size
PATTERN_OFFSET_IN_COMMIT = 1
"""Offset in a COMMIT of `commit_pattern`, after the kind byte: recovery searches for it and steps back this far."""

# Whatever handles log records dispatches on their class with `match` and `assert_never`, so that the type checker names
# each place that a new kind concerns.
LogRecord = Append | Many | Control


class Commit(NamedTuple):
    """The end of a batch.

    segment: the one it is in. durable_batch: the highest batch known to be on the medium when this was written.
    batch_offset: where this batch begins. oldest_segment: no older segment holds live records. time_ns: wall clock.
    """

    log_id: bytes
    segment: int
    batch: int
    durable_batch: int
    batch_offset: int
    oldest_segment: int
    time_ns: int


def queue_ids(records: Iterable[LogRecord]) -> Iterator[int]:
    """Yield the id of every queue that *records* name, as often as they do."""
    for record in records:
        if type(record) is Append:  # most are
            yield record.id
        elif isinstance(record, Many):
            yield from record.ids
        elif not isinstance(record, ConsumerRule | Opened):
            yield record.id


def encode_record(record: LogRecord) -> tuple[Buffer, ...]:
    """Encode a log record of a batch as parts to be written in order."""
    match record:
        case Append():
            return encode_append(record)
        case Many():
            return encode_many(record)
        case _:
            return (encode_control(record),)


def encode_commit(commit: Commit) -> bytes:
    """Encode a COMMIT record, `COMMIT_BYTES` long."""
    return _COMMIT.pack(COMMIT, *commit)


def commit_pattern(log_id: bytes, segment: int) -> bytes:
    """Return the 24 bytes that stand in every COMMIT of a segment, and in no COMMIT of another one."""
    return _COMMIT_PATTERN.pack(log_id, segment)


def decode_record(body: memoryview | bytes) -> LogRecord | Commit:
    """Decode a log record of a batch; raise RecordError if its kind is unknown or its bytes do not match the kind."""
    kind = body[0] if len(body) else 0
    if kind in (APPEND, APPEND_MORE):
        return decode_append(body)
    if kind == MANY:
        return decode_many(body)
    if kind == COMMIT:
        return Commit._make(unpack_whole(_COMMIT, body)[1:])
    return decode_control(kind, body)


def decode_parts(parts: Sequence[memoryview]) -> LogRecord | Commit:
    """Decode a log record split over several frames; otherwise like `decode_record`.

    A run's payload is copied only once, from the frames to its final place.
    """
    if len(parts) == 1:
        return decode_record(parts[0])
    if is_append_head(parts[0]):
        return decode_append(*parts)
    return decode_record(b"".join(parts))

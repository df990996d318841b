"""Log records: the encoding of each kind, byte by byte, and the checks when decoding.

Decoding trusts nothing: counts and lengths are checked against the actual bytes before anything is built from them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run, offsets_of_one

QUEUES, CREATE, DELETE, APPEND, TRUNCATE, COMMIT = range(1, 7)

_QUEUES = struct.Struct("<BQI")
_QUEUES_ENTRY = struct.Struct("<QQQH")
_CREATE = struct.Struct("<BQ")
_DELETE = struct.Struct("<BQ")
_APPEND = struct.Struct("<BQQI")
_TRUNCATE = struct.Struct("<BQQ")
_COMMIT = struct.Struct("<B16sQQQQQ")

JOIN_BYTES_MAX = 512
"""The parts of a run up to this size are joined: cheaper than one checksum and one buffer per part."""

COMMIT_BYTES = _COMMIT.size
LOG_ID_BYTES = 16
LOG_ID_OFFSET_IN_COMMIT = 1
"""Offset of the log id in a COMMIT, after the kind byte: recovery searches for the log id and steps back this far."""

TABLE_BYTES = _QUEUES.size


class TableEntry(NamedTuple):
    """One queue in the table: first_position … next_position - 1 are retained; equal means empty."""

    id: int
    name: str
    first_position: int
    next_position: int


@dataclass(frozen=True, slots=True)
class Table:
    """All queues at the start of a segment, sorted by id, and the id that the next queue gets."""

    next_queue_id: int
    entries: tuple[TableEntry, ...]


class Create(NamedTuple):
    """Creates a queue, empty, with next position 0."""

    id: int
    name: str


class Delete(NamedTuple):
    """Deletes a queue with all its records."""

    id: int


class Append(NamedTuple):
    """Appends a run to a queue; its first position is at least the queue's next position."""

    id: int
    run: Run


class Truncate(NamedTuple):
    """Removes positions up to and including *position*. Past the end, the next position moves to position + 1."""

    id: int
    position: int


class Commit(NamedTuple):
    """The end of a batch.

    durable_batch: the highest batch known to be on the medium when this was written. batch_offset: where this batch
    begins. oldest_segment: no older segment holds live records. time_ns: wall clock, informational.
    """

    log_id: bytes
    batch: int
    durable_batch: int
    batch_offset: int
    oldest_segment: int
    time_ns: int


LogRecord = Create | Delete | Append | Truncate


class RecordError(ValueError):
    """The bytes of a valid frame are not a log record that this version knows."""


def encode_table(table: Table) -> tuple[Buffer, ...]:
    """Encode the QUEUES record."""
    parts = [_QUEUES.pack(QUEUES, table.next_queue_id, len(table.entries))]
    for entry in table.entries:
        name = entry.name.encode()
        parts.append(_QUEUES_ENTRY.pack(entry.id, entry.first_position, entry.next_position, len(name)))
        parts.append(name)
    return (b"".join(parts),)


def entry_bytes(name: str) -> int:
    """Return the number of bytes that a queue of this name takes in the table."""
    return _QUEUES_ENTRY.size + len(name.encode())


def encode_record(record: LogRecord) -> tuple[Buffer, ...]:
    """Encode a log record of a batch as parts to be written in order."""
    if type(record) is Append:
        queue_id, (first_position, offsets, payload) = record
        head = _APPEND.pack(APPEND, queue_id, first_position, len(offsets) // OFFSET_BYTES - 1)
        if len(offsets) + len(payload) <= JOIN_BYTES_MAX:
            return (b"".join((head, offsets, payload)),)
        return head, offsets, payload
    if type(record) is Truncate:
        return (_TRUNCATE.pack(TRUNCATE, record.id, record.position),)
    if type(record) is Create:
        return (_CREATE.pack(CREATE, record.id), record.name.encode())
    assert type(record) is Delete
    return (_DELETE.pack(DELETE, record.id),)


def encode_commit(commit: Commit) -> bytes:
    """Encode a COMMIT record, `COMMIT_BYTES` long."""
    return _COMMIT.pack(COMMIT, *commit)


def decode_table(body: memoryview | bytes) -> Table:
    """Decode a QUEUES record; raise RecordError if it is another kind, not sorted or inconsistent."""
    kind, next_queue_id, count = _unpack(_QUEUES, body)
    if kind != QUEUES:
        raise RecordError("a segment must begin with the table of queues")
    if count * _QUEUES_ENTRY.size > len(body) - _QUEUES.size:
        raise RecordError("the table of queues is shorter than its count says")
    at = _QUEUES.size
    entries = []
    previous_id = -1
    for _ in range(count):
        if at + _QUEUES_ENTRY.size > len(body):
            raise RecordError("the table of queues is cut short")
        queue_id, start, next_position, name_bytes = _QUEUES_ENTRY.unpack_from(body, at)
        at += _QUEUES_ENTRY.size
        name = _name(body[at : at + name_bytes], name_bytes)
        at += name_bytes
        if not previous_id < queue_id < next_queue_id or not start <= next_position <= POSITION_MAX + 1:
            raise RecordError("the table of queues is not in order")
        entries.append(TableEntry(queue_id, name, start, next_position))
        previous_id = queue_id
    if at != len(body):
        raise RecordError("the table of queues is longer than its count says")
    if len({entry.name for entry in entries}) != len(entries):
        raise RecordError("the table names a queue twice")
    return Table(next_queue_id, tuple(entries))


def decode_record(body: memoryview | bytes) -> LogRecord | Commit:
    """Decode a log record of a batch; raise RecordError if its kind is unknown or its bytes do not match the kind."""
    kind = body[0] if len(body) else 0
    if kind == APPEND:
        return _decode_append(body)
    if kind == COMMIT:
        return Commit._make(_unpack_whole(_COMMIT, body)[1:])
    if kind == TRUNCATE:
        _, queue_id, position = _unpack_whole(_TRUNCATE, body)
        if position > POSITION_MAX:
            raise RecordError(f"a truncate names position {position}")
        return Truncate(queue_id, position)
    if kind == CREATE:
        queue_id = _unpack(_CREATE, body)[1]
        return Create(queue_id, _name(body[_CREATE.size :], len(body) - _CREATE.size))
    if kind == DELETE:
        return Delete(_unpack_whole(_DELETE, body)[1])
    raise RecordError(f"unknown log record kind {kind}")


def decode_parts(parts: Sequence[memoryview]) -> LogRecord | Commit:
    """Decode a log record split over several frames; otherwise like `decode_record`.

    A run's payload is copied only once, from the frames to its final place.
    """
    if len(parts) == 1:
        return decode_record(parts[0])
    if len(parts[0]) >= _APPEND.size and parts[0][0] == APPEND:
        return _decode_append(*parts)
    return decode_record(b"".join(parts))


def _decode_append(body: memoryview | bytes, *rest: memoryview) -> Append:
    _, queue_id, first_position, count = _unpack(_APPEND, body)
    payload_at = _APPEND.size + OFFSET_BYTES * (count + 1)
    if rest and payload_at > len(body):
        body, rest = b"".join((body, *rest)), ()
    if count < 1 or payload_at > len(body):
        raise RecordError("a run is shorter than its count says")
    if first_position + count - 1 > POSITION_MAX:
        raise RecordError(f"a run goes beyond the last position: {first_position} and {count} records")
    payload = b"".join((body[payload_at:], *rest)) if rest else bytes(body[payload_at:])
    offsets = bytes(body[_APPEND.size : payload_at])
    if count == 1 and offsets == (shared := offsets_of_one(len(payload))):
        return Append(queue_id, Run(first_position, shared, payload))
    run = Run(first_position, offsets, payload)
    check_run(run)
    return Append(queue_id, run)


def check_run(run: Run) -> None:
    """Check a run's offsets against its payload; raise RecordError if they do not match."""
    ends = run.ends()
    if ends[0] != 0 or ends[-1] != len(run.payload) or (len(ends) > 2 and not _ascending(ends)):
        raise RecordError("the offsets of a run do not fit its payload")


def _ascending(numbers: Sequence[int]) -> bool:
    # Sorting a sorted sequence is a single pass in C.
    return sorted(numbers) == numbers


def _name(encoded: memoryview | bytes, length: int) -> str:
    if not length or len(encoded) != length:
        raise RecordError("a queue's name is cut short or empty")
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError:
        raise RecordError("a queue's name is not UTF-8") from None


def _unpack(layout: struct.Struct, body: memoryview | bytes) -> tuple[int, ...]:
    if len(body) < layout.size:
        raise RecordError("a log record is cut short")
    unpacked: tuple[int, ...] = layout.unpack_from(body)
    return unpacked


def _unpack_whole(layout: struct.Struct, body: memoryview | bytes) -> tuple[int, ...]:
    if len(body) != layout.size:
        raise RecordError("a log record has the wrong length")
    return layout.unpack(body)

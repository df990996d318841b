"""Log records: those with payloads, COMMIT, and the functions that encode and decode a log record of any kind.

APPEND and APPEND_MORE hold runs of one queue, a MANY single records of many queues. Records without payloads are in
`controls`, the table in `table`. Decoding trusts nothing: counts and lengths are checked against the actual bytes
before anything is built from them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from mrecordlog_async.format.controls import ConsumerRule, Control, Opened, decode_control, encode_control
from mrecordlog_async.format.fields import RecordError, unpack, unpack_whole
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.model import OFFSET_BYTES, OFFSET_STOP, POSITION_MAX, RUN_BYTES, Run, offsets_of_one, pack_offsets

APPEND, MANY, APPEND_MORE = 4, 7, 13
COMMIT = 6

_APPEND = struct.Struct("<BQQI")
_MANY = struct.Struct("<BI")
_ID_BYTES = 8

APPEND_BYTES = _APPEND.size
"""An APPEND without its run."""

JOIN_BYTES_MAX = 512
"""The parts of a run up to this size are joined: cheaper than one checksum and one buffer per part."""

MANY_RECORDS_MAX = 250
"""Most records in one MANY: a damaged frame loses no more than these."""

MANY_BYTES_MAX = RUN_BYTES
"""A MANY of several records holds no more bytes than this, everything included; a larger single one is an APPEND."""

PLACES_BYTES_MAX = _MANY.size + 2 * _ID_BYTES * MANY_RECORDS_MAX
"""The queues and positions of a MANY are in its first bytes, at most this many."""

LOG_ID_BYTES = 16

_COMMIT = struct.Struct(f"<B{LOG_ID_BYTES}sQQQQQQ")
_COMMIT_PATTERN = struct.Struct(f"<{LOG_ID_BYTES}sQ")

COMMIT_BYTES = _COMMIT.size
PATTERN_OFFSET_IN_COMMIT = 1
"""Offset in a COMMIT of `commit_pattern`, after the kind byte: recovery searches for it and steps back this far."""


class Append(NamedTuple):
    """Appends a run to a queue; its first position is at least the queue's next position.

    continues: it continues the append that ends there. A long call is stored as several runs, and is one append.
    """

    id: int
    run: Run
    continues: bool = False


class Many(NamedTuple):
    """Appends n single records, each to the end of its own queue; a queue may occur in it more than once.

    ids, positions: n unsigned 64-bit integers each. offsets, payload: as in a run.
    """

    ids: array[int]
    positions: array[int]
    offsets: bytes
    payload: bytes

    @classmethod
    def of(cls, ids: Sequence[int], positions: Sequence[int], payloads: Sequence[bytes]) -> Many:
        """Join records, each given by its place in the three sequences."""
        offsets = pack_offsets(accumulate(map(len, payloads), initial=0))
        return cls(array("Q", ids), array("Q", positions), offsets, b"".join(payloads))

    def sizes(self) -> list[int]:
        """Return the lengths of the payloads."""
        ends = memoryview(self.offsets).cast("i").tolist()
        return list(map(sub, ends[1:], ends))

    def payloads(self) -> list[bytes]:
        """Return the payloads as a list."""
        return Run(0, self.offsets, self.payload).payloads()

    def appends(self) -> Iterator[Append]:
        """Yield the records one by one, each as a separate run."""
        for queue_id, position, payload in zip(self.ids, self.positions, self.payloads(), strict=True):
            yield Append(queue_id, Run(position, offsets_of_one(len(payload)), payload))


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


def appends_of(record: object) -> Iterator[Append]:
    """Yield what *record* appends, if it is a record with payloads."""
    if type(record) is Append:
        yield record
    elif type(record) is Many:
        yield from record.appends()


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


# Records with payloads.


def encode_append(record: Append) -> tuple[Buffer, ...]:
    """Encode an APPEND as parts to be written in order. The payload of a large run is not copied."""
    queue_id, (first_position, offsets, payload), continues = record
    kind = APPEND_MORE if continues else APPEND
    head = _APPEND.pack(kind, queue_id, first_position, len(offsets) // OFFSET_BYTES - 1)
    if len(offsets) + len(payload) <= JOIN_BYTES_MAX:
        return (b"".join((head, offsets, payload)),)
    if len(offsets) <= JOIN_BYTES_MAX:
        return head + offsets, payload
    return head, offsets, payload


def encode_many(record: Many) -> tuple[Buffer, ...]:
    """Encode a MANY."""
    ids, positions, offsets, payload = record
    return (b"".join((_MANY.pack(MANY, len(ids)), ids, positions, offsets, payload)),)


def many_bytes(records: int, payload_bytes: int) -> int:
    """Return the size of a MANY."""
    return _MANY.size + 2 * _ID_BYTES * records + OFFSET_BYTES * (records + 1) + payload_bytes


def is_append_head(body: memoryview | bytes) -> bool:
    """Return whether *body* begins an APPEND and holds at least its fixed-size fields."""
    return len(body) >= _APPEND.size and (body[0] == APPEND or body[0] == APPEND_MORE)


def decode_append(body: memoryview | bytes, *rest: memoryview) -> Append:
    """Decode an APPEND whose bytes are *body* and then *rest*; the payload is copied once."""
    kind, queue_id, first_position, count = unpack(_APPEND, body)
    payload_at = _APPEND.size + OFFSET_BYTES * (count + 1)
    if rest and payload_at > len(body):
        body, rest = b"".join((body, *rest)), ()
    if count < 1 or payload_at > len(body):
        raise RecordError("a run is shorter than its count says")
    if first_position + count - 1 > POSITION_MAX:
        raise RecordError(f"a run goes beyond the last position: {first_position} and {count} records")
    payload = b"".join((body[payload_at:], *rest)) if rest else bytes(body[payload_at:])
    offsets = bytes(body[_APPEND.size : payload_at])
    # A payload of 2 GiB has no offsets: `check_run` refuses it.
    if count == 1 and len(payload) < OFFSET_STOP and offsets == (shared := offsets_of_one(len(payload))):
        return Append(queue_id, Run(first_position, shared, payload), kind == APPEND_MORE)
    run = Run(first_position, offsets, payload)
    check_run(run)
    return Append(queue_id, run, kind == APPEND_MORE)


def decode_many(body: memoryview | bytes) -> Many:
    """Decode a MANY."""
    count = unpack(_MANY, body)[1]
    positions_at = _MANY.size + _ID_BYTES * count
    offsets_at = positions_at + _ID_BYTES * count
    payload_at = offsets_at + OFFSET_BYTES * (count + 1)
    if not 1 <= count <= MANY_RECORDS_MAX or payload_at > len(body):
        raise RecordError("a log record of many queues does not hold as many records as it says")
    ids, positions = array("Q"), array("Q")
    ids.frombytes(body[_MANY.size : positions_at])
    positions.frombytes(body[positions_at:offsets_at])
    if max(positions) > POSITION_MAX:
        raise RecordError(f"a log record of many queues goes beyond the last position: {max(positions)}")
    record = Many(ids, positions, bytes(body[offsets_at:payload_at]), bytes(body[payload_at:]))
    check_run(Run(0, record.offsets, record.payload))
    return record


def places_in_many(body: memoryview | bytes) -> Iterator[tuple[int, int]]:
    """Yield (queue id, position) of the records that the beginning of a MANY names; it may be cut short or damaged."""
    if len(body) < _MANY.size or body[0] != MANY:
        return
    count = unpack(_MANY, body)[1]
    if not 1 <= count <= MANY_RECORDS_MAX:
        return
    positions_at = _MANY.size + _ID_BYTES * count
    for index in range(min(count, max(len(body) - positions_at, 0) // _ID_BYTES)):
        queue_id = int.from_bytes(body[_MANY.size + _ID_BYTES * index :][:_ID_BYTES], "little")
        position = int.from_bytes(body[positions_at + _ID_BYTES * index :][:_ID_BYTES], "little")
        if position <= POSITION_MAX:
            yield queue_id, position


def check_run(run: Run) -> None:
    """Check a run's offsets against its payload; raise RecordError if they do not match."""
    ends = run.ends()
    if ends[0] != 0 or ends[-1] != len(run.payload) or (len(ends) > 2 and not _ascending(ends)):
        raise RecordError("the offsets of a run do not fit its payload")


def _ascending(numbers: Sequence[int]) -> bool:
    # Sorting a sorted sequence is a single pass in C.
    return sorted(numbers) == numbers

"""Log records that hold payloads: APPEND and APPEND_MORE, runs of one queue; MANY, single records of many queues."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from mrecordlog_async.format.fields import RecordError, unpack
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.model import OFFSET_BYTES, OFFSET_STOP, POSITION_MAX, RUN_BYTES, Run, offsets_of_one, pack_offsets

APPEND, MANY, APPEND_MORE = 4, 7, 13

_APPEND = struct.Struct("<BQQI")
_MANY = struct.Struct("<BI")
_ID_BYTES = 8

APPEND_BYTES = _APPEND.size
"""An APPEND without its run."""

JOIN_BYTES_MAX = 512
"""The parts of a run up to this size are joined: cheaper than one checksum and one buffer per part."""

MANY_RECORDS_MAX = 250
"""This many records stand in one MANY at most: a damaged frame loses no more than that."""

MANY_BYTES_MAX = RUN_BYTES
"""A MANY of several records holds no more bytes than this, everything included; a larger single one is an APPEND."""


class Append(NamedTuple):
    """Appends a run to a queue; its first position is at least the queue's next position.

    continues: it goes on with the append that ends there: a long call is stored as several runs, and is one append.
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


def appends_of(record: object) -> Iterator[Append]:
    """Yield what *record* appends, if it is a record with payloads."""
    if type(record) is Append:
        yield record
    elif type(record) is Many:
        yield from record.appends()


def encode_append(record: Append) -> tuple[Buffer, ...]:
    """Encode an APPEND as parts to be written in order. The payload of a large run is not copied."""
    queue_id, (first_position, offsets, payload), continues = record
    kind = APPEND_MORE if continues else APPEND
    head = _APPEND.pack(kind, queue_id, first_position, len(offsets) // OFFSET_BYTES - 1)
    if len(offsets) + len(payload) <= JOIN_BYTES_MAX:
        return (b"".join((head, offsets, payload)),)
    return head, offsets, payload


def encode_many(record: Many) -> tuple[Buffer, ...]:
    """Encode a MANY."""
    ids, positions, offsets, payload = record
    return (b"".join((_MANY.pack(MANY, len(ids)), ids, positions, offsets, payload)),)


def many_bytes(records: int, payload_bytes: int) -> int:
    """Return the size of a MANY."""
    return _MANY.size + 2 * _ID_BYTES * records + OFFSET_BYTES * (records + 1) + payload_bytes


PLACES_BYTES_MAX = _MANY.size + 2 * _ID_BYTES * MANY_RECORDS_MAX
"""The queues and positions of a MANY stand in its first bytes, at most this many."""


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

"""Log records: every kind but the table, byte by byte, and the checks when decoding.

Decoding trusts nothing: counts and lengths are checked against the actual bytes before anything is built from them.
Records with payloads are in `runs`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, assert_never

from mrecordlog_async.format.fields import FieldReader, RecordError, decode_name, unpack, unpack_whole
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
from mrecordlog_async.format.stored_options import StoredOptions, encode_options, read_options
from mrecordlog_async.model import POSITION_MAX

CREATE, DELETE = 2, 3
TRUNCATE, COMMIT = 5, 6
CONSUMER, CONSUMER_DELETE, OPTIONS, CONSUMER_RULE, OPENED = range(8, 13)

LOG_ID_BYTES = 16
OWNER_BYTES = 16
NO_OWNER = bytes(OWNER_BYTES)

_QUEUE_ID = struct.Struct("<BQ")
_TRUNCATE = struct.Struct("<BQQ")
_COMMIT = struct.Struct(f"<B{LOG_ID_BYTES}sQQQQQQ")
_CONSUMER = struct.Struct(f"<BQQQ{OWNER_BYTES}s")
_CONSUMER_RULE = struct.Struct("<BBH")
_OPENED = struct.Struct("<BQQ")
_COMMIT_PATTERN = struct.Struct(f"<{LOG_ID_BYTES}sQ")

COMMIT_BYTES = _COMMIT.size
PATTERN_OFFSET_IN_COMMIT = 1
"""Offset in a COMMIT of `commit_pattern`, after the kind byte: recovery searches for it and steps back this far."""

_REMOVE = 1


class Create(NamedTuple):
    """Creates a queue, empty, with next position 0."""

    id: int
    name: str


class Delete(NamedTuple):
    """Deletes a queue with all its records and consumers."""

    id: int


class Truncate(NamedTuple):
    """Removes positions up to and including *position*. Past the end, the next position moves to position + 1."""

    id: int
    position: int


class ConsumerState(NamedTuple):
    """Position of a consumer.

    position: the first one not acknowledged, at most the queue's next one. epoch: rises with every holder. owner: who
    alone may move it, `NO_OWNER` for nobody.
    """

    position: int
    epoch: int
    owner: bytes


class SetConsumer(NamedTuple):
    """Creates a consumer of a queue, or moves it."""

    id: int
    name: str
    state: ConsumerState


class ConsumerDelete(NamedTuple):
    """Deletes a consumer of a queue."""

    id: int
    name: str


class SetOptions(NamedTuple):
    """Replaces the options of a queue."""

    id: int
    values: StoredOptions


class ConsumerRule(NamedTuple):
    """Adds a rule, or removes it: queues created from now on whose names match *pattern* get a consumer."""

    pattern: str
    name: str
    removes: bool


class Opened(NamedTuple):
    """The first record of the first batch after the log was opened for writing: a random number and that batch's."""

    nonce: int
    batch: int


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


# Whatever handles log records dispatches on their class with `match` and `assert_never`, so that the type checker names
# each place that a new kind concerns.
LogRecord = (
    Create | Delete | Append | Many | Truncate | SetConsumer | ConsumerDelete | SetOptions | ConsumerRule | Opened
)


def queue_ids(records: Iterable[LogRecord]) -> Iterator[int]:
    """Yield the id of every queue that *records* name, as often as they do."""
    for record in records:
        match record:
            case Append() | Create() | Delete() | Truncate() | SetConsumer() | ConsumerDelete() | SetOptions():
                yield record.id
            case Many():
                yield from record.ids
            case ConsumerRule() | Opened():
                pass
            case _:
                assert_never(record)


def encode_record(record: LogRecord) -> tuple[Buffer, ...]:
    """Encode a log record of a batch as parts to be written in order."""
    match record:
        case Append():
            return encode_append(record)
        case Many():
            return encode_many(record)
        case _:
            return (_encode_small(record),)


def _encode_small(
    record: Create | Delete | Truncate | SetConsumer | ConsumerDelete | SetOptions | ConsumerRule | Opened,
) -> bytes:
    """Encode a log record without payloads."""
    match record:
        case Truncate():
            return _TRUNCATE.pack(TRUNCATE, *record)
        case Create(queue_id, name):
            return _QUEUE_ID.pack(CREATE, queue_id) + name.encode()
        case Delete(queue_id):
            return _QUEUE_ID.pack(DELETE, queue_id)
        case SetConsumer(queue_id, name, state):
            return _CONSUMER.pack(CONSUMER, queue_id, *state) + name.encode()
        case ConsumerDelete(queue_id, name):
            return _QUEUE_ID.pack(CONSUMER_DELETE, queue_id) + name.encode()
        case SetOptions(queue_id, values):
            return _QUEUE_ID.pack(OPTIONS, queue_id) + encode_options(values)
        case ConsumerRule(pattern, name, removes):
            encoded = pattern.encode()
            return _CONSUMER_RULE.pack(CONSUMER_RULE, removes * _REMOVE, len(encoded)) + encoded + name.encode()
        case Opened(nonce, batch):
            return _OPENED.pack(OPENED, nonce, batch)
        case _:
            assert_never(record)


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
    if kind == TRUNCATE:
        _, queue_id, position = unpack_whole(_TRUNCATE, body)
        if position > POSITION_MAX:
            raise RecordError(f"a truncate names position {position}")
        return Truncate(queue_id, position)
    if kind == CREATE:
        return Create(unpack(_QUEUE_ID, body)[1], decode_name(body[_QUEUE_ID.size :]))
    if kind == DELETE:
        return Delete(unpack_whole(_QUEUE_ID, body)[1])
    return _decode_setting(kind, body)


def _decode_setting(kind: int, body: memoryview | bytes) -> LogRecord:
    """Decode a record about consumers, options or openings."""
    if kind == CONSUMER:
        _, queue_id, *fields = unpack(_CONSUMER, body)
        state = ConsumerState._make(fields)
        check_consumer(state)
        return SetConsumer(queue_id, decode_name(body[_CONSUMER.size :], "a consumer's name"), state)
    if kind == CONSUMER_DELETE:
        return ConsumerDelete(unpack(_QUEUE_ID, body)[1], decode_name(body[_QUEUE_ID.size :], "a consumer's name"))
    if kind == OPTIONS:
        return _decode_options(body)
    if kind == CONSUMER_RULE:
        return _decode_rule(body)
    if kind == OPENED:
        return Opened(*unpack_whole(_OPENED, body)[1:])
    raise RecordError(f"unknown log record kind {kind}")


def _decode_options(body: memoryview | bytes) -> SetOptions:
    reader = FieldReader(body)
    _, queue_id = reader.fields(_QUEUE_ID)
    values = read_options(reader)
    if reader.left():
        raise RecordError("a log record has the wrong length")
    return SetOptions(queue_id, values)


def _decode_rule(body: memoryview | bytes) -> ConsumerRule:
    _, flags, pattern_bytes = unpack(_CONSUMER_RULE, body)
    if flags & ~_REMOVE:
        raise RecordError(f"a rule has unknown flags {flags}")
    name_at = _CONSUMER_RULE.size + pattern_bytes
    pattern = decode_name(body[_CONSUMER_RULE.size : name_at], "a rule's pattern")
    return ConsumerRule(pattern, decode_name(body[name_at:], "a consumer's name"), bool(flags))


def check_consumer(state: ConsumerState) -> None:
    """Raise RecordError if a consumer stands past the last position."""
    if state.position > POSITION_MAX + 1:
        raise RecordError(f"a consumer stands at position {state.position}")


def decode_parts(parts: Sequence[memoryview]) -> LogRecord | Commit:
    """Decode a log record split over several frames; otherwise like `decode_record`.

    A run's payload is copied only once, from the frames to its final place.
    """
    if len(parts) == 1:
        return decode_record(parts[0])
    if is_append_head(parts[0]):
        return decode_append(*parts)
    return decode_record(b"".join(parts))

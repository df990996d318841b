"""The log records without payloads, byte by byte, with the checks when decoding.

What such a record says of a queue, a consumer, a rule or an opening holds until another one says otherwise, so `table`
repeats it in every segment. Those parts of the table are here, too, but for the options of a queue (`stored_options`).
A new kind has its number and its class here, a member of `Setting`, and a case in `encode_control` and in
`decode_control`; the type checker then names every other place that it concerns.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from mrecordlog_async.format.fields import KIND_AND_ID, FieldReader, RecordError, decode_name, unpack, unpack_whole
from mrecordlog_async.format.stored_options import OPTIONS, SetOptions, decode_set_options, encode_set_options
from mrecordlog_async.model import POSITION_MAX

CREATE, DELETE, TRUNCATE = 2, 3, 5
CONSUMER, CONSUMER_DELETE = 8, 9
CONSUMER_RULE, OPENED = 11, 12

OWNER_BYTES = 16
NO_OWNER = bytes(OWNER_BYTES)

_TRUNCATE = struct.Struct("<BQQ")
_CONSUMER = struct.Struct(f"<BQQQ{OWNER_BYTES}s")
_CONSUMER_RULE = struct.Struct("<BBH")
_OPENED = struct.Struct("<BQQ")

_REMOVE = 1

# In the table of a segment.
_COUNT = struct.Struct("<I")
_TABLE_CONSUMER = struct.Struct(f"<QQ{OWNER_BYTES}sH")
_LENGTH = struct.Struct("<H")

CONSUMERS_HEAD_BYTES = _COUNT.size
RULE_BYTES_MIN = 2 * _LENGTH.size


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


class ConsumerRule(NamedTuple):
    """Adds a rule, or removes it: queues created from now on whose names match *pattern* get a consumer."""

    pattern: str
    name: str
    removes: bool


class Opened(NamedTuple):
    """An opening of the log for writing: a random number, and the first batch after it, which this record begins.

    It stands in the table as it is.
    """

    nonce: int
    first_batch: int


QueueSetting = SetConsumer | ConsumerDelete | SetOptions
"""The log records that set something of one queue."""

Setting = QueueSetting | ConsumerRule | Opened
"""The log records that concern neither records nor whether a queue exists."""

Control = Create | Delete | Truncate | Setting


def encode_control(record: Control) -> bytes:
    """Encode a log record without payloads."""
    match record:
        case Truncate():
            return _TRUNCATE.pack(TRUNCATE, *record)
        case Create():  # thousands are made at once: taking its fields apart here would take as long as the rest
            return KIND_AND_ID.pack(CREATE, record.id) + record.name.encode()
        case Delete(queue_id):
            return KIND_AND_ID.pack(DELETE, queue_id)
        case SetConsumer(queue_id, name, state):
            return _CONSUMER.pack(CONSUMER, queue_id, *state) + name.encode()
        case ConsumerDelete(queue_id, name):
            return KIND_AND_ID.pack(CONSUMER_DELETE, queue_id) + name.encode()
        case ConsumerRule(pattern, name, removes):
            encoded = pattern.encode()
            return _CONSUMER_RULE.pack(CONSUMER_RULE, removes * _REMOVE, len(encoded)) + encoded + name.encode()
        case Opened():
            return _OPENED.pack(OPENED, *record)
        case _:
            return encode_set_options(record)


def decode_control(kind: int, body: memoryview | bytes) -> Control:
    """Decode a log record without payloads; raise RecordError if its kind is unknown or does not match its bytes."""
    if kind == TRUNCATE:
        _, queue_id, position = unpack_whole(_TRUNCATE, body)
        if position > POSITION_MAX:
            raise RecordError(f"a truncate names position {position}")
        return Truncate(queue_id, position)
    if kind == CREATE:
        return Create(unpack(KIND_AND_ID, body)[1], decode_name(body[KIND_AND_ID.size :]))
    if kind == DELETE:
        return Delete(unpack_whole(KIND_AND_ID, body)[1])
    if kind == CONSUMER:
        _, queue_id, *fields = unpack(_CONSUMER, body)
        state = ConsumerState._make(fields)
        check_consumer(state)
        return SetConsumer(queue_id, decode_name(body[_CONSUMER.size :], "a consumer's name"), state)
    if kind == CONSUMER_DELETE:
        return ConsumerDelete(unpack(KIND_AND_ID, body)[1], decode_name(body[KIND_AND_ID.size :], "a consumer's name"))
    if kind == OPTIONS:
        return decode_set_options(body)
    if kind == CONSUMER_RULE:
        return _decode_rule(body)
    if kind == OPENED:
        return Opened(*unpack_whole(_OPENED, body)[1:])
    raise RecordError(f"unknown log record kind {kind}")


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
        raise RecordError(f"a consumer is at position {state.position}")


# Consumers and rules in the table of a segment.


class TableConsumer(NamedTuple):
    """A consumer of a queue, in the table."""

    name: str
    state: ConsumerState


NO_CONSUMERS: tuple[TableConsumer, ...] = ()


class TableRule(NamedTuple):
    """Queues whose names match *pattern* get a consumer called *name* when they are created."""

    pattern: str
    name: str


def encode_consumers(consumers: Sequence[TableConsumer]) -> Iterator[bytes]:
    """Yield the consumers of a queue, of which there is at least one, as parts of its entry."""
    yield _COUNT.pack(len(consumers))
    for consumer, (position, epoch, owner) in consumers:
        encoded = consumer.encode()
        yield _TABLE_CONSUMER.pack(position, epoch, owner, len(encoded))
        yield encoded


def read_consumers(reader: FieldReader, next_position: int) -> Iterator[TableConsumer]:
    """Yield the consumers of a queue that ends before *next_position*; raise RecordError if they are out of order."""
    (count,) = reader.fields(_COUNT)
    previous = ""
    if not count:
        raise RecordError("the table announces consumers and holds none")
    for _ in range(count):
        position, epoch, owner, name_bytes = reader.fields(_TABLE_CONSUMER)
        name = reader.name(name_bytes, "a consumer's name")
        state = ConsumerState._make((position, epoch, owner))
        check_consumer(state)
        if position > next_position or name <= previous:
            raise RecordError(f"the table holds consumer {name!r} in the wrong place")
        previous = name
        yield TableConsumer(name, state)


def consumer_bytes(name: str) -> int:
    """Return the number of bytes that a consumer of this name takes in the table."""
    return _TABLE_CONSUMER.size + len(name.encode())


def encode_rules(rules: Iterable[TableRule]) -> Iterator[bytes]:
    """Yield the rules as parts of the table."""
    for text in chain.from_iterable(rules):
        encoded = text.encode()
        yield _LENGTH.pack(len(encoded))
        yield encoded


def read_rules(reader: FieldReader, count: int) -> Iterator[TableRule]:
    """Yield *count* rules of the table."""
    return (TableRule(_read_text(reader), _read_text(reader)) for _ in range(count))


def rule_bytes(rule: TableRule) -> int:
    """Return the number of bytes that *rule* takes in the table."""
    return RULE_BYTES_MIN + len(rule.pattern.encode()) + len(rule.name.encode())


def _read_text(reader: FieldReader) -> str:
    (length,) = reader.fields(_LENGTH)
    return reader.name(length, "a rule's text")

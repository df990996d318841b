"""The table at the beginning of a segment: everything that earlier segments said and that still holds.

It lets a segment stand for itself: once no record in an earlier segment is live, those can go.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

from mrecordlog_async.format.controls import (
    CONSUMERS_HEAD_BYTES,
    NO_CONSUMERS,
    RULE_BYTES_MIN,
    Opened,
    TableConsumer,
    TableRule,
    encode_consumers,
    encode_rules,
    read_consumers,
    read_rules,
)
from mrecordlog_async.format.fields import FieldReader, RecordError
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.stored_options import (
    OPTIONS_BYTES_MAX,
    PLAIN,
    StoredOptions,
    encode_options,
    read_options,
    shared,
)
from mrecordlog_async.model import POSITION_MAX

TABLE = 1

_HEADER = struct.Struct("<BQIII")
_ENTRY = struct.Struct("<QQQBH")
_BEGAN = struct.Struct("<Q")
_LAST_APPEND = struct.Struct("<QI")
_OPENING = struct.Struct("<QQ")

_ENTRY_BYTES_MAX = _ENTRY.size + _BEGAN.size + _LAST_APPEND.size + OPTIONS_BYTES_MAX + CONSUMERS_HEAD_BYTES
"""Of an entry without its name and its consumers. Every queue has room for options, so that setting them needs none."""

_HAS_BEGAN, _HAS_LAST_APPEND, _HAS_OPTIONS, _HAS_CONSUMERS = 1, 2, 4, 8
_FLAGS = _HAS_BEGAN | _HAS_LAST_APPEND | _HAS_OPTIONS | _HAS_CONSUMERS

TABLE_HEADER_BYTES = _HEADER.size
OPENINGS_MAX = 1_024
"""This many openings of the log are remembered, the newest ones."""

ENTRIES_PER_PIECE = 1_000
"""The table is made in pieces of this many queues: a millisecond or two, after which other threads may run."""

Item = TypeVar("Item")


class LastAppendDigest(NamedTuple):
    """The append that ends at a queue's next position: its first position and the CRC-32C of its records.

    The checksum is that of the n lengths as u32, then of the n payloads, however the append was cut into runs.
    """

    first_position: int
    checksum: int


class TableEntry(NamedTuple):
    """One queue in the table: first_position … next_position - 1 are retained; equal means empty.

    began: no record was ever stored below this position; 0 where that is not known. last_append: None where nothing was
    appended, or a truncate went past the end since.
    """

    id: int
    name: str
    first_position: int
    next_position: int
    began: int = 0
    last_append: LastAppendDigest | None = None
    options: StoredOptions = PLAIN
    consumers: tuple[TableConsumer, ...] = NO_CONSUMERS


@dataclass(frozen=True, slots=True)
class Table:
    """The state at the start of a segment.

    next_queue_id: what the next queue gets. entries: the queues, by ascending id. rules: by pattern and name.
    openings: by batch, at most `OPENINGS_MAX`.
    """

    next_queue_id: int
    entries: tuple[TableEntry, ...]
    rules: tuple[TableRule, ...] = ()
    openings: tuple[Opened, ...] = ()


def encode_table(table: Table) -> tuple[Buffer, ...]:
    """Encode the TABLE record."""
    entries = map(encode_entry, table.entries)
    return join_table(table.next_queue_id, len(table.entries), entries, table.rules, table.openings)


def join_table(
    next_queue_id: int,
    queues: int,
    entries: Iterable[bytes],
    rules: Sequence[TableRule],
    openings: Collection[Opened],
) -> tuple[Buffer, ...]:
    """Return the TABLE record of this many *queues*, whose *entries* are encoded, each part of one or more."""
    parts = [_HEADER.pack(TABLE, next_queue_id, queues, len(rules), len(openings)), *entries]
    if rules:
        parts += encode_rules(rules)
    parts += [_OPENING.pack(*opening) for opening in openings]
    return (b"".join(parts),)


def encode_entry(entry: TableEntry) -> bytes:
    """Encode a queue of the table. `compiled` does so too, for queues without options and consumers."""
    queue_id, name, first_position, next_position, began, last_append, options, consumers = entry
    encoded = name.encode()
    flags = _HAS_BEGAN if began else 0
    if last_append is not None:
        flags |= _HAS_LAST_APPEND
    if options is not PLAIN:
        flags |= _HAS_OPTIONS
    if consumers:
        flags |= _HAS_CONSUMERS
    parts = [_ENTRY.pack(queue_id, first_position, next_position, flags, len(encoded)), encoded]
    if began:
        parts.append(_BEGAN.pack(began))
    if last_append is not None:
        parts.append(_LAST_APPEND.pack(*last_append))
    if options is not PLAIN:
        parts.append(encode_options(options))
    if consumers:
        parts += encode_consumers(consumers)
    return b"".join(parts)


def entry_bytes(name: str) -> int:
    """Return the number of bytes that a queue of this name takes in the table at most, its consumers aside."""
    return _ENTRY_BYTES_MAX + len(name.encode())


OPENING_BYTES = _OPENING.size
"""Bytes of an opening in the table."""


def decode_table(body: memoryview | bytes) -> Table:
    """Decode a TABLE record; raise RecordError if it is another kind, not in order or inconsistent."""
    reader = FieldReader(body)
    kind, next_queue_id, queues, rules, openings = reader.fields(_HEADER)
    if kind != TABLE:
        raise RecordError("a segment must begin with the table of queues")
    least = queues * _ENTRY.size + rules * RULE_BYTES_MIN + openings * _OPENING.size
    if least > reader.left():
        raise RecordError("the table of queues is shorter than its counts say")
    table = Table(
        next_queue_id,
        tuple(_decode_entry(reader) for _ in range(queues)),
        tuple(read_rules(reader, rules)),
        tuple(Opened(*reader.fields(_OPENING)) for _ in range(openings)),
    )
    if reader.left():
        raise RecordError("the table of queues is longer than its counts say")
    _check_order(table)
    return table


def _decode_entry(reader: FieldReader) -> TableEntry:
    queue_id, first_position, next_position, flags, name_bytes = reader.fields(_ENTRY)
    name = reader.name(name_bytes)
    if flags & ~_FLAGS:
        raise RecordError(f"the table has an entry with unknown flags {flags}")
    if not first_position <= next_position <= POSITION_MAX + 1:
        raise RecordError("the table of queues holds positions out of order")
    if not flags:
        return TableEntry(queue_id, name, first_position, next_position)
    began = reader.fields(_BEGAN)[0] if flags & _HAS_BEGAN else 0
    last_append = LastAppendDigest(*reader.fields(_LAST_APPEND)) if flags & _HAS_LAST_APPEND else None
    options = _read_options(reader, name) if flags & _HAS_OPTIONS else PLAIN
    consumers = tuple(read_consumers(reader, next_position)) if flags & _HAS_CONSUMERS else NO_CONSUMERS
    if began > first_position or bool(flags & _HAS_BEGAN) != bool(began):
        raise RecordError(f"queue {name!r} cannot have begun at position {began}")
    if last_append is not None and last_append.first_position >= next_position:
        raise RecordError(f"queue {name!r} cannot end with an append at position {last_append.first_position}")
    return TableEntry(queue_id, name, first_position, next_position, began, last_append, options, consumers)


def _read_options(reader: FieldReader, name: str) -> StoredOptions:
    options = read_options(reader)
    if options == PLAIN:
        raise RecordError(f"the table holds options of queue {name!r} that say nothing")
    return shared(options)


def _check_order(table: Table) -> None:
    ids = [entry.id for entry in table.entries]
    if not _ascending(ids) or (ids and ids[-1] >= table.next_queue_id):
        raise RecordError("the table of queues is not in order")
    if len({entry.name for entry in table.entries}) != len(table.entries):
        raise RecordError("the table names a queue twice")
    if not _ascending(table.rules):
        raise RecordError("the table's rules are not in order")
    if not _ascending([opening.first_batch for opening in table.openings]) or len(table.openings) > OPENINGS_MAX:
        raise RecordError("the table's openings are not in order")


def _ascending(items: Sequence[Item]) -> bool:
    return all(left < right for left, right in pairwise(items))  # type: ignore[operator]  # integers and pairs of text

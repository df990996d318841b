"""The table: what is written is read, its size is known beforehand, and nothing else is believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.format.controls import ConsumerState, Opened, TableConsumer, TableRule, consumer_bytes, rule_bytes
from mrecordlog_async.format.fields import RecordError
from mrecordlog_async.format.stored_options import shared
from mrecordlog_async.format.table import (
    OPENING_BYTES,
    TABLE_HEADER_BYTES,
    LastAppendDigest,
    Table,
    TableEntry,
    decode_table,
    encode_table,
    entry_bytes,
)

from . import every_kind

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
numbers = st.integers(0, 2**64 - 1)


@st.composite
def entries(draw: st.DrawFn, queue_id: int, name: str) -> TableEntry:
    """Make a queue with some of the optional parts."""
    first = draw(st.integers(0, 100))
    after = first + draw(st.integers(0, 100))
    last = (
        draw(st.none() | st.builds(LastAppendDigest, st.integers(0, after - 1), st.integers(0, 2**32 - 1)))
        if after
        else None
    )
    states = st.builds(ConsumerState, st.integers(0, after), numbers, st.binary(min_size=16, max_size=16))
    consumers = draw(st.dictionaries(names, states, max_size=3))
    return TableEntry(
        queue_id,
        name,
        first,
        after,
        draw(st.integers(0, first)),
        last,
        shared(draw(every_kind.options)),
        tuple(map(TableConsumer._make, sorted(consumers.items()))),
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Make a whole table."""
    found = draw(st.lists(names, max_size=6, unique=True))
    rules = draw(st.sets(st.builds(TableRule, names, names), max_size=3))
    batches = sorted(draw(st.sets(numbers, max_size=4)))
    return Table(
        len(found) * 3,
        tuple(draw(entries(number * 3, name)) for number, name in enumerate(found)),
        tuple(sorted(rules)),
        tuple(Opened(draw(numbers), batch) for batch in batches),
    )


@given(tables())
def test_tables_come_back(table: Table) -> None:
    """The table is read as it was written, and it is never larger than what is reserved for it."""
    encoded = b"".join(encode_table(table))
    assert decode_table(encoded) == decode_table(memoryview(encoded)) == table
    assert len(encoded) <= (
        TABLE_HEADER_BYTES
        + sum(entry_bytes(entry.name) for entry in table.entries)
        + sum(consumer_bytes(consumer.name) for entry in table.entries for consumer in entry.consumers)
        + sum(map(rule_bytes, table.rules))
        + len(table.openings) * OPENING_BYTES
    )


def test_a_plain_queue_takes_a_byte_of_flags() -> None:
    """A queue with nothing but positions costs its name, two lengths and flags."""
    plain = Table(5, (TableEntry(1, "name", 0, 0),))
    assert len(b"".join(encode_table(plain))) == TABLE_HEADER_BYTES + 3 * 8 + 1 + 2 + len("name")


@given(tables(), st.data())
def test_a_table_cut_short_is_refused(table: Table, data: st.DataObject) -> None:
    """Whatever part is missing at the end, no table is made of the rest; nor of one byte too many."""
    encoded = b"".join(encode_table(table))
    for body in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"x"):
        with pytest.raises(RecordError):
            decode_table(body)


def body(next_id: int, *queues: tuple[int, int, int, bytes], flags: int = 0, more: bytes = b"", kind: int = 1) -> bytes:
    """Put a TABLE record together by hand; *flags* and *more* are those of every queue."""
    packed = [
        struct.pack("<QQQBH", queue_id, first, after, flags, len(name)) + name + more
        for queue_id, first, after, name in queues
    ]
    return struct.pack("<BQIII", kind, next_id, len(queues), 0, 0) + b"".join(packed)


def settings(rules: list[tuple[bytes, bytes]], openings: list[int]) -> bytes:
    """Put a table without queues together."""
    packed = [struct.pack("<H", len(text)) + text for rule in rules for text in rule]
    packed += [struct.pack("<QQ", 1, batch) for batch in openings]
    return struct.pack("<BQIII", 1, 5, 0, len(rules), len(openings)) + b"".join(packed)


def consumers(*found: tuple[int, bytes]) -> bytes:
    """Put the consumers of a queue together."""
    packed = [struct.pack("<QQ16sH", position, 1, b"", len(name)) + name for position, name in found]
    return struct.pack("<I", len(found)) + b"".join(packed)


QUEUE = (1, 2, 3, b"a")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        body(5, kind=2),
        struct.pack("<BQIII", 1, 5, 2**32 - 1, 0, 0),
        struct.pack("<BQIII", 1, 5, 0, 2**32 - 1, 0),
        struct.pack("<BQIII", 1, 5, 0, 0, 2**32 - 1),
        body(5, (1, 0, 0, b"")),
        body(5, (1, 0, 0, b"\xff")),
        body(5, (5, 0, 0, b"a")),
        body(5, (2, 0, 0, b"a"), (1, 0, 0, b"b")),
        body(5, (1, 0, 0, b"a"), (2, 0, 0, b"a")),
        body(5, (1, 3, 2, b"a")),
        body(5, (1, 0, 2**63 + 1, b"a")),
        body(5, QUEUE, flags=128),
        body(5, QUEUE, flags=1, more=struct.pack("<Q", 3)),
        body(5, QUEUE, flags=1, more=struct.pack("<Q", 0)),
        body(5, QUEUE, flags=2, more=struct.pack("<QI", 3, 0)),
        body(5, QUEUE, flags=4, more=struct.pack("<BQQQ", 128, 0, 0, 0)),
        body(5, QUEUE, flags=4, more=struct.pack("<BQQQ", 0, 0, 0, 0)),
        body(5, QUEUE, flags=8, more=consumers()),
        body(5, QUEUE, flags=8, more=consumers((4, b"c"))),
        body(5, QUEUE, flags=8, more=consumers((2**64 - 1, b"c"))),
        body(5, QUEUE, flags=8, more=consumers((1, b"d"), (1, b"c"))),
        body(5, QUEUE, flags=8, more=consumers((1, b"c"), (1, b"c"))),
        body(5, QUEUE, flags=8, more=consumers((1, b""))),
        settings([(b"*", b"")], []),
        settings([(b"*", b"b"), (b"*", b"a")], []),
        settings([(b"*", b"a"), (b"*", b"a")], []),
        settings([], [2, 1]),
        settings([], [1, 1]),
        settings([], list(range(1_025))),
    ],
)
def test_a_table_that_is_not_in_order_is_refused(body: bytes) -> None:
    """Counts, flags, the order of everything, names and positions are all checked."""
    with pytest.raises(RecordError):
        decode_table(body)

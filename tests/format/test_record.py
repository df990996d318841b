"""Log records: what is written is read, and nothing else is believed."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.format.record import (
    COMMIT_BYTES,
    Append,
    Commit,
    Create,
    Delete,
    LogRecord,
    RecordError,
    Table,
    TableEntry,
    Truncate,
    decode_parts,
    decode_record,
    decode_table,
    encode_commit,
    encode_record,
    encode_table,
    entry_bytes,
)
from mrecordlog_async.model import POSITION_MAX, Run

ids = st.integers(0, 2**63)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)
runs = st.builds(Run.of, st.integers(0, 2**40), st.lists(st.binary(max_size=50), min_size=1, max_size=20))
records = st.one_of(
    st.builds(Create, ids, names),
    st.builds(Delete, ids),
    st.builds(Append, ids, runs),
    st.builds(Truncate, ids, st.integers(0, POSITION_MAX)),
)


@given(record=records)
def test_records_come_back(record: LogRecord) -> None:
    """Every kind of record is read as it was written."""
    assert decode_record(b"".join(encode_record(record))) == record
    assert decode_record(memoryview(b"".join(encode_record(record)))) == record


@given(records, st.lists(st.integers(0, 200), max_size=4))
def test_records_come_back_wherever_frames_cut_them(record: LogRecord, cuts: list[int]) -> None:
    """A frame may end at any byte: within the head, the offsets or the payload of a run."""
    body = memoryview(b"".join(encode_record(record)))
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decode_parts([body[start:stop] for start, stop in pairwise(bounds)]) == record


def test_commit_has_a_fixed_length_and_comes_back() -> None:
    """A COMMIT is 57 bytes, whatever it says, and begins with the log id behind its kind."""
    commit = Commit(b"0123456789abcdef", 2**60, 2**60 - 1, 123, 7, 2**62)
    assert len(encode_commit(commit)) == COMMIT_BYTES == 57
    assert encode_commit(commit)[1:17] == commit.log_id
    assert decode_record(encode_commit(commit)) == commit


@given(
    entries=st.lists(st.tuples(names, st.integers(0, 100), st.integers(0, 100)), max_size=10, unique_by=lambda e: e[0])
)
def test_tables_come_back(entries: list[tuple[str, int, int]]) -> None:
    """The table of queues is read as it was written, and its size is the one that was reckoned with."""
    table = Table(
        len(entries) * 3,
        tuple(TableEntry(n * 3, name, start, start + more) for n, (name, start, more) in enumerate(entries)),
    )
    encoded = b"".join(encode_table(table))
    assert decode_table(encoded) == table
    assert len(encoded) == 13 + sum(entry_bytes(name) for name, _, _ in entries)


def run_body(count: int, offsets: list[int], payload: bytes) -> bytes:
    """Put an APPEND together by hand."""
    return struct.pack("<BQQI", 4, 1, 0, count) + struct.pack(f"<{len(offsets)}i", *offsets) + payload


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x63",
        b"\x01" + bytes(12),
        b"\x02" + bytes(8),
        b"\x02" + bytes(8) + b"\xff\xfe",
        b"\x03" + bytes(7),
        b"\x03" + bytes(9),
        b"\x05" + bytes(15),
        b"\x05" + bytes(8) + b"\xff" * 8,
        b"\x06" + bytes(10),
        run_body(0, [0], b""),
        run_body(2, [0, 1], b""),
        run_body(2**32 - 1, [0], b""),
        run_body(2, [0, 3, 2], b"ab"),
        run_body(2, [1, 1, 2], b"ab"),
        run_body(2, [0, -1, 2], b"ab"),
        run_body(2, [0, 1, 3], b"ab"),
        run_body(1, [0, 1], b"ab"),
        struct.pack("<BQQI", 4, 1, POSITION_MAX, 2) + bytes(12),
        struct.pack("<BQQI", 4, 1, 2**64 - 1, 1) + bytes(8),
    ],
)
def test_what_does_not_fit_is_refused(body: bytes) -> None:
    """Unknown kinds, wrong lengths, offsets that do not ascend, positions beyond the last: all RecordError."""
    with pytest.raises(RecordError):
        decode_record(body)


def table_body(next_id: int, *entries: tuple[int, int, int, bytes]) -> bytes:
    """Put a QUEUES record together by hand."""
    packed = [struct.pack("<QQQH", i, start, next_, len(name)) + name for i, start, next_, name in entries]
    return struct.pack("<BQI", 1, next_id, len(entries)) + b"".join(packed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02" + bytes(12),
        struct.pack("<BQI", 1, 5, 2**32 - 1),
        table_body(5, (1, 0, 0, b"a"))[:-1],
        table_body(5, (1, 0, 0, b"a")) + b"x",
        table_body(5, (1, 0, 0, b"")),
        table_body(5, (1, 0, 0, b"\xff")),
        table_body(5, (5, 0, 0, b"a")),
        table_body(5, (2, 0, 0, b"a"), (1, 0, 0, b"b")),
        table_body(5, (1, 0, 0, b"a"), (2, 0, 0, b"a")),
        table_body(5, (1, 3, 2, b"a")),
        table_body(5, (1, 0, 2**63 + 1, b"a")),
    ],
)
def test_table_that_is_not_in_order_is_refused(body: bytes) -> None:
    """Counts, order of ids, names and positions are all checked."""
    with pytest.raises(RecordError):
        decode_table(body)

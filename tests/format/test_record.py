"""Log records: what is written is read, nothing else is believed, and what a damaged one still shows."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.format.controls import ConsumerRule, ConsumerState, Create, Opened, SetConsumer
from mrecordlog_async.format.fields import RecordError
from mrecordlog_async.format.record import (
    COMMIT_BYTES,
    MANY_RECORDS_MAX,
    PLACES_BYTES_MAX,
    Append,
    Commit,
    LogRecord,
    Many,
    appends_of,
    commit_pattern,
    decode_parts,
    decode_record,
    encode_commit,
    encode_many,
    encode_record,
    places_in_many,
    queue_ids,
)
from mrecordlog_async.format.stored_options import SetOptions, StoredOptions
from mrecordlog_async.model import POSITION_MAX, Run

from .every_kind import EXAMPLES, RECORDS, records


def test_every_kind_is_tried() -> None:
    """Otherwise the tests below, the fuzzing and the crash histories pass without it: write a new kind there."""
    kinds = set(get_args(LogRecord))
    assert (set(RECORDS), {type(record) for record in EXAMPLES}) == (kinds, kinds)


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
    """A COMMIT is 65 bytes, whatever it says, and begins with the pattern of its segment after its kind."""
    commit = Commit(b"0123456789abcdef", 5, 2**60, 2**60 - 1, 123, 7, 2**62)
    assert len(encode_commit(commit)) == COMMIT_BYTES == 65
    assert encode_commit(commit)[1:25] == commit_pattern(commit.log_id, commit.segment)
    assert commit_pattern(commit.log_id, 6) != commit_pattern(commit.log_id, 5)
    assert decode_record(encode_commit(commit)) == commit


def run_body(count: int, offsets: list[int], payload: bytes) -> bytes:
    """Put an APPEND together by hand."""
    return struct.pack("<BQQI", 4, 1, 0, count) + struct.pack(f"<{len(offsets)}i", *offsets) + payload


def many_body(count: int, queues: list[int], positions: list[int], offsets: list[int], payload: bytes) -> bytes:
    """Put a MANY together by hand."""
    places = struct.pack(f"<{len(queues)}Q{len(positions)}Q", *queues, *positions)
    return struct.pack("<BI", 7, count) + places + struct.pack(f"<{len(offsets)}i", *offsets) + payload


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
        many_body(0, [], [], [0], b""),
        many_body(2, [1, 2], [0, 0], [0, 1], b"a"),
        many_body(251, [1] * 251, [0] * 251, [0] * 252, b""),
        many_body(2**32 - 1, [1], [0], [0, 1], b"a"),
        many_body(2, [1, 2], [0, 0], [0, 2, 1], b"a"),
        many_body(2, [1, 2], [0, 0], [0, 1, 2], b"a"),
        many_body(2, [1, 2], [0, POSITION_MAX + 1], [0, 1, 2], b"ab"),
        b"\x07" + bytes(3),
        b"\x08" + bytes(40),  # a consumer without a name
        b"\x08" + bytes(8) + b"\xff" * 8 + bytes(24) + b"c",
        b"\x08" + bytes(40) + b"\xff",
        b"\x09" + bytes(8),
        b"\x0a" + bytes(33) + b"x",
        b"\x0a" + bytes(8) + b"\x08" + bytes(24),
        b"\x0b\x02\x01\x00*c",
        b"\x0b\x00\x01\x00*",
        b"\x0b\x00\x00\x00c",
        b"\x0b\x00\xff\xff*c",
        b"\x0c" + bytes(15),
        struct.pack("<BQQI", 4, 1, 2**64 - 1, 1) + bytes(8),
    ],
)
def test_what_does_not_fit_is_refused(body: bytes) -> None:
    """Unknown kinds, wrong lengths, offsets that do not ascend, positions beyond the last: all RecordError."""
    with pytest.raises(RecordError):
        decode_record(body)


def test_queues_that_records_name_are_listed() -> None:
    """A change of a queue is announced under its id, whatever kind of record made it; rules and openings name none."""
    state = ConsumerState(0, 1, bytes(16))
    named: list[LogRecord] = [
        Create(1, "q"),
        Many.of([2, 3, 2], [0, 0, 1], [b"", b"", b""]),
        ConsumerRule("*", "c", False),
        Opened(5, 1),
        SetConsumer(4, "c", state),
        SetOptions(5, StoredOptions(0, 0, 0, 0)),
    ]
    assert list(queue_ids(named)) == [1, 2, 3, 2, 4, 5]


def test_records_of_many_queues_are_single_appends() -> None:
    """A MANY stands for one append per record, in order, even where it names a queue twice."""
    many = Many.of([7, 8, 7], [2, 0, 3], [b"a", b"", b"bc"])
    singles = [Append(7, Run.of(2, [b"a"])), Append(8, Run.of(0, [b""])), Append(7, Run.of(3, [b"bc"]))]
    assert list(appends_of(many)) == singles
    assert list(appends_of(singles[0])) == singles[:1]
    assert list(appends_of("neither")) == []


def test_places_are_read_from_the_beginning_of_a_damaged_record() -> None:
    """Which positions a lost MANY held is known as soon as its ids and positions can be read, or some of them."""
    many = Many.of(range(MANY_RECORDS_MAX), range(5, 5 + MANY_RECORDS_MAX), [b"x"] * MANY_RECORDS_MAX)
    body = b"".join(encode_many(many))
    places = list(zip(many.ids, many.positions, strict=True))
    assert list(places_in_many(body)) == list(places_in_many(body[:PLACES_BYTES_MAX])) == places
    assert list(places_in_many(body[: 5 + 8 * MANY_RECORDS_MAX + 8 * 3 + 7])) == places[:3]
    assert list(places_in_many(body[: 5 + 8 * MANY_RECORDS_MAX])) == []
    assert list(places_in_many(body[:4])) == list(places_in_many(b"\x04" + body[1:])) == []
    assert list(places_in_many(struct.pack("<BI", 7, MANY_RECORDS_MAX + 1) + body[5:])) == []
    assert list(places_in_many(struct.pack("<BIQQ", 7, 1, 1, 2**64 - 1))) == []

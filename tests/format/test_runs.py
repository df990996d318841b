"""Log records with payloads: their limits, and what a damaged one still shows."""

from __future__ import annotations

import struct

from mrecordlog_async.format.record import (
    MANY_RECORDS_MAX,
    PLACES_BYTES_MAX,
    Append,
    Many,
    appends_of,
    encode_many,
    places_in_many,
)
from mrecordlog_async.model import Run


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

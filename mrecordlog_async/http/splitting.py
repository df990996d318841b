"""Bodies into records, by their content type. Large ones a piece at a time, so that nobody else has to wait.

Counts are checked before records are made, and each record is charged what it costs besides its bytes.

| Content-Type | records |
|---|---|
| `application/x-ndjson` | every line is one, as it is, without its newline; also an empty one |
| `application/json` | `{"records": ["base64", …]}` |
| `application/vnd.mrecordlog.runs` | those of all blocks, in order; where they go, the request says |
| `application/vnd.apache.arrow.stream` | the values of the column `payload` |
| anything else | the body is one record |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from mrecordlog_async.http import arrow, wire
from mrecordlog_async.http.bodies import JSON, NDJSON
from mrecordlog_async.http.budgets import Charge
from mrecordlog_async.http.messages import AppendRequest
from mrecordlog_async.http.problems import bad_request, too_large
from mrecordlog_async.http.turns import Turns

RECORD_BYTES = 64
"""What a record costs besides its payload, while it waits to be stored."""

SMALL_BYTES = 64 * 1024
"""A smaller body is split in one go."""

PIECE_BYTES = 256 * 1024
PIECE_BLOCKS = 256
COUNT_BYTES = 1024 * 1024

Steps = Iterator[list[bytes]]


class Splitter:
    """Splits bodies. Large ones one after the other: what that needs for a moment, it needs once."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._one_at_a_time = asyncio.Lock()

    async def split(self, body: bytes, content_type: str | None, charge: Charge) -> list[bytes]:
        """Return the records of *body*; problem 400 or 413 where it is none of its type or holds too many."""
        if content_type is None:
            return [body]
        kind = content_type.partition(";")[0].strip().lower()
        if kind == arrow.CONTENT_TYPE:
            async with self._one_at_a_time:
                return await _from_arrow(body, self._records_max, charge)
        if len(body) <= SMALL_BYTES or kind not in _BY_TYPE:
            return split_at_once(body, kind, self._records_max, charge)
        async with self._one_at_a_time:
            return await _in_turns(_BY_TYPE[kind](body, self._records_max, charge))


def split_at_once(body: bytes, kind: str, records_max: int, charge: Charge) -> list[bytes]:
    """Return the records of a small *body* of a type other than Arrow."""
    steps = _BY_TYPE.get(kind)
    return [body] if steps is None else list(chain.from_iterable(steps(body, records_max, charge)))


async def _in_turns(steps: Steps) -> list[bytes]:
    found: list[bytes] = []
    turns = Turns()
    for records in steps:
        found += records
        await turns.rest()
    return found


async def _from_arrow(body: bytes, records_max: int, charge: Charge) -> list[bytes]:
    """Decode on a thread: pyarrow looks at the whole of a batch, however large it is."""
    await arrow.ready(415)
    records = await asyncio.to_thread(arrow.decode, body, records_max)
    charge.add(RECORD_BYTES * len(records))
    return records


def _lines(body: bytes, records_max: int, charge: Charge) -> Steps:
    unended = not body.endswith(b"\n") and bool(body)
    yield from _count(body, b"\n", lambda found: _check_count(found + unended, records_max))
    charge.add(RECORD_BYTES * (body.count(b"\n") + unended))
    at = 0
    while at < len(body):
        # The piece ends behind a newline, or with the body.
        stop = body.find(b"\n", min(at + PIECE_BYTES, len(body) - 1)) + 1 or len(body)
        lines = body[at:stop].split(b"\n")
        if body[stop - 1] == 10:
            lines.pop()
        yield lines
        at = stop


def _json(body: bytes, records_max: int, charge: Charge) -> Steps:
    # Base64 holds neither quotes nor colons nor commas: what cannot be records is seen before it is decoded.
    yield from _count(body, b":", _check_one_member)
    yield from _count(body, b'"', lambda found: _check_count(found // 2 - 1, records_max))
    charge.add(RECORD_BYTES * max(body.count(b'"') // 2 - 1, 0))
    begin = _JSON_BEGIN.match(body) if len(body) > SMALL_BYTES else None
    end = _JSON_END.search(body, len(body) - 100) if begin is not None else None
    if begin is None or end is None:
        yield _append_decoder.decode(body).records
        return
    at, last = begin.end(), end.start()
    while at < last:
        stop = body.find(b",", min(at + PIECE_BYTES, last), last)
        stop = last if stop < 0 else stop
        records = _list_decoder.decode(b"[%s]" % body[at:stop])
        if not records and (at > begin.end() or stop < last):
            raise bad_request("a comma without a record", "bad_body")
        yield records
        at = stop + 1
    if at == last > begin.end():
        raise bad_request("a comma without a record", "bad_body")


def _count(body: bytes, what: bytes, check: Callable[[int], None]) -> Steps:
    """Count *what* a piece at a time and *check* the sum after each; a body of nothing else takes 2 ns a byte."""
    found = 0
    for at in range(0, len(body), COUNT_BYTES):
        found += body.count(what, at, at + COUNT_BYTES)
        check(found)
        yield []


def _check_one_member(colons: int) -> None:
    if colons > 1:
        raise bad_request('the body is {"records": [...]}, with base64 for each record', "bad_body")


def _runs(body: bytes, records_max: int, charge: Charge) -> Steps:
    decoder, at, entries, records = wire.Decoder(), 0, 0, 0
    found: list[bytes] = []
    while not decoder.done:
        size = decoder.wanted
        block = decoder.take(memoryview(body)[at : at + size])
        at += size
        entries += 1
        if block is not None:
            records += block.records
            _check_count(records, records_max)
            wire.check_offsets(block.offsets)
            found += block.run().payloads()
        if entries % PIECE_BLOCKS == 0 or len(found) > PIECE_BLOCKS:
            charge.add(RECORD_BYTES * len(found))
            yield found
            found = []
    if at != len(body):
        raise wire.WireError(f"{len(body) - at} bytes follow the trailer")
    charge.add(RECORD_BYTES * len(found))
    yield found


def _check_count(records: int, records_max: int, charge: Charge | None = None) -> None:
    if records > records_max:
        raise too_large(records, records_max, "records in one body")
    if charge is not None:
        charge.add(RECORD_BYTES * max(records, 0))


_append_decoder = msgspec.json.Decoder(AppendRequest)
_list_decoder = msgspec.json.Decoder(list[bytes])

_JSON_BEGIN = re.compile(rb'\s*\{\s*"records"\s*:\s*\[')
_JSON_END = re.compile(rb"\]\s*\}\s*\Z")

_BY_TYPE: dict[str, Callable[[bytes, int, Charge], Steps]] = {
    NDJSON: _lines,
    JSON: _json,
    wire.CONTENT_TYPE: _runs,
}

"""Split request bodies into records, by content type; large bodies piece by piece, so that no other request waits.

Counts are checked before records are created, and each record is charged for its overhead as well as its bytes.

| Content-Type | records |
|---|---|
| `application/x-ndjson` | every line is a record, without its newline; an empty line is an empty record |
| `application/json` | `{"records": ["base64", …]}` |
| `application/vnd.mrecordlog.runs` | the records of all blocks, in order; their queues and positions are ignored |
| `application/vnd.apache.arrow.stream` | refused: stored as it came it would be one record, which nobody means |
| anything else | the body is one record |

With `?json=records`, the body is one JSON value of up to 8 MiB, whatever its type: each element of an array is a
record, any other value is one record. Records are stored as the bytes that came, without the space around them.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import chain, pairwise

import msgspec

from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.protocol.problems import ProblemError, bad_request, too_large
from mrecordlog_async.protocol.schemas import AppendRequest
from mrecordlog_async.service.http import JSON, NDJSON, OCTET_STREAM
from mrecordlog_async.service.sending import Charge
from mrecordlog_async.service.turns import Turns

ARROW = "application/vnd.apache.arrow.stream"

RECORD_BYTES = 64
"""Memory that a record needs besides its payload while it waits to be stored."""

SMALL_BYTES = 64 * 1024
"""A smaller body is split in one go."""

PIECE_BYTES = 256 * 1024
PIECE_BLOCKS = 256
PIECE_RECORDS = 2_000
COUNT_BYTES = 1024 * 1024
COMMA = ord(",")

WHITESPACE_MAX = 1_000
"""Longest whitespace in one place around the records of a large JSON body: skipping millions of bytes takes 0.1 s."""

JSON_BYTES_MAX = 8 * 1024 * 1024
"""A larger body is not cut into JSON values: to look for their ends holds the event loop, about 2 ms for each MiB."""

Steps = Iterator[list[bytes]]


class Splitter:
    """Split bodies; large ones one after another, so that temporary memory is needed only once."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._one_at_a_time = asyncio.Lock()

    async def split(self, body: bytes, content_type: str | None, charge: Charge) -> list[bytes]:
        """Return the records of *body*.

        Raises:
            ProblemError: 400 if it does not match its type, 413 if it holds too many, 415 for a type that is not split.
        """
        if content_type is None:
            return [body]
        kind = content_type.partition(";")[0].strip().lower()
        if kind == ARROW:
            detail = f"Arrow is not accepted; send {NDJSON}, {wire.CONTENT_TYPE} or {OCTET_STREAM} (one record)"
            raise ProblemError(415, "no_arrow", detail)
        if len(body) <= SMALL_BYTES or kind not in _BY_TYPE:
            return split_at_once(body, kind, self._records_max, charge)
        async with self._one_at_a_time:
            return await _in_turns(_BY_TYPE[kind](body, self._records_max, charge))

    async def split_json(self, body: bytes, charge: Charge) -> list[bytes]:
        """Return the elements of a JSON array, or any other JSON value, as the bytes that came."""
        if len(body) > JSON_BYTES_MAX:
            raise too_large(len(body), JSON_BYTES_MAX, "bytes in a body with ?json=records")
        # The decoder refuses half a surrogate pair, which JSON allows and programs send. This is a body of the same
        # length with other characters there.
        text = body.replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
        is_array = text.lstrip(b" \t\r\n").startswith(b"[")
        if is_array and text.count(b",") >= self._records_max:
            await _in_turns(_count_values(text, self._records_max))
        try:
            text.decode()  # the decoder does not look into strings
            found = _values_decoder.decode(text) if is_array else [_value_decoder.decode(text)]
        except UnicodeDecodeError as error:
            raise bad_request(f"the body is not UTF-8, as JSON must be: {error}", "bad_body") from None
        except RecursionError:
            raise bad_request("the body has too many arrays or objects inside each other", "bad_body") from None
        if not found:
            raise bad_request("the array is empty; send at least one value", "bad_body")
        _check_count(len(found), self._records_max)
        charge.add(len(body) + RECORD_BYTES * len(found))
        values = list(map(bytes, found))
        return values if text == body else await _in_turns(_same_places(text, values, body))


def _same_places(text: bytes, values: list[bytes], body: bytes) -> Steps:
    """Yield the bytes that *body* has where *text* has *values*, which are in order; a list of them per step."""
    at = text.index(b"[") + 1 if text.lstrip(b" \t\r\n").startswith(b"[") else 0
    for begin in range(0, len(values), PIECE_RECORDS):
        found = []
        for value in values[begin : begin + PIECE_RECORDS]:
            at = text.index(value, at)  # only space and a comma are before it, and no value begins with these
            found.append(body[at : at + len(value)])
            at += len(value)
        yield found


def split_at_once(body: bytes, kind: str, records_max: int, charge: Charge) -> list[bytes]:
    """Return the records of a small *body*."""
    steps = _BY_TYPE.get(kind)
    return [body] if steps is None else list(chain.from_iterable(steps(body, records_max, charge)))


async def _in_turns(steps: Steps) -> list[bytes]:
    found: list[bytes] = []
    turns = Turns()
    for records in steps:
        found += records
        await turns.rest()
    return found


def _lines(body: bytes, records_max: int, charge: Charge) -> Steps:
    unended = not body.endswith(b"\n") and bool(body)
    yield from _count(body, b"\n", lambda found: _check_count(found + unended, records_max))
    charge.add(RECORD_BYTES * (body.count(b"\n") + unended))
    at = 0
    while at < len(body):
        # The piece ends after a newline, or with the body.
        stop = body.find(b"\n", min(at + PIECE_BYTES, len(body) - 1)) + 1 or len(body)
        lines = body[at:stop].split(b"\n")
        if body[stop - 1] == 10:
            lines.pop()
        yield lines
        at = stop


def _json(body: bytes, records_max: int, charge: Charge) -> Steps:
    # Base64 has no quotes, colons or commas, so a wrong shape is found before anything is decoded.
    yield from _count(body, b":", _check_one_member)
    yield from _count(body, b'"', lambda found: _check_count(found // 2 - 1, records_max))
    charge.add(RECORD_BYTES * max(body.count(b'"') // 2 - 1, 0))
    if len(body) <= SMALL_BYTES:
        try:
            yield _append_decoder.decode(body).records
        except msgspec.ValidationError as error:
            raise bad_request(f"{_JSON_SHAPE}: {str(error)[:80]}", "bad_body") from None
        return
    begin, end = _JSON_BEGIN.match(body), _JSON_END.search(body, len(body) - 2 * WHITESPACE_MAX - 2)
    if begin is None or end is None:
        raise bad_request(_JSON_SHAPE, "bad_body")
    at, last = begin.end(), end.start()
    while at < last:
        stop = _end_of_piece(body, at, last)
        if stop - at > 2 * PIECE_BYTES:
            yield from _large_record(body, at, stop)
        else:
            records = _list_decoder.decode(b"[%s]" % body[at:stop])
            if not records and (at > begin.end() or stop < last):
                raise bad_request(_STRAY_COMMA, "bad_body")
            yield records
        at = stop + 1
    if at == last > begin.end():
        raise bad_request(_STRAY_COMMA, "bad_body")


def _end_of_piece(body: bytes, at: int, last: int) -> int:
    """Return the index of the comma after some small records, or after one large record; *last* if there is none."""
    stop = body.find(b",", min(at + PIECE_BYTES, last), last)
    stop = last if stop < 0 else stop
    if stop - at > 2 * PIECE_BYTES:  # the records before a large one are decoded without it
        before = body.rfind(b",", at, at + PIECE_BYTES)
        stop = before if before >= 0 else stop
    return stop


def _large_record(body: bytes, at: int, stop: int) -> Steps:
    """Decode the base64 string of one record part by part: 60 MB at once would take a fifth of a second."""
    begin, end = body.find(b'"', at, stop) + 1, body.rfind(b'"', at, stop)
    around = body[at : begin - 1] + body[end + 1 : stop] if begin - at + stop - end <= 4 * WHITESPACE_MAX else b"?"
    if not 0 < begin <= end or around.strip():
        raise bad_request(_JSON_SHAPE, "bad_body")
    record, rest = BytesIO(), b""  # its value is its buffer: the record is never there twice
    while begin < end:
        cut = min(begin + PIECE_BYTES, end)
        if cut < end and (escape := body.rfind(b"\\", cut - 5, cut)) >= 0:
            cut = escape  # no part ends within an escape
        text = rest + _unescaped(body[begin:cut])
        whole = len(text) if cut == end else len(text) // 4 * 4
        record.write(_from_base64(text[:whole], is_last=cut == end))
        begin, rest = cut, text[whole:]
        yield []
    yield [record.getvalue()]


def _unescaped(text: bytes) -> bytes:
    """Undo JSON's escapes: some encoders write the / and + of base64 as escapes."""
    return msgspec.json.decode(b'"%s"' % text, type=str).encode() if b"\\" in text else text


def _from_base64(text: bytes, *, is_last: bool) -> bytes:
    try:
        decoded = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise bad_request(f"a record is not base64: {error}", "bad_body") from None
    if not is_last and len(decoded) * 4 != len(text) * 3:
        raise bad_request("a record is not base64: padding inside", "bad_body")
    return decoded


def _count(body: bytes, what: bytes, check: Callable[[int], None]) -> Steps:
    """Count *what* piece by piece and *check* the sum after each piece; costs at most 2 ns per byte."""
    found = 0
    for at in range(0, len(body), COUNT_BYTES):
        found += body.count(what, at, at + COUNT_BYTES)
        check(found)
        yield []


def _check_one_member(colons: int) -> None:
    if colons > 1:
        raise bad_request(_JSON_SHAPE, "bad_body")


def _runs(body: bytes, records_max: int, charge: Charge) -> Steps:
    records = 0
    found: list[bytes] = []
    for entries, block in enumerate(wire_decoder.entries(body), 1):
        if block is not None:
            records += block.record_count
            _check_count(records, records_max)
            for some in _payloads(block):
                found += some
                if len(found) > PIECE_BLOCKS:
                    charge.add(RECORD_BYTES * len(found))
                    yield found
                    found = []
        if entries % PIECE_BLOCKS == 0:
            charge.add(RECORD_BYTES * len(found))
            yield found
            found = []
    charge.add(RECORD_BYTES * len(found))
    yield found


def _count_values(body: bytes, records_max: int) -> Steps:
    """Refuse an array of more than *records_max* elements before they are made: millions fit into a body.

    An element is found by what the decoder says about the bytes after it. The count ends at what is not an array: the
    decoder then says why.
    """
    view, at, found = memoryview(body), body.index(b"[") + 1, 1
    while True:
        try:
            _value_decoder.decode(view[at:])
            return
        except (msgspec.DecodeError, RecursionError) as error:
            rest = _REST.search(str(error))
        if rest is None or body[at + int(rest[1]) - 1] != COMMA:
            return
        at += int(rest[1])
        found += 1
        _check_count(found, records_max)
        if found % PIECE_BLOCKS == 0:
            yield []


def _payloads(block: wire_decoder.Block) -> Steps:
    """Copy the records out of a block, some at a time."""
    ends = wire_decoder.check_offsets(block.offsets)
    for at in range(0, block.record_count, PIECE_RECORDS):
        yield [bytes(block.payload[start:stop]) for start, stop in pairwise(ends[at : at + PIECE_RECORDS + 1])]


def _check_count(records: int, records_max: int) -> None:
    if records > records_max:
        raise too_large(records, records_max, "records in one body")


_append_decoder = msgspec.json.Decoder(AppendRequest)
_list_decoder = msgspec.json.Decoder(list[bytes])
_values_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_value_decoder = msgspec.json.Decoder(msgspec.Raw)

_REST = re.compile(r"trailing characters \(byte (\d+)\)")
"""Counts from 1, and skips whitespace."""

_JSON_SHAPE = (
    'the body must be {"records": [...]}, with base64 for each record; '
    "to store JSON values as they are, send ?json=records"
)
_STRAY_COMMA = "the list of records has a comma without a record; remove it"
_SPACE = rb"[ \t\r\n]{0,%d}" % WHITESPACE_MAX
_JSON_BEGIN = re.compile(_SPACE.join([b"", rb"\{", b'"records"', b":", rb"\["]))
_JSON_END = re.compile(_SPACE.join([rb"\]", rb"\}", rb"\Z"]))

_BY_TYPE: dict[str, Callable[[bytes, int, Charge], Steps]] = {
    NDJSON: _lines,
    JSON: _json,
    wire.CONTENT_TYPE: _runs,
}

"""Records as response bodies, by the Accept header.

| Accept | body |
|---|---|
| none, `*/*`, `application/x-ndjson` | lines like `{"position":7,"time":"…","payload":"base64"}`; `?as=text`: text |
| `text/plain`, `text/*` | the payloads, each followed by a newline |
| `application/octet-stream` | the payloads back to back; with `limit=1`, exactly one record |
| `application/vnd.mrecordlog.runs` | runs (see `wire`) |

An encoder is a generator: it builds one piece of the body after the previous one was sent, never the whole body. A
piece holds about `PIECE_BYTES` at most; a larger record is sent in several pieces.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from mrecordlog_async.model import Run, Times, text_of_tick
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import ProblemError
from mrecordlog_async.protocol.schemas import RecordResponse, TextRecordResponse
from mrecordlog_async.service.http import NDJSON, OCTET_STREAM, TEXT

PIECE_BYTES = 192 * 1024
"""Payload bytes in one piece; a multiple of 3, so that base64 can be encoded in parts."""
PIECE_RECORDS = 2_000
"""Records in one piece: encoding them takes about a millisecond."""

Pieces = Iterator[bytes]


class Format(NamedTuple):
    """Encoder of runs as a body.

    encode: yields the pieces, given queue, queue id, runs and their times. size: bytes of the whole body, if known in
    advance.
    """

    encode: Callable[[str, int, Iterable[Run], Times], Pieces]
    size: Callable[[str, Sequence[Run], Times], int] | None = None


_REFUSED = re.compile(r"q=0(\.0*)?")
"""The parameter of a type that the client does not accept (RFC 9110 §12.4.2)."""


def format_of(accept: str | None, as_text: bool) -> tuple[str, Format]:
    """Return content type and format for an Accept header; the first supported type wins."""
    for item in (accept or NDJSON).split(","):
        content_type, *parameters = (part.strip().lower() for part in item.split(";"))
        if any(_REFUSED.fullmatch(parameter) for parameter in parameters):
            continue
        content_type = {"*/*": NDJSON, "application/*": NDJSON, "text/*": TEXT}.get(content_type, content_type)
        if content_type in _BY_TYPE:
            return content_type, _NDJSON_TEXT if as_text and content_type == NDJSON else _BY_TYPE[content_type]
    detail = f"no supported type in Accept {(accept or '')[:80]!r}; supported: {', '.join(_BY_TYPE)}"
    raise ProblemError(406, "not_acceptable", detail)


def cut_up(run: Run) -> Iterator[Run]:
    """Yield *run* in parts of at most `PIECE_RECORDS` and about `PIECE_BYTES`, or whole if it is not larger."""
    if len(run.payload) <= PIECE_BYTES and run.record_count <= PIECE_RECORDS:
        yield run
        return
    ends, records, first = memoryview(run.offsets).cast("i"), run.record_count, run.first_position
    at = 0
    while at < records:
        fitting = bisect_right(ends, ends[at] + PIECE_BYTES, at + 1) - 1
        stop = min(records, at + PIECE_RECORDS, max(fitting, at + 1))
        yield run.cut(first + at, first + stop)
        at = stop


def record_lines(run: Run, as_text: bool, times: Times) -> Pieces:
    """Yield the records of *run*, a part that `cut_up` made, as lines of JSON; a large record in several pieces."""
    # By time first, so that the text of a time is made once for all the records of a batch.
    for start, stop, tick in times.spans(run.first_position, run.next_position):
        part, time = run.cut(start, stop), text_of_tick(tick)
        if len(part.payload) > PIECE_BYTES:  # one record: `cut_up` makes no part of several that is as large
            yield b'{"position":%d,"time":"%s","payload":"' % (part.first_position, time.encode())
            yield from _text_parts(part.payload) if as_text else _base64_parts(part.payload)
            yield b'"}\n'
        elif as_text:
            yield encode_lines(
                [TextRecordResponse(at, time, one.decode(errors="replace")) for at, one in part.records()]
            )
        else:
            yield encode_lines([RecordResponse(at, time, one) for at, one in part.records()])


def _base64_parts(payload: bytes) -> Pieces:
    for at in range(0, len(payload), PIECE_BYTES):
        yield b64encode(payload[at : at + PIECE_BYTES])


def _text_parts(payload: bytes) -> Pieces:
    """Yield *payload* as the inside of a JSON string."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    for at in range(0, len(payload), PIECE_BYTES):
        text = decode(payload[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(payload))
        yield _lines_encoder.encode(text)[1:-1]


def _ndjson(queue: str, queue_id: int, runs: Iterable[Run], times: Times, *, as_text: bool = False) -> Pieces:
    for run in runs:
        for part in cut_up(run):
            yield from record_lines(part, as_text, times)


def _text(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    for run in runs:
        for part in cut_up(run):
            yield from (part.payload, b"\n") if part.record_count == 1 else (b"\n".join([*part.payloads(), b""]),)


def _raw(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    return (run.payload for run in runs)


def _runs(queue: str, queue_id: int, runs: Iterable[Run], times: Times) -> Pieces:
    return wire.encode([wire.QueueRuns(queue, queue_id, runs, times)])


def _payload_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return sum(len(run.payload) for run in runs)


def _text_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return sum(len(run.payload) + run.record_count for run in runs)


def _runs_bytes(queue: str, runs: Sequence[Run], times: Times) -> int:
    return wire.size_of([wire.QueueRuns(queue, 0, runs, times)])


_lines_encoder = msgspec.json.Encoder()
encode_lines = _lines_encoder.encode_lines

_NDJSON_TEXT = Format(partial(_ndjson, as_text=True))
_BY_TYPE: dict[str, Format] = {
    NDJSON: Format(_ndjson),
    TEXT: Format(_text, _text_bytes),
    OCTET_STREAM: Format(_raw, _payload_bytes),
    wire.CONTENT_TYPE: Format(_runs, _runs_bytes),
}

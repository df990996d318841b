"""Fuzz targets for the bodies of requests: what a client may send, cut into records by content type."""

from __future__ import annotations

from collections.abc import Callable

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.problems import problem_of
from mrecordlog_async.protocol.wire import CONTENT_TYPE, QueueRuns, encode
from mrecordlog_async.service.http import JSON, NDJSON
from mrecordlog_async.service.sending import Budget
from mrecordlog_async.service.splitting import split_at_once

RECORDS_MAX = 1_000


def _cut(data: bytes, content_type: str) -> list[bytes]:
    """Cut, or refuse with a status that blames the caller."""
    try:
        records = split_at_once(data, content_type, RECORDS_MAX, Budget("body bytes", 1 << 30).charge())
    except Exception as error:
        assert 400 <= problem_of(error).status < 500, f"{error!r} would be answered with 500"
        return []
    assert len(records) <= RECORDS_MAX + 1
    assert sum(map(len, records)) <= len(data)
    return records


def json(data: bytes) -> None:
    """`{"records": [base64, …]}`."""
    _cut(data, JSON)


def lines(data: bytes) -> None:
    """A record a line."""
    records = _cut(data, NDJSON)
    assert not records or b"\n".join(records) == data.removesuffix(b"\n")


def runs(data: bytes) -> None:
    """Runs, as one log sends them to another."""
    _cut(data, CONTENT_TYPE)


BODIES: dict[str, Callable[[bytes], None]] = {f"body of {target.__name__}": target for target in (json, lines, runs)}


def body_seeds(name: str) -> list[bytes]:
    """Return bodies that are taken."""
    if name == "body of json":
        return [b'{"records": ["b25l", ""]}', b'{"records": []}']
    if name == "body of lines":
        return [b"one\ntwo\n\nthree", b"\n"]
    parts = [QueueRuns("q", 3, [Run.of(0, [b"one", b"", b"three"]), Run.of(9, [b"x" * 40])]), QueueRuns("ü", 4, [])]
    return [b"".join(encode(parts)), b"".join(encode([]))]

"""What is fuzzed: one function a parser, each takes bytes and lets through only what the parser promises to raise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from mrecordlog_async.format.controls import ConsumerState, Opened, TableConsumer, TableRule
from mrecordlog_async.format.fields import RecordError
from mrecordlog_async.format.frame import BLOCK_BYTES, Buffer, encode_frames, encode_unsplit, read_frame, segment_seed
from mrecordlog_async.format.header import (
    HEADER_BYTES,
    Closed,
    HeaderError,
    SegmentHeader,
    decode_closed,
    decode_header,
    encode_closed,
    encode_header,
)
from mrecordlog_async.format.parse import MalformedError, SegmentParser, find_commits
from mrecordlog_async.format.record import Append, Commit, Many, decode_record, encode_commit, encode_record
from mrecordlog_async.format.table import LastAppendDigest, Table, TableEntry, decode_table, encode_table
from mrecordlog_async.memory.queue import ReplayError
from mrecordlog_async.memory.queues import Queues
from tests.format.every_kind import EVERY_OPTION, EXAMPLES

LOG_ID = b"0123456789abcdef"
SEED = segment_seed(LOG_ID, 0)

_TABLE = Table(
    7,
    (
        TableEntry(1, "a", 0, 0, consumers=(TableConsumer("c", ConsumerState(0, 1, bytes(16))),)),
        TableEntry(5, "ü", 3, 9, 2, LastAppendDigest(7, 5), EVERY_OPTION),
    ),
    (TableRule("r*", "c"),),
    (Opened(3, 1),),
)
_COMMIT = Commit(LOG_ID, 0, 1, 0, 0, 0, 5)


def frame(data: bytes) -> None:
    """One frame anywhere in a block."""
    view = memoryview(data)
    for base in (0, BLOCK_BYTES - 10, 64):
        found = read_frame(view, base, 0, SEED)
        assert found is None or found.end <= base + len(data)


def record(data: bytes) -> None:
    """One log record."""
    try:
        decoded = decode_record(data)
    except RecordError:
        return
    if isinstance(decoded, Many):
        assert sum(map(len, decoded.payloads())) == len(decoded.payload) <= len(data)
    if isinstance(decoded, Append):
        assert sum(map(len, decoded.run.payloads())) == len(decoded.run.payload) <= len(data)


def table(data: bytes) -> None:
    """The table of queues."""
    try:
        decoded = decode_table(data)
    except RecordError:
        return
    assert b"".join(encode_table(decoded)) == data


def header(data: bytes) -> None:
    """A segment's header."""
    try:
        assert encode_header(decode_header(data)) == data[:HEADER_BYTES]
    except HeaderError:
        return


def closed(data: bytes) -> None:
    """The note of the log's end."""
    try:
        assert encode_closed(decode_closed(data)) == data
    except HeaderError:
        return


def commits(data: bytes) -> None:
    """The search for COMMITs at any byte."""
    assert len(list(find_commits(data, BLOCK_BYTES - 100, LOG_ID, 0))) <= len(data)


def batches(data: bytes) -> None:
    """Log records with checksums that are right: what a forger who knows the format could write, parsed and folded."""
    out: list[Buffer] = [bytes(HEADER_BYTES)]
    end = encode_frames(encode_table(_TABLE), HEADER_BYTES, SEED, out)
    number, start = 1, end
    for body in data.split(b"|"):
        end = encode_frames([body], end, SEED, out)
        if not number % 2:
            end = encode_unsplit(encode_commit(Commit(LOG_ID, 0, number // 2, 0, start, 0, 5)), end, SEED, out)
            start = end
        number += 1
    parser = SegmentParser(LOG_ID, 0, 1)
    queues = Queues.from_table(_TABLE)
    try:
        for batch in parser.feed(b"".join(out), 0):
            for each in batch.records:
                queues.apply(0, each)
    except (MalformedError, ReplayError):
        return


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (frame, record, table, header, closed, commits, batches)
}


def seeds(name: str) -> list[bytes]:
    """Return inputs that the parser accepts."""
    bodies = [b"".join(encode_record(each)) for each in EXAMPLES]
    out: list[Buffer] = []
    if name == "record":
        return [*bodies, encode_commit(_COMMIT)]
    if name == "batches":
        return [b"|".join(bodies), *map(b"|".join, pairwise(bodies))]
    if name == "table":
        return [b"".join(encode_table(_TABLE)), b"".join(encode_table(Table(0, ())))]
    if name == "header":
        return [encode_header(SegmentHeader(LOG_ID, 3, 9, 500, 1))]
    if name == "closed":
        return [encode_closed(Closed(LOG_ID, 3, 9, 500))]
    if name == "frame":
        encode_frames([b"payload"], 0, SEED, out)
    else:
        encode_unsplit(encode_commit(_COMMIT), BLOCK_BYTES - 100, SEED, out)
    return [b"".join(out)]

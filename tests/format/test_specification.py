"""The worked example in the format's docstring is what the code writes and reads, byte for byte."""

from __future__ import annotations

import re

from crc32c import crc32c

from mrecordlog_async import format as specification
from mrecordlog_async.format.controls import Create
from mrecordlog_async.format.frame import encode_frames, encode_unsplit, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, SegmentHeader, decode_header, encode_header
from mrecordlog_async.format.parse import SegmentParser
from mrecordlog_async.format.record import Append, Commit, Many, encode_commit, encode_record
from mrecordlog_async.format.table import Table, encode_table
from mrecordlog_async.model import Run

LOG_ID = bytes(range(16))
HEADER = SegmentHeader(LOG_ID, 0, 1, 0, 0)
RECORDS = [
    Create(7, "q"),
    Create(8, "r"),
    Append(7, Run.of(0, [b"hi", b""])),
    Many.of([7, 8], [2, 0], [b"a", b"b"]),
]
COMMIT = Commit(LOG_ID, 0, 1, 0, 0x5C, 0, 123_456_789)


def written() -> bytes:
    """Write the example with the package's own encoders."""
    seed = segment_seed(LOG_ID, 0)
    buffers = [encode_header(HEADER)]
    offset = encode_frames(encode_table(Table(7, ())), HEADER_BYTES, seed, buffers)  # type: ignore[arg-type]  # list of bytes
    for record in RECORDS:
        offset = encode_frames(encode_record(record), offset, seed, buffers)  # type: ignore[arg-type]  # as above
    encode_unsplit(encode_commit(COMMIT), offset, seed, buffers)  # type: ignore[arg-type]  # as above
    return b"".join(buffers)


def printed() -> bytes:
    """Read the hex of the docstring, holding each line's offset against the bytes before it."""
    assert specification.__doc__ is not None
    data = b""
    for line in specification.__doc__.splitlines():
        match = re.fullmatch(r" {4}([0-9a-f]{4})  ((?:[0-9a-f]{2} +)+)\S.*", line + " .")
        if match:
            assert int(match[1], 16) == len(data)
            data += bytes.fromhex(match[2])
    return data


def test_worked_example_is_what_is_written() -> None:
    """The hex in the specification equals the encoders' output."""
    assert printed().hex(" ") == written().hex(" ")


def test_worked_example_is_what_is_read() -> None:
    """The parser reads the specification's bytes as the records that it says they are."""
    data = printed()
    assert decode_header(data[:HEADER_BYTES]) == HEADER
    parser = SegmentParser(LOG_ID, 0, 1)
    (batch,) = parser.feed(data, 0)
    assert parser.table == Table(7, ())
    assert batch.records == RECORDS
    assert batch.commit == COMMIT
    assert parser.end == len(data)


def test_checksum_is_the_one_that_the_specification_names() -> None:
    """CRC-32C gives the well-known value for the nine digits."""
    assert f"{crc32c(b'123456789'):08x}" == "e3069283"

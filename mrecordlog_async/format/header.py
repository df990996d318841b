"""The fixed-size structures: the 64-byte header of a segment and the content of `CLOSED`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b

from crc32c import crc32c

MAGIC = b"mreclogS"
CLOSED_MAGIC = b"mreclogC"
VERSION = 2
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sI16sQQQQ")
_VERSION = struct.Struct("<I")
_CHECKSUM = struct.Struct("<I")
_CLOSED = struct.Struct("<8sI16sQQQ")
CLOSED_BYTES = _CLOSED.size + _CHECKSUM.size

assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES


class HeaderError(ValueError):
    """The bytes are not an intact header of a known version."""


class FormatVersionError(HeaderError):
    """The header is intact, of another version of the format."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Statements of a segment about itself and its predecessor.

    first_batch: number of the first batch in it. previous_end: offset after the predecessor's last COMMIT (0 in
    segment 0). oldest_segment: no older segment holds live records.
    """

    log_id: bytes
    segment: int
    first_batch: int
    previous_end: int
    oldest_segment: int


@dataclass(frozen=True, slots=True)
class Closed:
    """End of a closed log: segment, offset after its last COMMIT, and that batch's number."""

    log_id: bytes
    segment: int
    end: int
    last_batch: int


def public_log_id(log_id: bytes) -> str:
    """Return a stable name for a log that does not show its log id, which makes COMMITs unforgeable."""
    return blake2b(log_id, digest_size=16).hexdigest()


def encode_header(header: SegmentHeader) -> bytes:
    """Encode a segment header, `HEADER_BYTES` long."""
    return _checked(
        _HEADER.pack(
            MAGIC,
            VERSION,
            header.log_id,
            header.segment,
            header.first_batch,
            header.previous_end,
            header.oldest_segment,
        )
    )


def decode_header(data: bytes | memoryview) -> SegmentHeader:
    """Decode a segment header; raise HeaderError if it is not valid."""
    _, version, *fields = _HEADER.unpack(_unchecked(data[:HEADER_BYTES], HEADER_BYTES, MAGIC, "a segment header"))
    _check_version(version)
    return SegmentHeader(*fields)


def encode_closed(closed: Closed) -> bytes:
    """Encode the content of `CLOSED`."""
    return _checked(_CLOSED.pack(CLOSED_MAGIC, VERSION, closed.log_id, closed.segment, closed.end, closed.last_batch))


def decode_closed(data: bytes) -> Closed:
    """Decode the content of `CLOSED`; raise HeaderError if it is not valid."""
    _, version, *fields = _CLOSED.unpack(_unchecked(data, CLOSED_BYTES, CLOSED_MAGIC, "the note of the log's end"))
    _check_version(version)
    return Closed(*fields)


def _check_version(version: int) -> None:
    if version == 1:
        raise FormatVersionError(
            "format version 1 is that of release 0.1.0: dump the log with that release, and load it with this one"
        )
    if version != VERSION:
        raise FormatVersionError(f"format version {version} is unknown here, only version {VERSION} is read")


def _checked(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(crc32c(body))


def _unchecked(data: bytes | memoryview, length: int, magic: bytes, what: str) -> bytes:
    data = bytes(data)
    if data[: len(magic)] != magic:
        raise HeaderError(f"{what} does not begin with its magic number")
    if len(data) != length:
        raise HeaderError(f"{what} has {len(data)} bytes instead of {length}")
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    # A later format may use another checksum, so another version is reported first. But if the checksum is right with
    # this version in its place, only the version is damaged.
    in_this_version = body[: len(magic)] + _VERSION.pack(VERSION) + body[len(magic) + _VERSION.size :]
    if (body == in_this_version) != (_CHECKSUM.pack(crc32c(in_this_version)) == checksum):
        raise HeaderError(f"{what} fails its checksum")
    return body

"""Frames of the crate's files: checked pieces that stay within a block of 32 KiB. Bytes in, bytes out."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

BLOCK_BYTES = 32_768
FRAME_HEADER_BYTES = 7
FILE_BYTES = 134_217_728
"""The crate's files have this length from the start."""

FULL, FIRST, MIDDLE, LAST = range(1, 5)

_HEADER = struct.Struct("<IHB")
NO_HEADER = bytes(FRAME_HEADER_BYTES)


class Header(NamedTuple):
    """The header of a frame."""

    checksum: int
    length: int
    kind: int


def read_header(block: bytes, at: int) -> Header:
    """Unpack the header at *at* without checking it."""
    return Header._make(_HEADER.unpack_from(block, at))


def checksum_of(kind: int, payload: bytes | memoryview) -> int:
    """Return the CRC-32 over kind and payload."""
    return zlib.crc32(payload, zlib.crc32(bytes((kind,))))


def encode_frames(body: bytes, offset: int) -> Iterator[bytes]:
    """Yield what is written at *offset* for the record *body*: paddings and frames, one by one."""
    start, first = 0, True
    while first or start < len(body):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < FRAME_HEADER_BYTES:
            yield bytes(left)
            offset, left = offset + left, BLOCK_BYTES
        piece = body[start : start + left - FRAME_HEADER_BYTES]
        start += len(piece)
        last = start == len(body)
        kind = (FULL if last else FIRST) if first else (LAST if last else MIDDLE)
        first = False
        yield _HEADER.pack(checksum_of(kind, piece), len(piece), kind) + piece
        offset += FRAME_HEADER_BYTES + len(piece)


def frame_stop(block: bytes, at: int) -> int | None:
    """Return where the valid frame at *at* ends; None if there is none."""
    checksum, length, kind = read_header(block, at)
    start = at + FRAME_HEADER_BYTES
    stop = start + length
    is_valid = (
        FULL <= kind <= LAST and stop <= len(block) and checksum_of(kind, memoryview(block)[start:stop]) == checksum
    )
    return stop if is_valid else None


def frames_within(block: bytes, start: int) -> int:
    """Count the valid frames with a payload, at any byte of *block* from *start* on, that a damaged header hides."""
    found, at = 0, start
    while at + FRAME_HEADER_BYTES < len(block):
        stop = frame_stop(block, at)
        if stop is not None and stop > at + FRAME_HEADER_BYTES:
            found, at = found + 1, stop
        else:
            at += 1
    return found

"""Frames: checksummed pieces of at most one block, and how log records are split into them.

A checksum is seeded with the log id, the segment number and the frame's own offset, so a stale, moved or forged frame
is never valid.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

BLOCK_BYTES = 32_768
FRAME_HEADER_BYTES = 7
FRAME_PAYLOAD_BYTES_MAX = BLOCK_BYTES - FRAME_HEADER_BYTES

_HEADER = struct.Struct("<IHB")
_CHECKED = struct.Struct("<QHB")
_SEED = struct.Struct("<16sQ")

STEP_BYTES = 128 * 1024
"""Bytes of a step of `encode_frames_in_steps`: a few of them are a write, and its checksums cost more than a step."""

Buffer = bytes | memoryview

if sys.byteorder != "little":
    raise ImportError(
        "mrecordlog_async keeps offsets in memory as the disk has them, little endian; this machine does not"
    )


# The part of a log record that a frame holds. Plain integers: comparing an IntEnum member costs 40 ns.
FULL, FIRST, MIDDLE, LAST, FILLER = range(1, 6)


class Frame(NamedTuple):
    """A valid frame: where it begins and ends, its kind and its payload."""

    offset: int
    end: int
    kind: int
    payload: memoryview


def segment_seed(log_id: bytes, segment: int) -> int:
    """Return the checksum that all frames of a segment are chained to."""
    return crc32c(_SEED.pack(log_id, segment))


def block_left(offset: int) -> int:
    """Return the number of bytes from *offset* to the end of its block: a whole block at a block's start."""
    return BLOCK_BYTES - offset % BLOCK_BYTES


def encode_frames(parts: Sequence[Buffer], offset: int, seed: int, out: list[Buffer]) -> int:
    """Split the log record made of *parts* into frames from *offset* on, append them to *out*, and return their end.

    Parts are not joined, so a run of 1 MiB is not copied here.
    """
    length = sum(map(len, parts))
    offset = _pad(offset, out)
    if length <= block_left(offset) - FRAME_HEADER_BYTES:
        return _put(FULL, parts, length, offset, seed, out)
    return _encode_split(FIRST, list(parts), length, offset, seed, out, sys.maxsize)[2]


def encode_frames_in_steps(records: Sequence[Sequence[Buffer]], offset: int, seed: int) -> Iterator[list[Buffer]]:
    """Yield what `encode_all_frames` appends, in lists of about `STEP_BYTES`, each encoded when it is reached.

    A list may be the one before it, with other buffers.
    """
    sizes = [sum(map(len, parts)) for parts in records]
    start = size = 0
    for stop, more in enumerate(sizes):
        size += more
        if size < STEP_BYTES and stop + 1 < len(sizes):
            continue
        out: list[Buffer] = []
        offset = encode_all_frames(records[start:stop], offset, seed, out)
        if more <= FRAME_PAYLOAD_BYTES_MAX:
            offset = encode_frames(records[stop], offset, seed, out)
            yield out
        else:
            offset, kind, parts, left = _pad(offset, out), FIRST, list(records[stop]), more
            while left:
                parts, left, offset = _encode_split(kind, parts, left, offset, seed, out, offset + STEP_BYTES)
                kind = MIDDLE
                yield out
                out.clear()
        start, size = stop + 1, 0


def frames_end(length: int, offset: int) -> int:
    """Return where the frames of a log record of *length* bytes end that begin at *offset*."""
    left = block_left(offset)
    if left < FRAME_HEADER_BYTES:
        offset, left = offset + left, BLOCK_BYTES
    if length <= left - FRAME_HEADER_BYTES:
        return offset + FRAME_HEADER_BYTES + length
    blocks, last = divmod(length - (left - FRAME_HEADER_BYTES), FRAME_PAYLOAD_BYTES_MAX)
    return offset + left + blocks * BLOCK_BYTES + (FRAME_HEADER_BYTES + last if last else 0)


def encode_all_frames(records: Iterable[Sequence[Buffer]], offset: int, seed: int, out: list[Buffer]) -> int:
    """Do what `encode_frames` does for several log records in a row; return the end of the last one."""
    for parts in records:
        length = len(parts[0])
        if len(parts) == 1 and length <= block_left(offset) - FRAME_HEADER_BYTES:
            # The usual case, in 0.32 µs per record; `encode_frames` takes 0.53.
            checksum = crc32c(parts[0], crc32c(_CHECKED.pack(offset, length, FULL), seed))
            out.append(_HEADER.pack(checksum, length, FULL))
            out.append(parts[0])
            offset += FRAME_HEADER_BYTES + length
        else:
            offset = encode_frames(parts, offset, seed, out)
    return offset


def encode_two(first: bytes, second: bytes, offset: int, seed: int) -> bytes:
    """Return two log records as FULL frames in a row, from *offset* on. The block has room for both."""
    length, last_length = len(first), len(second)
    last_offset = offset + FRAME_HEADER_BYTES + length
    checksum = crc32c(first, crc32c(_CHECKED.pack(offset, length, FULL), seed))
    last_checksum = crc32c(second, crc32c(_CHECKED.pack(last_offset, last_length, FULL), seed))
    header, last_header = _HEADER.pack(checksum, length, FULL), _HEADER.pack(last_checksum, last_length, FULL)
    return b"".join((header, first, last_header, second))


def encode_unsplit(body: bytes, offset: int, seed: int, out: list[Buffer]) -> int:
    """Encode *body* as one FULL frame; if the block has no room for it, end the block with a FILLER or padding."""
    left = block_left(offset)
    if left < FRAME_HEADER_BYTES:
        out.append(bytes(left))
        offset += left
    elif left < FRAME_HEADER_BYTES + len(body):
        filling = left - FRAME_HEADER_BYTES
        offset = _put(FILLER, (bytes(filling),), filling, offset, seed, out)
    return _put(FULL, (body,), len(body), offset, seed, out)


def frames_bytes_max(body_bytes: int) -> int:
    """Return the maximum size of the frames of a log record of *body_bytes*, wherever they begin."""
    blocks = body_bytes // FRAME_PAYLOAD_BYTES_MAX + 2
    return body_bytes + blocks * FRAME_HEADER_BYTES + FRAME_HEADER_BYTES


def skip_padding(piece: memoryview, base: int, at: int) -> int | None:
    """Return the index where the next frame begins: the next block if this one has no room for a frame header.

    The index may be the end of *piece*. Returns None if the padding is not all zeros.
    """
    left = block_left(base + at)
    if left >= FRAME_HEADER_BYTES:
        return at
    return None if any(piece[at : at + left]) else at + left


def read_frame(piece: memoryview, base: int, at: int, seed: int) -> Frame | None:
    """Read the frame at index *at* of *piece*, whose first byte is at offset *base* of the segment.

    Skips the padding at a block's end. Returns None if no valid frame begins there or *piece* holds only part of it.
    """
    left = block_left(base + at)
    if left < FRAME_HEADER_BYTES:
        begin = skip_padding(piece, base, at)
        if begin is None:
            return None
        at, left = begin, BLOCK_BYTES
    start = at + FRAME_HEADER_BYTES
    if start > len(piece):
        return None
    checksum, length, kind = _HEADER.unpack_from(piece, at)
    if kind == 0 or kind > FILLER or length > left - FRAME_HEADER_BYTES:
        return None
    payload = piece[start : start + length]
    if len(payload) < length or crc32c(payload, crc32c(_CHECKED.pack(base + at, length, kind), seed)) != checksum:
        return None
    return Frame(base + at, base + start + length, kind, payload)


def _pad(offset: int, out: list[Buffer]) -> int:
    """Return where a frame may begin from *offset* on; append to *out* what ends a block that has no room for one."""
    left = block_left(offset)
    if left >= FRAME_HEADER_BYTES:
        return offset
    out.append(bytes(left))
    return offset + left


def _encode_split(
    kind: int, parts: list[Buffer], length: int, offset: int, seed: int, out: list[Buffer], stop: int
) -> tuple[list[Buffer], int, int]:
    """Append to *out* the frames of a log record that spans blocks, the first of which is of *kind*, up to *stop*.

    Returns the parts that are left, their length, and the end of the frames.
    """
    while length and offset < stop:
        room = block_left(offset) - FRAME_HEADER_BYTES
        if room >= length:
            kind, room = LAST, length
        piece, parts = _split(parts, room)
        offset = _put(kind, piece, room, offset, seed, out)
        kind, length = MIDDLE, length - room
    return parts, length, offset


def _put(kind: int, parts: Sequence[Buffer], length: int, offset: int, seed: int, out: list[Buffer]) -> int:
    checksum = crc32c(_CHECKED.pack(offset, length, kind), seed)
    for part in parts:
        checksum = crc32c(part, checksum)
    out.append(_HEADER.pack(checksum, length, kind))
    out += parts
    return offset + FRAME_HEADER_BYTES + length


def _split(parts: list[Buffer], length: int) -> tuple[list[Buffer], list[Buffer]]:
    """Split *parts* after *length* bytes, without a copy."""
    for index, part in enumerate(parts):
        if length < len(part):
            view = memoryview(part)
            head = [view[:length]] if length else []
            return [*parts[:index], *head], [view[length:], *parts[index + 1 :]]
        length -= len(part)
    return parts, []

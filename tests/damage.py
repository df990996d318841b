"""Functions that damage the files of a closed or killed log, one word for each kind of damage."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from crc32c import crc32c

from mrecordlog_async.format.frame import FRAME_HEADER_BYTES, read_frame, segment_seed
from mrecordlog_async.format.header import HEADER_BYTES, decode_header

BLOCK_BYTES = 32_768


def segments(directory: Path) -> list[Path]:
    """Return the segment files, oldest first."""
    return sorted(path for path in directory.iterdir() if path.name.startswith("wal-") and path.suffix != ".tmp")


def last_segment(directory: Path) -> Path:
    """Return the newest segment file."""
    return segments(directory)[-1]


def flip_byte(path: Path, offset: int, mask: int = 0xFF) -> None:
    """Change one byte in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([old ^ mask]))


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Put *data* over what is at *offset*."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def zero(path: Path, offset: int, length: int) -> None:
    """Put zeros over a range."""
    write_at(path, offset, bytes(length))


def cut(path: Path, size: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(size)


def set_version(path: Path, version: int) -> None:
    """Make the header of a segment one that another version of the format has written."""
    header = bytearray(path.read_bytes()[: HEADER_BYTES - 4])
    struct.pack_into("<I", header, 8, version)
    write_at(path, 0, bytes(header) + struct.pack("<I", crc32c(bytes(header))))


def frames(path: Path) -> list[tuple[int, int, int, bytes]]:
    """Return (offset, end, kind, payload) of each frame of a segment, up to the first bytes that are not a frame."""
    data = path.read_bytes()
    header = decode_header(data[:HEADER_BYTES])
    seed = segment_seed(header.log_id, header.segment)
    found, at = [], HEADER_BYTES
    while at + FRAME_HEADER_BYTES <= len(data) and (frame := read_frame(memoryview(data), 0, at, seed)) is not None:
        found.append((frame.offset, frame.end, frame.kind, bytes(frame.payload)))
        at = frame.end
    return found


def batch_ends(path: Path) -> list[int]:
    """Return the offsets at which the COMMITs of a segment end."""
    return [end for _, end, _, payload in frames(path) if payload[:1] == b"\x06"]


def half_a_batch(path: Path) -> int:
    """Begin a batch after the last one, as a writer that dies leaves it; return its bytes."""
    header, end = decode_header(path.read_bytes()[:HEADER_BYTES]), batch_ends(path)[-1]
    first, payload = 2, b"\x04half"
    checked = struct.pack("<QHB", end, len(payload), first)
    checksum = crc32c(payload, crc32c(checked, segment_seed(header.log_id, header.segment)))
    frame = struct.pack("<IHB", checksum, len(payload), first) + payload
    write_at(path, end, frame)
    return len(frame)


def snapshot(directory: Path) -> dict[str, bytes]:
    """Return every file's bytes, to check later that nothing was changed."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "LOCK"}


def copy(source: Path, target: Path) -> Path:
    """Copy a log as a crash would leave it: without its lock, and without CLOSED if the writer still runs."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK"))
    return target

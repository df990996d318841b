"""Scan the crate's files frame by frame, with the crate's rules for damage and for the end.

A scan returns frames, and a `Finding` where the crate skips bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.quickwit.files import Directory, file_name
from mrecordlog_async.quickwit.frame import (
    BLOCK_BYTES,
    FIRST,
    FRAME_HEADER_BYTES,
    FULL,
    LAST,
    NO_HEADER,
    checksum_of,
    frames_within,
    read_header,
)

OnBlock = Callable[[int, int], None]
"""Takes the number of a file and the offset of a block in it."""


@dataclass(slots=True)
class Finding:
    """Bytes in which the crate finds no record.

    silent: the crate logs no warning. torn: a write that a crash interrupted; otherwise it is damage. hidden_frames:
    valid frames inside it that the crate does not see.
    """

    file: str
    offset: int
    bytes: int
    reason: str
    silent: bool = False
    torn: bool = True
    hidden_frames: int = 0


@dataclass(frozen=True, slots=True)
class CrateFrame:
    """A valid frame, and where it begins."""

    kind: int
    payload: bytes
    file: int
    offset: int


class FrameScan:
    """A cursor over the blocks of all files, as in the crate's reader. Short blocks are added to *findings*."""

    def __init__(self, source: Directory, findings: list[Finding], on_block: OnBlock | None = None) -> None:
        self.file = source.numbers[0]
        self._on_block = on_block
        self._source = source
        self._findings = findings
        self._block_offset = 0
        self._cursor = 0
        self._bad = False
        # The first file may begin with the rest of a record whose beginning was in a file that was removed.
        self.leading = self.file > 0
        self._noted: set[int] = set()
        self._block = source.block(self.file, 0)
        if len(self._block) < BLOCK_BYTES:
            raise CorruptionError(
                file_name(self.file),
                len(self._block),
                "the first file is shorter than a block; the crate refuses to open this directory",
            )

    @property
    def offset(self) -> int:
        """Return the position of the cursor in the file, in bytes."""
        return self._block_offset + self._cursor

    def next(self) -> CrateFrame | Finding | None:
        """Return the next frame, a finding in its place, or None at the place that the crate takes for the end."""
        block = self._block
        if self._bad or BLOCK_BYTES - self._cursor < FRAME_HEADER_BYTES:
            if not self._load_next():
                return None
            block = self._block
        at = self._cursor
        if block[at : at + FRAME_HEADER_BYTES] == NO_HEADER:
            return None
        header = read_header(block, at)
        if not FULL <= header.kind <= LAST:
            return self._give_up_block(at, at, f"frame kind {header.kind} does not exist")
        stop = at + FRAME_HEADER_BYTES + header.length
        if stop > BLOCK_BYTES:
            return self._give_up_block(at, at + FRAME_HEADER_BYTES, "a frame is longer than its block")
        self._cursor = stop
        self.leading = self.leading and header.kind > FIRST
        payload = block[at + FRAME_HEADER_BYTES : stop]
        if checksum_of(header.kind, payload) != header.checksum:
            return Finding(file_name(self.file), self._block_offset + at, stop - at, "a frame fails its checksum")
        return CrateFrame(header.kind, payload, self.file, self._block_offset + at)

    def after_the_end(self) -> Finding | None:
        """Return the nonzero bytes after the end, which the crate never reads."""
        first: tuple[int, int] | None = None
        size = frames = 0
        for file, offset, block in self._rest():
            stripped = block.rstrip(b"\0")
            if not stripped:
                continue
            begin = len(block) - len(block.lstrip(b"\0"))
            first = first or (file, offset + begin)
            size += len(stripped) - begin
            frames += frames_within(block, begin)
        if first is None:
            return None
        return Finding(
            file_name(first[0]),
            first[1],
            size,
            "bytes after a hole of zeros, which the crate takes for the end",
            silent=True,
            torn=not frames,
            hidden_frames=frames,
        )

    def _rest(self) -> Iterator[tuple[int, int, bytes]]:
        if not self._bad:
            yield self.file, self.offset, self._block[self._cursor :]
        while self._load_next():
            yield self.file, self._block_offset, self._block

    def _give_up_block(self, at: int, cursor: int, reason: str) -> Finding:
        """Skip the rest of the block, as the crate does, and count the frames that this hides."""
        self._bad, self._cursor = True, cursor
        rest = self._block[at:].rstrip(b"\0")
        hidden = frames_within(self._block, at + 1)
        finding = Finding(file_name(self.file), self._block_offset + at, len(rest), reason, hidden_frames=hidden)
        finding.torn = not hidden
        return finding

    def _load_next(self) -> bool:
        """Go to the next whole block, in this file or a later one. If there is none, the cursor does not move."""
        file, offset = self.file, self._block_offset + BLOCK_BYTES
        later = [number for number in self._source.numbers if number > file]
        block = self._source.block(file, offset)
        while len(block) < BLOCK_BYTES:
            self._note_short_block(file, offset, block)
            if not later:
                return False
            file, offset = later.pop(0), 0
            block = self._source.block(file, offset)
        self.file, self._block_offset, self._block = file, offset, block
        self._cursor, self._bad = 0, False
        if self._on_block is not None:
            self._on_block(file, offset)
        return True

    def _note_short_block(self, file: int, offset: int, block: bytes) -> None:
        """Report the frames in an incomplete block, which the crate never reads."""
        frames = 0 if file in self._noted else frames_within(block, 0)
        self._noted.add(file)
        if frames:
            reason = "records in a block that the file holds only in part, which the crate does not read"
            self._findings.append(
                Finding(file_name(file), offset, len(block), reason, silent=True, torn=False, hidden_frames=frames)
            )

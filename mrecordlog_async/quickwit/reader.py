"""Read a directory as the crate does, and report what the crate does not.

1. `_Frames` walks the blocks by the crate's rules, to the place that the crate takes for the end.
2. `_read_record` joins frames; records fold into a `State`.
3. Everything passed over becomes a `Finding`. Bytes after the end are checked too: the crate does not see them, and
   frames among them are lost records.

A finding is a **torn tail** when no record was read after it and nothing readable is hidden after it: a write that a
crash cut short, which was never acknowledged. Everything else is **damage**.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.quickwit.files import Source, file_name
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
from mrecordlog_async.quickwit.record import RecordError, decode_record
from mrecordlog_async.quickwit.state import PositionError, State


@dataclass(slots=True)
class Finding:
    """Bytes in which the crate finds no record.

    silent: the crate does not even warn of it. torn: it was never acknowledged; otherwise it is damage. hidden_frames:
    valid frames inside it that the crate does not see.
    """

    file: str
    offset: int
    bytes: int
    reason: str
    silent: bool = False
    torn: bool = True
    hidden_frames: int = 0


@dataclass(slots=True)
class Report:
    """What a directory holds, as the crate sees it, and what it passes over.

    file, offset: the end of the log, where the crate continues writing. records: log records that were read.
    """

    state: State = field(default_factory=State)
    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    file: int = 0
    offset: int = 0

    @property
    def damage(self) -> list[Finding]:
        """Return the findings that are not a torn tail."""
        return [finding for finding in self.findings if not finding.torn]

    @property
    def warnings(self) -> int:
        """Return how many warnings the crate logs when it reads this."""
        return sum(not finding.silent for finding in self.findings)


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: int
    payload: bytes
    file: int
    offset: int


def read(source: Source) -> Report:
    """Read everything.

    Raises FileNotFoundError if there are no files of the crate, CorruptionError if the crate refuses to open them.
    """
    if not source.numbers:
        raise FileNotFoundError(2, "there is no file called wal- and 20 digits here")
    report = Report()
    frames = _Frames(source, report)
    while True:
        file = frames.file
        body = _read_record(frames, report)
        if body is None:
            break
        _fold(report, body, file)
    report.file, report.offset = frames.file, frames.offset
    report.findings += _missing_files(source.numbers)
    hidden = frames.behind_the_end()
    if hidden is not None:
        report.findings.append(hidden)
        _nothing_is_torn_before(report)
    return report


@dataclass(slots=True)
class _Body:
    """A record's bytes and where its first frame begins."""

    parts: list[bytes]
    file: int
    offset: int

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def _read_record(frames: _Frames, report: Report) -> _Body | None:
    """Join the frames of the next record; None at the end of the log."""
    begun: _Body | None = None
    while True:
        frame = frames.next()
        if frame is None:
            _drop(begun, report, "a record that was not finished")
            return None
        if isinstance(frame, Finding):
            _drop(begun, report, "a record whose rest is damaged")
            begun = None
            report.findings.append(frame)
        elif frame.kind in (FULL, FIRST):
            _drop(begun, report, "a record that was not finished")
            begun = _Body([frame.payload], frame.file, frame.offset)
            if frame.kind == FULL:
                return begun
        elif begun is None and frames.leading:
            continue
        elif begun is None:
            report.findings.append(
                _silent(frame.file, frame.offset, len(frame.payload), "a record without its beginning")
            )
        else:
            begun.parts.append(frame.payload)
            if frame.kind == LAST:
                return begun


def _drop(begun: _Body | None, report: Report, reason: str) -> None:
    if begun is not None:
        report.findings.append(_silent(begun.file, begun.offset, begun.size, reason))


def _missing_files(numbers: Sequence[int]) -> Iterator[Finding]:
    """Yield the gaps: only the lowest files are ever removed, so a number missing between two is a file lost."""
    for before, after in pairwise(numbers):
        if after != before + 1:
            reason = f"{after - before - 1} file(s) are missing from here on"
            yield Finding(file_name(before + 1), 0, 0, reason, silent=True, torn=False)


def _silent(file: int, offset: int, payload_bytes: int, reason: str) -> Finding:
    return Finding(file_name(file), offset, payload_bytes + FRAME_HEADER_BYTES, reason, silent=True)


def _fold(report: Report, body: _Body, file: int) -> None:
    try:
        record = decode_record(b"".join(body.parts))
        report.state.apply(record, file)
    except RecordError as error:
        report.findings.append(Finding(file_name(body.file), body.offset, body.size, str(error), torn=False))
        return
    except PositionError as error:
        name = file_name(body.file)
        reason = f"queue {record.queue!r}: {error}; the crate refuses to open this directory"
        raise CorruptionError(name, body.offset, reason) from None
    report.records += 1
    _nothing_is_torn_before(report)


def _nothing_is_torn_before(report: Report) -> None:
    """Mark all findings so far as damage: a record was read, or is hidden, after them."""
    for finding in reversed(report.findings):
        if not finding.torn and not finding.hidden_frames:
            break
        finding.torn = False


class _Frames:
    """The crate's reader: a cursor over blocks that returns frames, findings, and None at the end."""

    def __init__(self, source: Source, report: Report) -> None:
        self.file = source.numbers[0]
        self._source = source
        self._report = report
        self._block_offset = 0
        self._cursor = 0
        self._bad = False
        # The first file may begin with the rest of a record whose beginning was removed with the file before it.
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
        """Position of the cursor in the file, in bytes."""
        return self._block_offset + self._cursor

    def next(self) -> _Frame | Finding | None:
        """Return the next frame, a finding in its place, or None at what the crate takes for the end."""
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
        return _Frame(header.kind, payload, self.file, self._block_offset + at)

    def behind_the_end(self) -> Finding | None:
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
            "bytes behind a hole of zeros, which the crate takes for the end",
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
        """Skip the rest of the block, as the crate does, counting what becomes unreadable by it."""
        self._bad, self._cursor = True, cursor
        rest = self._block[at:].rstrip(b"\0")
        hidden = frames_within(self._block, at + 1)
        finding = Finding(file_name(self.file), self._block_offset + at, len(rest), reason, hidden_frames=hidden)
        finding.torn = not hidden
        return finding

    def _load_next(self) -> bool:
        """Go to the next whole block, in this file or a later one; without one the cursor does not move."""
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
        return True

    def _note_short_block(self, file: int, offset: int, block: bytes) -> None:
        """Report an incomplete block, which is not read, whatever it holds."""
        frames = 0 if file in self._noted else frames_within(block, 0)
        self._noted.add(file)
        if frames:
            reason = "records in a block that the file holds only in part, which the crate does not read"
            self._report.findings.append(
                Finding(file_name(file), offset, len(block), reason, silent=True, torn=False, hidden_frames=frames)
            )

"""Read a directory as the crate does, and report what the crate does not.

1. `scan` follows the blocks by the crate's rules, up to the place that the crate takes for the end.
2. `_read_record` joins frames to records, which change a `CrateState`.
3. Everything that was passed over becomes a `Finding`. Bytes after the end are checked too: the crate does not see
   them, and frames among them are lost records.

A finding is a **torn tail** if no record was read after it and nothing readable is hidden after it: a write that a
crash interrupted. Every other finding is **damage**.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.quickwit.files import Directory, file_name
from mrecordlog_async.quickwit.frame import FIRST, FRAME_HEADER_BYTES, FULL, LAST
from mrecordlog_async.quickwit.record import APPEND, CrateRecordError, LogRecord, decode_record
from mrecordlog_async.quickwit.scan import Finding, FrameScan, OnBlock
from mrecordlog_async.quickwit.state import CrateQueue, CrateState, PositionError


@dataclass(slots=True)
class Report:
    """Queues that the crate reads from a directory, and what it passes over."""

    state: CrateState = field(default_factory=CrateState)
    findings: list[Finding] = field(default_factory=list)

    @property
    def damage(self) -> list[Finding]:
        """Return the findings that are not a torn tail."""
        return [finding for finding in self.findings if not finding.torn]


def read(source: Directory, on_block: OnBlock | None = None) -> Report:
    """Read everything.

    Args:
        source: The files.
        on_block: Called with each place that is reached: the number of a file, and an offset in it.

    Returns:
        The state, and what the crate passes over.

    Raises:
        FileNotFoundError: There are no files of the crate.
        CorruptionError: The crate refuses to open them.
    """
    report = Report()
    frames = _begin(source, report, on_block)
    for _ in _records(frames, report):
        pass
    report.findings.extend(_missing_files(source.numbers))
    hidden = frames.after_the_end()
    if hidden is not None:
        report.findings.append(hidden)
        _nothing_is_torn_before(report)
    return report


def read_appends(source: Directory, on_block: OnBlock | None = None) -> Iterator[tuple[CrateQueue, LogRecord]]:
    """Read everything, and yield each append with its queue.

    Arguments and errors are those of `read`.
    """
    report = Report()
    for record in _records(_begin(source, report, on_block), report):
        if record.kind == APPEND:
            yield report.state.queues[record.queue], record


def _begin(source: Directory, report: Report, on_block: OnBlock | None) -> FrameScan:
    if not source.numbers:
        raise FileNotFoundError(2, "there is no file called wal- and 20 digits here")
    return FrameScan(source, report.findings, on_block)


def _records(frames: FrameScan, report: Report) -> Iterator[LogRecord]:
    """Apply the records up to the end of the log, and yield each that could be applied."""
    while True:
        file = frames.file
        body = _read_record(frames, report)
        if body is None:
            return
        record = _apply(report, body, file)
        if record is not None:
            yield record


@dataclass(slots=True)
class _Body:
    """A record's bytes and where its first frame begins."""

    parts: list[bytes]
    file: int
    offset: int

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def _read_record(frames: FrameScan, report: Report) -> _Body | None:
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
    """Yield the gaps: the crate removes only the lowest files, so a missing number between two is a lost file."""
    for before, after in pairwise(numbers):
        if after != before + 1:
            reason = f"{after - before - 1} file(s) are missing from here on"
            yield Finding(file_name(before + 1), 0, 0, reason, silent=True, torn=False)


def _silent(file: int, offset: int, payload_bytes: int, reason: str) -> Finding:
    return Finding(file_name(file), offset, payload_bytes + FRAME_HEADER_BYTES, reason, silent=True)


def _apply(report: Report, body: _Body, file: int) -> LogRecord | None:
    """Apply a record and return it; None if the crate cannot read it."""
    try:
        record = decode_record(b"".join(body.parts))
        report.state.apply(record, file)
    except CrateRecordError as error:
        report.findings.append(Finding(file_name(body.file), body.offset, body.size, str(error), torn=False))
        return None
    except PositionError as error:
        name = file_name(body.file)
        reason = f"queue {record.queue!r}: {error}; the crate refuses to open this directory"
        raise CorruptionError(name, body.offset, reason) from None
    _nothing_is_torn_before(report)
    return record


def _nothing_is_torn_before(report: Report) -> None:
    """Mark all findings so far as damage, because a record was read, or is hidden, after them."""
    for finding in reversed(report.findings):
        if not finding.torn and not finding.hidden_frames:
            break
        finding.torn = False

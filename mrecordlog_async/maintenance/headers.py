"""Reads headers and `CLOSED`: the segments of a log, and where each must end. Some of them may be damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import CLOSED_BYTES, Closed, HeaderError, SegmentHeader
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.damage import Damage, DamagedRange
from mrecordlog_async.maintenance.scan import ExpectedEnd, SegmentScan
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.recovery.torn_or_damaged import SegmentEnd, batch_follows
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.segment import CLOSED_NAME, segment_name

OnProgress = Callable[[RecoveryProgress], None]


@dataclass(slots=True)
class LogHeaders:
    """Statements of headers and `CLOSED` about a log's segments.

    was_closed: the file `CLOSED` exists, readable or not, and is not outdated, so nothing in the log is a torn tail.
    """

    directory: LogDirectory
    numbers: list[int]
    log_id: bytes
    oldest: int
    headers: dict[int, SegmentHeader]
    closed: Closed | None
    was_closed: bool
    damage: list[Damage]
    total_bytes: int

    @property
    def stop(self) -> int:
        """Return the number after that of the last segment, which may itself be missing."""
        return max(self.numbers[-1], self.closed.segment if self.closed is not None else 0) + 1

    def scan(self, number: int) -> SegmentScan:
        """Return the scan of a segment."""
        is_last = number == self.numbers[-1] and not self.was_closed
        return SegmentScan(self.directory, number, self.log_id, self._expected(number), is_last=is_last)

    def _expected(self, number: int) -> ExpectedEnd | None:
        successor = self.headers.get(number + 1)
        if successor is not None:
            return ExpectedEnd(successor.previous_end, successor.first_batch - 1)
        closed = self.closed
        if closed is not None and closed.segment == number:
            return ExpectedEnd(closed.end, closed.last_batch)
        return None


class ProgressMeter:
    """Reports how many bytes of a log the scans of its segments have read."""

    def __init__(self, total_bytes: int, on_progress: OnProgress | None) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._done_bytes = 0

    def watch(self, scan: SegmentScan) -> Iterator[Table | ParsedBatch | DamagedRange]:
        """Yield what *scan* yields."""
        for item in scan.items():
            if self._on_progress is not None and type(item) is ParsedBatch:
                self._on_progress(RecoveryProgress(self._done_bytes + item.end, self._total_bytes))
            yield item
        self._done_bytes += scan.size


def read_headers(directory: LogDirectory, segments: Sequence[int]) -> LogHeaders:
    """Read all headers and `CLOSED`, and describe those that are damaged.

    If a segment is removed meanwhile, the result omits it and all older ones.

    Raises:
        FileNotFoundError: All segments were removed meanwhile.
        CorruptionError: No segment has a readable header.
    """
    closed, damage = _read_closed(directory)
    was_closed = closed is not None or bool(damage)
    headers, sizes = _read_segments(directory, segments)
    numbers = list(sizes)
    log_ids = [header.log_id for header in headers.values()] or ([closed.log_id] if closed is not None else [])
    if not log_ids:
        raise CorruptionError(segment_name(numbers[0]), 0, "no segment has a header that can be read")
    log_id = Counter(reversed(log_ids)).most_common(1)[0][0]  # of equally frequent ones, the last segment's
    headers = {number: header for number, header in headers.items() if header.log_id == log_id}
    if closed is not None and closed.log_id != log_id:
        damage.append(Damage(CLOSED_NAME, 0, 0, "CLOSED belongs to another log"))
        closed = None
    elif closed is not None and _is_outdated(directory, closed, numbers[-1], headers):
        if _read_closed(directory)[0] == closed:  # otherwise a writer has opened the log meanwhile
            damage.append(Damage(CLOSED_NAME, 0, 0, "CLOSED is older than the last segment; remove it"))
        closed, was_closed = None, False
    elif closed is not None and closed.segment < numbers[-1]:
        damage.append(Damage(CLOSED_NAME, 0, 0, "CLOSED names an earlier segment than the last one"))
        closed = None
    oldest = max((header.oldest_segment for header in headers.values()), default=numbers[0])
    found = LogHeaders(directory, numbers, log_id, numbers[0], headers, closed, was_closed, damage, sum(sizes.values()))
    committed, last_batch = _read_last(found.scan(numbers[-1]))
    if closed is not None and closed.segment == numbers[-1] and last_batch not in (None, closed.last_batch):
        reason = f"CLOSED says the log ends after batch {closed.last_batch} at offset {closed.end}, but it does not"
        damage.append(Damage(CLOSED_NAME, 0, 0, reason))
        found.closed = None
        committed, _ = _read_last(found.scan(numbers[-1]))  # what follows that offset, too
    found.oldest = max(min(oldest, numbers[-1]), committed)
    return found


def _read_segments(directory: LogDirectory, segments: Sequence[int]) -> tuple[dict[int, SegmentHeader], dict[int, int]]:
    """Return the headers that can be read, and the size in bytes of every segment."""
    headers, sizes = dict[int, SegmentHeader](), dict[int, int]()
    for number in segments:
        try:
            with directory.opened(number) as handle:
                header = _header_or_none(directory, handle, number)
                sizes[number] = directory.files.size(handle)
        except FileNotFoundError:
            if number == segments[-1]:
                raise
            # The writer removed it, so nothing in it or before it is live.
            headers.clear()
            sizes.clear()
            continue
        if header is not None:
            headers[number] = header
    return headers, sizes


def _header_or_none(directory: LogDirectory, handle: int, number: int) -> SegmentHeader | None:
    try:
        return directory.header(handle, number)
    except HeaderError:
        return None


def _read_last(scan: SegmentScan) -> tuple[int, int | None]:
    """Return the oldest live segment that the COMMITs of the last segment name, and its last batch; None if damaged."""
    oldest, is_damaged = 0, False
    last_batch: int | None = None
    for item in scan.items():
        if type(item) is ParsedBatch:
            oldest, last_batch = max(oldest, item.commit.oldest_segment), item.commit.batch
        is_damaged = is_damaged or type(item) is DamagedRange
    if last_batch is None and scan.header is not None:
        last_batch = scan.header.first_batch - 1
    return oldest, None if is_damaged else last_batch


def _is_outdated(directory: LogDirectory, closed: Closed, last: int, headers: Container[int]) -> bool:
    """Return whether the log went on after the end that *closed* names. headers: of the segments up to *last*."""
    if closed.segment != last:
        return closed.segment < last and last in headers
    end = SegmentEnd(closed.segment, closed.log_id, closed.end, closed.last_batch + 1, closed.end)
    with directory.opened(closed.segment) as handle:
        return batch_follows(directory.files, handle, end, directory.files.size(handle))


def _read_closed(directory: LogDirectory) -> tuple[Closed | None, list[Damage]]:
    try:
        return directory.closed(), []
    except HeaderError as error:
        return None, [Damage(CLOSED_NAME, 0, CLOSED_BYTES, str(error))]

"""What headers and `CLOSED` say of a log, whatever of them is damaged: its segments, and where each must end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import (
    CLOSED_BYTES,
    HEADER_BYTES,
    Closed,
    HeaderError,
    SegmentHeader,
    decode_closed,
    decode_header,
)
from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.record import Table
from mrecordlog_async.maintenance.damage import Gap
from mrecordlog_async.maintenance.scan import Expected, SegmentWalk
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import CLOSED_NAME, open_segment, segment_name


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a segment that holds no whole batch any more. bytes is 0 where the whole file is missing."""

    segment: str
    offset: int
    bytes: int
    reason: str
    first_batch: int | None = None
    last_batch: int | None = None
    rescued_records: int = 0


@dataclass(slots=True)
class Layout:
    """What headers and `CLOSED` say of a log's segments.

    was_closed: there is a `CLOSED`, readable or not, so nothing in the log is a torn tail.
    """

    files: FileSystem
    directory: str
    numbers: list[int]
    log_id: bytes
    oldest: int
    headers: dict[int, SegmentHeader]
    closed: Closed | None
    was_closed: bool
    damage: list[Damage]
    total_bytes: int

    @property
    def end(self) -> int:
        """Return the number behind the last segment, which may be missing."""
        return max(self.numbers[-1], self.closed.segment if self.closed is not None else 0) + 1

    def walk(self, number: int) -> SegmentWalk:
        """Return the walk over a segment."""
        return SegmentWalk(
            self.files,
            self.directory,
            number,
            self.log_id,
            self._expected(number),
            is_last=number == self.numbers[-1] and not self.was_closed,
        )

    def _expected(self, number: int) -> Expected | None:
        successor = self.headers.get(number + 1)
        if successor is not None:
            return Expected(successor.previous_end, successor.first_batch - 1)
        closed = self.closed
        if closed is not None and closed.segment == number:
            return Expected(closed.end, closed.last_batch)
        return None


class Meter:
    """Tells how far the walks over a log's segments have come."""

    def __init__(self, total_bytes: int, on_progress: Callable[[RecoveryProgress], None] | None) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._done_bytes = 0

    def watch(self, walk: SegmentWalk) -> Iterator[Table | Batch | Gap]:
        """Yield what *walk* yields."""
        for item in walk.items():
            if self._on_progress is not None and type(item) is Batch:
                self._on_progress(RecoveryProgress(self._done_bytes + item.end, self._total_bytes))
            yield item
        self._done_bytes += walk.size


def read_layout(files: FileSystem, directory: str, numbers: list[int]) -> Layout:
    """Read all headers and `CLOSED`, whatever of them is damaged.

    A segment that is removed meanwhile is left out, with all older ones; FileNotFoundError if that is all of them.
    """
    closed, damage = _read_closed(files, directory)
    was_closed = closed is not None or bool(damage)
    heads, total_bytes = {}, 0
    for number in numbers:
        try:
            heads[number], size = _read_head(files, directory, number)
        except FileNotFoundError:
            if number == numbers[-1]:
                raise
            heads, total_bytes = {}, 0
            continue
        total_bytes += size
    numbers = list(heads)
    headers = {number: header for number, head in heads.items() if (header := _decode(head, number)) is not None}
    log_ids = [header.log_id for header in headers.values()] or ([closed.log_id] if closed is not None else [])
    if not log_ids:
        raise CorruptionError(segment_name(numbers[0]), 0, "no segment's header can be read, so nothing else can be")
    log_id = max(set(log_ids), key=log_ids.count)
    headers = {number: header for number, header in headers.items() if header.log_id == log_id}
    if closed is not None and (closed.log_id != log_id or closed.segment < numbers[-1]):
        damage.append(Damage(CLOSED_NAME, 0, 0, "it does not tell of this log's end, but of another one"))
        closed = None
    oldest = max((header.oldest_segment for header in headers.values()), default=numbers[0])
    layout = Layout(files, directory, numbers, log_id, numbers[0], headers, closed, was_closed, damage, total_bytes)
    layout.oldest = max(min(oldest, numbers[-1]), _oldest_committed(layout.walk(numbers[-1])))
    return layout


def _oldest_committed(walk: SegmentWalk) -> int:
    """Return the oldest live segment that the COMMITs of the last segment name."""
    return max((item.commit.oldest_segment for item in walk.items() if type(item) is Batch), default=0)


def _read_head(files: FileSystem, directory: str, number: int) -> tuple[bytes, int]:
    """Return a segment's first bytes and its size."""
    handle = open_segment(files, directory, number)
    try:
        return read_exact(files, handle, HEADER_BYTES, 0), files.size(handle)
    finally:
        files.close(handle)


def _decode(head: bytes, number: int) -> SegmentHeader | None:
    try:
        header = decode_header(head)
    except HeaderError:
        return None
    return header if header.segment == number else None


def _read_closed(files: FileSystem, directory: str) -> tuple[Closed | None, list[Damage]]:
    try:
        handle = files.open(f"{directory}/{CLOSED_NAME}", write=False)
    except FileNotFoundError:
        return None, []
    try:
        return decode_closed(read_exact(files, handle, CLOSED_BYTES + 1, 0)), []
    except HeaderError as error:
        return None, [Damage(CLOSED_NAME, 0, CLOSED_BYTES, str(error))]
    finally:
        files.close(handle)

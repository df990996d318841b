"""Read the records of places: one segment at a time, from the first batch that is wanted to the last one.

The writer may remove a segment between the replay that found the places and this read. Then its records are truncated
(`SegmentRemovedError`). What cannot be read of a segment that still exists is damage: it was intact before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import HeaderError, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, SegmentParser
from mrecordlog_async.format.record import Append, appends_of
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.recovery.places import POSITIONS_STOP, Place, placed
from mrecordlog_async.recovery.recovered import LastRead
from mrecordlog_async.recovery.segment_files import LogReplacedError, SegmentRemovedError, is_there
from mrecordlog_async.storage.directory import LogDirectory, naming
from mrecordlog_async.storage.segment import segment_name


@dataclass(slots=True)
class Share:
    """The part of one segment to read: from *offset*, where batch *due_batch* begins, until all of *wanted* was met.

    wanted: queue id → (first position, the one after the last); the queue has a record that ends there or later.
    """

    segment: int
    offset: int
    due_batch: int
    wanted: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, queue_id: int, place: Place, start: int, stop: int) -> None:
        """Want what *place* holds from *start* to *stop* - 1."""
        if place.offset < self.offset:
            self.offset, self.due_batch = place.offset, place.due_batch
        first, last = max(place.first_position, start), min(place.next_position, stop)
        before = self.wanted.get(queue_id, (first, last))
        self.wanted[queue_id] = min(before[0], first), max(before[1], last)


class Bounded(NamedTuple):
    """Places of a queue, and the positions *start* … *stop* - 1 that are wanted of them."""

    places: Iterable[Place]
    start: int = 0
    stop: int = POSITIONS_STOP


def shares_of(wanted: Mapping[int, Bounded]) -> list[Share]:
    """Sort what is *wanted* of queues, by their ids, by segment, oldest first."""
    shares: dict[int, Share] = {}
    for queue_id, (places, start, stop) in wanted.items():
        for place in places:
            share = shares.get(place.segment)
            if share is None:
                share = shares[place.segment] = Share(place.segment, place.offset, place.due_batch)
            share.add(queue_id, place, start, stop)
    return [shares[segment] for segment in sorted(shares)]


def read_share(
    directory: LogDirectory, log_id: bytes, share: Share, last: LastRead | None = None
) -> Iterator[list[Append]]:
    """Yield the wanted runs of a segment, cut to what is wanted, in the order of the log: a list for each piece read.

    *last* is what was read last when the places were found; without it the caller holds the lock.

    Raises:
        SegmentRemovedError: The writer removed the segment.
        LogReplacedError: An older copy took the place of the log.
        CorruptionError: The segment is damaged, and was not when the places were found.
        OSError: It cannot be read.
    """
    try:
        handle = directory.open(share.segment)
    except FileNotFoundError:
        raise SegmentRemovedError from None
    try:
        with naming(directory.path_of(share.segment)):
            _check_last(directory, share, last)
            yield from _read(directory, handle, log_id, share)
            _check_last(directory, share, last)
    except MalformedError as error:
        raise _removed_or(directory, share, log_id, error.offset, error.reason) from None
    finally:
        directory.files.close(handle)


def count_records(directory: LogDirectory, log_id: bytes, queue: Queue, start: int, stop: int) -> int:
    """Return how many records with positions *start* … *stop* - 1 *queue* retains. Reads only places that are cut.

    Raises:
        SegmentRemovedError: The writer removed a segment.
        CorruptionError: A segment is damaged, and was not when the places were found.
    """
    first, last = max(start, queue.first_position), min(stop, queue.next_position)
    places = list(placed(queue).places(first, last))
    cut = [place for place in places if place.first_position < first or place.next_position > last]
    records = sum(place.records for place in places) - sum(place.records for place in cut)
    for place in cut:  # each alone: a share of two would span the places between them
        [share] = shares_of({queue.id: Bounded([place], first, last)})
        for appends in read_share(directory, log_id, share):
            records += sum(append.run.record_count for append in appends)
    return records


def count_left(directory: LogDirectory, log_id: bytes, queue: Queue) -> tuple[int, int, int]:
    """Return what a truncate left of the oldest place of *queue*, which is cut: first position, records, payload bytes.

    Raises:
        SegmentRemovedError: The writer removed a segment.
        CorruptionError: A segment is damaged, and was not when the places were found.
    """
    place = next(placed(queue).places())
    [share] = shares_of({queue.id: Bounded([place], queue.first_position, place.next_position)})
    runs = [append.run for appends in read_share(directory, log_id, share) for append in appends]
    return runs[0].first_position, sum(run.record_count for run in runs), sum(len(run.payload) for run in runs)


def _check_last(directory: LogDirectory, share: Share, last: LastRead | None) -> None:
    """Raise LogReplacedError if the directory was replaced by an older copy of the log since the places were found."""
    if last is None or is_there(directory, last):
        return
    # Segments are removed oldest first: if that one was removed, so was this one.
    try:
        directory.files.close(directory.open(share.segment))
    except FileNotFoundError:
        raise SegmentRemovedError from None
    raise LogReplacedError(directory.path)


def _read(directory: LogDirectory, handle: int, log_id: bytes, share: Share) -> Iterator[list[Append]]:
    parser = SegmentParser.after_table(log_id, share.segment, share.due_batch, share.offset)
    due = {queue_id: stop for queue_id, (_, stop) in share.wanted.items()}
    for base, piece in directory.pieces(handle, share.offset, directory.files.size(handle)):
        found: list[Append] = []
        for batch in parser.feed(piece, base):
            for append in chain.from_iterable(map(appends_of, batch.records)):
                bounds = share.wanted.get(append.id)
                if bounds is not None:
                    _take(found, append, *bounds, due)
            if not due:
                break
        if found:
            yield found
        if not due or parser.stopped:
            break
    if due:
        raise _removed_or(directory, share, log_id, parser.end, f"batch {parser.due_batch} is damaged")


def _take(found: list[Append], append: Append, start: int, stop: int, due: dict[int, int]) -> None:
    queue_id, run, _ = append
    if run.first_position < stop and run.next_position > start:
        found.append(Append(queue_id, run.cut(start, stop)))
    if run.next_position >= stop:
        due.pop(queue_id, None)


def _removed_or(
    directory: LogDirectory, share: Share, log_id: bytes, offset: int, reason: str
) -> SegmentRemovedError | CorruptionError:
    """Return what unreadable bytes mean. Call it after reading: bytes change only after the file lost its name."""
    name = segment_name(share.segment)
    try:
        header: SegmentHeader = directory.header_of(share.segment)
    except FileNotFoundError:
        return SegmentRemovedError()
    except HeaderError as error:
        return CorruptionError(name, 0, str(error))
    if header.log_id != log_id:
        return CorruptionError(name, 0, "the directory now contains a different log")
    return CorruptionError(name, offset, f"{reason}, and was intact when the log was read before")

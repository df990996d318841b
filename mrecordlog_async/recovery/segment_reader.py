"""The one reader of segments: reads any of them from an offset on, in pieces, and takes what is wanted of its batches.

1. A replay for positions alone (`positions`) has found the places of each queue.
2. What is wanted of them is sorted by segment (`SegmentPart`): each segment is read once, from the first batch that is
   wanted to the last one, for all queues that are wanted. Reading a queue alone is one pass over its own segments.
3. Many queues are read in groups that fit into `GROUP_BYTES`: a log of n bytes takes at most n / 32 MiB passes.

The writer may remove a segment between the replay and the read. Then its records are truncated
(`SegmentRemovedError`). What cannot be read of a segment that still exists is damage: it was intact before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.controls import Truncate
from mrecordlog_async.format.header import HeaderError
from mrecordlog_async.format.parse import MalformedError, ParsedBatch, SegmentParser
from mrecordlog_async.format.record import Append, appends_of
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import cut_to, runs_of
from mrecordlog_async.memory.store import RetainedStore
from mrecordlog_async.model import POSITION_MAX, Run
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.positions import POSITIONS_STOP, Place, position_store
from mrecordlog_async.recovery.recovered import LastRead
from mrecordlog_async.recovery.segment_files import LogReplacedError, SegmentRemovedError, is_there
from mrecordlog_async.storage.directory import LogDirectory, naming
from mrecordlog_async.storage.segment import segment_name

GROUP_BYTES = 32 * MIB
"""Queues are read together up to this many payload bytes, and a larger one in pieces of this size."""

RECORD_WEIGHT = 8
"""Bytes that a record counts for in a group, besides its payload."""


def batches_in(parser: SegmentParser, pieces: Iterable[tuple[int, bytes]]) -> Iterator[ParsedBatch]:
    """Yield the batches in *pieces*, which begin where *parser* stands, up to bytes that are not a batch.

    Raises MalformedError for a valid frame that holds something that is not allowed there.
    """
    for base, piece in pieces:
        yield from parser.feed(piece, base)
        if parser.stopped:
            return


class QueueContents(NamedTuple):
    """A queue: its positions, and its records, which must be taken before those of the next queue."""

    name: str
    first_position: int
    next_position: int
    runs: Iterable[Run]


class Remainder(NamedTuple):
    """What a truncate left of a place: the position of its first record, how many there are, and their bytes."""

    first_position: int
    records: int
    bytes: int


@dataclass(slots=True)
class SegmentPart:
    """The part of a segment to read: from *offset*, where batch *due_batch* begins, until all of *wanted* was met.

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


def parts_of(wanted: Mapping[int, Bounded]) -> list[SegmentPart]:
    """Sort what is *wanted* of queues, by their ids, by segment, oldest first."""
    parts: dict[int, SegmentPart] = {}
    for queue_id, (places, start, stop) in wanted.items():
        for place in places:
            part = parts.get(place.segment)
            if part is None:
                part = parts[place.segment] = SegmentPart(place.segment, place.offset, place.due_batch)
            part.add(queue_id, place, start, stop)
    return [parts[segment] for segment in sorted(parts)]


class SegmentReader:
    """Reads the records of *queues*, which were replayed for their positions.

    *last* returns what was read last of the log; None for a caller that holds the lock: then nothing changes meanwhile.
    """

    def __init__(
        self, directory: LogDirectory, log_id: bytes, queues: Queues, last: Callable[[], LastRead | None] = lambda: None
    ) -> None:
        self._directory = directory
        self._log_id = log_id
        self._queues = queues
        self._last = last

    # Sizes.

    def count(self, queues: Iterable[Queue]) -> None:
        """Count what truncates left of the places that they cut, and find the first record of each."""
        for queue_id, left in self.left_of(queues).items():
            if (queue := self._queues.by_id(queue_id)) is not None:
                position_store(queue).recount(*left)

    def left_of(self, queues: Iterable[Queue]) -> dict[int, Remainder]:
        """Return what `count` notes, by the ids of the queues with a place that was cut. Changes nothing with the lock.

        Raises:
            LogReplacedError: An older copy took the place of the log since it was read.
            CorruptionError: A segment is damaged that was not then.
        """
        cut = {queue.id: queue for queue in queues if position_store(queue).is_cut()}
        found = {queue_id: Remainder(queue.first_position, 0, 0) for queue_id, queue in cut.items()}
        oldest = {queue_id: Bounded(islice(position_store(queue).places(), 1)) for queue_id, queue in cut.items()}
        parts = parts_of(oldest)
        for part, appends in self._appends(parts):
            if appends is None:
                for queue_id in part.wanted:
                    found.pop(queue_id, None)
                continue
            for queue_id, run, _ in appends:
                queue = cut[queue_id]
                if run.next_position > queue.first_position:
                    left = run.cut(queue.first_position, run.next_position)
                    first, records, size = found[queue_id]
                    first = first if records else left.first_position
                    found[queue_id] = Remainder(first, records + left.record_count, size + len(left.payload))
        return found

    # Records.

    def runs(self, queue: Queue, start: int | None = None, stop: int | None = None) -> Iterator[Run]:
        """Yield the records of *queue* with positions *start* … *stop* - 1; the errors are those of `left_of`."""
        first = queue.first_position if start is None else max(start, queue.first_position)
        last = queue.next_position if stop is None else min(stop, queue.next_position)
        joined = RetainedStore(queue.id)
        places = position_store(queue).places(first, last)
        for _, appends in self._appends(parts_of({queue.id: Bounded(places, first, last)})):
            if appends is None:  # and so is every segment before it
                joined = RetainedStore(queue.id)
                continue
            for _, run, _ in appends:
                _join(joined, run)
            if joined.memory_bytes >= GROUP_BYTES:
                yield from _runs_in(joined)
                joined = RetainedStore(queue.id)
        yield from _runs_in(joined)

    def contents(self, queues: Iterable[Queue]) -> Iterator[QueueContents]:
        """Yield *queues* with their records, in this order; the errors are those of `left_of`."""
        chosen = list(queues)
        self.count(chosen)
        for group in _groups(chosen):
            yield from self._read_group(group)

    def _read_group(self, group: list[Queue]) -> Iterator[QueueContents]:
        """Read the queues of a group: one is read while it is taken, several are read at once."""
        if len(group) == 1:
            queue = group[0]
            yield QueueContents(queue.name, queue.first_position, queue.next_position, self.runs(queue))
            return
        joined = {queue.id: RetainedStore(queue.id) for queue in group}
        wanted = {queue.id: Bounded(position_store(queue).places()) for queue in group}
        for _, appends in self._appends(parts_of(wanted)):
            for queue_id, run, _ in appends or ():
                _join(joined[queue_id], run)
        for queue in group:  # a segment that was removed meanwhile has truncated some
            runs = _runs_in(joined[queue.id], queue.first_position)
            yield QueueContents(queue.name, queue.first_position, queue.next_position, runs)

    def _appends(self, parts: Iterable[SegmentPart]) -> Iterator[tuple[SegmentPart, list[Append] | None]]:
        """Yield what is read of each part piece by piece; None if its segment was removed."""
        for part in parts:
            try:
                for appends in self.read(part):
                    yield part, appends
            except SegmentRemovedError:
                # A writer removes a segment only when all of it is truncated, which was not read yet.
                self._truncate(part)
                yield part, None

    def _truncate(self, part: SegmentPart) -> None:
        """Treat what a removed segment held as truncated."""
        for queue_id, (_, stop) in part.wanted.items():
            if self._queues.by_id(queue_id) is not None:
                self._queues.apply(part.segment, Truncate(queue_id, stop - 1))

    # Segments.

    def read(self, part: SegmentPart) -> Iterator[list[Append]]:
        """Yield the wanted runs of a segment, cut to what is wanted, in the order of the log: a list for each piece.

        Raises:
            SegmentRemovedError: The writer removed the segment.
            LogReplacedError: An older copy took the place of the log.
            CorruptionError: The segment is damaged, and was not when the places were found.
            OSError: It cannot be read.
        """
        directory = self._directory
        try:
            handle = directory.open(part.segment)
        except FileNotFoundError:
            raise SegmentRemovedError from None
        try:
            with naming(directory.path_of(part.segment)):
                self._check_last(part)
                yield from self._pieces(handle, part)
                self._check_last(part)
        except MalformedError as error:
            raise self._removed_or(part, error.offset, error.reason) from None
        finally:
            directory.files.close(handle)

    def _pieces(self, handle: int, part: SegmentPart) -> Iterator[list[Append]]:
        parser = SegmentParser.after_table(self._log_id, part.segment, part.due_batch, part.offset)
        due = {queue_id: stop for queue_id, (_, stop) in part.wanted.items()}
        for base, piece in self._directory.pieces(handle, part.offset, self._directory.files.size(handle)):
            found: list[Append] = []
            for batch in parser.feed(piece, base):
                for append in chain.from_iterable(map(appends_of, batch.records)):
                    if append.id in part.wanted:
                        _take(found, append, *part.wanted[append.id], due)
                if not due:
                    break
            if found:
                yield found
            if not due or parser.stopped:
                break
        if due:
            raise self._removed_or(part, parser.end, f"batch {parser.due_batch} is damaged")

    def _check_last(self, part: SegmentPart) -> None:
        """Raise LogReplacedError if the directory was replaced by an older copy of the log since it was read."""
        last = self._last()
        if last is None or is_there(self._directory, last):
            return
        # Segments are removed oldest first: if that one was removed, so was this one.
        if self._directory.was_removed(part.segment):
            raise SegmentRemovedError
        raise LogReplacedError(self._directory.path)

    def _removed_or(self, part: SegmentPart, offset: int, reason: str) -> SegmentRemovedError | CorruptionError:
        """Return what unreadable bytes mean. Call it after reading: bytes change only after the file lost its name."""
        name = segment_name(part.segment)
        try:
            header = self._directory.header_of(part.segment)
        except FileNotFoundError:
            return SegmentRemovedError()
        except HeaderError as error:
            return CorruptionError(name, 0, str(error))
        if header.log_id != self._log_id:
            return CorruptionError(name, 0, "the directory now contains a different log")
        return CorruptionError(name, offset, f"{reason}, and was intact when the log was read before")


def _take(found: list[Append], append: Append, start: int, stop: int, due: dict[int, int]) -> None:
    queue_id, run, _ = append
    if run.first_position < stop and run.next_position > start:
        found.append(Append(queue_id, run.cut(start, stop)))
    if run.next_position >= stop:
        due.pop(queue_id, None)


def _join(joined: RetainedStore, run: Run) -> None:
    """Add *run* as an open log does: small ones are copied together."""
    joined.append(run, run.record_count, len(run.payload), False)


def _runs_in(joined: RetainedStore, start: int = 0) -> Iterator[Run]:
    """Yield what was joined, from position *start* on."""
    return runs_of(cut_to(joined.pieces(start, POSITION_MAX + 1), start, POSITION_MAX + 1))


def _groups(queues: Iterable[Queue]) -> Iterator[list[Queue]]:
    """Divide queues, in their order, into groups that fit into memory."""
    group: list[Queue] = []
    weight = 0
    for queue in queues:
        own = queue.store.held_bytes + RECORD_WEIGHT * queue.records
        if group and weight + own > GROUP_BYTES:
            yield group
            group, weight = [], 0
        group.append(queue)
        weight += own
    if group:
        yield group

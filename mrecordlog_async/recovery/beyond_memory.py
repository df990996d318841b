"""Opens a log that is larger than memory: by its gathered files, and so that memory stays bounded meanwhile.

1. From the oldest live segment on, as long as each has a gathered file that fits: its header, its end and the frames
   of its table are checked, and the index is read. Its records stay on the disk; it is not replayed.
2. The rest is replayed. Where memory is full, the oldest segments that were replayed are gathered, and leave it, as
   they do while a log is open.
3. If that is not enough, the segment that is being replayed is larger than memory (`SegmentTooLargeError`). Reading
   begins again: that segment, and each one before it without a file that fits, is gathered by passes over it (step 1).
   So the last segment must be completed first.
4. At the end it is known which openings and batches the log has. A file of a state that it does not have (a power cut
   took truncates that were not synced, or an older copy of the log was restored) is not believed: the log is read again
   without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.controls import Opened
from mrecordlog_async.format.gathered import GatheredError, GatheredHead, GatheredIndex, Gathering
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.spilling import collect_and_leave
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.gathering import SegmentParts, identify, write_collected
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import GatheredFile, gathered_path

logger = logging.getLogger("mrecordlog_async")

OPENING_BYTES = 64 * MIB
"""Opening takes at most this much above the limit, with what is not counted: batches, buffers, parts of the heap."""

SLACK_PART, SLACK_BYTES_MAX = 16, 16 * MIB
"""Records that would not leave an open log leave memory above the limit by a sixteenth, or 16 MiB: what fitted while
the log was open stays (a replay counts less, or a thousandth more). A single segment may exceed the limit by 16 MiB, so
that `range` still returns it."""


class MemoryBounds(NamedTuple):
    """Bounds of the memory that the records of a log take while it is opened.

    memory_bytes: where the oldest ones leave it. by_index: records whose gathered file fits are not read at all.
    is_usual: they leave it while the log is open, too; otherwise opening warns that some did. is_strict: they hold even
    if a single segment is larger, which is then gathered by passes over it; the last one must be completed for that.
    exceeded: called once the log holds more than memory_bytes, before any record leaves memory; returns the limit that
    it has instead. None for a limit that stays.
    """

    memory_bytes: int
    by_index: bool
    is_usual: bool
    is_strict: bool = True
    exceeded: Callable[[], int] | None = None


class SegmentTooLargeError(Exception):
    """Memory has no room for what is retained of a segment while it is replayed."""

    def __init__(self, segment: int) -> None:
        super().__init__(segment)
        self.segment = segment


class GatheredSegment(NamedTuple):
    """A segment with a gathered file that fits: the index of that, and the sizes of both files."""

    places: GatheredIndex
    file_bytes: int
    segment_bytes: int


def gathered_segment(directory: LogDirectory, number: int) -> GatheredSegment | None:
    """Return segment *number*, which is complete, if it has a gathered file that fits. It is not read itself."""
    try:
        file = GatheredFile(directory.files, gathered_path(directory.path, number))
    except (OSError, GatheredError):
        return None
    index, size = file.index, file.size
    file.close()
    try:
        head = identify(directory, number, index.head.opening, index.head.batch)
        with directory.opened(number) as handle:
            segment_bytes = directory.files.size(handle)
    except (OSError, CorruptionError):  # replay says what is wrong
        return None
    return GatheredSegment(index, size, segment_bytes) if head == index.head else None


class GatheredFirst:
    """The segments of a log that are not replayed, because they are gathered.

    by_index: the gathered files that are there may be used. replayed_from: segments before it are gathered by passes
    over them if they have no such file: one of them is too large to be replayed.
    """

    def __init__(self, directory: LogDirectory, bounds: MemoryBounds) -> None:
        """Begin with the files that are there."""
        self.by_index = bounds.by_index
        self.replayed_from = 0
        self._directory = directory
        self._part_bytes = (bounds.memory_bytes + OPENING_BYTES) // 2  # nothing else is in memory then
        self._made: dict[int, GatheredSegment | None] = {}

    def find(self, number: int) -> GatheredSegment | None:
        """Return segment *number*, which is complete; None if it is to be replayed, or cannot be read."""
        found = gathered_segment(self._directory, number) if self.by_index else None
        if found is None and number < self.replayed_from:
            if number not in self._made:
                self._made[number] = self._gather(number)
            found = self._made[number]
        return found

    def _gather(self, number: int) -> GatheredSegment | None:
        directory = self._directory
        try:
            gathering = Gathering(identify(directory, number))
            parts = SegmentParts(directory, gathering.index.head, self._part_bytes)
            size, _ = write_collected(directory, gathering, parts)
            with directory.opened(number) as handle:
                return GatheredSegment(gathering.index, size, directory.files.size(handle))
        except (OSError, CorruptionError):  # replay says what is wrong
            return None


def has_state(head: GatheredHead, openings: Sequence[Opened], last_batch: int) -> bool:
    """Return whether a log with *openings*, oldest first, and *last_batch* has the state that a gathered file is of."""
    if head == head.whole:
        return True
    later = None
    for opening in reversed(openings):
        if opening.nonce == head.opening:
            return head.batch <= last_batch and (later is None or head.batch < later.first_batch)
        later = opening
    return False


class MemoryBound:
    """Keeps memory bounded while a log is replayed.

    files: sizes of the gathered files that were written. strict_from: the segments from it on must fit; None if none.
    """

    def __init__(self, directory: LogDirectory, bounds: MemoryBounds) -> None:
        """Begin with no records."""
        self.files: dict[int, int] = {}
        self.strict_from: int | None = None
        self._directory = directory
        self._memory_bytes, self._exceeded = bounds.memory_bytes, bounds.exceeded
        self._slack = 0 if bounds.is_usual else min(bounds.memory_bytes // SLACK_PART, SLACK_BYTES_MAX)
        self._left: set[int] = set()

    def hold(self, queues: Queues, segment: int, batch: int) -> None:
        """Have the oldest segments before *segment* leave memory if it is full. *batch*: the last one in memory.

        Raises:
            SegmentTooLargeError: That is not enough, and *segment* must fit.
        """
        if queues.memory_bytes <= self._memory_bytes + self._slack:
            return
        if self._exceeded is not None:
            self._memory_bytes, self._exceeded = self._exceeded(), None
            return
        limit = self._memory_bytes
        for number, _ in queues.pins.by_segment():
            if number >= segment or queues.memory_bytes <= limit:
                break
            if number not in self._left:
                self._left.add(number)
                self._leave(queues, number, batch)
        if (
            self.strict_from is not None
            and segment >= self.strict_from
            and queues.memory_bytes > limit + SLACK_BYTES_MAX
        ):
            # Queues and places take memory too, which no gathering frees.
            records_bytes = queues.memory_bytes - queues.overhead_bytes - queues.pins.gathered_bytes
            if records_bytes > limit // 4:
                raise SegmentTooLargeError(segment)

    def _leave(self, queues: Queues, number: int, batch: int) -> None:
        if number in queues.pins.gathered:
            return  # it was opened by its index, so nothing of it is in memory
        gathering = Gathering(identify(self._directory, number, queues.opening, batch))
        parts = collect_and_leave(queues, gathering.index)
        size, _ = write_collected(self._directory, gathering, parts)
        if size:
            self.files[number] = size

"""Reads runs from gathered files, in pieces of 1 MiB that neighbouring reads share. Blocking; runs on reader threads.

Readers of many queues go through a file in the order of its queues, and each wants a few KiB: the piece that one has
read serves the next hundred. So does a reader of one large queue, whose places are next to each other.

A file that is missing, damaged, or not that of its segment is made again, by one pass over the segment. The segment is
what counts: only if that is damaged too, there is an error. Where the disk has no room for the file, or nothing may be
written, the records of the pass are kept instead, of a part of one segment at a time.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from threading import Lock
from time import monotonic
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.gathered import GatheredError, GatheredHead, Gathering
from mrecordlog_async.memory.collected import held_run
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.runs import cut_to
from mrecordlog_async.model import POSITION_MAX, Times
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.gathering import NO_LOG_ID, SegmentParts, identify, write_collected
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import GatheredFile, gathered_path
from mrecordlog_async.storage.gathered_pieces import Pieces, UsedPiece
from mrecordlog_async.storage.segment import segment_name

logger = logging.getLogger("mrecordlog_async")

PASS_BYTES = 64 * MIB
"""A segment is gathered in parts of at least this size: each takes a pass over it."""

FILES_MAX = 32
"""Files that stay open. Their indexes are in memory, too, next to those by which queues know their places."""

FAILED_SECONDS = 10.0
"""A segment that could not be gathered is not read again for this long: the pass takes seconds."""

OUT_OF_HANDLES = errno.EMFILE, errno.ENFILE
"""Errors before anything was read: the next attempt may succeed at once."""


class WantedRuns(NamedTuple):
    """Records of a queue in one segment: positions *start* … *stop* - 1; a place, or as many as *bytes_max* allows.

    *bytes_max* is not below the size of the first place.
    """

    head: GatheredHead
    queue_id: int
    start: int
    stop: int
    bytes_max: int


def cut_runs(queue: Queue, first: int) -> WantedRuns | None:
    """Return what is to be read to count what a truncate to position *first* leaves; None if that is known."""
    if not queue.first_position <= first < queue.memory_first or (found := queue.cut_place(first)) is None:
        return None
    index, place = found
    stop, size = index.next_positions[place], index.lengths[place]
    return WantedRuns(index.head, queue.id, first, stop, size)


class FoundRuns(NamedTuple):
    """Runs, cut to what was wanted; there may be none where positions have gaps. times: when they were stored.

    next_position: where to continue.
    """

    runs: list[HeldRun]
    times: Times
    next_position: int

    def amount(self) -> tuple[int, int]:
        """Return the number of records and their payload bytes."""
        return sum(run.record_count for run in self.runs), sum(len(run.payload) for run in self.runs)


class GatheredReader:
    """The open gathered files of a log, and their pieces that were read last. Several threads may use it at a time.

    made: sizes of the files that were made again, by segment, until they are taken. damaged: how many were found to be
    damaged. failed: what could not be made, and until when it is not tried again; None if it could not be written.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        may_write: Callable[[int], bool] = lambda size: True,
        memory_bytes: int = 0,
    ) -> None:
        """Read the files in *directory* whose head is the wanted one.

        *may_write*: returns whether a file of this size may take the place of one that does not fit. *memory_bytes*:
        the limit of the log's memory; a pass over a segment may take a quarter of it.
        """
        self._may_write = may_write
        self._pass_bytes = max(memory_bytes // 4, PASS_BYTES)
        self._kept: tuple[GatheredHead, SegmentParts] | None = None  # what the last pass collected without a file
        self.made: dict[int, int] = {}
        self.damaged = 0
        self._directory = directory
        self._files: dict[int, GatheredFile] = {}  # the one that was used last is the last
        self._lock = Lock()  # of these, and of who uses them; held for moments
        self._pieces = Pieces()
        self._making = Lock()  # one segment at a time: each takes the memory of a segment
        self.failed: dict[int, tuple[CorruptionError | OSError | None, float]] = {}

    def read_many(self, wanted: Sequence[WantedRuns]) -> list[FoundRuns]:
        """Return all of what is *wanted*.

        Raises:
            CorruptionError: Neither the file nor the segment can be read.
            OSError: The disk refuses a read.
        """
        with UsedPiece(self._pieces) as piece:
            return [self._read_all(one, piece) for one in wanted]

    def _read_all(self, wanted: WantedRuns, piece: UsedPiece) -> FoundRuns:
        """Return all of what is *wanted*: where the places are other ones than when it was located, it may be more."""
        found = self._read_or_make(wanted, piece)
        while found.next_position < wanted.stop:
            more = self._read_or_make(wanted._replace(start=found.next_position), piece)
            times = Times.joined((found.times, more.times))
            found = FoundRuns([*found.runs, *more.runs], times, more.next_position)
        return found

    def _read_or_make(self, wanted: WantedRuns, piece: UsedPiece) -> FoundRuns:
        number = wanted.head.segment
        try:
            return self._read(wanted, piece)
        except (OSError, GatheredError) as error:
            seen = self._files.get(number)
            with self._making:
                # Unless another thread has just made it.
                if self._files.get(number) is seen and not self._make_again(wanted.head, error):
                    return self._read_by_passes(wanted)
        try:
            return self._read(wanted, piece)
        except (OSError, GatheredError) as error:  # the segment counts, and it has just been read
            logger.warning(
                "the gathered file of %s cannot be read, even after it was recreated: %s", segment_name(number), error
            )
            with self._making:
                self.failed[number] = None, monotonic() + FAILED_SECONDS
                return self._read_by_passes(wanted)

    def count_cuts(self, queues: Queues) -> None:
        """Count what truncates have left of places whose positions have gaps. What cannot be read counts in full."""
        if not queues.pins.gathered:
            return
        found = ((queue, cut_runs(queue, queue.first_position)) for queue in queues if queue.memory_first)
        cut = [(wanted.head.segment, queue.id, queue, wanted) for queue, wanted in found if wanted is not None]
        for _, _, queue, wanted in sorted(cut, key=itemgetter(0, 1)):
            with suppress(CorruptionError, OSError):
                queue.note_cut(wanted.start, *self.read_many([wanted])[0].amount())

    @property
    def has_files(self) -> bool:
        """True if any file is open."""
        return bool(self._files)

    def open_segments(self) -> list[int]:
        """Return the segments whose files are open."""
        return list(self._files)

    def handles(self) -> list[int]:
        """Return the open handles."""
        return [file.handle for file in self._files.values()]

    def close(self, segment: int) -> None:
        """Close a file, after the reads of it that are under way."""
        with self._lock:
            file = self._files.pop(segment, None)
        if file is not None:
            self._release(file)

    def remove(self, segment: int) -> None:
        """Remove the file of a segment that is dead."""
        with suppress(OSError):
            self._directory.files.unlink(gathered_path(self._directory.path, segment))

    def close_all(self) -> None:
        """Close every file; see `close`."""
        for segment in self.open_segments():
            self.close(segment)

    def _read(self, wanted: WantedRuns, piece: UsedPiece) -> FoundRuns:
        file = self._take(wanted.head)
        try:
            return self._read_from(file, wanted, piece)
        finally:
            self._release(file)

    def _read_from(self, file: GatheredFile, wanted: WantedRuns, piece: UsedPiece) -> FoundRuns:
        _, queue_id, start, stop, bytes_max = wanted
        index = file.index
        # Not the places by which it was located: of the same state, a file that another one wrote has its own.
        places = index.places(queue_id, start, stop)
        if not places:  # the positions have a gap: every retained record of the segment is there
            return FoundRuns([], Times.none(), stop)
        length = index.length(places)
        if length > bytes_max:
            places, _, _ = index.first(places, POSITION_MAX, POSITION_MAX, bytes_max)
            length = index.length(places)
        begin = index.offsets[places[0]]
        found, times = index.decode(piece.bytes(file, begin, begin + length), places, start, stop)
        # Without gaps, all of them are runs.
        runs = found if tuple not in map(type, found) else cut_to(list(map(held_run, found)), start, stop)
        return FoundRuns(runs, times, min(index.next_positions[places[-1]], stop))  # type: ignore[arg-type]  # they are

    def _take(self, head: GatheredHead) -> GatheredFile:
        """Return the file of a segment, to be released; raise GatheredError if it is not the right one."""
        number = head.segment
        with self._lock:
            file = self._files.pop(number, None)
            if file is not None:
                self._files[number] = file
                file.users += 1
                return file
        opened = GatheredFile(self._directory.files, gathered_path(self._directory.path, number))
        if opened.index.head not in (head, head.whole):  # the one that is wanted, or every record of the segment
            opened.close()
            raise GatheredError("it belongs to another segment, or to another state of the log")
        opened.users += 1
        self._keep(number, opened)
        return opened

    def _keep(self, segment: int, file: GatheredFile) -> None:
        """Keep an open file in the place of the one that there is, and for the one that was not used for longest."""
        with self._lock:
            dropped = [self._files.pop(segment, None)]
            self._files[segment] = file
            if len(self._files) > FILES_MAX:
                dropped.append(self._files.pop(next(iter(self._files))))
        for each in dropped:
            if each is not None:
                self._release(each)

    def _release(self, file: GatheredFile) -> None:
        """End a use of *file*; close it after the last one."""
        with self._lock:
            file.users -= 1
            is_unused = not file.users
        if is_unused:
            self._pieces.forget(file)
            file.close()

    def _make_again(self, head: GatheredHead, error: Exception) -> bool:
        """Make a file again; return False if the disk has no room for it."""
        number = head.segment
        failed, until = self.failed.get(number, (None, 0.0))
        if monotonic() < until and failed is not None:
            raise failed
        if monotonic() < until or not self._may_write(head.end):
            return False
        self.damaged += isinstance(error, GatheredError)
        logger.warning("the gathered file of %s cannot be used (%s): it is made again", segment_name(number), error)
        try:
            is_made = self._make(head)
        except (CorruptionError, OSError) as caught:
            if not isinstance(caught, OSError) or caught.errno not in OUT_OF_HANDLES:
                self.failed[number] = caught, monotonic() + FAILED_SECONDS
            raise
        self.failed[number] = None, 0.0 if is_made else monotonic() + FAILED_SECONDS
        return is_made

    def _parts(self, head: GatheredHead) -> SegmentParts:
        found = identify(self._directory, head.segment)
        if found != head.whole and head.log_id != NO_LOG_ID:
            raise CorruptionError(segment_name(head.segment), None, "it is not the segment that was written here")
        return SegmentParts(self._directory, found, self._pass_bytes)

    def _read_by_passes(self, wanted: WantedRuns) -> FoundRuns:
        """Return what is wanted from a pass over the segment: the last one, if it was of this part of it."""
        if self._kept is None or self._kept[0] != wanted.head.whole:
            self._kept = None
            self._kept = wanted.head.whole, self._parts(wanted.head)  # the head of these may be another: `unidentified`
        found, times = self._kept[1].runs(wanted.queue_id, wanted.start, wanted.stop)
        runs: list[HeldRun] = []
        size = 0
        for run in found:
            runs.append(run)
            size += len(run.payload)
            if size >= wanted.bytes_max:
                break
        if not runs:  # the positions have a gap: every record of the segment was read
            return FoundRuns([], Times.none(), wanted.stop)
        stop = min(runs[-1].next_position, wanted.stop)
        return FoundRuns(cut_to(runs, wanted.start, stop), times.between(wanted.start, stop), stop)

    def _make(self, head: GatheredHead) -> bool:
        parts = self._parts(head)
        size, error = write_collected(self._directory, Gathering(parts.head), parts)
        if error is not None:
            logger.warning("the gathered file of %s was not written: %s", segment_name(head.segment), error)
            return False
        self.made[head.segment] = size
        try:
            opened = GatheredFile(self._directory.files, gathered_path(self._directory.path, head.segment))
        except (OSError, GatheredError) as caught:
            logger.warning("the gathered file of %s cannot be opened: %s", segment_name(head.segment), caught)
            return False
        self._keep(head.segment, opened)
        return True

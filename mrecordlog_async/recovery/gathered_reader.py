"""Reads runs from gathered files, in pieces of 1 MiB that neighbouring reads share. Blocking; runs on reader threads.

Readers of many queues go through a file in the order of its queues, and each wants a few KiB: the piece that one has
read serves the next hundred. So does a reader of one large queue, whose places are next to each other.

A file that is missing, damaged, or not that of its segment is made again, by one pass over the segment. The segment is
what counts: only if that is damaged too, there is an error. A reader that writes nothing keeps the records of the pass
instead, of a part of one segment at a time.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import NamedTuple

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.gathered import GatheredError, GatheredHead, decode_place
from mrecordlog_async.memory.collected import held_run
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Times
from mrecordlog_async.options import MIB
from mrecordlog_async.recovery.gathering import SegmentParts, identify, write_collected
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.gathered_files import GatheredFile, gathered_path
from mrecordlog_async.storage.segment import segment_name

logger = logging.getLogger("mrecordlog_async")

PIECES_MAX = 24
"""Pieces that are kept, 1 MiB each."""

PASS_BYTES = 64 * MIB
"""A segment is gathered in parts of this size: each takes a pass over it."""

FAILED_SECONDS = 10.0
"""A segment that could not be gathered is not read again for this long: the pass takes seconds."""


class WantedRuns(NamedTuple):
    """Records of a queue in one segment: positions *start* … *stop* - 1; a place, or as many as *bytes_max* allows.

    *bytes_max* is not below the size of the first place.
    """

    head: GatheredHead
    queue_id: int
    start: int
    stop: int
    bytes_max: int


def wanted_runs(queue: Queue, start: int, stop: int, bytes_max: int) -> WantedRuns | None:
    """Return what is to be read first of the records at positions *start* … *stop* - 1; None if none is on the disk."""
    start = max(start, queue.first_position)
    for index, place in queue.places(start, min(stop, queue.memory_first)):
        _, end = index.bounds(queue.id)
        stop = min(index.next_positions[end - 1], queue.memory_first, stop)
        size = max(bytes_max, index.lengths[place])
        return WantedRuns(index.head, queue.id, max(start, index.first_positions[place]), stop, size)
    return None


class FoundRuns(NamedTuple):
    """Runs, of which the first and the last one may hold more than was wanted, and their times, from place to place.

    next_position: where to continue. ahead: the piece of the file that a reader which does so needs next, if it is one
    that was not read yet.
    """

    runs: list[HeldRun]
    times: Times
    next_position: int
    ahead: int | None


def is_exact(found: GatheredHead, wanted: GatheredHead) -> bool:
    """Return whether a file is the one that was wanted, or has every record of the segment."""
    return found in (wanted, wanted.whole)


class GatheredReader:
    """The open gathered files of a log, and their pieces that were read last. Several threads may use it at a time.

    made: sizes of the files that were made again, by segment, until they are taken. damaged: how many were found to be
    damaged. failed: what could not be made, and until when it is not tried again.
    """

    def __init__(
        self,
        directory: LogDirectory,
        fits: Callable[[GatheredHead, GatheredHead], bool] = is_exact,
        *,
        writes: bool = True,
        pass_bytes: int = PASS_BYTES,
    ) -> None:
        """Read the files in *directory* whose head *fits* the wanted one; *writes*: replace those that do not.

        *pass_bytes*: a pass over a segment takes about as much memory.
        """
        self._fits = fits
        self._writes = writes
        self._pass_bytes = pass_bytes
        self._kept: SegmentParts | None = None  # with what the last pass collected, if it writes nothing
        self.made: dict[int, int] = {}
        self.damaged = 0
        self._directory = directory
        self._files: dict[int, GatheredFile] = {}
        self._replaced: list[tuple[int, GatheredFile]] = []
        self._pieces: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()  # of the three above; held for moments
        self._making = Lock()  # one segment at a time: each takes the memory of a segment
        self.failed: dict[int, tuple[CorruptionError | OSError, float]] = {}

    def read_many(self, wanted: Sequence[WantedRuns]) -> list[FoundRuns]:
        """Return what is *wanted*, each as `read` does."""
        return [self.read(one) for one in wanted]

    def read(self, wanted: WantedRuns) -> FoundRuns:
        """Return what is *wanted*.

        Raises:
            CorruptionError: Neither the file nor the segment can be read.
            OSError: The disk refuses a read, or the file that is to be made again.
        """
        try:
            return self._read(wanted)
        except (OSError, GatheredError) as error:
            if not self._writes:
                return self._read_by_passes(wanted)
            self._make_again(wanted.head, error)
        try:
            return self._read(wanted)
        except GatheredError as error:
            name = segment_name(wanted.head.segment)
            raise CorruptionError(name, None, f"its gathered file cannot be read, even made again: {error}") from None

    @property
    def has_files(self) -> bool:
        """True if any file is open."""
        return bool(self._files)

    def open_segments(self) -> list[int]:
        """Return the segments whose files are open."""
        return list(self._files)

    def handles(self) -> list[int]:
        """Return the open handles."""
        return [file.handle for file in [*self._files.values(), *(file for _, file in self._replaced)]]

    def close(self, segment: int) -> None:
        """Close a file, of which no read is under way."""
        with self._lock:
            closed = [self._files.pop(segment, None), *(file for number, file in self._replaced if number == segment)]
            self._replaced = [each for each in self._replaced if each[0] != segment]
            self._forget_pieces(segment)
        for file in closed:
            if file is not None:
                file.close()

    def _forget_pieces(self, segment: int) -> None:
        for piece in [each for each in self._pieces if each[0] == segment]:
            del self._pieces[piece]

    def _read(self, wanted: WantedRuns) -> FoundRuns:
        head, queue_id, start, stop, bytes_max = wanted
        file = self._file(head)
        index = file.index
        runs: list[HeldRun] = []
        times: list[Times] = []
        position, size = start, 0
        place = 0
        for place in index.places(queue_id, start, stop):
            if runs and size + index.lengths[place] > bytes_max:
                break
            stored, changes = decode_place(self._bytes(file, place), index.checksums[place], index.seed)
            runs += map(held_run, stored)
            times.append(changes)
            size += index.lengths[place]
            position = index.next_positions[place]
        if not runs:
            raise GatheredError(f"it has no records of queue id {queue_id} from position {start} on")
        joined = times[0] if len(times) == 1 else Times.joined(times)
        return FoundRuns(runs, joined, position, self._ahead(file, place, index.bounds(queue_id)[1]))

    def _ahead(self, file: GatheredFile, place: int, end: int) -> int | None:
        """Return the piece after that of *place* if its queue, whose places end at *end*, continues in it."""
        index = file.index
        number = (index.offsets[place] + index.lengths[place] - 1) // MIB + 1
        wanted = place + 1 < end and (index.offsets[place + 1] + index.lengths[place + 1] - 1) // MIB >= number
        with self._lock:
            return number if wanted and (index.head.segment, number) not in self._pieces else None

    def read_ahead(self, head: GatheredHead, number: int) -> None:
        """Read a piece that is about to be wanted. An error is left to the read that wants it."""
        with suppress(OSError, GatheredError):
            self._piece(self._file(head), number)

    def _bytes(self, file: GatheredFile, place: int) -> bytes | memoryview:
        """Return the bytes of a place, from pieces that are kept if it is not larger than they are."""
        index = file.index
        start, length = index.offsets[place], index.lengths[place]
        if length > MIB:
            return file.read(start, length, bytes)
        first, last = start // MIB, (start + length - 1) // MIB
        parts = [memoryview(self._piece(file, number)) for number in range(first, last + 1)]
        if len(parts) == 1:
            return parts[0][start % MIB : start % MIB + length]
        return b"".join((parts[0][start % MIB :], parts[1][: length - (MIB - start % MIB)]))

    def _piece(self, file: GatheredFile, number: int) -> bytes:
        key = file.index.head.segment, number
        with self._lock:
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
                return piece
        piece = file.read(number * MIB, min(MIB, file.size - number * MIB), bytes)
        with self._lock:
            self._pieces[key] = piece
            while len(self._pieces) > PIECES_MAX:
                self._pieces.popitem(last=False)
        return piece

    def _file(self, head: GatheredHead) -> GatheredFile:
        """Return the open file of a segment; raise GatheredError if it is not the right one."""
        with self._lock:
            file = self._files.get(head.segment)
        if file is not None:
            return file
        opened = GatheredFile(self._directory.files, gathered_path(self._directory.path, head.segment))
        if not self._fits(opened.index.head, head):
            opened.close()
            raise GatheredError("it belongs to another segment, or to another state of the log")
        with self._lock:
            file = self._files.setdefault(head.segment, opened)
        if file is not opened:
            opened.close()
        return file

    def _make_again(self, head: GatheredHead, error: Exception) -> None:
        """Make a file again, unless another thread just has."""
        number = head.segment
        seen = self._files.get(number)
        with self._making:
            if self._files.get(number) is not seen:
                return
            failed, until = self.failed.get(number, (None, 0.0))
            if failed is not None and monotonic() < until:
                raise failed
            self.damaged += isinstance(error, GatheredError)
            logger.warning("the gathered file of %s cannot be used (%s): it is made again", segment_name(number), error)
            try:
                self._make(head)
            except (CorruptionError, OSError) as caught:
                self.failed[number] = caught, monotonic() + FAILED_SECONDS
                raise
            self.failed.pop(number, None)

    def _parts(self, head: GatheredHead) -> SegmentParts:
        if identify(self._directory, head.segment) != head.whole:
            raise CorruptionError(segment_name(head.segment), None, "it is not the segment that was written here")
        return SegmentParts(self._directory, head.whole, self._pass_bytes)

    def _read_by_passes(self, wanted: WantedRuns) -> FoundRuns:
        """Return what is wanted from a pass over the segment: the last one, if it was of this part of it."""
        if self._kept is None or self._kept.head != wanted.head.whole:
            self._kept = None
            self._kept = self._parts(wanted.head)
        found, times = self._kept.runs(wanted.queue_id, wanted.start, wanted.stop)
        runs: list[HeldRun] = []
        size = 0
        for run in found:
            runs.append(run)
            size += len(run.payload)
            if size >= wanted.bytes_max:
                break
        if not runs:
            raise CorruptionError(segment_name(wanted.head.segment), None, f"position {wanted.start} is missing")
        return FoundRuns(runs, times, runs[-1].next_position, None)

    def _make(self, head: GatheredHead) -> None:
        _, size, error = write_collected(self._directory, head.whole, self._parts(head))
        if error is not None:
            raise error
        opened = GatheredFile(self._directory.files, gathered_path(self._directory.path, head.segment))
        with self._lock:
            if (before := self._files.get(head.segment)) is not None:
                self._replaced.append((head.segment, before))  # others may be reading it
            self._files[head.segment] = opened
            self._forget_pieces(head.segment)
            self.made[head.segment] = size

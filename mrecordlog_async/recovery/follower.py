"""Follow a log: read what its writer added since the last read. Never writes, never takes the lock.

1. The end of the last whole batch must be as it was read, or an older copy of the log took its place. Read the block
   after it: without a frame of this segment nothing is new, so an idle log costs no more than that. Otherwise read
   whole batches from there, in pieces that start small.
2. As every reader does, read from the disk and not from the cache, and sync before showing. Then replay the batches.
3. If the next segment exists, its header must state where this one ended and its table must equal the queues; continue
   in it. A segment that was removed meanwhile was read to its end, or its successor shows that something is missing.
   Segments are removed oldest first: if no next segment is found, but the last one read still exists, there is none.
   Otherwise both were removed, with everything in them.
4. Whatever does not fit raises `LostTrackError`: reading the whole log again gives the state or names the damage. A
   batch that is still being written looks like damage, so it is judged only if it is unchanged the next time, and a
   torn tail that stays is judged ever more rarely. Bytes that are not a frame may be what the file held when it was
   another segment: they are doubted only if a COMMIT proves that they are damage.
"""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES, FRAME_HEADER_BYTES, block_left, read_frame, segment_seed
from mrecordlog_async.format.header import HeaderError, SegmentHeader
from mrecordlog_async.format.parse import MalformedError, ParsedBatch, SegmentParser
from mrecordlog_async.format.table import Table
from mrecordlog_async.recovery.recovered import LastRead, RecoveredLog
from mrecordlog_async.recovery.replay import Replay
from mrecordlog_async.recovery.segment_files import sync_for_readers
from mrecordlog_async.recovery.segment_reader import batches_in
from mrecordlog_async.recovery.torn_or_damaged import SegmentEnd, look_after
from mrecordlog_async.storage.directory import LogDirectory, naming
from mrecordlog_async.storage.filesystem import read_exact
from mrecordlog_async.storage.segment import PIECE_BYTES, segment_name

PIECE_BYTES_MIN = 2 * BLOCK_BYTES
HEAD_BYTES = 2 * FRAME_HEADER_BYTES
"""Enough for a block's padding and the header of the frame after it."""


class LostTrackError(Exception):
    """Reading cannot continue from here: read the whole log again."""


class Follower:
    """Keeps *recovered* up to date. No file stays open between two reads, so it keeps no disk space in use."""

    def __init__(self, directory: LogDirectory, recovered: RecoveredLog, failed_looks: int = 0) -> None:
        self.recovered = recovered
        self.failed_looks = failed_looks  # how often in a row there were bytes that are not a batch
        self._lost = recovered.overtaken
        self._directory = directory
        self._files = directory.files
        self._parser = _parser_after(recovered)
        self._seed = segment_seed(recovered.log_id, recovered.end.segment)
        self._replay = Replay(recovered.counts)
        self._replay.queues = recovered.queues

    def read_on(self) -> bool:
        """Replay what was written since; return whether anything was.

        Raises LostTrackError, even after a read that failed, and OSError for what cannot be read or synced.
        """
        if self._lost:
            raise LostTrackError("the previous read failed half-way, or the writer had overtaken the reader")
        self._lost = True
        changed = self._read_on()
        self._lost = False
        return changed

    def _read_on(self) -> bool:
        changed = self._read_segment()
        while (header := self._next_header()) is not None:
            if self._parser.end < header.previous_end:
                changed |= self._read_segment()  # it was written between the two reads
            if (header.previous_end, header.first_batch) != (self._parser.end, self._parser.due_batch):
                raise LostTrackError(f"{segment_name(header.segment)} does not begin where its predecessor ended")
            self._enter(header)
            changed |= self._read_segment()
        self._check_is_last()
        return changed

    def _read_segment(self) -> bool:
        recovered, parser = self.recovered, self._parser
        try:
            handle = self._directory.open(recovered.end.segment)
        except FileNotFoundError:
            return False  # nothing in it is live; its successor shows whether all of it was read
        try:
            with naming(self._directory.path_of(recovered.end.segment)):
                self._check_header(handle)
                if parser.table is not None and not self._has_frame(handle):
                    self._doubt(handle, SegmentEnd.of(parser))
                    return False
                self._files.drop_cache(handle)
                batches = self._take_batches(handle)
                if batches:
                    sync_for_readers(self._files, handle)
        finally:
            self._files.close(handle)
        self._apply(batches)
        return any(batch.records for batch in batches)

    def _take_batches(self, handle: int) -> list[ParsedBatch]:
        parser = self._parser
        had_table = parser.table is not None
        try:
            batches = list(batches_in(parser, self._pieces(handle, parser.end)))
        except MalformedError as error:
            raise LostTrackError(error.reason) from None
        end = SegmentEnd.of(parser)
        parser.resume()
        if not had_table:
            self._check_table(parser.table)
        if batches:
            self.failed_looks = 0  # what was there last time is a batch now
        self._doubt(handle, end)
        return batches

    def _has_frame(self, handle: int) -> bool:
        """Return whether a frame of this segment begins where the next batch is due.

        Raises LostTrackError if other bytes precede it than before.
        """
        at, last = self._parser.end, self.recovered.last
        before = last.content if last is not None else b""
        found = read_exact(self._files, handle, len(before) + HEAD_BYTES, at - len(before))
        if not found.startswith(before):
            raise LostTrackError("the directory now contains another history of the log")
        if not any(found[len(before) :]):
            return False
        length = block_left(at)
        if length < FRAME_HEADER_BYTES:  # padding, and the frame is in the next block
            length += BLOCK_BYTES
        block = memoryview(read_exact(self._files, handle, length, at))
        return read_frame(block, at, 0, self._seed) is not None

    def _pieces(self, handle: int, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole blocks from that of *offset* on; usually there is little to read."""
        at, length = offset - offset % BLOCK_BYTES, PIECE_BYTES_MIN
        while piece := read_exact(self._files, handle, length, at):
            yield at, piece
            at += len(piece)
            length = min(length * 2, PIECE_BYTES)

    def _doubt(self, handle: int, end: SegmentEnd) -> None:
        """Count how often in a row there are bytes that are not a batch; judge them the 2nd, 4th, 8th … time."""
        if not any(read_exact(self._files, handle, HEAD_BYTES, end.offset)):
            self.failed_looks = 0
            return
        self.failed_looks += 1
        if self.failed_looks == 1 or self.failed_looks & (self.failed_looks - 1):
            return
        if end.torn_end > end.offset or self._is_proven(handle, end):
            raise LostTrackError("the bytes after the last batch are not a batch")

    def _is_proven(self, handle: int, end: SegmentEnd) -> bool:
        """Return whether a COMMIT says that the batch due at *end* was acknowledged.

        Looks at one piece only: after the end of an idle log there may be a whole segment of older bytes. What is
        farther away is found when the log is opened, or rolls.
        """
        stop = min(self._files.size(handle), end.offset + PIECE_BYTES)
        return look_after(self._files, handle, end, stop).proof is not None

    def _apply(self, batches: list[ParsedBatch]) -> None:
        recovered = self.recovered
        number = recovered.end.segment
        try:
            for batch in batches:
                self._replay.add(segment_name(number), number, batch)
        except CorruptionError as error:
            raise LostTrackError(error.reason) from None
        recovered.end.offset = self._parser.end
        recovered.end.last_batch = recovered.end.durable_batch = self._parser.due_batch - 1
        recovered.oldest_segment = max(recovered.oldest_segment, self._replay.oldest_segment)
        if last_bytes := self._parser.last_bytes():
            recovered.last = LastRead(number, self._parser.end, last_bytes)

    # The next segment.

    def _next_header(self) -> SegmentHeader | None:
        try:
            header = self._directory.header_of(self.recovered.end.segment + 1)
        except FileNotFoundError:
            return None
        except HeaderError as error:
            raise LostTrackError(str(error)) from None
        self._check_log_id(header)
        return header

    def _enter(self, header: SegmentHeader) -> None:
        recovered = self.recovered
        oldest = recovered.oldest_segment = max(recovered.oldest_segment, header.oldest_segment)
        older = [*recovered.older, (recovered.end.segment, recovered.end.offset)]
        recovered.older = [each for each in older if each[0] >= oldest]
        recovered.end.segment, recovered.end.first_batch = header.segment, header.first_batch
        self._parser = SegmentParser(header.log_id, header.segment, header.first_batch)
        self._seed = segment_seed(header.log_id, header.segment)

    def _check_table(self, table: Table | None) -> None:
        assert self._replay.queues is not None
        if table != self._replay.queues.table():
            raise LostTrackError("the table of queues does not match the end of the previous segment")
        self.recovered.end.table_end = self._parser.table_end

    def _check_header(self, handle: int) -> None:
        try:
            header = self._directory.header(handle, self.recovered.end.segment)
        except HeaderError as error:
            raise LostTrackError(str(error)) from None
        self._check_log_id(header)

    def _check_log_id(self, header: SegmentHeader) -> None:
        if header.log_id != self.recovered.log_id:
            raise LostTrackError("the directory now contains a different log")

    def _check_is_last(self) -> None:
        """Raise LostTrackError if the segment was removed: then the ones after it were removed too, before the look."""
        try:
            self._files.close(self._directory.open(self.recovered.end.segment))
        except FileNotFoundError:
            raise LostTrackError("the segment was removed, and so were those after it") from None


def _parser_after(recovered: RecoveredLog) -> SegmentParser:
    """Return a parser that expects the batch after the last one that was read."""
    end = recovered.end
    parser = SegmentParser.after_table(recovered.log_id, end.segment, end.last_batch + 1, end.offset)
    parser.table_end = end.table_end
    return parser

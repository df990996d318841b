"""Reading on: what a living writer added to a log since it was read. Never writes, never takes the lock.

1. Look at the next frame's head behind the last whole batch: zeros mean that nothing is new, and that is all that an
   idle log costs. Otherwise take whole batches from there, in pieces that begin small.
2. As every reader does, ask the disk and not the cache, and sync before showing. Then fold the batches into the queues.
3. Where the next segment is there, its header must state this one's end and its table the queues as they are; go on in
   it. A segment that was removed meanwhile had been read, or its successor tells that something is missing.
   Segments are removed oldest first. So only where the last one read still has its name after no next one was found,
   there is none; otherwise both were removed, with all that came in them.
4. Whatever does not fit raises `LostTrackError`: reading the whole log again gives the state or names the damage. Half
   a batch that is being written looks like damage, so it is judged only if it is still there the next time, and a torn
   tail that stays is judged ever more rarely.
"""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.frame import BLOCK_BYTES, FRAME_HEADER_BYTES
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, SegmentHeader, decode_header
from mrecordlog_async.format.parse import Batch, MalformedError, SegmentParser
from mrecordlog_async.format.record import Table
from mrecordlog_async.recovery.recovered import Contents
from mrecordlog_async.recovery.recovery import sync_for_readers
from mrecordlog_async.recovery.replay import Fold
from mrecordlog_async.storage.filesystem import FileSystem, read_exact
from mrecordlog_async.storage.segment import PIECE_BYTES, open_segment, segment_name

PIECE_BYTES_MIN = 2 * BLOCK_BYTES
HEAD_BYTES = 2 * FRAME_HEADER_BYTES
"""A block's padding and the head of the frame behind it fit in."""


class LostTrackError(Exception):
    """The log cannot be read on from here: read it again."""


class Follower:
    """Keeps *contents* up to date. It has no file open between two looks, so it holds no space on the disk."""

    def __init__(self, files: FileSystem, directory: str, contents: Contents, doubts: int = 0) -> None:
        self.contents = contents
        self.doubts = doubts  # how often in a row something was there that is no batch
        self._lost = contents.overtaken
        self._files = files
        self._directory = directory
        self._parser = _parser_behind(contents)
        self._fold = Fold(contents.counts)
        self._fold.queues = contents.queues

    def read_on(self) -> bool:
        """Fold what was written since; return whether anything was.

        Raises LostTrackError, also after a look that failed, and OSError for what cannot be read or synced.
        """
        if self._lost:
            raise LostTrackError("the last look failed half-way, or the writer had overtaken the reader")
        self._lost = True
        changed = self._go_on()
        self._lost = False
        return changed

    def _go_on(self) -> bool:
        changed = self._read_segment()
        while (header := self._next_header()) is not None:
            if self._parser.end < header.previous_end:
                changed |= self._read_segment()  # it came between the two looks
            if (header.previous_end, header.first_batch) != (self._parser.end, self._parser.due_batch):
                raise LostTrackError(f"{segment_name(header.segment)} does not begin where its predecessor ended")
            self._enter(header)
            changed |= self._read_segment()
        self._check_is_last()
        return changed

    def _read_segment(self) -> bool:
        contents, parser = self.contents, self._parser
        try:
            handle = self._open(contents.segment)
        except FileNotFoundError:
            return False  # nothing in it is live; its successor tells whether all of it was read
        try:
            self._check_header(read_exact(self._files, handle, HEADER_BYTES, 0))
            if not any(read_exact(self._files, handle, HEAD_BYTES, parser.end)):
                self.doubts = 0
                return False
            self._files.forget_cache(handle)
            batches = self._take_batches(handle)
            if batches:
                sync_for_readers(self._files, handle)
        finally:
            self._files.close(handle)
        self._apply(batches)
        return any(batch.records for batch in batches)

    def _take_batches(self, handle: int) -> list[Batch]:
        parser = self._parser
        batches: list[Batch] = []
        had_table = parser.table is not None
        try:
            for base, piece in self._pieces(handle, parser.end):
                batches += parser.feed(piece, base)
                if parser.stopped:
                    break
        except MalformedError as error:
            raise LostTrackError(error.reason) from None
        parser.resume()
        if not had_table:
            self._check_table(parser.table)
        if batches:
            self.doubts = 0  # what was there the last time has become a batch
        self._doubt(handle)
        return batches

    def _pieces(self, handle: int, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole blocks from the one of *offset* on; there is seldom much."""
        at, length = offset - offset % BLOCK_BYTES, PIECE_BYTES_MIN
        while piece := read_exact(self._files, handle, length, at):
            yield at, piece
            at += len(piece)
            length = min(length * 2, PIECE_BYTES)

    def _doubt(self, handle: int) -> None:
        """Count how often in a row there is something that is no batch; have it judged the 2nd, 4th, 8th … time."""
        if not any(read_exact(self._files, handle, HEAD_BYTES, self._parser.end)):
            self.doubts = 0
            return
        self.doubts += 1
        if self.doubts > 1 and self.doubts & (self.doubts - 1) == 0:
            raise LostTrackError("what lies behind the last batch is none")

    def _apply(self, batches: list[Batch]) -> None:
        contents = self.contents
        try:
            for batch in batches:
                self._fold.add(segment_name(contents.segment), contents.segment, batch)
        except CorruptionError as error:
            raise LostTrackError(error.reason) from None
        contents.end, contents.last_batch = self._parser.end, self._parser.due_batch - 1
        contents.oldest_segment = max(contents.oldest_segment, self._fold.oldest_segment)

    # The next segment.

    def _next_header(self) -> SegmentHeader | None:
        number = self.contents.segment + 1
        try:
            handle = self._open(number)
        except FileNotFoundError:
            return None
        try:
            header = decode_header(read_exact(self._files, handle, HEADER_BYTES, 0))
        except HeaderError as error:
            raise LostTrackError(str(error)) from None
        finally:
            self._files.close(handle)
        if (header.log_id, header.segment) != (self.contents.log_id, number):
            raise LostTrackError("another log is here now")
        return header

    def _enter(self, header: SegmentHeader) -> None:
        contents = self.contents
        contents.older.append((contents.segment, contents.end))
        contents.segment, contents.first_batch = header.segment, header.first_batch
        contents.oldest_segment = max(contents.oldest_segment, header.oldest_segment)
        self._parser = SegmentParser(header.log_id, header.segment, header.first_batch)

    def _check_table(self, table: Table | None) -> None:
        assert self._fold.queues is not None
        if table != self._fold.queues.table():
            raise LostTrackError("the table of queues is not what the segment before it left")
        self.contents.table_end = self._parser.table_end

    def _check_header(self, data: bytes) -> None:
        try:
            header = decode_header(data)
        except HeaderError as error:
            raise LostTrackError(str(error)) from None
        if header.log_id != self.contents.log_id:
            raise LostTrackError("another log is here now")

    def _check_is_last(self) -> None:
        """Raise LostTrackError where the segment was removed, and with it those that the next one was looked for in."""
        try:
            self._files.close(self._open(self.contents.segment))
        except FileNotFoundError:
            raise LostTrackError("the segment was removed, and those that came after it as well") from None

    def _open(self, number: int) -> int:
        return open_segment(self._files, self._directory, number)


def _parser_behind(contents: Contents) -> SegmentParser:
    """Return a parser that stands behind the last batch that was read."""
    parser = SegmentParser(contents.log_id, contents.segment, contents.last_batch + 1)
    parser.table, parser.table_end = Table(0, ()), contents.table_end  # it lies behind us
    parser.end = contents.end
    parser.resume()
    return parser

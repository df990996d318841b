"""The log's files while it is open: one thread writes batches, rolls to a new segment, and removes old ones.

Strategy:
1. Space and spare (`DiskSpace`) and name first. Whatever fails before the batch's first byte is written raises OSError
   or LogFullError: the batch is refused, nothing has changed, and the log stays healthy.
2. Then one write and one sync, or a direct write that is both. What fails there, and any failed sync, raises
   `LogIOError`: the log stops.
3. A file with a second name (a snapshot's or a `cp -al`'s hard link) is never written or shrunk again: the log rolls,
   and only unlinks it. Each batch checks (one fstat), as a link can be created while the log is open. If the check
   fails, the batch is refused: rolling instead would use up a segment per batch.

Everything here blocks and belongs to the log's thread. The table is read from `queues`, which the event loop does not
change while a batch is being written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from itertools import chain

from mrecordlog_async.engine.commit.batch import (
    CommitRequest,
    CommitResult,
    EncodedBatch,
    LogIOError,
    PreparedWrite,
    Roll,
    Written,
    build_records,
    commit_of,
    encode_batch,
    encode_in_steps,
    encode_small,
    join_small,
    let_others_run,
    sync_file,
)
from mrecordlog_async.engine.commit.dead_segments import DeadSegments
from mrecordlog_async.engine.commit.disk_space import DiskSpace
from mrecordlog_async.engine.intake.commands import Reserve
from mrecordlog_async.format.controls import Opened
from mrecordlog_async.format.frame import Buffer, segment_seed
from mrecordlog_async.format.header import Closed, SegmentHeader
from mrecordlog_async.format.record import LogRecord, encode_record
from mrecordlog_async.format.table import OPENING_BYTES
from mrecordlog_async.model import TICK_NS
from mrecordlog_async.recovery.recovered import RecoveredLog
from mrecordlog_async.storage.direct import LARGE_BYTES, Staging
from mrecordlog_async.storage.lock_file import LOCK_NAME
from mrecordlog_async.storage.locked_directory import RESERVE_BYTES, LockedDirectory
from mrecordlog_async.storage.segment import LogEnd, SegmentFile, segment_name
from mrecordlog_async.support.clock import system
from mrecordlog_async.support.disk_errors import is_refusal


class Journal:
    """Writes the log. Its state belongs to the log's thread.

    The event loop may read the plain numbers (`end`, `durable_oldest` …) at any time, for reports. The writer
    decides from them only between two calls, when the thread is idle. The thread reads `queues` for the table during
    a roll: safe because the loop changes memory only after the call's result has come back.
    """

    def __init__(
        self,
        directory: LockedDirectory,
        file: SegmentFile,
        recovered: RecoveredLog,
        space: DiskSpace,
        staging: Staging | None = None,
        nonce: int | None = None,
    ) -> None:
        """Continue the log *recovered*, whose last segment is *file*; *staging*: see `Spare`.

        *nonce*: the random number of this opening, which the first batch records.
        """
        self.directory = directory
        self.end: LogEnd = recovered.end
        self.named_oldest = recovered.oldest_segment  # what the newest COMMIT or header says
        self.durable_oldest = recovered.oldest_segment  # what is on the medium for certain
        self.has_old_tail = False  # the segment has a second name, so what follows its end was not zeroed
        self._log_id = recovered.log_id
        self._queues = recovered.queues
        self._file = file
        self._seed = segment_seed(recovered.log_id, recovered.end.segment)
        self._nonce = nonce  # until the first batch is written
        self.space = space
        self.dead = DeadSegments(directory, space)
        space.opening_bytes = OPENING_BYTES if nonce is not None else 0
        self._staging = staging
        self._prepared: EncodedBatch  # what `prepare` returned last
        self._was_refused = False  # a prepared write to this segment was
        self.clock = system()  # the one that opens the log may set another

    # What the event loop reads between batches.

    @property
    def all_synced(self) -> bool:
        """True if every batch is on the medium."""
        return self.end.durable_batch == self.end.last_batch

    def reclaimable(self) -> bool:
        """Return whether there are segments in which nothing is live."""
        older = self.space.complete
        return bool(older) and older[0][0] < self.durable_oldest

    # A batch that needs nothing but a prepared write. The loop encodes it while the thread is idle.

    def prepare(self, request: CommitRequest) -> PreparedWrite | None:
        """Return a batch as one durable write, to be settled by `settle`; None if it is for `commit`.

        It fits into the segment and the space reserved. There is a spare, everything is on the medium, and the log has
        a batch of this opening: no such batch changes that.
        """
        if not self.all_synced or self._nonce is not None or self._was_refused:
            return None
        if request.reserve is not Reserve.NOTHING or self.space.wants_spare(request.more_table_bytes):
            return None
        records, at, now = build_records(request.records), self.end, self.clock.stamp_ns()
        frames = encode_small(records, commit_of(at, request.oldest_segment, self._log_id, now), at.offset, self._seed)
        end = at.offset + len(frames)
        if end > self._file.reserved_bytes - RESERVE_BYTES or self.space.is_full(end):
            return None
        staged = self._file.stage_durable(frames, at.offset)
        if staged is None:
            return None
        self._prepared = EncodedBatch(records, request.oldest_segment, True, [frames], end, now)
        return PreparedWrite(self._file.handle, self.directory.lock_handle, *staged)

    def settle(self, written: Written) -> CommitResult | LogIOError | None:
        """Note what became of the write that `prepare` returned.

        Returns:
            What `commit` returns or raises. None if it is for `commit` to decide: the write was not begun, or refused,
            or not all of it was taken. Its place is then written again.
        """
        is_whole, number, seconds = written
        if is_whole:
            batch = self._prepared
            length = batch.end - self.end.offset
            self._file.note_durable(length)
            self._note(batch, synced=True)
            return self._result(batch, length, False, seconds, seconds)
        if number and not is_refusal(error := OSError(number, os.strerror(number))):
            failure = LogIOError(f"write failed: {error}")
            failure.__cause__ = error
            return failure
        # Where each write is refused, each batch would be tried twice. It is tried again in the next segment.
        self._was_refused = True
        return None

    # What the thread does.

    def commit(self, request: CommitRequest) -> CommitResult | None:
        """Write a batch, and sync it if *request* says so.

        Returns:
            The log records as they were stored, where, and how long it took. None if the batch must not roll
            (`Roll.NEVER`) and cannot be stored without.

        Raises:
            OSError: The disk refused the batch. Nothing was written.
            LogFullError: The batch does not fit below the log's limit. Nothing was written.
            LogIOError: Whether the batch is stored is not known. The log must stop.
        """
        begun = time.perf_counter()
        request, records = self._with_opening(request, build_records(request.records))
        bodies = [encode_record(record) for record in records]
        batch = self._encode(records, bodies, request)
        if request.roll is Roll.NEVER:
            return self._write(batch, rolled=False, begun=begun) if self._fits_here(batch.end) else None
        rolled = self._is_shared() or (request.roll is Roll.IF_FULL and self.space.is_full(batch.end))
        if request.reserve is Reserve.NOTHING or (request.reserve is Reserve.HALF and rolled):
            # Before the batch: once it has used the last space, there is none for the spare that rolling needs.
            self.space.with_room(self.space.prepare_spare, request.more_table_bytes)
            if rolled:
                self.space.with_room(self.space.check_room_after_roll, batch.end - self.end.offset)
        if rolled:
            self.space.with_room(self.roll, request.oldest_segment)
            # The frames again: their checksums depend on the segment and the offset. The bodies do not.
            batch = self._encode(records, bodies, request)
        self.space.with_room(self.space.reserve, batch.end, request)
        return self._write(batch, rolled, begun)

    def commit_mark(self, oldest_segment: int | None) -> CommitResult | None:
        """Write an empty batch that names the one before it as durable; None if the reserved space has no room.

        It is synced like any other batch. Otherwise the next batch could not name it as durable, and damage to it would
        look like a torn tail, which recovery zeroes together with all batches after it.
        """
        return self.commit(CommitRequest([], oldest_segment, sync=True, roll=Roll.NEVER))

    def sync(self) -> float:
        """Bring every batch to the medium; return the seconds it took."""
        begun = time.perf_counter()
        sync_file(self._file)
        # Only this thread adds batches, so none came after the sync began.
        self.end.durable_batch = self.end.last_batch
        self.durable_oldest = self.named_oldest
        return time.perf_counter() - begun

    def start_small(self) -> None:
        """Continue in a new segment, of which little is reserved: nothing is live. Errors as of `commit`."""
        self.space.cut_spare()
        self.roll(None)

    def roll(self, oldest_segment: int | None) -> None:
        """Continue in a new segment, with the errors of `commit`.

        The old one is synced under every policy, and the new one is durable with its name before a batch enters it.

        Args:
            oldest_segment: The oldest segment with anything live; None if nothing is live before the new one.
        """
        # First: the new header states where the old segment ends, and recovery takes less than that as damage.
        if not self.all_synced:
            self.sync()
        # A snapshot or `cp -al` may have linked the spare too; a file with two names must not be written.
        spare = self.space.spare
        if spare.file is not None and spare.file.may_be_shared():
            spare.discard()
        self.space.prepare_spare()
        number = self.end.segment + 1
        oldest = number if oldest_segment is None else oldest_segment
        header = SegmentHeader(self._log_id, number, self.end.last_batch + 1, self.end.offset, oldest)
        # The queues stand still: the loop changes them only after this call has returned.
        file, table_end = spare.publish(header, self._queues.encoded_table(let_others_run))
        self._enter(file, header, table_end)

    def write_closed(self, oldest_segment: int | None) -> None:
        """Record where the log ends, after the last batch was synced. Failing to do so does not fail closing."""
        if self.has_old_tail:  # the next open must see it: with `CLOSED` it would write there without zeroing first
            return
        at = self.end
        if not self.directory.write_closed(Closed(self._log_id, at.segment, at.offset, at.last_batch)):
            self.mark_end(oldest_segment)

    def mark_end(self, oldest_segment: int | None) -> None:
        """Write the mark of a log that is released without `CLOSED`, unless this opening or segment has no batch.

        Failing to do so does not fail closing.
        """
        if self._nonce is None and self.all_synced and self.end.last_batch >= self.end.first_batch:
            with contextlib.suppress(OSError, LogIOError):
                self.commit_mark(oldest_segment)

    def close(self) -> None:
        """Close the files; a spare is removed."""
        if self._staging is not None:
            self._staging.close_writes(self.directory.files)
        try:
            self.space.spare.discard()
            self.dead.shrink(everything=True)
        finally:
            self._file.close()

    def handles(self) -> Iterator[int]:
        """Yield the open handles: a forked child closes its copies."""
        yield self._file.handle
        if self.space.spare.file is not None:
            yield self.space.spare.file.handle
        for handle, _ in self.space.unfreed:
            yield handle

    # Steps.

    def _is_shared(self) -> bool:
        """Return whether the segment has a second name.

        Raises:
            LogIOError: It has none, so what is written to it is lost; or the lock has none, so another process may
                write to the segment.
            OSError: The system does not report it.
        """
        is_shared = self._file.is_shared()
        if self._file.is_removed:
            raise LogIOError(f"{segment_name(self.end.segment)} was removed while the log is open")
        if self.directory.is_lock_removed():
            raise LogIOError(f"{LOCK_NAME} was removed while the log is open: another process may have opened the log")
        return is_shared

    def _fits_here(self, end: int) -> bool:
        """Return whether a batch up to *end* may be written into the space that is reserved in this segment."""
        if self.space.is_full(end) or end + RESERVE_BYTES > self._file.reserved_bytes:
            return False
        try:
            return not self._is_shared()
        except (OSError, LogIOError):  # the next batch reports it
            return False

    def _encode(
        self, records: list[LogRecord], bodies: Sequence[tuple[Buffer, ...]], request: CommitRequest
    ) -> EncodedBatch:
        """Split a batch into frames after the last one; leave those of a large batch to when they are written."""
        oldest, now = request.oldest_segment, self.clock.stamp_ns()
        is_large = sum(map(len, chain.from_iterable(bodies))) >= LARGE_BYTES and self._file.takes_pieces()
        encode = encode_in_steps if is_large else encode_batch
        buffers, end = encode(bodies, commit_of(self.end, oldest, self._log_id, now), self.end.offset, self._seed)
        return EncodedBatch(records, oldest, request.sync, buffers, end, now)

    def _with_opening(self, request: CommitRequest, records: list[LogRecord]) -> tuple[CommitRequest, list[LogRecord]]:
        """Put OPENED before the records of the first batch since the log was opened, which is synced in any case.

        Readers take the opening and the last durable batch for the state of the log: both must be on the medium
        before a position of this opening is reported.
        """
        if self._nonce is None:
            return request, records
        return request._replace(sync=True), [Opened(self._nonce, self.end.last_batch + 1), *records]

    def _write(self, batch: EncodedBatch, rolled: bool, begun: float) -> CommitResult:
        at, file = self.end, self._file
        written = batch.end - at.offset
        write_begun = time.perf_counter()
        try:
            if isinstance(batch.buffers, list):
                buffers = batch.buffers if file.is_direct else join_small(batch.buffers, written)
                file.write(buffers, at.offset, durable=batch.sync)
            else:
                end = file.write_in_pieces(batch.buffers, at.offset)
                assert end == batch.end, "frames end where they were said to end"
        except OSError as error:
            raise LogIOError(f"write failed: {error}") from error
        # Before the sync: a batch that is written counts, whatever becomes of the sync. No other may take its place.
        self._note(batch)
        sync_seconds = self.sync() if batch.sync else 0.0
        if batch.sync and file.is_direct:  # the write was the sync, or a part of it
            sync_seconds = time.perf_counter() - write_begun
        return self._result(batch, written, rolled, time.perf_counter() - begun, sync_seconds)

    def _note(self, batch: EncodedBatch, *, synced: bool = False) -> None:
        """Note that *batch* is written; *synced*: and on the medium, as is everything before it."""
        at = self.end
        at.offset = batch.end
        at.last_batch += 1
        self._nonce, self.space.opening_bytes = None, 0
        self.named_oldest = at.segment if batch.oldest_segment is None else batch.oldest_segment
        if synced:
            at.durable_batch, self.durable_oldest = at.last_batch, self.named_oldest

    def _result(
        self, batch: EncodedBatch, written_bytes: int, rolled: bool, seconds: float, sync_seconds: float
    ) -> CommitResult:
        at, tick = self.end, batch.time_ns // TICK_NS
        return tuple.__new__(
            CommitResult,
            (batch.records, at.segment, written_bytes, batch.sync, rolled, seconds, sync_seconds, tick, at.last_batch),
        )

    def _enter(self, file: SegmentFile, header: SegmentHeader, table_end: int) -> None:
        """Continue in *file*; the segment until now becomes an older one."""
        old, at = self._file, self.end
        old.close()
        self._file = file
        self.has_old_tail = self._was_refused = False
        self._seed = segment_seed(self._log_id, header.segment)
        self.named_oldest = self.durable_oldest = header.oldest_segment
        last = at.last_batch
        self.end = LogEnd(header.segment, table_end, table_end, last + 1, last, last)
        self.space.enter(file, self.end)

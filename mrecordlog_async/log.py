"""`MultiRecordLog`: many named queues in one directory, written durably and read from memory."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any, TypeVar

from mrecordlog_async.engine.admission import ELSEWHERE, Admission
from mrecordlog_async.engine.arguments import Payload, check_payloads, check_position, copy_payload
from mrecordlog_async.engine.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.open import OpenedLog
from mrecordlog_async.engine.open_async import open_log_async, release_later
from mrecordlog_async.engine.subscribers import Changes
from mrecordlog_async.engine.thread import LogThread
from mrecordlog_async.engine.writer import Writer
from mrecordlog_async.errors import (
    LogClosedError,
    LogFailedError,
)
from mrecordlog_async.memory.reads import QueueReader, check_name
from mrecordlog_async.metrics import Counters, SegmentPin
from mrecordlog_async.model import (
    LogState,
    Record,
    RecoveryProgress,
    RecoveryReport,
    ResourceUsage,
)
from mrecordlog_async.options import GIB, Limits, PersistPolicy
from mrecordlog_async.storage.filesystem import FileSystem, OsFileSystem

T = TypeVar("T")

SEGMENT_BYTES_MIN = 32_768
PIN_QUEUES_AT_ONCE = 1_000


class MultiRecordLog(QueueReader):
    """Named queues of records in one directory.

    Open it with `async with MultiRecordLog.open(directory) as log` or `log = await MultiRecordLog.open(directory)`.
    All methods belong to the event loop that opened it; one process has one log per directory.

    Changes (`create_queue`, `append_record`, `append_records`, `truncate`, `delete_queue`) return once they are as
    durable as the persist policy says. Cancelling such a call withdraws it if the writer has not picked it up yet.
    After that only the wait is cancelled, and the outcome is unknown: send the record again with its position.
    Reads never wait: they are served from memory and show only what is on the disk.
    """

    def __init__(
        self,
        opened: OpenedLog,
        thread: LogThread,
        policy: PersistPolicy,
        limits: Limits,
    ) -> None:
        """Use `open`."""
        self.directory = opened.directory
        self.limits = limits
        self.persist_policy = policy
        self.recovery_report: RecoveryReport = opened.report
        self._opened = opened
        self._queues = opened.queues
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._counters = Counters()
        self._admission = Admission(limits, opened.queues, opened.journal.disk_bytes_at_best)
        self._append_single = self._admission.append_single
        self._changes = Changes(self._loop)
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._foreign = False  # True in a forked child: the log belongs to the parent
        self._writer = Writer(
            opened.journal,
            opened.queues,
            self._admission,
            policy,
            limits,
            self._counters,
            thread,
            self._changes.wake,
        )
        self._writer_task = self._loop.create_task(self._writer.run(), name="mrecordlog writer")
        self._writer_task.add_done_callback(self._on_writer_done)
        _open_logs.add(self)
        self._unclosed = weakref.finalize(self, _give_back_unclosed, opened, thread)
        self._unclosed.atexit = False

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        persist_policy: PersistPolicy | None = None,
        limits: Limits | None = None,
        segment_bytes: int = GIB,
        create: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        filesystem: FileSystem | None = None,
    ) -> OpeningLog:
        """Open the log in *directory*: await the result, or use it with `async with`.

        Args:
            directory: Where the log's files are; it must not contain other files.
            persist_policy: When a change counts as stored; `PersistPolicy.always()` by default.
            limits: How much the log may hold.
            segment_bytes: Nominal size of a segment, at least 32 KiB.
            create: Create the directory and the log if they do not exist.
            on_progress: Called on the event loop while segments are read.
            filesystem: Replaces the operating system's files, for tests.

        Returns:
            An object that yields the open log when awaited or entered.

        Raises:
            ValueError: segment_bytes is too small.
            LogLockedError: Another open log owns the directory.
            CorruptionError: Acknowledged data is damaged. Nothing was changed.
            OSError: A system call failed.
        """
        if not isinstance(segment_bytes, int) or segment_bytes < SEGMENT_BYTES_MIN:
            raise ValueError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}, not {segment_bytes!r}")
        policy, bounds = persist_policy or PersistPolicy.always(), limits or Limits()

        async def opening() -> MultiRecordLog:
            opened, thread = await open_log_async(
                filesystem or OsFileSystem(),
                os.fsdecode(directory),
                create=create,
                segment_bytes=segment_bytes,
                disk_bytes_limit=bounds.disk_bytes,
                on_progress=on_progress,
            )
            return cls(opened, thread, policy, bounds)

        return OpeningLog(opening)

    # Changes.

    async def create_queue(self, queue: str, *, exist_ok: bool = False) -> bool:
        """Create *queue*, empty, with next position 0. Durable under every policy.

        Args:
            queue: Its name, at most `Limits.name_bytes` long in UTF-8.
            exist_ok: Return False instead of raising if the queue already exists.

        Returns:
            True if the queue was created.

        Raises:
            QueueExistsError: The queue exists, and *exist_ok* is False.
            QueueNameError: The name is invalid.
            LogFullError: The limit on queues is reached, or there is no space.
        """
        check_name(queue, self.limits.name_bytes)
        return bool(await self._control(CreateQueue(self._new_future(), queue, exist_ok)))

    async def delete_queue(self, queue: str, *, queue_id: int | None = None) -> None:
        """Delete *queue* and all its records. Durable under every policy. A later queue of this name is a new queue.

        Args:
            queue: The queue.
            queue_id: Delete it only if it is still this incarnation (see `summary`).

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
        """
        check_name(queue)
        await self._control(DeleteQueue(self._new_future(), queue, queue_id))

    def append_record(self, queue: str, position: int | None, payload: Payload) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue* and wait until it is durable under the persist policy.

        A call whose outcome is unknown can be repeated with its position: if the same record is already stored,
        nothing is written. Once truncated, a record is still recognized (by length and checksum) while it is the
        queue's last append, unless its segment was removed and the log reopened.

        Args:
            queue: The queue.
            position: None for the next position; a position chosen by the caller may leave a gap.
            payload: Any bytes-like object. Anything but `bytes` is copied at once.

        Returns:
            The record's position, or None if the same record was already stored.

        Raises:
            QueueNotFoundError: No queue has this name.
            PositionInPastError: The position is taken by a different record, or by a truncated one that can no longer
                be compared (`outcome_unknown`).
            RecordTooLargeError: The record can never fit.
            LogFullError: A limit is reached or the disk is full. Nothing was written.
        """
        if type(payload) is not bytes:
            payload = copy_payload(payload)
        if position is None:
            return self._append_single(queue, payload)
        return self._admission.append(queue, check_position(position), [payload])

    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload]
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* at consecutive positions, all or none; otherwise like `append_record`.

        Args:
            queue: The queue.
            position: Position of the first record; None for the next position.
            payloads: Any number of bytes-like objects.

        Returns:
            The last position, or None if there was nothing to append or every record was already stored.

        Raises:
            QueueNotFoundError: No queue has this name.
            PositionInPastError: A position is taken; see `append_record`.
            RecordTooLargeError: A record, or the call as a whole, can never fit.
            LogFullError: A limit is reached or the disk is full. Nothing was written.
        """
        copied = [payload if type(payload) is bytes else copy_payload(payload) for payload in check_payloads(payloads)]
        return self._admission.append(queue, None if position is None else check_position(position), copied)

    async def truncate(self, queue: str, position: int, *, queue_id: int | None = None) -> int:
        """Remove the records of *queue* up to and including *position*.

        A position past the end removes all records and moves the next position to position + 1. A position before the
        first record writes nothing.

        Args:
            queue: The queue.
            position: The last position to remove.
            queue_id: Truncate only if the queue is still this incarnation (see `summary`).

        Returns:
            The number of records removed.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
        """
        check_position(position)
        check_name(queue)
        dropped = await self._control(TruncateQueue(self._new_future(), queue, position, queue_id))
        assert isinstance(dropped, int)
        return dropped

    async def sync(self) -> None:
        """Wait until everything acknowledged so far is on the medium, under every policy.

        Raises:
            LogClosedError: The log is closed or closing.
            LogFailedError: The log has failed, or this sync did.
        """
        await self._control(Sync(self._new_future()))

    # Reads.

    async def tail(self, queue: str, start: int | None = None) -> AsyncGenerator[Record, None]:
        """Yield the records of *queue* from *start* (default: the first retained) and wait for more.

        Ends when the queue is deleted or the log closes. Records truncated before they were yielded are skipped.

        Args:
            queue: The queue.
            start: The first position to yield; None starts with the first retained record.

        Yields:
            The records in order of position, each once it is durable under the persist policy.

        Raises:
            QueueNotFoundError: No queue has this name.
            LogFailedError: The log failed.
        """
        queue_id = self._queue(queue).id
        position = 0 if start is None else start
        while (found := self._queues.by_id(queue_id)) is not None and not self._is_closing():
            # One run at a time: records truncated meanwhile are not yielded, and are not kept in memory for long.
            head = found.head(position)
            for run in head:
                for record in run.records():
                    if record[0] < found.first_position:  # truncated since, or deleted with its queue
                        continue
                    yield record
                    if self._is_closing():
                        return
                position = run.next_position
            if not head:
                await self._change_of(queue_id)

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*.

        Args:
            queue: The queue.
            position: The position to wait for; truncated records count.

        Returns:
            True once the queue's next position is past *position*; False if the queue was deleted or the log closed.

        Raises:
            QueueNotFoundError: No queue has this name.
            LogFailedError: The log failed.
        """
        queue_id = self._queue(queue).id
        while (found := self._queues.by_id(queue_id)) is not None and not self._is_closing():
            if found.next_position > position:
                return True
            await self._change_of(queue_id)
        return False

    def resource_usage(self) -> ResourceUsage:
        """Return the bytes, queues and segments in use, with their limits."""
        journal, limits = self._opened.journal, self.limits
        return ResourceUsage(
            memory_bytes=self._queues.memory_bytes,
            memory_limit_bytes=limits.memory_bytes,
            disk_bytes=journal.disk_bytes,
            disk_written_bytes=journal.written_bytes,
            disk_limit_bytes=limits.disk_bytes,
            pending_bytes=self._admission.pending_bytes,
            pending_limit_bytes=limits.pending_bytes,
            queues=len(self._queues),
            queues_limit=limits.queues,
            segments=len(journal.older) + 1,
        )

    @property
    def segments(self) -> range:
        """Numbers of the segments on the disk, oldest first. The last one is being written."""
        journal = self._opened.journal
        older, current = journal.older[:1], journal.end.segment
        return range(older[0][0] if older else current, current + 1)

    @property
    def pending_records(self) -> int:
        """Number of records waiting to be stored. Counted on demand, so that appends do not pay for it."""
        return self._writer.pending_records + self._admission.pending_records()

    @property
    def public_id(self) -> str:
        """A stable name for this log, derived from the log id. Moving the log keeps it, and snapshots share it."""
        return blake2b(self._opened.log_id, digest_size=16).hexdigest()

    def pin(self) -> SegmentPin | None:
        """Return the queue that keeps the oldest segment on the disk.

        Scans every queue if there are older segments: 100,000 queues take 14 ms.

        Returns:
            The queue and the segments it keeps, or None if no queue needs a segment older than the current one.
        """
        found = None
        for found in self.pin_in_steps():  # noqa: B007  # the last one counts
            pass
        return found

    def pin_in_steps(self) -> Iterator[SegmentPin | None]:
        """Do what `pin` does, a thousand queues at a time, so that other work can run between two steps.

        Yields:
            The result so far, after each step. The last one is the result of `pin`.
        """
        segments = self.segments
        first = second = current = segments[-1]
        queues = list(self._queues) if len(segments) > 1 else []
        name = ""
        for at in range(0, len(queues), PIN_QUEUES_AT_ONCE):
            for queue in queues[at : at + PIN_QUEUES_AT_ONCE]:  # a plain loop: heapq.nsmallest takes twice as long
                segment = queue.first_segment()
                if segment is not None and segment < second:
                    if segment < first:
                        first, second, name = segment, first, queue.name
                    else:
                        second = segment
            yield SegmentPin(name, current - first, second - first) if first < current else None

    def stats(self) -> Counters:
        """Return a copy of the counters since the log was opened; it no longer changes."""
        return self._counters.snapshot()

    @property
    def state(self) -> LogState:
        """The log's current state."""
        if self._closed or self._foreign:
            return LogState.CLOSED
        if self._writer.failure is not None:
            return LogState.FAILED
        return LogState.CLOSING if self._is_closing() else LogState.OPEN

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the log, or None."""
        return self._writer.failure

    # The end.

    async def close(self) -> None:
        """End tails, store what is pending, sync, and release the directory. A repeated call waits for the same close.

        Cancelling stops the waiting, not the closing.

        Raises:
            LogFailedError: Acknowledged changes could not be synced; `in_doubt` names their queues and first
                positions. Raised after the directory is released, and only under policies weaker than `always()`.
                Under `always()` a failed log closes without an error: acknowledged changes are on the disk, and
                every other caller has had an error.
            LogClosedError: Called on another event loop than the log's.
        """
        if self._foreign:
            return
        if not self._closed:
            if asyncio.get_running_loop() is not self._loop:
                raise LogClosedError(ELSEWHERE)
            if self._closing is None:
                self._closing = self._loop.create_task(self._close(), name="mrecordlog close")
            await asyncio.shield(self._closing)
        failure = self._writer.failure
        if failure is not None and (in_doubt := self._writer.in_doubt()):
            raise LogFailedError(str(failure), "acknowledged", in_doubt) from failure

    async def __aenter__(self) -> MultiRecordLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except LogFailedError as failed:
            if error is None:
                raise
            error.add_note(f"closing the log: {failed}")

    async def _close(self) -> None:
        self._admission.close()
        self._writer.closing = True
        self._admission.wake()
        self._changes.wake_all()
        # Wait even if this task is cancelled, as all are when the loop ends: nothing here may overtake the writer.
        while not self._writer_task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._writer_task])
        if self._writer_task.cancelled():  # the loop ended: `_on_writer_done` releases the directory
            return
        for command in self._admission.take_all():
            command.refuse(LogClosedError("the log was closed while this call was waiting for space"))
        ending = self._thread.call(self._give_back, self._writer.failure is None)
        self._thread.shutdown(wait=False)
        try:
            await ending  # a single job on the thread: cancelling the wait still releases the lock
        finally:
            self._forget()

    def _give_back(self, healthy: bool) -> None:
        """Record where a healthy log ends, then release its files and its lock. Runs on the log's thread."""
        try:
            if healthy:
                self._opened.journal.write_closed()
        finally:
            self._opened.close()

    def _on_writer_done(self, task: asyncio.Task[None]) -> None:
        """Wake all waiters; if the loop ended, release the directory after the thread's last job."""
        if task.cancelled():
            release_later(self._opened, self._thread)
            self._forget()
        else:
            task.exception()  # marked as retrieved; `failure` holds it
        self._changes.wake_all()

    def _forget(self) -> None:
        """Note that the directory is released, or is about to be."""
        self._closed = True
        self._unclosed.detach()
        _open_logs.discard(self)

    # Changes go through admission.

    async def _control(self, command: Command) -> object:
        self._admission.add_control(command)
        try:
            return await command.future
        finally:
            del command  # breaks a cycle: the error's traceback references this frame, the future references the error

    def _new_future(self) -> asyncio.Future[object]:
        return self._admission.new_future()

    # Checks and small helpers.

    def _check_name(self, queue: object) -> None:
        """Raise QueueNameError if *queue* is invalid. Only for unknown names: an existing queue's name passes."""
        check_name(queue, self.limits.name_bytes)

    def _check_readable(self) -> None:
        if self._closed or self._foreign:
            raise LogClosedError(_FORKED) if self._foreign else LogClosedError()

    def _is_closing(self) -> bool:
        return self._writer.closing or self._closed or self._foreign

    async def _change_of(self, queue_id: int) -> None:
        """Wait until the queue changes or the log ends; raise LogFailedError if it failed."""
        failure = self._writer.failure
        if failure is not None:
            raise LogFailedError(str(failure)) from failure
        await self._changes.wait(queue_id)

    def _disown(self) -> None:
        """Close this forked child's copies of the descriptors. The lock and the files belong to the parent."""
        self._foreign = True
        self._admission.stop(partial(LogClosedError, _FORKED))
        for handle in self._opened.handles():
            self._opened.files.close(handle)


class OpeningLog:
    """Result of `MultiRecordLog.open`: await it for the log, or enter it to have the log closed at the end."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, MultiRecordLog]]) -> None:
        self._opening = opening
        self._log: MultiRecordLog | None = None

    def __await__(self) -> Generator[Any, None, MultiRecordLog]:
        return self._opening().__await__()

    async def __aenter__(self) -> MultiRecordLog:
        self._log = await self._opening()
        return self._log

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._log is not None
        await self._log.__aexit__(kind, error, traceback)


_FORKED = "the log belongs to the process that opened it, not to its forked child"
_open_logs: weakref.WeakSet[MultiRecordLog] = weakref.WeakSet()


def _give_back_unclosed(opened: OpenedLog, thread: LogThread) -> None:
    """Release the directory of a log that was garbage collected without being closed."""
    release_later(opened, thread)
    warnings.warn(f"the log in {opened.directory!r} was never closed", ResourceWarning, stacklevel=2)


def _disown_after_fork() -> None:
    for log in list(_open_logs):
        log._disown()
    _open_logs.clear()


os.register_at_fork(after_in_child=_disown_after_fork)

"""`MultiRecordLog`: many named queues in one directory, written durably and read from memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, overload

from mrecordlog_async.batches import check_position
from mrecordlog_async.engine.commit.open import OpenOptions
from mrecordlog_async.engine.draining import DrainingLog
from mrecordlog_async.engine.intake.arguments import Payload, check_payloads, check_queues, copy_payload
from mrecordlog_async.engine.intake.commands import CreateQueue, DeleteQueue, Sync, TruncateQueue
from mrecordlog_async.engine.open_async import open_log_async
from mrecordlog_async.errors import LogFailedError, QueueNotFoundError
from mrecordlog_async.memory.settings import values_of
from mrecordlog_async.model import RecoveryProgress
from mrecordlog_async.names import check_name
from mrecordlog_async.options import GIB, Limits, PersistPolicy, QueueOptions, check_type
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.support.coroutine_mark import coroutine_function

SEGMENT_BYTES_MIN = 32_768
"""A segment holds at least one block."""

QUEUES_AT_ONCE = 1_000
"""Declared queues are created in groups of this size: starting so many calls takes the event loop 10 ms."""


def check_segment_bytes(segment_bytes: object) -> None:
    """Raise ValueError for a size that no segment can have."""
    if not isinstance(segment_bytes, int) or segment_bytes < SEGMENT_BYTES_MIN:
        raise ValueError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}, not {segment_bytes!r}")


class MultiRecordLog(DrainingLog):
    """Named queues of records in one directory.

    Open it with `async with MultiRecordLog.open(directory) as log` or `log = await MultiRecordLog.open(directory)`.
    All methods belong to the event loop that opened it. A directory has one open log, in one process.

    Changes (`append`, `append_records`, `truncate`, `create_queue`, `delete_queue` and others) return once they are as
    durable as the persist policy says; `append_soon` returns a future of that. Cancelling such a call withdraws it if
    the writer has not picked it up yet. After that only the wait is cancelled, and the outcome is unknown: send the
    record again with its position.
    Reads never wait: they are served from memory, and show a record once it is as durable as the persist policy says.

    Every change raises LogClosedError once the log is closed or closing, or on another event loop, LogFailedError once
    a write or sync has failed, and OSError if the disk refuses it for another reason than a lack of space: then nothing
    of it was written. A name that no new queue may have raises QueueNameError instead of QueueNotFoundError. Looking
    up or reading a queue raises LogClosedError once the log is closed.

    Attributes:
        directory: Absolute path of the log's directory.
        limits: How much the log may hold.
        persist_policy: When a change is acknowledged.
        recovery_report: What recovery found when the log was opened.
        workers: How many workers of its application run, failed and ended; see `lifespan` and `setup`.
    """

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        persist_policy: PersistPolicy | None = None,
        limits: Limits | None = None,
        segment_bytes: int = GIB,
        create: bool = True,
        queues: Iterable[str] | Mapping[str, QueueOptions] = (),
        recycle: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        on_failure: Callable[[LogFailedError], object] | None = None,
        retention: bool = True,
        filesystem: FileSystem | None = None,
    ) -> OpeningLog:
        """Open the log in *directory*: await the result, or use it with `async with`.

        Args:
            directory: Where the log's files are. A new log needs a directory that is empty or does not exist.
            persist_policy: When a change counts as stored; `PersistPolicy.always()` by default.
            limits: How much the log may hold.
            segment_bytes: Nominal size of a segment, at least 32 KiB.
            create: Create the directory and the log if they do not exist.
            queues: Queues to create if they do not exist: names, or options by name. One that exists keeps its options.
            recycle: Use the file of a segment without live records again for a later segment, instead of deleting it.
                Appends to it are faster; it keeps up to *segment_bytes* of disk space, which are given back before an
                append is refused for lack of space. Only under `PersistPolicy.always()`, on ext4 and XFS. Copy such
                a log with `mrecordlog snapshot`, not with cp or tar while it is open.
            on_progress: Called on the event loop while segments are read.
            on_failure: Called once on the event loop if a write or sync fails: the log stores nothing more until it is
                opened again. Have the process restarted, or close the log and open it again. See also `failed`.
            retention: Remove the records that are older than the `max_age` of their queue. Open a log that was restored
                from an old copy with False: otherwise its records are removed at once.
            filesystem: Replaces the operating system's files, for tests.

        Returns:
            An object that yields the open log when awaited or entered.

        Raises:
            TypeError: *persist_policy*, *limits* or the options of a queue are of another class.
            ValueError: segment_bytes is too small.
            LogLockedError: Another open log owns the directory.
            CorruptionError: Acknowledged data is damaged. Nothing was changed.
            FileNotFoundError: There is no log in *directory*, and *create* is False.
            QueueNameError: A name in *queues* is invalid.
            LogFullError: There is no space for *queues*.
            OSError: A system call failed, or *directory* contains other files and no log.
        """
        check_segment_bytes(segment_bytes)
        policy = PersistPolicy.always() if persist_policy is None else persist_policy
        check_type("persist_policy", policy, PersistPolicy)
        bounds = Limits() if limits is None else limits
        check_type("limits", bounds, Limits)
        declared = check_queues(queues)

        async def opening() -> MultiRecordLog:
            opened, thread = await open_log_async(
                LogDirectory(filesystem or OsFileSystem(), os.fsdecode(directory)),
                OpenOptions(segment_bytes, bounds.disk_bytes, create, direct=policy.syncs_each_batch, recycle=recycle),
                on_progress,
            )
            log = cls(opened, thread, policy, bounds, on_failure, retention)
            await log._declare(declared)
            return log

        return OpeningLog(opening)

    # Changes.

    async def create_queue(self, queue: str, *, exist_ok: bool = False, options: QueueOptions | None = None) -> bool:
        """Create *queue*, empty, with next position 0. Durable under every policy.

        Args:
            queue: Its name, at most `Limits.name_bytes` long in UTF-8.
            exist_ok: Return False instead of raising if the queue already exists, which keeps its options.
            options: How long the queue keeps its records, and how many; see `configure_queue`.

        Returns:
            True if the queue was created.

        Raises:
            QueueExistsError: The queue exists, and *exist_ok* is False.
            QueueNameError: The name is invalid.
            LogFullError: The limit on queues is reached, that on consumers for those that rules create, or there is
                no space.
        """
        if not self.queue_exists(queue):
            self._check_name(queue)
        values = None if options is None else values_of(options)
        return bool(await self._begin(CreateQueue(self._new_future(), queue, exist_ok, values)))

    async def delete_queue(self, queue: str, *, queue_id: int | None = None, past_consumers: bool = False) -> None:
        """Delete *queue* and all its records. Durable under every policy. A later queue of this name is a new queue.

        Args:
            queue: The queue.
            queue_id: Delete it only if it is still this incarnation (see `summary`).
            past_consumers: Delete it although a consumer has not acknowledged everything.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged everything, and *past_consumers* is False.
            LogFullError: The disk is full, and so is the reserve for truncates and deletes. Nothing was written.
        """
        check_name(queue)
        await self._begin(DeleteQueue(self._new_future(), queue, queue_id, past_consumers))

    @overload
    def append(self, queue: str, payload: Payload, *, create: bool = False) -> Coroutine[Any, Any, int]: ...

    @overload
    def append(
        self, queue: str, payload: Payload, position: int | None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append(
        self, queue: str, payload: Payload, position: int | None = None, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue*: `append_record` with the position last, where it can be left out.

        Args:
            queue: The queue.
            payload: Any bytes-like object. Anything but `bytes` is copied at once.
            position: None for the next position; a position chosen by the caller may leave a gap.
            create: Create the queue if it does not exist.

        Returns:
            The record's position, or None if the same record was already stored at *position*.

        Raises:
            RecordLogError: The errors of `append_record`.
        """
        return self.append_record(queue, position, payload, create=create)

    @overload
    def append_record(
        self, queue: str, position: None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]: ...

    @coroutine_function
    def append_record(
        self, queue: str, position: int | None, payload: Payload, *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payload* to *queue* and wait until it is durable under the persist policy.

        A call whose outcome is unknown can be repeated with its position: if the same record is already stored,
        nothing is written. Once truncated, a record is still recognized (by length and checksum) while it is the
        queue's last append. Single records without a position that are stored together may count as one append.

        Args:
            queue: The queue.
            position: None for the next position; a position chosen by the caller may leave a gap.
            payload: Any bytes-like object. Anything but `bytes` is copied at once.
            create: Create the queue if it does not exist. The queue stays even if the append is then refused.

        Returns:
            The record's position, or None if the same record was already stored. Never None without a position.

        Raises:
            QueueNotFoundError: No queue has this name, and *create* is False.
            PositionInPastError: The position is taken by a different record, or by a truncated one that can no longer
                be compared (`outcome_unknown`), or it is in a gap.
            QueueSealedError: The queue is sealed.
            RecordTooLargeError: The record can never fit.
            LogFullError: A limit of the log or of the queue is reached, or the disk is full. Nothing was written.
        """
        if type(payload) is not bytes:
            payload = copy_payload(payload)
        if create:
            return self._append_creating(queue, None if position is None else check_position(position), [payload])
        if position is None:
            return self._append_single(queue, payload)
        return self._admission.append(queue, check_position(position), [payload])

    def append_soon(self, queue: str, payload: Payload) -> asyncio.Future[int]:
        """Append *payload* at the next position of *queue* without a wait; return a future of that position.

        For pipelines that keep many records in flight: no task and no coroutine per record. Records are stored in the
        order of the calls, and each future is done once its record is durable under the persist policy. Cancelling it
        withdraws the record if the writer has not picked it up yet; after that, only the wait is cancelled.

        The call never waits for space: when `Limits.pending_bytes` is reached, it raises LogFullError("pending").
        Await the oldest future, then try again. A record that was accepted may wait for disk space after that if
        `Limits.on_full` is "wait".

        Args:
            queue: The queue.
            payload: Any bytes-like object. Anything but `bytes` is copied at once.

        Returns:
            A future of the position, on the log's event loop. It raises QueueNotFoundError, and everything else that
            happens to an accepted record. Await every future: if a failed one is dropped, asyncio only logs its error.

        Raises:
            RecordTooLargeError: The record can never fit.
            LogFullError: Too much is pending, or memory or the disk is full. Nothing was written.
        """
        if type(payload) is not bytes:
            payload = copy_payload(payload)
        return self._append_soon(queue, payload)

    @coroutine_function
    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* at consecutive positions, all or none; otherwise like `append_record`.

        Args:
            queue: The queue.
            position: Position of the first record; None for the next position.
            payloads: Any number of bytes-like objects.
            create: Create the queue if it does not exist.

        Returns:
            The last position, or None if there was nothing to append or every record was already stored.

        Raises:
            QueueNotFoundError: No queue has this name, and *create* is False.
            PositionInPastError: A position is taken; see `append_record`.
            RecordTooLargeError: A record, or the call as a whole, can never fit.
            LogFullError: A limit is reached or the disk is full. Nothing was written.
        """
        copied = [payload if type(payload) is bytes else copy_payload(payload) for payload in check_payloads(payloads)]
        checked = None if position is None else check_position(position)
        return (self._append_creating if create else self._admission.append)(queue, checked, copied)

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Remove the records of *queue* up to and including *position*.

        A position past the end removes all records and moves the next position to position + 1, as in the original:
        copies of a queue are given their positions that way. The service, the clients and the acknowledgements of
        consumers refuse such a position instead. A position before the first record writes nothing.

        Args:
            queue: The queue.
            position: The last position to remove.
            queue_id: Truncate only if the queue is still this incarnation (see `summary`).
            past_consumers: Remove records although a consumer has not acknowledged them; it continues after them.

        Returns:
            The number of records removed.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            ConsumerBehindError: A consumer has not acknowledged the records, and *past_consumers* is False.
            LogFullError: The disk is full, and so is the reserve for truncates and deletes. Nothing was written.
        """
        check_position(position)
        check_name(queue)
        dropped = await self._begin(TruncateQueue(self._new_future(), queue, position, queue_id, past_consumers))
        assert isinstance(dropped, int)
        return dropped

    async def sync(self) -> None:
        """Wait until everything acknowledged so far is on the medium, under every policy.

        Raises:
            LogClosedError: The log is closed or closing.
            LogFailedError: The log has failed, or this sync did.
        """
        await self._begin(Sync(self._new_future()))

    async def _append_creating(self, queue: str, position: int | None, payloads: list[bytes]) -> int | None:
        """Append; create the queue first if it does not exist, so that only this case pays for it."""
        if not isinstance(queue, str) or self._queues.get(queue) is None:
            # Not append first: what it refuses counts as refused, and this call is not.
            self._admission.check(queue, payloads)
            await self._create_for_append(queue)
        with suppress(QueueNotFoundError):
            return await self._admission.append(queue, position, payloads)
        await self._create_for_append(queue)  # it was deleted at that moment, and the refusal above is counted
        return await self._admission.append(queue, position, payloads)

    async def _create_for_append(self, queue: str) -> None:
        try:
            await self.create_queue(queue, exist_ok=True)
        except Exception as error:
            self._admission.refusals.counted(error)
            raise

    async def _declare(self, queues: dict[str, QueueOptions | None]) -> None:
        """Create *queues* where they do not exist, many in a batch; close the log if that fails."""
        rest = iter(queues.items())
        try:
            while group := list(islice(rest, QUEUES_AT_ONCE)):
                await asyncio.gather(
                    *(self.create_queue(queue, exist_ok=True, options=options) for queue, options in group)
                )
        except BaseException:
            await self.close()
            raise


class OpeningLog:
    """Result of `MultiRecordLog.open`: await it for the log, or use it with `async with`, which closes the log."""

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, MultiRecordLog]]) -> None:
        self._opening = opening
        self._log: MultiRecordLog | None = None

    if not TYPE_CHECKING:  # a type checker reports the missing attribute itself

        def __getattr__(self, name: str) -> NoReturn:
            text = f"the log is not open yet, so it has no {name!r}: write `log = await MultiRecordLog.open(directory)`"
            raise AttributeError(f"{text}, or `async with MultiRecordLog.open(directory) as log`", name=name, obj=self)

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

"""`MultiRecordLog`: many named queues in one directory, written durably and read from memory.

Every public method is here. The parts are `Engine`, which owns writer, thread and files, its `Admission`, through which
all changes go, `QueueLookup`, which finds queues for reads, and `ConsumerChanges`.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload
from uuid import UUID

from mrecordlog_async.batches import (
    BATCH_BYTES,
    BATCH_RECORDS,
    BatchLimits,
    check_bounds,
    check_seconds,
    not_acknowledged,
)
from mrecordlog_async.engine.commit.open import OpenOptions
from mrecordlog_async.engine.consumer import Consumer
from mrecordlog_async.engine.consuming import Attaching, ConsumerChanges
from mrecordlog_async.engine.declaring import Declaration, declare
from mrecordlog_async.engine.fitted import FittedLimits
from mrecordlog_async.engine.inspection import Inspection
from mrecordlog_async.engine.intake.controls import (
    ConfigureQueue,
    CreateQueue,
    CreateQueues,
    DeleteQueue,
    SealQueue,
    Sync,
    TruncateQueue,
)
from mrecordlog_async.engine.open_async import LockSeconds, open_log_async
from mrecordlog_async.engine.readers.tail import Tail
from mrecordlog_async.engine.running import Engine, EngineOptions
from mrecordlog_async.errors import LogClosedError, LogFailedError, QueueNotFoundError, RecordsOnDiskError
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.reads import held_between, position_of, summarize, time_at
from mrecordlog_async.memory.runs import as_runs
from mrecordlog_async.memory.settings import options_of, values_of
from mrecordlog_async.memory.stored_times import position_at
from mrecordlog_async.metrics import Counters, WorkerCounts
from mrecordlog_async.model import (
    Batch,
    ConsumerSummary,
    LogState,
    QueueSummary,
    Record,
    RecoveryProgress,
    RecoveryReport,
    ResourceUsage,
    Run,
    Start,
    check_position,
    check_start,
    copy_payload,
    copy_payloads,
    json_payload,
    tick_of_time,
)
from mrecordlog_async.names import check_consumers, check_name
from mrecordlog_async.options import (
    GIB,
    MIB,
    SEGMENT_BYTES_MIN,
    Limits,
    PersistPolicy,
    QueueOptions,
    check_names,
    check_queues,
    check_segment_bytes,
    check_type,
    memory_limit,
)
from mrecordlog_async.record_log import Payload
from mrecordlog_async.recovery.beyond_memory import MemoryBounds
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.os_filesystem import OsFileSystem
from mrecordlog_async.support.clock import Clock, system
from mrecordlog_async.support.coroutine_mark import coroutine_function

READ_RECORDS, READ_BYTES = 10_000, 4 * MIB
"""`read` takes this much at a time, at most."""

NONE_DECLARED: Mapping[str, Iterable[str]] = MappingProxyType({})
"""The consumers that a program declares by default."""


class MultiRecordLog:
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
    up or reading a queue raises LogClosedError once the log is closed, and QueueNotFoundError if it does not exist.

    Attributes:
        directory: Absolute path of the log's directory.
        limits: How much the log may hold.
        persist_policy: When a change is acknowledged.
        recovery_report: What recovery found when the log was opened.
        workers: How many workers of its application run, failed and ended; see `lifespan` and `setup`.
        inspection: What services and tools need from the log. It may change in any release.
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
        consumers: Mapping[str, Iterable[str]] = NONE_DECLARED,
        recycle: bool = True,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        on_failure: Callable[[LogFailedError], object] | None = None,
        retention: bool = True,
        verify_all: bool = False,
        lock_seconds: LockSeconds = 0.0,
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
            consumers: Consumers to create if they do not exist: lists of names by queue, or by a pattern (see
                `create_consumer`). They exist before the log is returned, so none misses a record because another one
                is faster. None is moved: a new one begins with the first retained record; one that was deleted since it
                was declared begins at the end, which is logged. One that was declared and is not any more stays, and a
                warning says how to delete it.
            recycle: Use the file of a segment without live records again for a later segment, instead of deleting it.
                Appends to it are faster; it keeps up to *segment_bytes* of disk space, which are given back before an
                append is refused for lack of space. Only under `PersistPolicy.always()`, on ext4 and XFS. Copy such
                a log with `mrecordlog snapshot`, not with cp or tar while it is open.
            on_progress: Called on the event loop while segments are read, and when opening begins to wait for another
                process.
            on_failure: Called once on the event loop if a write or sync fails: the log stores nothing more until it is
                opened again. Have the process restarted, or close the log and open it again. See also `failed`.
            retention: Remove the records that are older than the `max_age` of their queue. If the machine's clock is
                before the newest record, or more than a day and more than `max_age` after it, that waits until the
                clock is set, the log has been open for ten minutes, or it is the third such opening in a row. Open a
                log that was restored from an old copy with False: otherwise its records are removed then.
            verify_all: Read every segment. Otherwise, with `Limits(beyond_memory="disk")`, segments whose records are
                gathered are not read when the log is opened: damage to one is found when its records are.
            lock_seconds: How long to wait for another process that has the log open, such as the one that this one
                takes over from; or a function that returns it for the LogLockedError. Whom it waits for is logged at
                once. Cancelling ends the wait, and the event loop runs meanwhile. A log that this process itself has
                open is not waited for.
            filesystem: Replaces the operating system's files, for tests.

        Returns:
            An object that yields the open log when awaited or entered.

        Raises:
            TypeError: *persist_policy*, *limits*, *lock_seconds* or the options of a queue are of another class, or
                *consumers* does not map queues to lists of names.
            ValueError: *segment_bytes* is too small, or *lock_seconds* is negative or NaN.
            LogLockedError: Another open log owns the directory, and still does so after *lock_seconds*.
            CorruptionError: Acknowledged data is damaged. Nothing was changed.
            FileNotFoundError: There is no log in *directory*, and *create* is False.
            QueueNameError: A name in *queues* is invalid.
            ConsumerNameError: A name in *consumers* is invalid.
            QueueNotFoundError: A queue of *consumers* does not exist, and is not in *queues*.
            LogFullError: There is no space for *queues* or *consumers*.
            OSError: A system call failed, or *directory* contains other files and no log.
        """
        check_segment_bytes(segment_bytes)
        if not callable(lock_seconds):
            check_seconds("lock_seconds", lock_seconds)
        policy = PersistPolicy.always() if persist_policy is None else persist_policy
        check_type("persist_policy", policy, PersistPolicy)
        asked = Limits() if limits is None else limits
        check_type("limits", asked, Limits)
        declared = Declaration(check_queues(queues), check_consumers(consumers))
        direct = policy.syncs_each_batch

        async def opening(clock: Clock) -> MultiRecordLog:
            place = os.fsdecode(directory)
            fitted = FittedLimits(asked, place)
            memory_bytes, spills = memory_limit(fitted.limits), asked.beyond_memory == "disk"
            nominal = segment_bytes
            if spills:  # only the records of complete segments leave memory
                nominal = max(min(segment_bytes, memory_bytes // 4), SEGMENT_BYTES_MIN)
            by_index = spills and not verify_all
            memory = MemoryBounds(memory_bytes, by_index=by_index, is_usual=spills, exceeded=fitted.exceeded)
            options = OpenOptions(
                nominal, asked.disk_bytes, create, direct=direct, recycle=recycle, clock=clock, bounds=memory
            )
            files = filesystem or OsFileSystem()
            opened, thread = await open_log_async(LogDirectory(files, place), options, on_progress, lock_seconds)
            how = EngineOptions(policy, fitted.limits, on_failure, retention, clock=clock, files=files)
            log = cls(Engine(opened, thread, how))
            try:
                await declare(log._engine, declared)
            except BaseException:
                await log.close()
                raise
            return log

        return OpeningLog(opening)

    def __init__(self, engine: Engine) -> None:
        """Use `open`."""
        if not isinstance(engine, Engine):  # the first guess of many, with a directory
            raise TypeError("open a log with `async with MultiRecordLog.open(directory) as log`")
        self.directory = engine.directory
        self.limits = engine.options.limits
        self.persist_policy = engine.options.policy
        self.recovery_report: RecoveryReport = engine.opened.report
        self.workers = WorkerCounts()
        self._engine = engine
        self._lookup = engine.lookup
        self._admission = engine.admission
        self._submit = engine.admission.submit  # every change but an append goes through it
        self._consumers = ConsumerChanges(engine)
        self.inspection = Inspection(engine, self._consumers)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.directory!r}, {self.state.value}, queues: {len(self._engine.queues)}>"

    # Queues.

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
            self._lookup.check_name(queue)
        values = None if options is None else values_of(options)
        return bool(await self._submit(CreateQueue, queue, exist_ok, values))

    async def create_queues(
        self, names: Iterable[str], *, exist_ok: bool = False, options: QueueOptions | None = None
    ) -> int:
        """Create queues in one step, all or none, even after a crash. Durable under every policy.

        The event loop is busy for about 5 µs per queue.

        Args:
            names: The names. One that is given twice counts once.
            exist_ok: Leave queues that already exist as they are instead of raising.
            options: The options of those that are created; see `configure_queue`.

        Returns:
            The number of queues that were created.

        Raises:
            QueueExistsError: A queue exists, and *exist_ok* is False. No queue was created.
            QueueNameError: A name is invalid.
            LogFullError: The limit on queues is reached, that on consumers for those that rules create, or there is
                no space. No queue was created.
        """
        distinct = check_names(names)
        exists, check_new = self._lookup.get, self._lookup.check_name
        for name in distinct:
            if exists(name) is None:
                check_new(name)
        values = None if options is None else values_of(options)
        created = await self._submit(CreateQueues, distinct, exist_ok, values)
        assert isinstance(created, int)
        return created

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
        await self._submit(DeleteQueue, queue, queue_id, past_consumers)

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace the options of *queue*. Durable under every policy; a sealed queue stays sealed.

        Args:
            queue: The queue.
            options: All its options: those that are not passed have their defaults.

        Raises:
            QueueNotFoundError: No queue has this name.
            QueueOptionsError: A limit is below what the queue holds, and it does not drop its oldest records.
            LogFullError: There is no space.
        """
        check_name(queue)
        await self._submit(ConfigureQueue, queue, values_of(options))

    async def seal_queue(self, queue: str, *, queue_id: int | None = None) -> int:
        """Seal *queue*: it accepts no more records, for good. Durable under every policy.

        Appends that were not stored before the seal raise QueueSealedError, even those that waited for space. A repeat
        of a stored record still returns None. Tails and consumers end after the last record; the queue stays until it
        is deleted.

        Args:
            queue: The queue.
            queue_id: Seal it only if it is still this incarnation (see `summary`).

        Returns:
            The queue's next position, which no record will have.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            QueueSealedError: The queue is sealed already.
            LogFullError: There is no space.
        """
        check_name(queue)
        position = await self._submit(SealQueue, queue, queue_id)
        assert isinstance(position, int)
        return position

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        return self._lookup.get(queue) is not None

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._lookup.check_readable()
        return self._lookup.queues.names()

    def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary."""
        return options_of(self._lookup.find(queue).options)

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return the positions and sizes of one queue."""
        return summarize(self._lookup.find(queue))

    def summary(self) -> dict[str, QueueSummary]:
        """Return the positions and sizes of every queue, by name in order."""
        return self._lookup.summaries()

    # Appending and truncating.

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
        """Append *payload* to *queue* and wait until it is durable under the persist policy.

        A call whose outcome is unknown can be repeated with its position: if the same record is already stored,
        nothing is written. Once truncated, a record is still recognized (by length and checksum) while it is the
        queue's last append. Single records without a position that are stored together may count as one append.

        Args:
            queue: The queue.
            payload: Any bytes-like object. Anything but `bytes` is copied at once.
            position: None for the next position; a position chosen by the caller may leave a gap.
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
        return self.append_record(queue, position, payload, create=create)

    @coroutine_function
    def append_json(self, queue: str, value: object, *, create: bool = False) -> Coroutine[Any, Any, int]:
        """Append *value* to *queue* as JSON, in UTF-8 without spaces; `Batch.json` reads it.

        Args:
            queue: The queue.
            value: What `json.dumps` takes. NaN and the infinities are refused: JSON does not have them.
            create: Create the queue if it does not exist.

        Returns:
            The record's position.

        Raises:
            TypeError: JSON has no such value.
            ValueError: It is a number that JSON does not have, or refers to itself.
            RecordLogError: The errors of `append`.
        """
        return self.append_record(queue, None, json_payload(value), create=create)

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
        """Append *payload* to *queue*: `append` with the position before the payload, as in Quickwit's crate.

        Arguments, result and errors are those of `append`.
        """
        if type(payload) is not bytes:
            payload = copy_payload(payload)
        if create:
            return self._append_creating(queue, None if position is None else check_position(position), [payload])
        if position is None:
            return self._admission.append_single(queue, payload)
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
        return self._admission.append_soon(queue, payload)

    @coroutine_function
    def append_records(
        self, queue: str, position: int | None, payloads: Iterable[Payload], *, create: bool = False
    ) -> Coroutine[Any, Any, int | None]:
        """Append *payloads* at consecutive positions, all or none; otherwise like `append`.

        Args:
            queue: The queue.
            position: Position of the first record; None for the next position.
            payloads: Any number of bytes-like objects.
            create: Create the queue if it does not exist.

        Returns:
            The last position, or None if there was nothing to append or every record was already stored.

        Raises:
            QueueNotFoundError: No queue has this name, and *create* is False.
            PositionInPastError: A position is taken; see `append`.
            RecordTooLargeError: A record, or the call as a whole, can never fit.
            LogFullError: A limit is reached or the disk is full. Nothing was written.
        """
        copied = copy_payloads(payloads)
        checked = None if position is None else check_position(position)
        return (self._append_creating if create else self._admission.append)(queue, checked, copied)

    async def truncate(
        self, queue: str, position: int, *, queue_id: int | None = None, past_consumers: bool = False
    ) -> int:
        """Remove the records of *queue* up to and including *position*.

        A position past the end removes all records and moves the next position to position + 1, as in Quickwit's crate:
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
        position = check_position(position)
        check_name(queue)
        dropped = await self._submit(TruncateQueue, queue, position, queue_id, past_consumers)
        assert isinstance(dropped, int)
        return dropped

    async def _append_creating(self, queue: str, position: int | None, payloads: list[bytes]) -> int | None:
        """Append; create the queue first if it does not exist, so that only this case pays for it."""
        if not isinstance(queue, str) or self._lookup.queues.get(queue) is None:
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
            self._admission.refusals.counted(error, None)
            raise

    # Reading. What is returned is in memory, and never changes.

    def range(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Iterator[Record]:
        """Yield the records of *queue* with positions *start* … *stop* - 1.

        What is yielded is fixed at the call: later appends and truncates do not change it.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all.
            limit: At most this many records, the first ones; None for all.

        Raises:
            QueueNotFoundError: No queue has this name.
            RecordsOnDiskError: Some of them have left memory: see `read` and `fetch`.
            TypeError: A position is not an int.
            ValueError: *limit* is negative, or a time has no time zone or is in the future.
        """
        held = held_between(self._lookup.find(queue), start, stop, limit)
        return chain.from_iterable(run.records() for run in held)

    def runs(
        self, queue: str, start: Start | None = None, stop: int | None = None, *, limit: int | None = None
    ) -> Sequence[Run]:
        """Return the records that `range` yields as runs, of which only the first and the last one are cut.

        Runs between positions with gaps are made during iteration. The arguments and errors are those of `range`.

        Returns:
            A sequence that is fixed at the call.
        """
        return as_runs(held_between(self._lookup.find(queue), start, stop, limit))

    async def read(self, queue: str, start: Start | None = None, stop: int | None = None) -> AsyncIterator[Record]:
        """Yield the records of *queue* with positions *start* … *stop* - 1, from memory or from the disk.

            async for position, payload in log.read("orders"): ...

        What is appended meanwhile is yielded too if *stop* is None, until everything is read. Records that are
        truncated before their turn are left out.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            stop: Position after the last one; None for all.

        Raises:
            QueueNotFoundError: No queue has this name.
            TypeError: A position is not an int.
            ValueError: A time has no time zone, or is in the future.
            CorruptionError: Records on the disk are damaged.
            OSError: The disk refuses a read.
        """
        found = self._lookup.find(queue)
        position = await self._position_of(found, start)
        check_bounds(position, stop)
        while stop is None or position < stop:
            head = await self._engine.disk_reads.head(found, position, READ_RECORDS, READ_BYTES)
            if head is None:
                return
            for record in head.batch(found):
                if stop is not None and record.position >= stop:
                    return
                if record.position >= found.first_position:
                    yield record
            position = head.stop

    async def fetch(
        self, queue: str, start: Start | None = None, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES
    ) -> Batch | None:
        """Return the first records of *queue* from *start* on that are there, from memory or from the disk.

        Args:
            queue: The queue.
            start: First position, or a time (see `position_at`); None for the first retained one.
            max_records: At most this many records.
            max_bytes: At most this many payload bytes, but at least one record.

        Returns:
            What is retained when it returns; None if there is no record from *start* on.

        Raises:
            QueueNotFoundError: No queue has this name.
            TypeError: The position is not an int.
            ValueError: A limit is below 1, or a time has no time zone or is in the future.
            CorruptionError: Records on the disk are damaged.
            OSError: The disk refuses a read.
        """
        limits = BatchLimits.checked(max_records, max_bytes, None)
        found = self._lookup.find(queue)
        position = await self._position_of(found, start)
        check_bounds(position, None)
        head = await self._engine.disk_reads.head(found, position, limits.records, limits.bytes)
        return None if head is None else head.batch(found)

    def memory_first(self, queue: str) -> int:
        """Return the first position of *queue* that `range` and `runs` can read: those before it are on the disk."""
        found = self._lookup.find(queue)
        return max(found.first_position, found.memory_first)

    async def _position_of(self, queue: Queue, start: Start | None) -> int:
        """Return the position that *start* means in *queue*. Reads the disk if it is a time in records there."""
        if isinstance(start, datetime):
            return await self._engine.disk_reads.position_at(queue, tick_of_time(start))
        return queue.first_position if start is None else start

    def tail(self, queue: str, start: Start | None = None) -> Tail:
        """Return the records of *queue* from *start* on, and those that come, as an iterator that also gives batches.

            async for position, payload in log.tail("orders"): ...
            async for batch in log.tail("orders").batches(max_records=500): ...

        Args:
            queue: The queue.
            start: The first position to yield, or a time (see `position_at`). None and a truncated position start with
                the first retained record.

        Returns:
            The tail. It yields each record once it is durable under the persist policy, and ends when the queue is
            deleted or the log closes, and after the last record of a sealed queue or a drained log. A wait that is
            cancelled does not end it.

        Raises:
            QueueNotFoundError: No queue has this name.
            ValueError: *start* is not a position, or a time that has no time zone or is in the future.
        """
        found = self._lookup.find(queue)
        try:
            position = position_of(found, start)
        except RecordsOnDiskError:
            assert isinstance(start, datetime), "only a time is looked up"
            find = partial(self._engine.disk_reads.position_at, found, tick_of_time(start))
            return Tail(self._engine.watch(found.id), found.first_position, find)
        return Tail(self._engine.watch(found.id), found.first_position if position is None else check_start(position))

    async def wait_for(self, queue: str, position: int) -> bool:
        """Wait until *position* has been assigned in *queue*.

        Args:
            queue: The queue.
            position: The position to wait for; truncated records count.

        Returns:
            True once the queue's next position is past *position*; False if the queue was deleted, is sealed before
            that position, or the log closed or is drained.

        Raises:
            QueueNotFoundError: No queue has this name.
            LogFailedError: The log failed.
            ValueError: *position* is not one at which a tail can start.
        """
        check_start(position)
        return await self._engine.watch(self._lookup.find(queue).id).reach(position)

    # Positions and times.

    def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated: its next position if it is empty."""
        return self._lookup.find(queue).first_position

    def last_position(self, queue: str) -> int | None:
        """Return the position before the next one, even if it is truncated; None if that is 0."""
        next_position = self._lookup.find(queue).next_position
        return next_position - 1 if next_position else None

    def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* gets."""
        return self._lookup.find(queue).next_position

    def time_of(self, queue: str, position: int) -> datetime | None:
        """Return when the record of *queue* at *position* was stored, as the machine's clock was then.

        It is the time of the batch that the record was stored in, rounded down to 0.1 s. A restart does not change it.

        Args:
            queue: The queue.
            position: Position of the record.

        Returns:
            The time in UTC; None if no record is retained at this position.

        Raises:
            QueueNotFoundError: No queue has this name.
            RecordsOnDiskError: The record has left memory: the batch that `fetch` returns has its time.
        """
        return time_at(self._lookup.find(queue), position)

    def position_at(self, queue: str, time: datetime) -> int:
        """Return the position of the first retained record of *queue* that was stored at *time* or later.

        *time* is rounded down to 0.1 s, as the times of records are: no record that was stored since is missed. Every
        record before the position was stored earlier, even if the machine's clock went back. In a queue where it did,
        the search visits every change of the time.

        Args:
            queue: The queue.
            time: A time with a time zone, not in the future: up to a minute ahead of this machine's clock is allowed.

        Returns:
            The position; the next position if every record is older.

        Raises:
            QueueNotFoundError: No queue has this name.
            RecordsOnDiskError: The record has left memory: pass the time to `read`, `fetch` or `tail`.
            ValueError: *time* has no time zone, or is in the future.
        """
        return position_at(self._lookup.find(queue), tick_of_time(time))

    # Consumers: named, durable positions on queues.

    async def create_consumer(
        self, queue: str, consumer: str, *, start: Start | None = None, exist_ok: bool = False
    ) -> bool:
        """Create *consumer* on *queue*. Durable under every policy.

        A queue that contains `*` is a pattern, in which `*` stands for any characters: every queue that matches gets
        the consumer, and so do those that are created later, in the same moment as they are. Queues that have it
        already keep it as it is.

        Args:
            queue: The queue, or a pattern. A new pattern follows the rule of new names: at most `Limits.name_bytes`
                long in UTF-8, without control characters.
            consumer: Its name, at most `Limits.name_bytes` long in UTF-8.
            start: The first position that it has not acknowledged, moved into what the queue retains, or a time (see
                `position_at`); None for the first retained record.
            exist_ok: Return False instead of raising if the consumer, or the rule for the pattern, already exists.

        Returns:
            True if the consumer, or the rule, was created.

        Raises:
            QueueNotFoundError: No queue has this name.
            QueueNameError: The pattern is too long, or contains control characters.
            ConsumerExistsError: The consumer exists, and *exist_ok* is False.
            ConsumerNameError: The name is invalid.
            ValueError: *start* is not a position, or a time in the future.
            LogFullError: The limit on consumers is reached, or there is no space.
        """
        return await self._consumers.create(queue, consumer, start, exist_ok)

    async def delete_consumer(self, queue: str, consumer: str) -> None:
        """Delete *consumer* of *queue*, or with a pattern the rule, and the consumer of every queue that matches.

        Durable under every policy. A queue that keeps records until they are acknowledged is truncated to the slowest
        of its other consumers. If there is no rule for a pattern, but a queue of exactly that name has the consumer, it
        is deleted there.

        Args:
            queue: The queue, or the pattern that was passed to `create_consumer`.
            consumer: The name.

        Raises:
            QueueNotFoundError: No queue has this name.
            ConsumerNotFoundError: The queue has no such consumer, or there is no rule for the pattern.
        """
        await self._consumers.delete(queue, consumer)

    async def seek_consumer(
        self, queue: str, consumer: str, position: Start, *, queue_id: int | None = None, epoch: int | None = None
    ) -> int:
        """Have *consumer* continue at *position*; see `Consumer.seek`.

        Args:
            queue: The queue.
            consumer: The name.
            position: From the first retained position up to the next one, or a time (see `position_at`).
            queue_id: The queue_id of its holder.
            epoch: Number of its holder. None for an operator: the present holder is fenced off, and the
                move is durable under every policy.

        Returns:
            The position.

        Raises:
            RecordLogError: The errors of `Consumer.seek`.
        """
        return await self._consumers.seek(queue, consumer, position, queue_id, epoch)

    async def wait_acknowledged(
        self, queue: str, position: int, consumer: str, *, timeout: float | None = None
    ) -> None:
        """Wait until *consumer* has acknowledged the record at *position*, so that it has the record.

        With a drain as the consumer, its row is in the table then. Costs one entry in memory while it waits.

        Args:
            queue: The queue.
            position: Position of the record. It may be one that is yet to be assigned.
            consumer: The consumer.
            timeout: Seconds to wait; None waits without limit.

        Raises:
            TimeoutError: The time is over.
            RecordTruncatedError: A truncate or a seek moved the consumer past the record, as far as is known since the
                log was opened.
            QueueNotFoundError: No queue has this name, or it was deleted during the wait.
            ConsumerNotFoundError: The queue has no such consumer, or it was deleted during the wait.
            LogFailedError: The log failed, so nothing will be acknowledged.
            LogClosedError: The log was closed.
        """
        check_seconds("timeout", timeout, "the consumer")
        try:
            async with asyncio.timeout(timeout):
                await self._consumers.wait_acknowledged(queue, position, consumer)
        except TimeoutError:
            raise not_acknowledged(queue, position, consumer) from None

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        start: Start | None = None,
        owner: UUID | str | None = None,
        take_over: bool = False,
        if_idle_for: float | None = None,
    ) -> Consumer:
        """Return the holder of *consumer*: `async with log.consumer("orders", "billing") as c`. See `Consumer`.

        Args:
            queue: The queue.
            consumer: The name.
            create: Create it if it does not exist.
            start: Where it begins if it is created; see `create_consumer`.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.
            if_idle_for: Attach only if the holder was not seen for this many seconds, or there is none: for workers
                that take over from one that died. None attaches whatever the holder does.

        Raises:
            QueueNotFoundError: No queue has this name. Raised when the consumer is entered, as are the others.
            ConsumerNotFoundError: The queue has no such consumer, and *create* is False.
            ConsumerOwnedError: The consumer belongs to another owner.
            ConsumerHeldError: The holder was seen within *if_idle_for*.
            ConsumerNameError: The name is invalid.
            LogFullError: The limit on consumers is reached, or there is no space.
        """
        return Consumer(queue, consumer, self._consumers, Attaching(create, start, owner, take_over, if_idle_for))

    def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name in order.

        Counting what waits for a consumer takes longer the more runs it has still to read: 1 ms for a million records.
        """
        found = self._lookup.find(queue)
        return {one.consumer: one for one in self._consumers.summaries(found, sorted(found.consumers))}

    # State and numbers.

    @property
    def state(self) -> LogState:
        """The log's current state."""
        return self._engine.state

    async def failed(self) -> LogFailedError | None:
        """Wait until the log fails, and return why; None once it is closed without having failed.

        Await it in a task that ends the process, to have it started again: a failed log stores nothing more, and only
        opening it again recovers.
        """
        await self._engine.ended.wait()
        return self._engine.failed_error

    def stats(self) -> Counters:
        """Return a copy of the counters since the log was opened, with the times of the last minute."""
        found = self._engine.counters.snapshot()
        found.last_minute = self._engine.disk_watch.recent()
        return found

    def resource_usage(self) -> ResourceUsage:
        """Return the bytes, queues and segments in use, with their limits."""
        journal, limits, pins = self._engine.opened.journal, self.limits, self._engine.queues.pins
        return ResourceUsage(
            memory_bytes=self._engine.queues.memory_bytes,
            memory_limit_bytes=memory_limit(limits),
            disk_bytes=journal.space.taken_bytes,
            disk_written_bytes=journal.space.written_bytes,
            disk_limit_bytes=limits.disk_bytes,
            pending_bytes=self._admission.pending_bytes,
            pending_limit_bytes=limits.pending_bytes,
            queues=len(self._engine.queues),
            queues_limit=limits.queues,
            segments=len(journal.space.complete) + 1,
            disk_only_bytes=pins.disk_only_bytes,
            places_bytes=pins.gathered_bytes,
            gathered_bytes=journal.space.gathered_bytes,
        )

    @property
    def segments(self) -> builtins.range:
        """Numbers of the segments on the disk, oldest first. The last one is being written."""
        return self._engine.segments()

    # The end.

    async def sync(self) -> None:
        """Wait until everything acknowledged so far is on the medium, under every policy.

        Raises:
            LogClosedError: The log is closed or closing.
            LogFailedError: The log has failed, or this sync did.
        """
        await self._submit(Sync)

    async def drain(self, *, queues: Iterable[str] | None = None) -> None:
        """Refuse new appends, and let everybody finish: tails and consumers end after what is stored.

        The first step of a graceful shutdown; `close` is the last one. In between, acknowledgements, truncates and all
        other changes work as before:

            await log.drain()
            await worker          # its consumer ends by itself, after its last acknowledgement
            await log.close()

        A worker that appends what it makes of its records drains its own queues first, and then the log:

            await log.drain(queues=["jobs"])
            await worker          # it may still append to "results"

        Returns once the accepted appends are stored, under every policy durably. Appends that wait for space are
        refused. A repeated call waits for the same drain. Cancelling stops the waiting, not the draining.

        Args:
            queues: Refuse appends to these alone, until the log is closed, and end their tails and consumers; None for
                all queues.

        Raises:
            QueueNotFoundError: No queue has one of the names; none is drained.
            LogClosedError: The log is closed or closing.
            LogFailedError: The log has failed, or did so meanwhile.
        """
        names = None if queues is None else check_names(queues)
        for name in names or ():
            self._lookup.find(name)
        await self._engine.drain(names)

    async def close(self) -> None:
        """End tails, store what is pending, sync, and release the directory. A repeated call waits for the same close.

        Cancelling stops the waiting, not the closing.

        Raises:
            LogFailedError: Acknowledged changes could not be synced; `in_doubt` names their queues and positions.
                Raised after the directory is released, and only under policies weaker than `always()`.
                Under `always()` a failed log closes without an error: acknowledged changes are on the disk, and
                every other caller has had an error.
            LogClosedError: Called on another event loop than the log's.
        """
        await self._engine.close()

    async def __aenter__(self) -> Self:
        if self.state is LogState.CLOSED:
            raise LogClosedError()
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


class OpeningLog:
    """Result of `MultiRecordLog.open`: await it for the log, or use it with `async with`, which closes the log."""

    def __init__(self, opening: Callable[[Clock], Coroutine[Any, Any, MultiRecordLog]]) -> None:
        self._opening = opening
        self._clock: Clock | None = None  # tests set one
        self._log: MultiRecordLog | None = None

    if not TYPE_CHECKING:  # a type checker reports the missing attribute itself

        def __getattr__(self, name: str) -> NoReturn:
            text = f"the log is not open yet, so it has no {name!r}: write `log = await MultiRecordLog.open(directory)`"
            raise AttributeError(f"{text}, or `async with MultiRecordLog.open(directory) as log`", name=name, obj=self)

    def __await__(self) -> Generator[Any, None, MultiRecordLog]:
        return self._opening(self._clock or system()).__await__()

    async def __aenter__(self) -> MultiRecordLog:
        self._log = await self
        return self._log

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._log is not None
        await self._log.__aexit__(kind, error, traceback)

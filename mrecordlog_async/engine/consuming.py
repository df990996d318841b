"""The consumers of an open log: creating, deleting, holding and moving them, and the rules that give them to queues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from time import monotonic
from typing import NamedTuple
from uuid import UUID

from mrecordlog_async.engine.intake.controls import (
    AttachConsumer,
    Attached,
    ChangeRule,
    CreateConsumer,
    DeleteConsumer,
    MoveConsumer,
)
from mrecordlog_async.engine.readers.tail import QueueWatch
from mrecordlog_async.engine.running import Engine
from mrecordlog_async.errors import ConsumerFencedError, ConsumerHeldError, ConsumerNotFoundError, QueueNotFoundError
from mrecordlog_async.format.controls import TableRule
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.settings import consumer_summaries, owner_bytes
from mrecordlog_async.model import ConsumerSummary, Start, check_idle, check_position, check_start, tick_of_time
from mrecordlog_async.names import check_consumer_name, check_name, check_new_consumer_name
from mrecordlog_async.patterns import is_pattern, matches

QUEUES_AT_ONCE = 1_000
"""This many queues are compared with a pattern, and get their consumer or lose it, before the event loop turns."""

SEEN_SLACK = 64
"""Deleted consumers are forgotten once this many, and more than there are others, have been seen."""


class Attaching(NamedTuple):
    """Options for attaching to a consumer: see `MultiRecordLog.consumer`."""

    create: bool = False
    start: Start | None = None
    owner: UUID | str | None = None
    take_over: bool = False
    if_idle_for: float | None = None


class ConsumerChanges:
    """Checks each change of consumers, and passes it to the writer. The log owns it.

    It also knows when each holder was last seen: it attached, acknowledged, moved or waits for records. That is in
    memory alone. After an opening, a holder from before counts as seen when the log was opened.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._submit = engine.admission.submit
        self._lookup = engine.lookup
        self._disk_reads = engine.disk_reads
        self._opened = monotonic()
        self._seen: dict[tuple[int, str], float] = {}  # by queue id and consumer
        self._waiting = Counter[tuple[int, str]]()  # reads of a holder that wait for records
        self._entering = set[tuple[int, str]]()  # consumers that a caller found idle and is attaching to

    # Creating and deleting: on one queue, or with a pattern on every queue that matches, now and later.

    async def create(self, queue: str, consumer: str, start: Start | None, exist_ok: bool) -> bool:
        """Create a consumer, or a rule and its consumers; see `MultiRecordLog.create_consumer`."""
        check_name(queue)
        self._check_name(queue, consumer)
        if is_pattern(queue):
            return await self._create_rule(queue, consumer, start, exist_ok)
        position = await self._position(queue, start)
        return bool(await self._submit(CreateConsumer, queue, consumer, position, exist_ok))

    async def _create_rule(self, pattern: str, consumer: str, start: Start | None, exist_ok: bool) -> bool:
        if isinstance(start, datetime):
            tick_of_time(start)  # raises for one in the future, whether a queue matches or not
        elif start is not None:
            start = check_start(start)
        if TableRule(pattern, consumer) not in self._lookup.queues.rules.all:
            self._lookup.check_name(pattern)
        # The rule comes first: no queue can be created between the two without its consumer.
        created = bool(await self._submit(ChangeRule, pattern, consumer, False, exist_ok))
        for found in self._matching(pattern):
            calls = [
                self._submit(CreateConsumer, name, consumer, await self._position(name, start), True, queue_id)
                for name, queue_id in found
                if self._lookup.get(name) is not None
            ]
            await _all_but_deleted(calls)
        return created

    async def delete(self, queue: str, consumer: str) -> None:
        """Delete a consumer, or a rule and its consumers; see `MultiRecordLog.delete_consumer`."""
        check_name(queue)
        check_consumer_name(consumer)
        if not is_pattern(queue):
            await self._submit(DeleteConsumer, queue, consumer)
            return
        if TableRule(queue, consumer) in self._lookup.queues.rules.all:
            # The rule comes last: if this call fails before, it can be made again and deletes the rest.
            await self._delete_matching(queue, consumer)
        try:
            await self._submit(ChangeRule, queue, consumer, True, False)
        except ConsumerNotFoundError:
            if not self._has(queue, consumer):
                raise
            await self._submit(DeleteConsumer, queue, consumer)
            return
        await self._delete_matching(queue, consumer)  # of the queues that were created meanwhile

    async def _delete_matching(self, pattern: str, consumer: str) -> None:
        """Delete *consumer* of every queue that matches *pattern* and has it."""
        for found in self._matching(pattern):
            calls = [
                self._submit(DeleteConsumer, name, consumer, queue_id)
                for name, queue_id in found
                if self._has(name, consumer)
            ]
            await _all_but_deleted(calls)

    def _matching(self, pattern: str) -> Iterator[list[tuple[str, int]]]:
        """Yield the names and ids of the queues that match, a few queues at a time. Others may run in between."""
        queues = list(self._lookup.queues)
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            part = queues[at : at + QUEUES_AT_ONCE]
            yield [(queue.name, queue.id) for queue in part if matches(pattern, queue.name)]

    # Holding.

    async def attach(self, queue: str, consumer: str, how: Attaching) -> Attached:
        """Become the holder of *consumer*: every earlier one is fenced off. Errors: see `MultiRecordLog.consumer`."""
        check_name(queue)
        self._check_name(queue, consumer)
        owned, position = owner_bytes(how.owner), await self._position(queue, how.start)
        with self._enters(queue, consumer, how.if_idle_for):
            attached = await self._submit(AttachConsumer, queue, consumer, how.create, position, owned, how.take_over)
        assert isinstance(attached, Attached)
        self._note((attached.queue_id, consumer))
        return attached

    @contextmanager
    def _enters(self, name: str, consumer: str, seconds: float | None) -> Iterator[None]:
        """Let the caller attach; raise ConsumerHeldError if the holder of *consumer* was seen within *seconds*.

        With None, nothing is checked. Of several callers that find a consumer idle, or not yet created, one attaches.
        """
        if seconds is None:
            yield
            return
        queue = self._lookup.find(name)
        check_idle(seconds)
        key = (queue.id, consumer)
        idle = 0.0 if key in self._entering else self.idle_seconds(queue, consumer)
        if idle is not None and idle < seconds:
            raise ConsumerHeldError(name, consumer, idle, seconds)
        self._entering.add(key)
        try:
            yield
        finally:
            self._entering.discard(key)

    def idle_seconds(self, queue: Queue, consumer: str) -> float | None:
        """Return for how long the holder of *consumer* was not seen; None if nobody has held it."""
        state, key = queue.consumer(consumer), (queue.id, consumer)
        if state is None:
            return None
        if self._waiting[key]:
            return 0.0
        # One that was created since the log was opened, and was not seen, has no holder.
        from_before = state.epoch < self._engine.opened.ids_from
        seen = self._seen.get(key, self._opened if from_before else None)
        return None if seen is None else monotonic() - seen

    def summaries(self, queue: Queue, names: Iterable[str]) -> list[ConsumerSummary]:
        """Return where the consumers of *queue* called *names* are; those that do not exist are left out."""
        return consumer_summaries(queue, names, partial(self.idle_seconds, queue))

    def _note(self, key: tuple[int, str]) -> None:
        """Note that the holder of a consumer was seen; forget consumers that were deleted, from time to time."""
        self._seen[key] = monotonic()
        if len(self._seen) > 2 * self._lookup.queues.consumer_count + SEEN_SLACK:
            queues = self._lookup.queues
            self._seen = {
                (queue_id, name): seen
                for (queue_id, name), seen in self._seen.items()
                if (queue := queues.by_id(queue_id)) is not None and name in queue.consumers
            }

    @contextmanager
    def _waits(self, key: tuple[int, str]) -> Iterator[None]:
        self._waiting[key] += 1
        try:
            yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
            self._note(key)

    def check_holder(self, queue: str, consumer: str, *, queue_id: int, epoch: int) -> None:
        """Raise unless *epoch* is that of the present holder of *consumer*; see `Inspection.check_holder`."""
        found = self._lookup.find(queue)
        if found.id != queue_id:
            raise QueueNotFoundError(queue)
        check_holder(consumer, epoch, self._engine.epochs_from, found)
        self._note((queue_id, consumer))

    def watch(self, consumer: str, holder: Attached) -> QueueWatch:
        """Return the queue as *holder* sees it: not at all once the consumer was deleted or has another holder."""
        check = partial(check_holder, consumer, holder.epoch, self._engine.epochs_from)
        return self._engine.watch(holder.queue_id, check, partial(self._waits, (holder.queue_id, consumer)))

    async def wait_acknowledged(self, queue: str, position: int, consumer: str) -> None:
        """Wait until *consumer* has acknowledged *position*; see `MultiRecordLog.wait_acknowledged`."""
        position = check_position(position)
        check_consumer_name(consumer)
        found = self._lookup.find(queue)
        self._engine.check_running()
        await self._engine.changes.acknowledgements.wait(found, consumer, position)

    # Moving.

    async def acknowledge(self, queue: str, consumer: str, position: int, queue_id: int, epoch: int) -> int:
        """Acknowledge everything up to and including *position* for a holder; see `Consumer.acknowledge`."""
        position = check_position(position)
        return await self._move(queue, consumer, position + 1, False, queue_id, epoch)

    async def seek(
        self, queue: str, consumer: str, position: Start, queue_id: int | None = None, epoch: int | None = None
    ) -> int:
        """Have *consumer* continue at *position*; see `Consumer.seek`. epoch: None fences off the present holder."""
        goal = await self._position(queue, position)
        if goal is None:
            raise TypeError("position must be an int or a datetime, not None")
        return await self._move(queue, consumer, goal, True, queue_id, epoch)

    async def _move(
        self, queue: str, consumer: str, position: int, seeks: bool, queue_id: int | None, epoch: int | None
    ) -> int:
        check_name(queue)
        check_consumer_name(consumer)
        found = await self._submit(MoveConsumer, queue, consumer, position, seeks, queue_id, epoch)
        assert isinstance(found, int)
        if epoch is not None and queue_id is not None:
            self._note((queue_id, consumer))
        return found

    def _check_name(self, queue: str, consumer: object) -> None:
        """Raise ConsumerNameError if *consumer* is invalid. The name of one that exists on *queue* passes."""
        if self._has(queue, consumer):
            return
        if self._engine.options.any_name:
            check_consumer_name(consumer)
        elif not isinstance(consumer, str) or TableRule(queue, consumer) not in self._lookup.queues.rules.all:
            check_new_consumer_name(consumer, self._engine.options.limits.name_bytes)

    def _has(self, queue: str, consumer: object) -> bool:
        found = self._lookup.queues.get(queue)
        return isinstance(consumer, str) and found is not None and consumer in found.consumers

    async def _position(self, queue: str, start: Start | None) -> int | None:
        """Return the position that *start* means; None stays None. Waits only for a time in records on the disk."""
        if isinstance(start, datetime):
            found = self._lookup.find(queue)
            return check_start(await self._disk_reads.position_at(found, tick_of_time(start)))
        return None if start is None else check_start(start)


def check_holder(consumer: str, epoch: int, epochs_from: int, queue: Queue) -> None:
    """Raise unless *epoch* is that of the consumer's present holder. epochs_from: lower ones have ended."""
    state = queue.consumer(consumer)
    if state is None:
        raise ConsumerNotFoundError(queue.name, consumer)
    if state.epoch != epoch or epoch < epochs_from:
        raise ConsumerFencedError(queue.name, consumer, epoch, state.epoch)


async def _all_but_deleted(calls: list[asyncio.Future[object]]) -> None:
    """Wait for *calls*; raise the first error of them, unless its queue or its consumer was deleted meanwhile."""
    if not calls:
        await asyncio.sleep(0)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, QueueNotFoundError | ConsumerNotFoundError):
            raise result

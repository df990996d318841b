"""The consumers of an open log: creating, deleting, holding and moving them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from mrecordlog_async.batches import check_position, check_start
from mrecordlog_async.engine.intake.commands import (
    AttachConsumer,
    Attached,
    ChangeRule,
    Command,
    CreateConsumer,
    DeleteConsumer,
    MoveConsumer,
)
from mrecordlog_async.engine.readers.consumer import Consumer, ConsumerCalls, HeldQueue, check_holder
from mrecordlog_async.engine.reading import LiveReader
from mrecordlog_async.errors import ConsumerNotFoundError, QueueNotFoundError
from mrecordlog_async.format.table import TableRule
from mrecordlog_async.memory.setting_reads import SettingReader
from mrecordlog_async.memory.settings import owner_bytes
from mrecordlog_async.memory.times import tick_of_time
from mrecordlog_async.model import Start
from mrecordlog_async.names import check_consumer_name, check_name, check_new_consumer_name
from mrecordlog_async.patterns import is_pattern, matches

QUEUES_AT_ONCE = 1_000
"""So many queues are compared with a pattern, and get their consumer or lose it, before the event loop turns."""


class ConsumingLog(LiveReader, SettingReader):
    """A log with consumers: named, durable positions on its queues."""

    # Creating and deleting.

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
        check_name(queue)
        self._check_consumer_name(queue, consumer)
        if not is_pattern(queue):
            position = self._start(queue, start)
            return bool(await self._begin(CreateConsumer(self._new_future(), queue, consumer, position, exist_ok)))
        if isinstance(start, datetime):
            tick_of_time(start)  # raises for one in the future, whether a queue matches or not
        elif start is not None:
            check_start(start)
        if TableRule(queue, consumer) not in self._queues.rules:
            self._check_name(queue)
        # The rule comes first: no queue can be created between the two without its consumer.
        created = await self._begin(ChangeRule(self._new_future(), queue, consumer, False, exist_ok))
        for found in self._matching(queue):
            calls = [
                self._begin(
                    CreateConsumer(self._new_future(), name, consumer, self._start(name, start), True, queue_id)
                )
                for name, queue_id in found
                if self.queue_exists(name)
            ]
            await _all_but_deleted(calls)
        return bool(created)

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
        check_name(queue)
        check_consumer_name(consumer)
        if not is_pattern(queue):
            await self._begin(DeleteConsumer(self._new_future(), queue, consumer))
            return
        if TableRule(queue, consumer) in self._queues.rules:
            # The rule comes last: if this call fails before, it can be made again and deletes the rest.
            await self._delete_matching(queue, consumer)
        try:
            await self._begin(ChangeRule(self._new_future(), queue, consumer, True, False))
        except ConsumerNotFoundError:
            if not self._has_consumer(queue, consumer):
                raise
            await self._begin(DeleteConsumer(self._new_future(), queue, consumer))
            return
        await self._delete_matching(queue, consumer)  # of the queues that were created meanwhile

    async def _delete_matching(self, pattern: str, consumer: str) -> None:
        """Delete *consumer* of every queue that matches *pattern* and has it."""
        for found in self._matching(pattern):
            calls = [
                self._begin(DeleteConsumer(self._new_future(), name, consumer, queue_id))
                for name, queue_id in found
                if self._has_consumer(name, consumer)
            ]
            await _all_but_deleted(calls)

    def _matching(self, pattern: str) -> Iterator[list[tuple[str, int]]]:
        """Yield the names and ids of the queues that match, a few queues at a time. Others may run in between."""
        queues = list(self._queues)
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            part = queues[at : at + QUEUES_AT_ONCE]
            yield [(queue.name, queue.id) for queue in part if matches(pattern, queue.name)]

    # Holding.

    def consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = True,
        start: Start | None = None,
        owner: uuid.UUID | str | None = None,
        take_over: bool = False,
    ) -> Consumer:
        """Return the holder of *consumer*: `async with log.consumer("orders", "billing") as c`. See `Consumer`.

        Args:
            queue: The queue.
            consumer: The name.
            create: Create it if it does not exist.
            start: Where it begins if it is created; see `create_consumer`.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.

        Returns:
            The consumer. Entering it raises what `attach_consumer` raises.
        """
        return Consumer(
            queue,
            consumer,
            ConsumerCalls(
                partial(
                    self.attach_consumer, queue, consumer, create=create, start=start, owner=owner, take_over=take_over
                ),
                partial(self._move_as_holder, queue, consumer),
                partial(self._watch_as_holder, consumer),
            ),
        )

    async def attach_consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = False,
        start: Start | None = None,
        owner: uuid.UUID | str | None = None,
        take_over: bool = False,
    ) -> Attached:
        """Become the holder of *consumer*: every earlier one is fenced off. Durable under every policy.

        `consumer` does this for holders in this process; services attach for their clients.

        Args:
            queue: The queue.
            consumer: The name.
            create: Create it if it does not exist.
            start: Where it begins if it is created; see `create_consumer`.
            owner: A UUID that alone may attach to the consumer from now on; None for a consumer without an owner.
            take_over: Attach even if the consumer has another owner.

        Returns:
            The queue's id and the epoch, which the later calls of this holder carry, and the consumer's position.

        Raises:
            QueueNotFoundError: No queue has this name.
            ConsumerNotFoundError: The queue has no such consumer, and *create* is False.
            ConsumerOwnedError: The consumer belongs to another owner.
            ConsumerNameError: The name is invalid.
            LogFullError: The limit on consumers is reached, or there is no space.
        """
        check_name(queue)
        self._check_consumer_name(queue, consumer)
        owned, position = owner_bytes(owner), self._start(queue, start)
        attached = await self._begin(
            AttachConsumer(self._new_future(), queue, consumer, create, position, owned, take_over)
        )
        assert isinstance(attached, Attached)
        return attached

    def check_holder(self, queue: str, consumer: str, *, queue_id: int, epoch: int) -> None:
        """Raise unless *epoch* is that of the present holder of *consumer*: for services, before and after a read.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            ConsumerNotFoundError: The queue has no such consumer.
            ConsumerFencedError: Another holder has attached since.
        """
        found = self._queue(queue)
        if found.id != queue_id:
            raise QueueNotFoundError(queue)
        check_holder(found, consumer, epoch, self._epochs_from)

    async def wait_as_holder(self, consumer: str, position: int, *, queue_id: int, epoch: int) -> bool:
        """Wait as `wait_for` does, as the present holder of *consumer*: for services.

        Raises:
            ConsumerNotFoundError: The consumer was deleted.
            ConsumerFencedError: Another holder has attached.
            LogFailedError: The log failed.
        """
        return await self._watch_as_holder(consumer, Attached(queue_id, epoch, position)).reach(position)

    # Moving.

    async def acknowledge(self, queue: str, consumer: str, position: int, *, queue_id: int, epoch: int) -> int:
        """Acknowledge everything up to and including *position* for a holder; see `Consumer.acknowledge`.

        Args:
            queue: The queue.
            consumer: The name.
            position: The last position that is acknowledged.
            queue_id: As `attach_consumer` returned it.
            epoch: As `attach_consumer` returned it.

        Returns:
            The consumer's position: the first one that it has not acknowledged.

        Raises:
            RecordLogError: The errors of `Consumer.acknowledge`.
        """
        check_position(position)
        return await self._move(queue, consumer, position + 1, False, queue_id, epoch)

    async def seek_consumer(
        self, queue: str, consumer: str, position: Start, *, queue_id: int | None = None, epoch: int | None = None
    ) -> int:
        """Have *consumer* continue at *position*; see `Consumer.seek`.

        Args:
            queue: The queue.
            consumer: The name.
            position: From the first retained position up to the next one, or a time (see `position_at`).
            queue_id: As `attach_consumer` returned it.
            epoch: As `attach_consumer` returned it. None for an operator: the present holder is fenced off, and the
                move is durable under every policy.

        Returns:
            The position.

        Raises:
            RecordLogError: The errors of `Consumer.seek`.
        """
        goal = self._start(queue, position)
        if goal is None:
            raise TypeError("position must be an int or a datetime, not None")
        return await self._move(queue, consumer, goal, True, queue_id, epoch)

    async def _move(
        self, queue: str, consumer: str, position: int, seeks: bool, queue_id: int | None, epoch: int | None
    ) -> int:
        check_name(queue)
        check_consumer_name(consumer)
        found = await self._begin(MoveConsumer(self._new_future(), queue, consumer, position, seeks, queue_id, epoch))
        assert isinstance(found, int)
        return found

    def _check_consumer_name(self, queue: str, consumer: object) -> None:
        """Raise ConsumerNameError if *consumer* is invalid. The name of one that exists on *queue* passes."""
        if self._has_consumer(queue, consumer):
            return
        if not isinstance(consumer, str) or TableRule(queue, consumer) not in self._queues.rules:
            check_new_consumer_name(consumer, self.limits.name_bytes)

    def _has_consumer(self, queue: str, consumer: object) -> bool:
        found = self._queues.get(queue)
        return isinstance(consumer, str) and found is not None and consumer in found.consumers

    def _start(self, queue: str, start: Start | None) -> int | None:
        """Return the position that *start* means; None stays None."""
        position = self.position_at(queue, start) if isinstance(start, datetime) else start
        return None if position is None else check_start(position)

    async def _move_as_holder(self, queue: str, consumer: str, goal: Start, seeks: bool, holder: Attached) -> int:
        if seeks:
            return await self.seek_consumer(queue, consumer, goal, queue_id=holder.queue_id, epoch=holder.epoch)
        position = check_position(goal)  # type: ignore[arg-type]  # a time, like anything that is not a position, raises
        return await self.acknowledge(queue, consumer, position, queue_id=holder.queue_id, epoch=holder.epoch)

    def _watch_as_holder(self, consumer: str, attached: Attached) -> HeldQueue:
        watch = HeldQueue(
            self._queues, attached.queue_id, self._changes, self._is_closing, lambda: self._writer.failure
        )
        watch.consumer, watch.epoch, watch.epochs_from = consumer, attached.epoch, self._epochs_from
        return watch

    # Changes go through admission, appends with `append` and `append_single`, the others as commands.

    def _begin(self, command: Command) -> asyncio.Future[object]:
        """Pass *command* to the writer; return its future, to be awaited without a name.

        An error references the frame that awaits it: with the future in that frame, that would be a cycle.
        """
        self._admission.add_control(command)
        return command.future

    def _new_future(self) -> asyncio.Future[object]:
        return self._admission.new_future()


async def _all_but_deleted(calls: list[asyncio.Future[object]]) -> None:
    """Wait for *calls*; raise the first error of them, unless its queue or its consumer was deleted meanwhile."""
    if not calls:
        await asyncio.sleep(0)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, QueueNotFoundError | ConsumerNotFoundError):
            raise result

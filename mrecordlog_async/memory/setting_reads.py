"""Reads of options and consumers: the same for `MultiRecordLog` and `ReadOnlyLog`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mrecordlog_async.errors import ConsumerNotFoundError
from mrecordlog_async.memory.reads import QueueReader
from mrecordlog_async.memory.searches import QUEUES_PER_STEP
from mrecordlog_async.memory.settings import consumer_summaries, options_of
from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.options import QueueOptions


class SettingReader(QueueReader):
    """Reads from memory. Nothing here waits, and returned values never change."""

    def queue_options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*. Whether it is sealed is in its summary.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return options_of(self._queue(queue).options)

    def consumers(self, queue: str) -> dict[str, ConsumerSummary]:
        """Return where the consumers of *queue* stand, by name in order.

        Counting what waits for a consumer takes longer the more runs it has still to read: 1 ms for a million records.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        found = self._queue(queue)
        return {one.consumer: one for one in consumer_summaries(found, sorted(found.consumers))}

    def consumer_summaries(self, queue: str, consumers: Iterable[str]) -> list[ConsumerSummary]:
        """Return where *consumers* of *queue* are, in this order; those that do not exist are left out.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return consumer_summaries(self._queue(queue), consumers)

    def consumer_position(self, queue: str, consumer: str) -> int:
        """Return the first position that a consumer of *queue* has not acknowledged.

        Raises:
            QueueNotFoundError: No queue has this name.
            ConsumerNotFoundError: The queue has no such consumer.
        """
        state = self._queue(queue).consumer(consumer)
        if state is None:
            raise ConsumerNotFoundError(queue, consumer)
        return state.position

    def consumer_names(self, queue: str) -> Collection[str]:
        """Return the names of the consumers of *queue*, unsorted, for lists that are too long to sort in one turn.

        Copy them before anything else runs: they are a view.

        Raises:
            QueueNotFoundError: No queue has this name.
        """
        return self._queue(queue).consumers

    @property
    def consumer_count(self) -> int:
        """The number of consumers of all queues."""
        return self._queues.consumer_count

    def queues_with_consumers(self) -> Iterator[list[str]]:
        """Find the queues that have consumers, a thousand queues at a time, so that other work can run in between.

        Yields:
            The names found in each step, unsorted; nothing if no queue has a consumer.
        """
        self._check_readable()
        listed = list(self._queues) if self._queues.consumer_count else []
        for at in range(0, len(listed), QUEUES_PER_STEP):
            yield [queue.name for queue in listed[at : at + QUEUES_PER_STEP] if queue.consumers]

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        self._check_readable()
        return sorted((rule.pattern, rule.name) for rule in self._queues.rules)

    def unsorted_rules(self) -> Collection[tuple[str, str]]:
        """Return the rules unsorted, for lists that are too long to sort in one turn of the event loop.

        Copy them before anything else runs: they are a view.
        """
        self._check_readable()
        return self._queues.rules

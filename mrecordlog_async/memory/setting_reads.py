"""Reads of options and consumers: the same for `MultiRecordLog` and `ReadOnlyLog`."""

from __future__ import annotations

from collections.abc import Iterator

from mrecordlog_async.memory.ranking import QUEUES_PER_STEP
from mrecordlog_async.memory.reads import QueueReader
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
        return {found.consumer: found for found in consumer_summaries(self._queues, self._queue(queue))}

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

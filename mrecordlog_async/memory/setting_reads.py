"""Reads of options and consumers: the same for `MultiRecordLog` and `ReadOnlyLog`."""

from __future__ import annotations

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

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        self._check_readable()
        return sorted((rule.pattern, rule.name) for rule in self._queues.rules)

"""The consumers of a queue, and the rules, as the commands planned so far leave them. Pure.

Most batches concern neither: `QueueView` and `Draft` make these objects when they are first asked for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from mrecordlog_async.format.controls import ConsumerState, TableRule
from mrecordlog_async.memory.consumers import Rules
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.patterns import beginning_of


class ConsumerMove(NamedTuple):
    """An acknowledgement or a seek that a batch contains: the consumer's position before it, and after it."""

    queue_id: int
    consumer: str
    before: int
    position: int
    seeks: bool


class PlannedConsumers:
    """The consumers of *queue* as the batch leaves them.

    Only what the batch changes is kept here; the other consumers are read where they are, so a batch costs what it
    changes however many consumers the queue has. They do not change meanwhile.

    count: the number of consumers. Truncates of the batch have not moved them.
    """

    __slots__ = ("_changed", "_heap", "_lowest", "_queue", "_unchanged", "count")

    def __init__(self, queue: Queue | None) -> None:
        self.count = len(queue.consumers) if queue is not None else 0
        self._queue = queue
        self._changed: dict[str, ConsumerState | None] = {}  # None for one that is deleted
        self._heap: list[tuple[int, str]] = []  # of those that are changed, and outdated entries
        self._unchanged: Iterator[tuple[int, str]] | None = None  # goes through the stored ones, the lowest first
        self._lowest: tuple[int, str] | None = None  # the one that it has reached

    def get(self, name: str) -> ConsumerState | None:
        """Return the state of a consumer, or None if it does not exist."""
        if name in self._changed or self._queue is None:
            return self._changed.get(name)
        return self._queue.consumer(name)

    def set(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it."""
        self.count += self.get(name) is None
        self._changed[name] = state
        heappush(self._heap, (state.position, name))

    def delete(self, name: str) -> None:
        """Delete a consumer, which exists."""
        self.count -= 1
        self._changed[name] = None

    def slowest(self) -> str | None:
        """Return the name of a consumer that is furthest behind, or None without consumers."""
        found = [entry for entry in (self._lowest_unchanged(), self._lowest_changed()) if entry is not None]
        return min(found)[1] if found else None

    def _lowest_unchanged(self) -> tuple[int, str] | None:
        """Return the lowest of the stored consumers that the batch does not change."""
        if self._unchanged is None:
            self._unchanged = self._queue.consumers.ascending() if self._queue is not None else iter(())
            self._lowest = next(self._unchanged, None)
        while self._lowest is not None and self._lowest[1] in self._changed:  # it stays changed: never look again
            self._lowest = next(self._unchanged, None)
        return self._lowest

    def _lowest_changed(self) -> tuple[int, str] | None:
        while self._heap:
            position, name = self._heap[0]
            state = self._changed[name]
            if state is not None and state.position == position:
                return self._heap[0]
            heappop(self._heap)
        return None


class PlannedRules:
    """The rules as the batch leaves them: *stored*, those in memory, and what it changes. count: their number."""

    def __init__(self, stored: Rules) -> None:
        self.count = len(stored.all)
        self._stored = stored
        self._added = Rules()
        self._removed: set[TableRule] = set()  # of the stored ones
        self._starred = stored.starred()

    def has(self, rule: TableRule) -> bool:
        """Return whether *rule* exists."""
        return rule in self._added.all or (rule in self._stored.all and rule not in self._removed)

    def change(self, rule: TableRule, *, removes: bool) -> None:
        """Add *rule*, which does not exist, or remove it, which does."""
        change = -1 if removes else 1
        self.count += change
        self._starred += 0 if beginning_of(rule.pattern) else change
        if rule in self._stored.all:
            (self._removed.add if removes else self._removed.remove)(rule)
        else:
            (self._added.remove if removes else self._added.add)(rule)

    def matching(self, queue: str) -> tuple[list[TableRule], int]:
        """Return the rules whose patterns match *queue*, in order, and how many were compared with it."""
        found, compared = self._stored.matching(queue)
        added, more = self._added.matching(queue)
        return sorted(rule for rule in found + added if rule not in self._removed), compared + more

    def starred(self) -> int:
        """Return the number of rules whose patterns begin with a star."""
        return self._starred

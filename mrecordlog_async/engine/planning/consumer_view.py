"""Moves of consumers that a batch contains, and the rules as the commands planned so far leave them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from mrecordlog_async.format.controls import TableRule
from mrecordlog_async.memory.consumers import Rules
from mrecordlog_async.patterns import beginning_of


class ConsumerMove(NamedTuple):
    """An acknowledgement or a seek that a batch contains: the consumer's position before it, and after it."""

    queue_id: int
    consumer: str
    before: int
    position: int
    seeks: bool


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

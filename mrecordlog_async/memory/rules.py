"""The rules that give new queues a consumer, found by how the names begin that they match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mrecordlog_async.format.table import TableRule
from mrecordlog_async.patterns import beginning_of, matches


class Rules:
    """A set of rules. A new queue is compared with those alone whose patterns begin like its name, up to their stars.

    Those that begin with a star are compared with every new queue: the plan limits their number.
    """

    def __init__(self) -> None:
        self._rules: set[TableRule] = set()
        self._by_beginning: dict[str, set[TableRule]] = {}
        self._lengths: Counter[int] = Counter()  # how many beginnings have each length

    def __len__(self) -> int:
        return len(self._rules)

    def __contains__(self, rule: object) -> bool:
        return rule in self._rules

    def __iter__(self) -> Iterator[TableRule]:
        return iter(self._rules)

    def add(self, rule: TableRule) -> None:
        """Add *rule*, which is not there yet."""
        self._rules.add(rule)
        beginning = beginning_of(rule.pattern)
        alike = self._by_beginning.get(beginning)
        if alike is None:
            alike = self._by_beginning[beginning] = set()
            self._lengths[len(beginning)] += 1
        alike.add(rule)

    def remove(self, rule: TableRule) -> None:
        """Remove *rule*, which is there."""
        self._rules.remove(rule)
        beginning = beginning_of(rule.pattern)
        alike = self._by_beginning[beginning]
        alike.remove(rule)
        if not alike:
            del self._by_beginning[beginning]
            self._lengths -= Counter((len(beginning),))

    def matching(self, queue: str) -> tuple[list[TableRule], int]:
        """Return the rules whose patterns match *queue*, and how many were compared with it."""
        found: list[TableRule] = []
        compared = 0
        for length in self._lengths:
            alike = self._by_beginning.get(queue[:length]) if length <= len(queue) else None
            if alike:
                compared += len(alike)
                found += [rule for rule in alike if matches(rule.pattern, queue)]
        return found, compared

    def starred(self) -> int:
        """Return the number of rules whose patterns begin with a star."""
        return len(self._by_beginning.get("", ()))

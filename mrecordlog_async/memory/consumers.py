"""The consumers of one queue: where each is, which is the slowest, and how many records truncates took from each.

A change visits all consumers of its queue at most once: planning refuses to create more than `CONSUMERS_MAX` of them. A
log that has more opens none the less.

The rules that give new queues a consumer are found by how the names begin that they match (`Rules`). One whose pattern
is the name of a queue says that a program declares the consumer; only `engine.declaring` and replay know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from mrecordlog_async.format.controls import ConsumerState, TableRule
from mrecordlog_async.patterns import beginning_of, is_pattern, matches

CONSUMERS_MAX = 1_000
"""Consumers that a queue may be given: a truncate visits all of them, which takes half a millisecond."""


class Taken(NamedTuple):
    """Records that truncates took from a consumer: how many, and positions from the first up to the last of them."""

    records: int
    first_position: int
    next_position: int


_NOTHING: dict[str, Taken] = {}
"""Shared and always empty: most queues have one consumer, and no truncate passes it."""


class Consumers:
    """Name and state of each consumer of a queue. Iteration yields the names."""

    __slots__ = ("_states", "_taken")

    def __init__(self) -> None:
        self._states: dict[str, ConsumerState] = {}
        self._taken = _NOTHING  # of consumers that truncates have passed

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    @property
    def states(self) -> Mapping[str, ConsumerState]:
        """The state of each consumer."""
        return self._states

    def skipped(self, name: str) -> int:
        """Return how many records truncates took from a consumer before it acknowledged them."""
        return self._taken[name].records if name in self._taken else 0

    def passed(self, name: str) -> tuple[int, int]:
        """Return the positions that truncates took from a consumer: the first one, and the one after the last.

        If there were several such ranges, they and what is between them.
        """
        return self._taken[name][1:] if name in self._taken else (0, 0)

    def forget_skipped(self) -> None:
        """Count what consumers skip from now on."""
        self._taken = _NOTHING

    def set(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it."""
        self._states[name] = state

    def delete(self, name: str) -> None:
        """Delete a consumer; KeyError if it does not exist."""
        del self._states[name]
        if name in self._taken:
            del self._taken[name]

    def truncate(self, first_position: int, position: int, count: Callable[[int, int], int]) -> None:
        """Move the consumers up that records up to and including *position* are about to be dropped from.

        first_position: of the queue. A consumer may be below it: a queue may begin with a gap. count: returns the
        number of records from a position up to another one.
        """
        passed = [(state.position, name) for name, state in self._states.items() if state.position <= position]
        if not passed:
            return
        if self._taken is _NOTHING:
            self._taken = {}
        end, records = position + 1, 0
        for at, name in sorted(passed, reverse=True):  # what one has lost, those below it have lost, too
            if (start := max(at, first_position)) < end:
                records += count(start, end)
                end = start
            before = self._taken.get(name, Taken(0, at, at))
            self._taken[name] = Taken(before.records + records, min(before.first_position, at), position + 1)
            self._states[name] = self._states[name]._replace(position=position + 1)

    def slowest(self) -> str:
        """Return the name of the consumer that is furthest behind; "" if there is none."""
        return slowest_of(self._states)


def slowest_of(states: Mapping[str, ConsumerState]) -> str:
    """Return the name of a consumer that is furthest behind; "" if there is none."""
    return min(states, key=states.__getitem__, default="")  # a state begins with its position


NO_CONSUMERS = Consumers()
"""Shared by all queues without consumers, and always empty."""


class Rules:
    """A set of rules. A new queue is compared with those alone whose patterns begin like its name, up to their stars.

    Those that begin with a star are compared with every new queue: the plan limits their number.
    all: the rules. Only `add` and `remove` change it.
    """

    def __init__(self) -> None:
        self.all: set[TableRule] = set()
        self._by_beginning: dict[str, set[TableRule]] = {}
        self._lengths: Counter[int] = Counter()  # how many beginnings have each length

    def add(self, rule: TableRule) -> None:
        """Add *rule*, which is not there yet."""
        self.all.add(rule)
        beginning = beginning_of(rule.pattern)
        alike = self._by_beginning.get(beginning)
        if alike is None:
            alike = self._by_beginning[beginning] = set()
            self._lengths[len(beginning)] += 1
        alike.add(rule)

    def remove(self, rule: TableRule) -> None:
        """Remove *rule*, which is there."""
        self.all.remove(rule)
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

    def of_patterns(self) -> list[TableRule]:
        """Return the rules that somebody created, unsorted: those of declared consumers are not among them."""
        return [rule for rule in self.all if is_pattern(rule.pattern)]

    def declared(self, queue: str) -> list[str]:
        """Return the names of the consumers of *queue* that a program has declared, sorted."""
        return sorted(rule.name for rule in self._by_beginning.get(queue, ()) if rule.pattern == queue)

    def starred(self) -> int:
        """Return the number of rules whose patterns begin with a star."""
        return len(self._by_beginning.get("", ()))

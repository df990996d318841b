"""The consumers of one queue: where each is, which is the slowest, and how many records truncates took from each.

A queue may have thousands of consumers, so nothing here visits all of them for one change:

1. A truncate does not move the consumers that it passes: it notes their names. Their position is the queue's first one
   until they move on. (Others may be below it: a queue may begin with a gap.)
2. Consumers that no truncate has passed are in a heap by position. A consumer that moves leaves an outdated entry
   there, which is dropped when it becomes the lowest, or when more than half of the entries are outdated.
3. A truncate takes the consumers that it passes from the heap. From then on, all records that the queue drops count as
   skipped by them, which a difference of two sums says.

The rules that give new queues a consumer are found by how the names begin that they match (`Rules`). One whose pattern
is the name of a queue says that a program declares the consumer; only `engine.declaring` and replay know of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from mrecordlog_async.format.controls import ConsumerState, TableRule
from mrecordlog_async.patterns import beginning_of, is_pattern, matches

OUTDATED_MIN = 64
"""Fewer outdated entries than this are left in the heap."""

_NONE: dict[str, int] = {}
"""Shared and always empty: most queues have one consumer, and no truncate passes it."""
_NO_RANGES: dict[str, tuple[int, int]] = {}
"""As `_NONE`."""


class Consumers:
    """Name and state of each consumer of a queue. Iteration yields the names."""

    __slots__ = ("_ahead", "_dropped", "_lost", "_passed", "_skipped", "_states", "_truncated_to")

    def __init__(self) -> None:
        self._states: dict[str, ConsumerState] = {}  # as they were set
        self._ahead: list[tuple[int, str]] = []  # a heap of those that no truncate has passed, and outdated entries
        self._passed = _NONE  # the others, each with the value of `_dropped` at which it had skipped none
        self._dropped = 0  # records that truncates dropped
        self._skipped = _NONE  # of consumers that are not passed any more
        self._truncated_to = 0  # position after the last one that a truncate passed a consumer with
        self._lost = _NO_RANGES  # positions that truncates took from consumers that are not passed any more

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def get(self, name: str, first_position: int) -> ConsumerState | None:
        """Return the state of a consumer of a queue that begins at *first_position*; None if it does not exist."""
        state = self._states.get(name)
        return moved_up(state, first_position) if name in self._passed else state

    def skipped(self, name: str) -> int:
        """Return how many records truncates took from a consumer before it acknowledged them."""
        since = self._passed.get(name)
        return self._skipped.get(name, 0) if since is None else self._dropped - since

    def passed(self, name: str, first_position: int) -> tuple[int, int]:
        """Return the positions that truncates took from a consumer: the first one, and the one after the last.

        In a queue that begins at *first_position*. If there were several such ranges, they and what is between them.
        """
        first, end = self._lost.get(name, (first_position, first_position))
        if name not in self._passed:
            return (first, end) if name in self._lost else (0, 0)
        return min(first, self._states[name].position), first_position

    def forget_skipped(self) -> None:
        """Count what consumers skip from now on."""
        self._skipped = _NONE
        self._lost = _NO_RANGES
        if self._passed:
            self._passed = dict.fromkeys(self._passed, self._dropped)

    def set(self, name: str, state: ConsumerState) -> None:
        """Create a consumer, or move it."""
        before = self._states.get(name)
        self._states[name] = state
        if name in self._passed:
            self._keep_skipped(name)
            if self._lost is _NO_RANGES:
                self._lost = {}
            assert before is not None, "it was passed"
            first = self._lost.get(name, (before.position, 0))[0]
            self._lost[name] = min(first, before.position), self._truncated_to
        elif before is not None and before.position == state.position:
            return
        heappush(self._ahead, (state.position, name))
        self._drop_outdated()

    def delete(self, name: str) -> None:
        """Delete a consumer; KeyError if it does not exist."""
        del self._states[name]
        self._passed.pop(name, None)
        self._skipped.pop(name, None)
        self._lost.pop(name, None)
        self._drop_outdated()

    def truncate(self, first_position: int, position: int, count: Callable[[int, int], int]) -> None:
        """Note that records from *first_position* up to and including *position* are about to be dropped.

        count: returns the number of records from a position up to another one.
        """
        reached = self._take_up_to(position)
        if not reached and not self._passed:
            return
        if self._passed is _NONE:
            self._passed = {}
        self._truncated_to = position + 1
        at, records = first_position, 0
        for consumer_position, name in reached:
            if consumer_position > at:
                records += count(at, consumer_position)
                at = consumer_position
            # Records below its position are not lost to it. What it has skipped before is added.
            self._passed[name] = self._dropped + records - self._skipped.pop(name, 0)
        self._dropped += records + count(at, position + 1)
        self._drop_outdated()

    def slowest(self) -> str:
        """Return the name of the consumer that is furthest behind; "" without consumers."""
        return next(self.ascending(), (0, ""))[1]

    def ascending(self) -> Iterator[tuple[int, str]]:
        """Yield position and name of each consumer, the lowest first, some twice. They must not change meanwhile.

        Each step takes the same time however many consumers there are. The positions are those of their states.
        """
        for name in self._passed:
            yield self._states[name].position, name
        heap = self._ahead
        following = [(heap[0], 0)] if heap else []  # a heap of entries whose parents were yielded, and their places
        while following:
            entry, place = heappop(following)
            if self._is_current(entry):
                yield entry
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heappush(following, (heap[child], child))

    def _take_up_to(self, position: int) -> list[tuple[int, str]]:
        """Take the consumers up to *position* from the heap; return them, the lowest first."""
        taken: dict[tuple[int, str], None] = {}
        while self._ahead and self._ahead[0][0] <= position:
            entry = heappop(self._ahead)
            if self._is_current(entry):
                taken[entry] = None  # once, if it was there twice
        return list(taken)

    def _keep_skipped(self, name: str) -> None:
        """Keep what a consumer has skipped: it moves, and is not passed any more."""
        if skipped := self._dropped - self._passed.pop(name):
            if self._skipped is _NONE:
                self._skipped = {}
            self._skipped[name] = skipped

    def _is_current(self, entry: tuple[int, str]) -> bool:
        position, name = entry
        state = self._states.get(name)
        return state is not None and state.position == position and name not in self._passed

    def _drop_outdated(self) -> None:
        """Drop outdated entries from the top of the heap, and all of them if they are many."""
        heap = self._ahead
        while heap and not self._is_current(heap[0]):
            heappop(heap)
        if len(heap) > 2 * (len(self._states) - len(self._passed)) + OUTDATED_MIN:
            heap[:] = [(state.position, name) for name, state in self._states.items() if name not in self._passed]
            heapify(heap)


def moved_up(state: ConsumerState | None, first_position: int) -> ConsumerState | None:
    """Return *state* after a truncate that left *first_position* as the first one."""
    if state is None or state.position >= first_position:
        return state
    return state._replace(position=first_position)


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

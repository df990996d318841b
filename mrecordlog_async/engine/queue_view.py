"""A queue as the commands planned so far leave it, and whether an append repeats what it holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from mrecordlog_async.engine.commit import PlannedRun
from mrecordlog_async.engine.encode import split_into_runs
from mrecordlog_async.memory.last_append import LastAppend, same_payloads
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Run


class QueueView:
    """A queue as the commands planned so far leave it."""

    __slots__ = ("first_position", "id", "next_position", "planned", "queue")

    def __init__(self, queue: Queue | None, queue_id: int, first_position: int, next_position: int) -> None:
        self.queue = queue
        self.id = queue_id
        self.first_position = first_position
        self.next_position = next_position
        self.planned: list[PlannedRun] = []

    @classmethod
    def of(cls, queue: Queue) -> QueueView:
        """Return the view of a queue that no command has changed yet."""
        return cls(queue, queue.id, queue.first_position, queue.next_position)

    def add_single(self, payload: bytes) -> int:
        """Plan one record at the end of the queue; return its position."""
        position = self.next_position
        self.next_position = position + 1
        self.planned.append(tuple.__new__(PlannedRun, (self.id, position, [payload])))  # half the time of PlannedRun(…)
        return position

    def touched(self) -> bool:
        """Whether this batch changes the queue."""
        return self.queue is None or bool(self.planned) or self.first_position != self.queue.first_position

    def repeats(self, first: int, payloads: Sequence[bytes]) -> bool | None:
        """Return whether exactly these records are already stored or planned; None if that is no longer known.

        Every position that is still retained must hold the same payload. Where positions are truncated, the call must
        be the queue's last append, whose digest outlives the records. No record passes without a comparison.
        """
        stop = first + len(payloads)
        if stop > self.next_position:
            return False
        lowest = max(first, self.first_position)
        runs = self._runs(lowest, stop)
        if lowest < stop and not (runs and runs[0].first_position == lowest and same_payloads(runs, first, payloads)):
            return False
        if first >= self.first_position:
            return True
        # A truncate past the end moves next_position away from the last append: then nothing is known any more.
        last = self.last_append() if stop == self.next_position else None
        if last is None or (first, len(payloads)) != last[:2]:  # stored by another call, or with other records
            return None
        return LastAppend.of(split_into_runs(first, payloads)) == last

    def last_append(self) -> LastAppend | None:
        """Return the digest of the queue's last append, as planned so far."""
        if self.planned:
            planned = self.planned[-1]
            return LastAppend.of(split_into_runs(planned.first_position, planned.payloads))
        return self.queue.last_append() if self.queue is not None else None

    def _runs(self, start: int, stop: int) -> list[Run]:
        """Return the runs at positions *start* … *stop* - 1, in order, as planned so far."""
        runs = [*self.queue.runs(start, stop)] if self.queue is not None else []
        for planned in self.planned:
            base = planned.first_position
            first, end = max(base, start), min(base + len(planned.payloads), stop)
            if first < end:
                runs.append(Run.of(first, planned.payloads[first - base : end - base]))
        return runs


class PlannedSingles:
    """The single records of a group whose queues no earlier command of the batch named.

    They have no views until a later command asks for one: most batches are such a group and nothing else.
    """

    def __init__(self, names: Sequence[str], distinct: AbstractSet[str], payloads: Sequence[bytes]) -> None:
        self.distinct = distinct
        self._names = names
        self._payloads = payloads
        self._by_name: dict[str, list[bytes]] | None = None

    def view(self, queue: Queue) -> QueueView:
        """Return *queue* as these records leave it."""
        if self._by_name is None:
            self._by_name = {}
            for name, payload in zip(self._names, self._payloads, strict=True):
                self._by_name.setdefault(name, []).append(payload)
        view = QueueView.of(queue)
        for payload in self._by_name[queue.name]:
            view.add_single(payload)
        return view

"""A queue as the commands planned so far leave it, and whether an append repeats what it holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.engine.commit import PlannedRun
from mrecordlog_async.engine.encode import split_into_runs
from mrecordlog_async.memory.last_append import LastAppend, same_payloads
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.model import Run


class QueueView:
    """A queue as the commands planned so far leave it."""

    __slots__ = ("first_position", "id", "next_position", "planned", "queue", "singles")

    def __init__(self, queue: Queue | None, queue_id: int, first_position: int, next_position: int) -> None:
        self.queue = queue
        self.id = queue_id
        self.first_position = first_position
        self.next_position = next_position
        self.planned: list[PlannedRun] = []
        self.singles: list[bytes] | None = None  # payloads of the last planned run, while others may join

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

"""Plans that follow from the listing of a log, so that nothing has to be requested for them.

A plan says how many records and bytes a range holds, and where to cut it. Of most queues the listing says that too:

* Records: where positions have no gaps, they are counted by their positions. The listing shows whether there are gaps.
* Bytes: those of all retained records, minus those that were read before. These are known from the batch before.
* Cuts: a range below the size of a piece has none.

All other queues are requested, and every queue if the batch cannot hold all that there is: then the service divides the
limits. A trigger over 5,000 queues with few new records each takes a third of the time that it takes with requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.bulk_schemas import PlanStart
from mrecordlog_async.spark.positions.partitions import Range
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.responses import PlannedQueue

PIECE_RECORDS = 8_192
PIECE_BYTES = 8 << 20
"""The size of the pieces that a service cuts queues into; packing cuts further where there are no gaps."""

FORGOTTEN_AT = 1_000
"""Queues that were deleted are forgotten once they are as many as those that are listed, and this many."""

Starts = dict[str, list[PlanStart]]
"""log → where reading begins in its queues."""


class TriggerLimits(NamedTuple):
    """Limits of one batch, in records and payload bytes; None for no limit."""

    records: int | None = None
    bytes: int | None = None

    def without(self, records: int, size: int) -> TriggerLimits:
        """Return what is left of the limits."""
        return TriggerLimits(
            None if self.records is None else self.records - records, None if self.bytes is None else self.bytes - size
        )

    def hold(self, records: int, size: int) -> bool:
        """Return whether a batch may hold this much."""
        return (self.records is None or records <= self.records) and (self.bytes is None or size <= self.bytes)


class _Read(NamedTuple):
    """Position up to which a queue was read. sizes: first position → payload bytes from there to *stop*, if known."""

    id: int
    stop: int
    sizes: dict[int, int]


class ReadBefore:
    """State of the queues of the batch before. Without it, after a restart, plans are requested once."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], _Read] = {}

    def planned(
        self, starts: Starts, logs: Mapping[str, Listed], limits: TriggerLimits
    ) -> tuple[list[tuple[str, PlannedQueue]], Starts, TriggerLimits]:
        """Return the plans that follow from the listings, what must be requested, and what *limits* leave for that."""
        found: list[tuple[str, PlannedQueue]] = []
        rest: Starts = {}
        records = size = rest_records = rest_size = 0
        for log, some in starts.items():
            queues, asked = logs[log].queues, list[PlanStart]()
            for start in some:
                summary = queues[start.queue]
                plan = self._plan(log, start, summary)
                if plan is None:
                    asked.append(start)
                    rest_records += summary.records
                    rest_size += summary.bytes
                else:
                    found.append((log, plan))
                    records += plan.records
                    size += plan.bytes
            rest[log] = asked
        if not limits.hold(records + rest_records, size + rest_size):
            return [], starts, limits
        return found, rest, limits.without(records, size)

    def note(self, plans: Iterable[tuple[str, PlannedQueue]], logs: Mapping[str, Listed]) -> None:
        """Note that the next batch reads *plans*."""
        for log, plan in plans:
            sizes, summary = {plan.start: plan.bytes}, logs[log].queues[plan.queue]
            if summary.next_position == plan.stop:
                sizes[summary.first_position] = summary.bytes
            self._read[log, plan.queue] = _Read(plan.id, plan.stop, sizes)
        if len(self._read) > 2 * sum(len(listed.queues) for listed in logs.values()) + FORGOTTEN_AT:
            self._read = {key: read for key, read in self._read.items() if _is_listed(key, logs)}

    def _plan(self, log: str, start: PlanStart, summary: QueueSummary) -> PlannedQueue | None:
        """Return the plan of one queue; None if the listing does not say enough."""
        queue, queue_id, position, stop = start.queue, summary.id, start.start, summary.next_position
        if position is None or start.stop != stop or summary.records != stop - summary.first_position:
            return None
        before = self._size_before(log, position, summary)
        if before is None:
            return None
        records, size = stop - position, summary.bytes - before
        if records > PIECE_RECORDS or not 0 <= size <= PIECE_BYTES:
            return None
        piece = Range(queue, queue_id, position, stop, records, size)
        return PlannedQueue(queue, "ok", queue_id, position, stop, records, [piece], None, size)

    def _size_before(self, log: str, position: int, summary: QueueSummary) -> int | None:
        """Return the payload bytes of the retained records before *position*; None if they are not known."""
        first = summary.first_position
        if first == position:
            return 0
        read = self._read.get((log, summary.queue))
        if read is None or read.id != summary.id or read.stop != position:
            return None
        return read.sizes.get(first)


def _is_listed(key: tuple[str, str], logs: Mapping[str, Listed]) -> bool:
    log, queue = key
    return log in logs and queue in logs[log].queues

"""A restore's task: store rows at their positions, and count those that cannot be stored instead of failing.

A position of a log is assigned once. So a row is refused if its position holds a different record, or lies in a gap
below the queue's end. From then on nothing more is stored in its queue: what the log has there is not what was copied,
and rows after it would follow records that they never followed. Other queues are not affected. Rows may be there twice,
as after `--accept-went-back`: the second one is compared with the log like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from mrecordlog_async.model import Run
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.spark.positions.partitions import Partition
from mrecordlog_async.spark.rows.blocks import RowRun, row_runs
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.listed_plans import PIECE_BYTES, PIECE_RECORDS
from mrecordlog_async.spark.source.writer import Appender

REFUSED_SCHEMA = "queue string, position bigint, present bigint, stored bigint, again bigint"
"""A queue with refused rows, or with rows that repeat others: the position of the first one that was refused (or null),
how many refused ones lie below the end of the queue as it was when the load began, and how many past it; and how many
rows past it are the same as the row before them."""


@dataclass(slots=True)
class Refused:
    """The refused rows of one queue; see `REFUSED_SCHEMA`."""

    position: int
    present: int = 0
    stored: int = 0


class Restorer:
    """Stores rows, and counts those that are refused."""

    def __init__(self, client: ServiceClient, ends: Mapping[str, int]) -> None:
        """*client*: the service. ends: queue → its next position when the load began."""
        self.refused: dict[str, Refused] = {}
        self.again: dict[str, int] = {}
        self._client = client
        self._ends = ends
        self._appender = Appender(client, self, create=True)
        self._closed: dict[str, int] = {}  # queue with refused rows → where it ended then

    def add(self, row_run: RowRun) -> None:
        """Accept the next rows, sorted by position; a row may have the position of the one before it."""
        queue, position, run = row_run
        due = self._appender.due(queue)
        if position is None or position != due - 1:
            self._appender.add(row_run)
            return
        self.flush()  # so the log shows what became of the row before it
        (repeated, *_), after = _cut([run], due)
        self._repeat(queue, due, repeated)
        for rest in after:
            self._appender.add(RowRun(queue, rest.first_position, rest))

    def flush(self) -> None:
        """Store the rows accepted so far."""
        self._appender.flush()

    def _repeat(self, queue: str, due: int, run: Run) -> None:
        """Compare a row with what the log has at its position, the one before *due*."""
        known = self._appender.written.repeated
        self.conflict(queue, run.first_position, [run], self._closed.get(queue, due))
        if run.first_position >= self._ends.get(queue, 0):
            self.again[queue] = self.again.get(queue, 0) + self._appender.written.repeated - known

    def admitted(self, queue: str, runs: list[Run]) -> list[Run]:
        """Return what lies below the end of a queue that has refused rows; refuse the rest of *runs*."""
        end = self._closed.get(queue)
        if end is None:
            return runs
        known, after = _cut(runs, end)
        for run in after:
            self._refuse(queue, run.first_position, run.record_count)
        return known

    def conflict(self, queue: str, position: int, runs: list[Run], next_position: int) -> None:
        """Compare *runs*, all below the queue's end, with what the queue holds."""
        written = self._appender.written
        summary = self._client.queue(queue)
        start, stop = max(position, summary.first_position), runs[-1].next_position
        held = _held(self._client, PlanStart(queue, start, summary.id, stop)) if start < stop else {}
        for run in runs:
            for at, payload in run.records():
                if at >= summary.first_position and held.get(at) != payload:
                    self._refuse(queue, at, 1)
                    continue
                written.records += 1
                if at < summary.first_position:
                    written.truncated += 1
                else:
                    written.repeated += 1
        if queue in self.refused:
            self._closed[queue] = next_position

    def _refuse(self, queue: str, position: int, records: int) -> None:
        found = self.refused.setdefault(queue, Refused(position))
        below = min(max(self._ends.get(queue, 0) - position, 0), records)
        found.present += below
        found.stored += records - below


def restored(options: Options, ends: Mapping[str, int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the rows of one task; yield the queues with refused rows (`REFUSED_SCHEMA`)."""
    (server,) = options.servers
    with closing(Fleet(options).client(server.name)) as client:
        restorer = Restorer(client, ends)
        for batch in batches:
            for row_run in row_runs(batch, None):
                restorer.add(row_run)
        restorer.flush()
    found: list[tuple[str, int | None, int, int, int]] = [
        (queue, each.position, each.present, each.stored, restorer.again.pop(queue, 0))
        for queue, each in restorer.refused.items()
    ]
    found += [(queue, None, 0, 0, again) for queue, again in restorer.again.items()]
    if found:
        columns = zip(*found, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(each, kind) for each, kind in zip(columns, _TYPES.values(), strict=True)], names=list(_TYPES)
        )


_TYPES = {
    name: pa.string() if kind == "string" else pa.int64()
    for name, kind in (column.split(" ") for column in REFUSED_SCHEMA.split(", "))
}


def _cut(runs: list[Run], end: int) -> tuple[list[Run], list[Run]]:
    """Return the parts of *runs* below *end*, and from it on."""
    below = [run.cut(run.first_position, end) for run in runs if run.first_position < end]
    return below, [run.cut(end, run.next_position) for run in runs if run.next_position > end]


def _held(client: ServiceClient, start: PlanStart) -> dict[int, bytes]:
    """Return the records that a queue holds in a range of positions."""
    (plan,) = client.plan([start], PlanRequest(piece_records=PIECE_RECORDS, piece_bytes=PIECE_BYTES))
    blocks = client.fetch(Partition("", tuple(plan.pieces)))
    return {at: payload for block in blocks for at, payload in block.run().records()}

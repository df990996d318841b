"""How far a drain is behind its logs, from what the logs hold and what the checkpoint has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from mrecordlog_async.model import QueueSummary
from mrecordlog_async.spark.checkpoints.batches import COMMITS, SparkBatches, newest
from mrecordlog_async.spark.positions.history import key_of, placed
from mrecordlog_async.spark.positions.offsets import Listing, backlog
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.client import PlanStart
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.offset import Offset

_clock: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731  # replaced by tests


class Behind(NamedTuple):
    """What waits on one server. seconds: age of the oldest record that is not stored; 0.0 if there is none."""

    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """Measures the lag of one query. For one thread at a time."""

    batches: SparkBatches
    fleet: Fleet

    def measure(self) -> dict[str, Behind]:
        """Return server → what waits there; a server that cannot be reached is missing."""
        try:
            surveys = self.fleet.survey()
        except ServiceRefusedError:  # no server lists its queues
            surveys = {}
        positions = placed(self._committed(), surveys).positions
        found = {}
        for server, listed in surveys.items():
            known = positions.get(key_of(server, listed), {})
            try:
                found[server] = self._behind(server, known, listed)
            except (OSError, ServerDownError, ServiceRefusedError):
                continue  # it was listed a moment ago: the next measurement has it
        return found

    def _committed(self) -> Offset:
        return self.batches.checkpoint_at(newest(self.batches.checkpoint, COMMITS)) or Offset()

    def _behind(self, server: str, known: Mapping[str, list[int]], listed: Listed) -> Behind:
        waiting = {queue: at for queue, at in _positions(known, listed.queues) if _waits(at, listed.queues[queue])}
        times = [
            listed.queues[queue].oldest_time for queue, at in waiting.items() if _is_first(at, listed.queues[queue])
        ]
        kept = [
            PlanStart(queue, at[0], at[1]) for queue, at in waiting.items() if not _is_first(at, listed.queues[queue])
        ]
        if kept:  # other consumers need records that are stored already
            times += [plan.time for plan in self.fleet.client(server).plan(kept, times=True)]
        oldest = min((time for time in times if time is not None), default=None)
        seconds = max((_clock() - oldest).total_seconds(), 0.0) if oldest is not None else 0.0
        return Behind(backlog(waiting, listed.queues), seconds)


def _positions(known: Mapping[str, list[int]], listing: Listing) -> Iterator[tuple[str, list[int]]]:
    """Yield (queue, [id, next position to store]); a queue that is not in the checkpoint begins at its first record."""
    for queue, summary in listing.items():
        at = known.get(queue)
        yield queue, at if at is not None and at[0] == summary.id else [summary.id, summary.first_position]


def _waits(at: list[int], summary: QueueSummary) -> bool:
    return summary.records > 0 and at[1] < summary.next_position


def _is_first(at: list[int], summary: QueueSummary) -> bool:
    return at[1] <= summary.first_position

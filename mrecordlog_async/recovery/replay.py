"""Replay: apply the batches of one segment after another to the queues, or raise what does not fit."""

from __future__ import annotations

from typing import ClassVar

from mrecordlog_async.errors import CorruptionError
from mrecordlog_async.format.header import HEADER_BYTES
from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.table import Table
from mrecordlog_async.memory.queue import ReplayError
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.times import TICK_NS
from mrecordlog_async.recovery.recovered import Counts


class Replay:
    """Applies the batches of one segment after another to queues; what does not fit becomes CorruptionError."""

    queues_type: ClassVar[type[Queues]] = Queues
    """What the queues are an instance of."""

    def __init__(self, counts: Counts) -> None:
        self.queues: Queues | None = None
        self.first_table: Table | None = None
        self.oldest_segment = 0
        self._counts = counts

    def begin(self, name: str, table: Table) -> None:
        """Start a segment: the first one's table is the state, every later one must equal the state so far."""
        if self.queues is None:
            self.queues = self.queues_type.from_table(table)
            self.first_table = table
        elif self.queues.table() != table:
            raise CorruptionError(
                name, HEADER_BYTES, "its table of queues does not match the end of the previous segment"
            )

    def add(self, name: str, segment: int, batch: Batch) -> None:
        """Apply a batch."""
        assert self.queues is not None
        counts = self._counts
        counts.batches += 1
        self.oldest_segment = max(self.oldest_segment, batch.commit.oldest_segment)
        try:
            applied = self.queues.apply_all(segment, batch.records, batch.commit.time_ns // TICK_NS)
        except ReplayError as error:
            raise CorruptionError(name, batch.commit.batch_offset, str(error)) from None
        if self.queues.has_old_blocks():
            self.queues.settle_old()  # all at once: nothing else is to run meanwhile
        counts.records += applied.records
        counts.bytes += applied.payload_bytes

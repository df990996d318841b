"""The batch reader: services as a table whose contents are fixed when the query is planned.

Each action of a DataFrame reads the planned positions again. It fails once they are truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from mrecordlog_async.gc_tuning import rare_collections
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.blocks import record_batches
from mrecordlog_async.spark.fleet import Fleet
from mrecordlog_async.spark.moments import ending_positions, starting_positions
from mrecordlog_async.spark.offsets import refuse_unknown_queues, resolve_position
from mrecordlog_async.spark.option_values import LATEST
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.partitions import Partition
from mrecordlog_async.spark.planning import partitions
from mrecordlog_async.spark.proof import Listed


class PlannedPartition(InputPartition):
    """A partition as Spark carries it."""

    def __init__(self, value: Partition) -> None:
        super().__init__(value)
        self.value: Partition = value


class NothingPartition(InputPartition):
    """An empty read: Spark would replace an empty list by one partition without a value."""

    def __init__(self) -> None:
        super().__init__(None)


class LogReader(DataSourceReader):
    """Reads services as a table."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.fleet = Fleet(options)
        self._servers: set[str] | None = None
        self._queues: set[str] | None = None
        self._start = 0
        self._stop = POSITION_MAX + 1

    def partitions(self) -> list[InputPartition]:
        """Decide what is read, and split it into partitions.

        Raises:
            DataLossError: the options name positions that are no longer retained.
            OptionError: the options name a queue that does not exist, or startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        try:
            # Without their openings: the ids of queues are enough for a table.
            surveys = {name: Listed(listed.queues) for name, listed in self.fleet.distinct().items()}
            found = partitions(self.fleet, self._wanted(surveys))
        finally:
            self.fleet.close()
        return [PlannedPartition(partition) for partition in found] or [NothingPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            ShortResponseError, ServerDownError, ServiceRefusedError: not all rows could be read; Spark reruns the task.
        """
        if not isinstance(partition, PlannedPartition):
            return iter(())
        return read_partition(self.fleet, partition.value, payload=self._options.payload)

    def _wanted(self, surveys: dict[str, Listed]) -> Iterator[tuple[str, str, int, int, int]]:
        options, losses, found = self._options, list[str](), list[tuple[str, str, int, int, int]]()
        starting = starting_positions(options.starting, self.fleet, surveys, list(surveys))
        ending = ending_positions(options.ending, self.fleet, surveys)
        listings = {server: listed.queues for server, listed in surveys.items()}
        refuse_unknown_queues({}, listings, self.fleet.names, options.subscription, starting, ending)
        for server, listing in listings.items():
            if self._servers is not None and server not in self._servers:
                continue
            for queue, summary in listing.items():
                if self._queues is not None and queue not in self._queues:
                    continue
                start, loss = resolve_position(starting, server, summary)
                stop, lost = resolve_position(ending, server, summary, absent=LATEST)
                losses += [each for each in (loss, lost) if each is not None]
                start, stop = max(start, self._start), min(stop, self._stop)
                if start < stop:
                    found.append((server, queue, summary.id, start, stop))
        self.fleet.report_losses(losses)
        return iter(found)


class PushingLogReader(LogReader):
    """Reads services as a table, applying filters on server, queue and position before anything is fetched.

    A separate class because Spark refuses a reader that can push filters if its configuration disables pushdown.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Apply the filters that narrow what is fetched; return the rest."""
        for each in filters:
            if not self._take(each):
                yield each

    def _take(self, each: Filter) -> bool:
        match each:
            case EqualTo(attribute=("server",), value=str(value)):
                self._servers = _narrow(self._servers, {value})
            case EqualTo(attribute=("queue",), value=str(value)):
                self._queues = _narrow(self._queues, {value})
            case In(attribute=("server",), value=values):
                self._servers = _narrow(self._servers, set(values))
            case In(attribute=("queue",), value=values):
                self._queues = _narrow(self._queues, set(values))
            case EqualTo(attribute=("position",), value=int(value)):
                self._start, self._stop = max(self._start, value), min(self._stop, value + 1)
            case GreaterThanOrEqual(attribute=("position",), value=int(value)):
                self._start = max(self._start, value)
            case GreaterThan(attribute=("position",), value=int(value)):
                self._start = max(self._start, value + 1)
            case LessThan(attribute=("position",), value=int(value)):
                self._stop = min(self._stop, value)
            case LessThanOrEqual(attribute=("position",), value=int(value)):
                self._stop = min(self._stop, value + 1)
            case _:
                return False
        return True


def read_partition(fleet: Fleet, partition: Partition, *, payload: bool) -> Iterator[pa.RecordBatch]:
    """Fetch a partition and yield its rows; payload: False for positions only."""
    if partition.place is not None:
        fleet.servers.add(partition.place)
    client = fleet.client(partition.address or partition.server)
    try:
        with rare_collections():  # thousands of ranges are many small objects, and none is part of a cycle
            blocks: Iterable[Block] = client.fetch(partition, payload=payload)
            yield from record_batches(partition.server, blocks, payload=payload)
    finally:
        client.close()


def _narrow(known: set[str] | None, values: set[str]) -> set[str]:
    return values if known is None else known & values

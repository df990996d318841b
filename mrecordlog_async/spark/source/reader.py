"""The batch reader: services as a table whose contents are fixed when the query is planned.

Each action of a DataFrame, and each query of a view that was made `USING mrecordlog`, reads the positions again that
were planned for the first one. It fails once they are truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mrecordlog_async.protocol.wire_decoder import Block
from mrecordlog_async.spark.positions.offsets import refuse_unknown_queues, resolve_position
from mrecordlog_async.spark.positions.partitions import Partition
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.rows.blocks import record_batches
from mrecordlog_async.spark.services.connection import ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.option_values import LATEST
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.source.moments import ending_positions, starting_positions
from mrecordlog_async.spark.source.planning import partitions
from mrecordlog_async.support.gc_tuning import rare_collections

MAKE_AGAIN = "make the DataFrame or the view again: it keeps the records of its first query"

NOT_AS_PLANNED = (404, 409, 410)
"""Statuses of a queue that was deleted, that an older copy of the log has replaced, or that was truncated."""


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

    def partitions(self) -> list[InputPartition]:
        """Decide what is read, and split it into partitions.

        Raises:
            DataLossError: the options name positions that are no longer retained.
            OptionError: the options name a queue that does not exist, or startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        with closing(self.fleet):
            # Without their openings: the ids of queues are enough for a table.
            surveys = {name: Listed(listed.queues) for name, listed in self.fleet.distinct().items()}
            found = partitions(self.fleet, self._wanted(surveys))
        return [PlannedPartition(partition) for partition in found] or [NothingPartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            ShortResponseError, ServerDownError, ServiceRefusedError: not all rows could be read; Spark reruns the task.
        """
        if not isinstance(partition, PlannedPartition):
            return iter(())
        return _advised(read_partition(self.fleet, partition.value, payload=self._options.payload))

    def _wanted(self, surveys: dict[str, Listed]) -> Iterator[tuple[str, str, int, int, int]]:
        options, losses, found = self._options, list[str](), list[tuple[str, str, int, int, int]]()
        starting = starting_positions(options.starting, self.fleet, surveys, list(surveys))
        ending = ending_positions(options.ending, self.fleet, surveys)
        listings = {server: listed.queues for server, listed in surveys.items()}
        refuse_unknown_queues({}, listings, self.fleet.names, options.subscription, starting, ending)
        for server, listing in listings.items():
            for queue, summary in listing.items():
                start, loss = resolve_position(starting, server, summary)
                stop, lost = resolve_position(ending, server, summary, absent=LATEST)
                losses += [each for each in (loss, lost) if each is not None]
                if start < stop:
                    found.append((server, queue, summary.id, start, stop))
        self.fleet.report_losses(losses)
        return iter(found)


def read_partition(fleet: Fleet, partition: Partition, *, payload: bool) -> Iterator[pa.RecordBatch]:
    """Fetch a partition and yield its rows; payload: False for positions only."""
    if partition.endpoint is not None:
        fleet.servers.add(partition.endpoint)
    # Rarely collected: thousands of ranges are many small objects, and none is part of a cycle.
    with closing(fleet.client(partition.address or partition.server)) as client, rare_collections():
        blocks: Iterable[Block] = client.fetch(partition, payload=payload)
        yield from record_batches(partition.server, blocks, payload=payload)


def _advised(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield *batches*; if records are no longer there, add to the error why they are requested, and what to do."""
    try:
        yield from batches
    except ServiceRefusedError as refused:
        if refused.status not in NOT_AS_PLANNED:
            raise
        facts = {**refused.problem, "detail": f"{refused.problem.get('detail')}; {MAKE_AGAIN}"}
        raise ServiceRefusedError(refused.server, refused.status, facts, refused.origin) from None

"""The batch reader: services as a table whose contents are fixed when the query is planned.

Each action of a DataFrame reads the positions again that were planned for the first one. It fails once they are
truncated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.spark.bounds import check_start, refuse_unknown_queues, refuse_unsubscribed, resolved
from mrecordlog_async.spark.log_server import FETCH_BYTES, FETCH_RECORDS, LogListing, LogServer, ReadTask
from mrecordlog_async.spark.losses import UnreadLossError, arrange
from mrecordlog_async.spark.planning import split
from mrecordlog_async.spark.runners import rows_of
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.settings.option_values import LATEST, OptionError, WhenDown
from mrecordlog_async.spark.settings.options import Options
from mrecordlog_async.spark.state import DrainState, ReadRange

logger = logging.getLogger("mrecordlog_async.spark")

LISTED_AT_ONCE = 16

MAKE_AGAIN = "make the DataFrame or the view again: it keeps the records of its first query"

NOT_AS_PLANNED = (404, 409, 410)
"""Statuses of a queue that was deleted, that an older copy of the log has replaced, or that was truncated."""


class TablePartition(InputPartition):
    """A task as Spark carries it; None for an empty read, whose list Spark would replace by one without a value."""

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(None)
        self.task = task


class LogTable(DataSourceReader):
    """Reads services as a table."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Decide what is read, and split it into tasks.

        Raises:
            UnreadLossError: the options name positions that are no longer retained.
            OptionError: the options name a queue that does not exist, or startingTimestamp is in the future.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused a request.
        """
        options = self._options
        check_start(options.starting)
        tokens = {**options.tokens, **({"": options.token} if options.token else {})}
        servers = {each.server.name: each.server for each in ServerSet(options.servers, tokens)()}
        try:
            listings = self._listed(servers)
            refuse_unsubscribed(options.subscription.names, listings, all_there=len(listings) == len(servers))
            refuse_unknown_queues(options.starting, "startingOffsets", listings)
            refuse_unknown_queues(options.ending, "endingOffsets", listings)
            standing = arrange(DrainState(), listings)
            if standing.held:
                raise OptionError("; ".join(standing.held.values()))
            tasks = list[ReadTask]()
            for log, name in standing.servers.items():
                tasks += split(servers[name], log, self._ranges(servers[name], listings[name]), self._cores)
        finally:
            for each in servers.values():
                each.close()
        return [TablePartition(each) for each in tasks] or [TablePartition(None)]

    @property
    def _cores(self) -> int:
        return max(self._options.parallelism or 4, self._options.partitions_min or 1)

    def _listed(self, servers: dict[str, LogServer]) -> dict[str, LogListing]:
        """List all servers at once; those that are down are left out if the options say so."""
        found, includes = dict[str, LogListing](), self._options.subscription.includes
        with ThreadPoolExecutor(LISTED_AT_ONCE) as threads:
            jobs = {name: threads.submit(server.listing) for name, server in servers.items()}
        for name, job in jobs.items():
            error = job.exception()
            if isinstance(error, ServerDownError | ServiceRefusedError) and self._skips_down:
                logger.warning("%s", error)
                continue
            listing = job.result()
            found[name] = replace(listing, queues={each: at for each, at in listing.queues.items() if includes(each)})
        return found

    @property
    def _skips_down(self) -> bool:
        return self._options.when_down is WhenDown.SKIP

    def _ranges(self, server: LogServer, listing: LogListing) -> list[ReadRange]:
        options = self._options
        first, moved = resolved(server, listing, options.starting)
        last, cut = resolved(server, listing, options.ending, absent=LATEST)
        if (moved or cut) and options.fail_on_data_loss:
            raise UnreadLossError("; ".join([*moved, *cut][:3]))
        for sentence in (*moved, *cut):
            logger.warning("%s", sentence)
        starts = [
            PlanStart(name, first[name], each.id, last[name])
            for name, each in listing.queues.items()
            if first[name] < last[name]
        ]
        records = min(FETCH_RECORDS, options.records_per_partition or FETCH_RECORDS)
        plans = server.plan(starts, PlanRequest(None, None, None, records, FETCH_BYTES), listing.log) if starts else []
        return [
            ReadRange(plan.queue, plan.id, piece.start, piece.stop, piece.records, piece.bytes)
            for plan in plans
            for piece in plan.pieces
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RangeDiffersError, ServerDownError, ServiceRefusedError."""
        assert isinstance(partition, TablePartition)
        if partition.task is None:
            return
        try:
            with closing(rows_of(partition.task, payload=self._options.payload)) as rows:
                yield from rows
        except ServiceRefusedError as refused:
            if refused.status not in NOT_AS_PLANNED:
                raise
            facts: dict[str, Any] = {**refused.problem, "detail": f"{refused.problem.get('detail')}; {MAKE_AGAIN}"}
            raise ServiceRefusedError(refused.server, refused.status, facts, refused.origin) from None

"""The batch reader: services as a table whose contents are fixed when the query is planned.

Each action of a DataFrame reads the positions again that were planned for the first one. It fails once they are
truncated.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart, QueuePlan
from mrecordlog_async.spark import planning
from mrecordlog_async.spark.bounds import check_start, refuse_unknown_queues, refuse_unsubscribed, resolved
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.log_server import (
    FETCH_BYTES,
    FETCH_RECORDS,
    LogListing,
    LogServer,
    Patience,
    ReadTask,
)
from mrecordlog_async.spark.losses import BY_WHOM, UnreadLossError, arrange
from mrecordlog_async.spark.options import LATEST, OptionError, Options, WhenDown
from mrecordlog_async.spark.planning import Parts, TaskLimits, pieces_of
from mrecordlog_async.spark.runners import rows_of
from mrecordlog_async.spark.server_set import ServerSet
from mrecordlog_async.spark.state import DrainState, ReadRange

logger = logging.getLogger("mrecordlog_async.spark")

LISTED_AT_ONCE = 16

ADVICE = "to continue with what is left, set failOnDataLoss to false"

MAKE_AGAIN = "make the DataFrame or the view again: it keeps the records of its first query"

NOT_AS_PLANNED = (404, 409, 410)
"""Statuses of a queue that was deleted, that an older copy of the log has replaced, or that was truncated."""


def tasks_of(parts: Parts, options: Options) -> list[ReadTask]:
    """Divide *parts* among tasks, as the options say."""
    if not options.payload:  # then payloads are not transferred, and cost a task nothing
        parts = [(server, log, [each._replace(bytes=0) for each in ranges]) for server, log, ranges in parts]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = TaskLimits(
        options.parallelism or cores, options.partitions_min, options.records_per_partition or POSITION_MAX
    )
    return planning.tasks_of(parts, limits)


def ranges_of(server: LogServer, listing: LogListing, starts: Sequence[PlanStart], options: Options) -> list[ReadRange]:
    """Return all records of *starts*, in ranges. Raises UnreadLossError if some are gone, unless that is accepted."""
    records = min(FETCH_RECORDS, options.records_per_partition or FETCH_RECORDS)
    plans = server.plan(starts, PlanRequest(None, None, None, records, FETCH_BYTES), listing) if starts else []
    lost = [
        f"server {server.name!r}, queue {asked.queue!r}: positions {asked.start} to {(asked.stop or 0) - 1} are no "
        f"longer as planned: {_change(plan)}"
        for asked, plan in zip(starts, plans, strict=True)
        if plan.status != "ok" or (plan.start, plan.stop) != (asked.start, asked.stop)
    ]
    if lost and options.fail_on_data_loss:
        raise UnreadLossError(f"{'; '.join(lost[:3])}; {ADVICE}")
    for sentence in lost:
        logger.warning("lost, as allowed: %s", sentence)
    return [
        each
        for asked, plan in zip(starts, plans, strict=True)
        if plan.status in ("ok", "truncated") and plan.id == asked.id
        for each in pieces_of(plan)
    ]


def _change(plan: QueuePlan) -> str:
    match plan.status:
        case "missing":
            return "the queue was deleted"
        case "recreated":
            return "the queue was deleted and recreated"
        case "truncated":
            return f"records before {plan.start} were truncated, {BY_WHOM}"
    return f"the log ends at {plan.stop}, so it went back: serve its newest state again"


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
        waits = Patience(options.timeout_seconds, 0 if self._skips_down else options.retries)
        in_tasks = Patience(options.timeout_seconds, options.retries)
        found = ServerSet(options.servers, options.all_tokens, patience=waits, in_tasks=in_tasks)
        servers = {each.server.name: each.server for each in found()}
        try:
            unfound = list(found.unfound.values())
            self._refuse_unfound(unfound)
            listings = self._listed(servers)
            for error in unfound:
                if not listings and isinstance(error, ServiceRefusedError):
                    raise error  # otherwise a wrong token would be an empty table
            all_there = len(listings) == len(servers) and not unfound
            refuse_unsubscribed(options.subscription.names, listings, all_there=all_there)
            refuse_unknown_queues(options.starting, "startingOffsets", listings)
            refuse_unknown_queues(options.ending, "endingOffsets", listings)
            standing = arrange(DrainState(), listings)
            if standing.held:
                raise OptionError("; ".join(standing.held.values()))
            parts = []
            for log, name in standing.servers.items():
                try:
                    parts.append((servers[name], log, self._ranges(servers[name], listings[name])))
                except ServerDownError as error:
                    if not self._skips_down:
                        raise
                    logger.warning("%s", error)
        finally:
            for each in servers.values():
                each.close()
        return [TablePartition(each) for each in tasks_of(parts, options)] or [TablePartition(None)]

    def _listed(self, servers: dict[str, LogServer]) -> dict[str, LogListing]:
        """List all servers at once; those that are down are left out if the options say so."""
        found, includes = dict[str, LogListing](), self._options.subscription.includes
        with ThreadPoolExecutor(LISTED_AT_ONCE) as threads:
            jobs = {name: threads.submit(server.listing) for name, server in servers.items()}
        refused: ServiceRefusedError | None = None
        for name, job in jobs.items():
            error = job.exception()
            if isinstance(error, ServerDownError | ServiceRefusedError) and self._skips_down:
                logger.warning("%s", error)
                refused = refused or (error if isinstance(error, ServiceRefusedError) else None)
                continue
            listing = job.result()
            found[name] = replace(listing, queues={each: at for each, at in listing.queues.items() if includes(each)})
        if refused is not None and not found:
            raise refused  # otherwise a wrong token would be an empty table
        return found

    def _refuse_unfound(self, unfound: Iterable[ServerDownError | ServiceRefusedError]) -> None:
        """Raise the error of a DNS name, or of an address behind it, that gave no service, unless it is skipped."""
        for error in unfound:
            if not self._skips_down:
                raise error
            logger.warning("%s", error)

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
        return ranges_of(server, listing, starts, options)

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

"""All services of one query: listed side by side, then planned and truncated one by one.

A server that is down fails the query, or with `failOnServerDown=false` is left where it is and reported, so that one
dead server does not stop the others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from mrecordlog_async.spark.client import PlanStart, QueuePlan, ServerDownError, ServiceClient
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.plan import (
    DataLossError,
    Listing,
    Offset,
    Partition,
    Range,
    backlog,
    pack,
    partition_size,
    select,
    shares,
)

logger = logging.getLogger("mrecordlog_async.spark")

PIECE_RECORDS = 8_192
"""What a service cuts queues into; packing cuts further where there are no gaps."""

LISTED_AT_ONCE = 16


class Fleet:
    """The services that the options name. Opens nothing before it is asked; a pickled copy starts anew."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.down: dict[str, str] = {}  # server → why, as of the last listing
        self._clients: dict[str, ServiceClient] = {}

    def __reduce__(self) -> tuple[type[Fleet], tuple[Options]]:
        return Fleet, (self.options,)

    @property
    def names(self) -> list[str]:
        """The servers' names, sorted."""
        return [server.name for server in self.options.servers]

    def client(self, name: str) -> ServiceClient:
        """Return the client of one server."""
        if name not in self._clients:
            options = self.options
            server = next(server for server in options.servers if server.name == name)
            self._clients[name] = ServiceClient(
                server, token=options.token, timeout_seconds=options.timeout_seconds, retries=options.retries
            )
        return self._clients[name]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def listings(self) -> dict[str, Listing]:
        """List the subscribed queues of every server that answers."""
        found: dict[str, Listing] = {}
        self.down = {}
        for name, answer in self._list_all():
            if isinstance(answer, ServerDownError):
                self._report_down(answer)
            else:
                found[name] = answer
        return found

    def advance(
        self, positions: Offset, listings: Mapping[str, Listing], stops: Offset | None, limits: Limits
    ) -> Offset:
        """Return how far the limits reach from *positions*: server → queue → [id, next], only where it moves.

        stops: read no further than this, nor any queue that it does not name.
        """
        starts = {name: _starts(positions.get(name, {}), listing, stops, name) for name, listing in listings.items()}
        weights = {name: backlog(positions.get(name, {}), listings[name]) for name in listings if starts[name]}
        records = shares(limits.records, weights) if limits.records is not None else {}
        size = shares(limits.bytes, weights) if limits.bytes is not None else {}
        ends: Offset = {}
        for name in weights:
            try:
                plans = self.client(name).plan(starts[name], records_max=records.get(name), bytes_max=size.get(name))
            except ServerDownError as error:
                self._report_down(error)
                continue
            # What was truncated or made anew between listing and plan stays where it is: the next check tells.
            ends[name] = {plan.queue: [plan.id, plan.stop] for plan in plans if plan.status == "ok"}
        return ends

    def partitions(self, wanted: Iterable[tuple[str, str, int, int, int]]) -> list[Partition]:
        """Cut what is *wanted*, (server, queue, id, lo, hi), into partitions.

        Raises DataLossError where a range is no longer there whole; without `failOnDataLoss` what is left is read.
        """
        starts: dict[str, list[PlanStart]] = {}
        for server, queue, queue_id, lo, hi in wanted:
            starts.setdefault(server, []).append(PlanStart(queue, queue_id, lo, hi))
        ranges: dict[str, list[Range]] = {}
        for server, asked in starts.items():
            plans = self.client(server).plan(asked, piece_records=PIECE_RECORDS)
            ranges[server] = [
                piece for start, plan in zip(asked, plans, strict=True) for piece in self._pieces(server, start, plan)
            ]
        options = self.options
        if not options.payload:  # then bytes are not read, and cost a task nothing
            ranges = {server: [piece._replace(bytes=0) for piece in pieces] for server, pieces in ranges.items()}
        every = [piece for pieces in ranges.values() for piece in pieces]
        size = partition_size(every, options.partitions_min, options.records_per_partition, os.cpu_count() or 1)
        return [partition for server, pieces in ranges.items() for partition in pack(server, pieces, size)]

    def report_losses(self, losses: list[str]) -> None:
        """Raise DataLossError for what is lost, or warn where the user said to go on."""
        if not losses:
            return
        if self.options.fail_on_data_loss:
            raise DataLossError("; ".join(losses) + "; to go on with what is left, set failOnDataLoss=false")
        for loss in losses:
            logger.warning("records are lost: %s", loss)

    def _list_all(self) -> list[tuple[str, Listing | ServerDownError]]:
        names = self.names
        if len(names) == 1:
            return [(names[0], self._list_one(names[0]))]
        with ThreadPoolExecutor(min(len(names), LISTED_AT_ONCE)) as threads:
            return list(zip(names, threads.map(self._list_one, names), strict=True))

    def _list_one(self, name: str) -> Listing | ServerDownError:
        try:
            return select(self.client(name).queues(), self.options.subscription)
        except ServerDownError as error:
            return error

    def _report_down(self, error: ServerDownError) -> None:
        if self.options.fail_on_server_down:
            raise error
        self.down[error.server] = error.reason
        logger.warning("%s; its queues stay where they are", error)

    def _pieces(self, server: str, start: PlanStart, plan: QueuePlan) -> list[Range]:
        """Return what is left of the range that was asked for."""
        if plan.status == "ok" and (plan.start, plan.stop) == (start.start, start.stop):
            return plan.pieces
        self.report_losses(
            [
                f"server {server!r}, queue {start.queue!r}: positions {start.start} to {(start.stop or 0) - 1} "
                f"are not there as planned ({plan.status})"
            ]
        )
        return plan.pieces if plan.status in ("ok", "truncated") else []


class Limits:
    """What one batch may hold; None for no limit."""

    def __init__(self, records: int | None = None, size: int | None = None) -> None:
        self.records = records
        self.bytes = size


def _starts(positions: Mapping[str, list[int]], listing: Listing, stops: Offset | None, server: str) -> list[PlanStart]:
    """Return the queues with something to read."""
    found = []
    for queue, (queue_id, position) in positions.items():
        if queue not in listing or listing[queue].id != queue_id:
            continue
        stop = None
        if stops is not None:
            target = stops.get(server, {}).get(queue)
            if target is None or target[0] != queue_id:
                continue
            stop = target[1]
        if position < min(listing[queue].next_position, stop if stop is not None else listing[queue].next_position):
            found.append(PlanStart(queue, queue_id, position, stop))
    return found

"""All services of one query: listed in parallel, then planned and truncated one by one.

A server that is down fails the query. With `failOnServerDown=false` it is skipped and reported instead, so that it does
not stop the others: it gets no request for `DOWN_SECONDS`, and afterwards few attempts per request.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from mrecordlog_async.spark.checkpoint import Checkpoint, Offset
from mrecordlog_async.spark.client import PlanStart, ServiceClient, chunks
from mrecordlog_async.spark.connection import QUEUES_AT_ONCE, ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.offsets import DataLossError, Listing, backlog, select, shares
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.partitions import Partition, Range, pack, partition_size
from mrecordlog_async.spark.proof import Answers, Listed, Questions, questions
from mrecordlog_async.spark.responses import QueuePlan

logger = logging.getLogger("mrecordlog_async.spark")

PIECE_RECORDS = 8_192
PIECE_BYTES = 8 << 20
"""The size of the pieces that a service cuts queues into; packing cuts further where there are no gaps."""

DOWN_SECONDS = 60.0
"""How long a server that was down gets no request while the others continue."""

SKIPPED_TIMEOUT_SECONDS = 20.0
"""How long one response may take if servers that do not respond are skipped."""

LISTED_AT_ONCE = 16


class ReopenedError(Exception):
    """A log was reopened between two requests about it; both must be repeated."""


class Fleet:
    """The services that the options name. Connects on the first request; a pickled copy starts over."""

    def __init__(self, options: Options, *, patience_seconds: float = 0.0, reached: bool = False) -> None:
        self.options = options
        self.down: dict[str, str] = {}  # server → the reason, as of the last listing
        self.before_listing: Callable[[str], None] = lambda name: None  # called with each server that is listed
        self._patience_seconds = patience_seconds if options.fail_on_server_down else 0.0
        self._reached = reached
        self._down_until: dict[str, float] = {}
        self._clients: dict[str, ServiceClient] = {}

    def __reduce__(self) -> tuple[Callable[[Options, float], Fleet], tuple[Options, float]]:
        return _arrived, (self.options, self._patience_seconds)

    @property
    def names(self) -> list[str]:
        """The servers' names, sorted."""
        return [server.name for server in self.options.servers]

    def client(self, name: str) -> ServiceClient:
        """Return the client of one server."""
        if name not in self._clients:
            options = self.options
            timeout, retries = options.timeout_seconds, options.retries
            if not options.fail_on_server_down:
                timeout, retries = min(timeout, SKIPPED_TIMEOUT_SECONDS), min(retries, 1)
            self._clients[name] = ServiceClient(
                next(server for server in options.servers if server.name == name),
                token=options.token,
                timeout_seconds=timeout,
                retries=retries,
                patience_seconds=self._patience_seconds,
                reached=self._reached,
            )
        return self._clients[name]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def survey(self) -> dict[str, Listed]:
        """List the subscribed queues of every server that responds.

        Raises:
            ServerDownError: a server is down, unless the options say to skip it.
        """
        found: dict[str, Listed] = {}
        self.down = {}
        for name, answer in self._list_all():
            if isinstance(answer, ServerDownError):
                self.report_down(answer)
            else:
                self._down_until.pop(name, None)
                found[name] = answer
        return found

    def listings(self) -> dict[str, Listing]:
        """Return server → queue → summary, from `survey`."""
        return {name: listed.queues for name, listed in self.survey().items()}

    def prove(self, known: Checkpoint, surveys: dict[str, Listed]) -> dict[str, Answers]:
        """Request what the listings leave open about the positions in *known* (see `proof`); usually nothing.

        Args:
            known: the checkpoint.
            surveys: the listings; a server that goes down meanwhile is removed.

        Returns:
            server → what it returned.

        Raises:
            ReopenedError: a log was opened since it was listed.
            ServerDownError: a server is down, unless the options say to skip it.
        """
        found: dict[str, Answers] = {}
        for name, listed in list(surveys.items()):
            asked = questions(known, name, listed, self.options.subscription.includes)
            try:
                found[name] = self._answers(name, listed.opening, asked)
            except ServerDownError as error:
                self.report_down(error)
                del surveys[name]
        return found

    def _answers(self, name: str, opening: str, asked: Questions) -> Answers:
        gone = [PlanStart(queue, queue_id, 0, 0) for queue, queue_id in asked.gone.items()]
        tails = [PlanStart(queue, queue_id, None, stop) for queue, (queue_id, stop) in asked.tails.items()]
        return Answers(
            {plan.queue: plan.ended for plan in self._plan(name, gone, opening=opening)},
            {plan.queue: plan.tail for plan in self._plan(name, tails, opening=opening, tails=True)},
        )

    def _plan(self, name: str, starts: list[PlanStart], *, opening: str, tails: bool = False) -> list[QueuePlan]:
        return _same_opening(lambda: self.client(name).plan(starts, opening=opening, tails=tails))

    def advance(
        self, positions: Offset, surveys: Mapping[str, Listed], stops: Offset | None, limits: Limits
    ) -> list[tuple[str, QueuePlan]]:
        """Return how far the limits reach from *positions*: (server, plan) of each queue that advances.

        Args:
            positions: where the last batch ended.
            surveys: the listings.
            stops: read no further than this, and no queue that it does not name; None for no such limit.
            limits: what the batch may hold.

        Raises:
            ReopenedError: a log was opened since it was listed.
            ServerDownError: a server is down, unless the options say to skip it.
        """
        asked: dict[tuple[str, int], list[PlanStart]] = {}
        weights: dict[tuple[str, int], int] = {}
        for name, listed in surveys.items():
            known = positions.get(name, {})
            starts = _starts(known, listed.queues, stops, name)
            for index, part in enumerate(chunks(starts, QUEUES_AT_ONCE)):
                asked[name, index] = list(part)
                weights[name, index] = backlog({start.queue: known[start.queue] for start in part}, listed.queues)
        records = shares(limits.records, weights) if limits.records is not None else {}
        size = shares(limits.bytes, weights) if limits.bytes is not None else {}
        found: list[tuple[str, QueuePlan]] = []
        for key, part in asked.items():
            name = key[0]
            if name not in self.down:
                plans = self._advance_one(name, surveys[name].opening, part, records.get(key), size.get(key))
                found += [(name, plan) for plan in plans]
        # A queue that was truncated or recreated between listing and plan does not advance: the next check reports it.
        return [(name, plan) for name, plan in found if plan.status == "ok"]

    def _advance_one(
        self, name: str, opening: str, starts: list[PlanStart], records: int | None, size: int | None
    ) -> list[QueuePlan]:
        client = self.client(name)
        try:
            return _same_opening(
                lambda: client.plan(starts, records_max=records, bytes_max=size, opening=opening, tails=True)
            )
        except ServerDownError as error:
            self.report_down(error)
            return []

    def partitions(self, wanted: Iterable[tuple[str, str, int, int, int]]) -> list[Partition]:
        """Divide what is *wanted*, (server, queue, id, start, stop), into partitions.

        Raises:
            DataLossError: a range is no longer complete. With `failOnDataLoss=false` the rest of it is read.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused the request.
        """
        starts: dict[str, list[PlanStart]] = {}
        for server, queue, queue_id, start, stop in wanted:
            starts.setdefault(server, []).append(PlanStart(queue, queue_id, start, stop))
        ranges: dict[str, list[Range]] = {}
        for server, asked in starts.items():
            plans = self.client(server).plan(asked, piece_records=PIECE_RECORDS, piece_bytes=PIECE_BYTES)
            ranges[server] = [
                piece for start, plan in zip(asked, plans, strict=True) for piece in self._pieces(server, start, plan)
            ]
        options = self.options
        if not options.payload:  # then payloads are not transferred, and cost a task nothing
            ranges = {server: [piece._replace(bytes=0) for piece in pieces] for server, pieces in ranges.items()}
        every = [piece for pieces in ranges.values() for piece in pieces]
        cores = options.parallelism or _cores()
        size = partition_size(every, options.partitions_min, options.records_per_partition, cores)
        return [partition for server, pieces in ranges.items() for partition in pack(server, pieces, size)]

    def report_losses(self, losses: list[str]) -> None:
        """Raise DataLossError for what is lost; with `failOnDataLoss=false` log it instead."""
        if not losses:
            return
        if self.options.fail_on_data_loss:
            raise DataLossError("; ".join(losses) + "; to continue with what is left, set failOnDataLoss=false")
        for loss in losses:
            logger.warning("records are lost: %s", loss)

    def _list_all(self) -> list[tuple[str, Listed | ServerDownError]]:
        names = self.names
        if len(names) == 1:
            return [(names[0], self._list_one(names[0]))]
        with ThreadPoolExecutor(min(len(names), LISTED_AT_ONCE)) as threads:
            return list(zip(names, threads.map(self._list_one, names), strict=True))

    def _list_one(self, name: str) -> Listed | ServerDownError:
        client = self.client(name)
        if _clock() < self._down_until.get(name, 0.0):
            return ServerDownError(name, client.url, f"it was down less than {DOWN_SECONDS:.0f} s ago")
        try:
            self.before_listing(name)
            listing = client.listing()
        except ServerDownError as error:
            return error
        queues = select(listing.queues, self.options.subscription)
        return Listed(queues, listing.log, listing.opening, listing.opened or {})

    def report_down(self, error: ServerDownError) -> None:
        """Raise *error*; if the options say so, skip the server for a while instead."""
        if self.options.fail_on_server_down:
            raise error
        self.down[error.server] = error.reason
        if _clock() >= self._down_until.get(error.server, 0.0):
            self._down_until[error.server] = _clock() + DOWN_SECONDS
            logger.warning("%s; skipping it for %d s, its queues keep their positions", error, DOWN_SECONDS)

    def _pieces(self, server: str, start: PlanStart, plan: QueuePlan) -> list[Range]:
        """Return what is left of the requested range."""
        if plan.status == "ok" and (plan.start, plan.stop) == (start.start, start.stop):
            return plan.pieces
        lost = f"positions {start.start} to {(start.stop or 0) - 1} are no longer as planned ({plan.status})"
        self.report_losses([f"server {server!r}, queue {start.queue!r}: {lost}"])
        return plan.pieces if plan.status in ("ok", "truncated") else []


class Limits(NamedTuple):
    """What one batch may hold, in records and payload bytes; None for no limit."""

    records: int | None = None
    bytes: int | None = None


def _starts(positions: Mapping[str, list[int]], listing: Listing, stops: Offset | None, server: str) -> list[PlanStart]:
    """Return the starts of those queues of one server that have something to read."""
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


def _same_opening(ask: Callable[[], list[QueuePlan]]) -> list[QueuePlan]:
    try:
        return ask()
    except ServiceRefusedError as error:
        if error.code == "reopened":
            raise ReopenedError from error
        raise


def _arrived(options: Options, patience_seconds: float) -> Fleet:
    """Return the fleet of a task. The driver has just reached the servers, so the task waits for them."""
    return Fleet(options, patience_seconds=patience_seconds, reached=True)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_clock: Callable[[], float] = time.monotonic

"""All services of one query: listed in parallel, then planned and truncated one by one.

`survey` returns what each server has. `standing` returns what each log has, and which logs are held back; afterwards
logs are requested by their ids, wherever they are. Each request names its log, so that another log refuses it.

What follows if a server is down is decided in `outages`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.checkpoint import At, Checkpoint, Offset, named
from mrecordlog_async.spark.client import PlanStart, ServiceClient, chunks
from mrecordlog_async.spark.connection import QUEUES_AT_ONCE, ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.history import (
    Opening,
    Standing,
    alternates,
    arrange,
    balanced_sentence,
    forgotten,
    lost_state,
    needs_openings,
    placed,
)
from mrecordlog_async.spark.lookups import Discovery, Found
from mrecordlog_async.spark.offsets import DataLossError, Listing, backlog, select, shares
from mrecordlog_async.spark.option_values import OptionError, Server
from mrecordlog_async.spark.options import Options
from mrecordlog_async.spark.outages import Outages
from mrecordlog_async.spark.partitions import Partition, Range, pack, partition_size
from mrecordlog_async.spark.probe import Probe
from mrecordlog_async.spark.proof import Answers, Listed, Questions, questions
from mrecordlog_async.spark.responses import LogHistory, QueuePlan, ServiceListing

logger = logging.getLogger("mrecordlog_async.spark")

T = TypeVar("T")

PIECE_RECORDS = 8_192
PIECE_BYTES = 8 << 20
"""The size of the pieces that a service cuts queues into; packing cuts further where there are no gaps."""

SKIPPED_TIMEOUT_SECONDS = 10.0
"""How long one response may take if servers that do not respond are skipped: so long the others wait for it, once."""

LISTED_AT_ONCE = 16

IDENTIFIED_AT_FIRST = 2
"""How often a server is asked again, on new connections, which log it has: a load balancer has several."""

SEEN_MAX = 16


class ReopenedError(Exception):
    """A log was reopened, or moved to another address, between two requests about it; both must be repeated."""


class LogMissingError(RecordLogError):
    """No server has a log of a batch that was begun."""


class Fleet:
    """The services that the options name. Connects on the first request; a pickled copy starts over."""

    def __init__(self, options: Options, *, patience_seconds: float = 0.0, reached: bool = False) -> None:
        self.options = options
        self.before_listing: Callable[[str], None] = lambda name: None  # called with each server that is listed
        self._patience_seconds = patience_seconds
        self._reached = reached
        self._servers = {server.name: server for server in options.servers if not server.is_lookup}
        lookups = [server for server in options.servers if server.is_lookup]
        self._discovery = Discovery(lookups, frozenset(self._servers), self._identify)
        # A task needs its server, whatever the options say: a batch that was begun cannot leave anything out.
        self._skips = not options.fail_on_server_down and not reached
        self._outages = Outages(options, patience_seconds, lambda name: Probe(self._new_client(name)))
        self._clients: dict[str, ServiceClient] = {}
        self._listed: dict[str, tuple[ServiceListing, Listed]] = {}
        self._places: dict[str, str] = {}  # log → the server that has it, as of the last listing
        self._logs: dict[str, str] = {}  # server → its log, as of the last listing
        self._seen: dict[str, list[tuple[str, str]]] = {}  # server → (log, opening) that it responded with
        self._balanced: dict[str, str] = {}  # servers that are load balancers → why
        self._proved: dict[str, tuple[object, ...]] = {}  # log → the history that was last compared

    def __reduce__(self) -> tuple[Callable[[Options, float], Fleet], tuple[Options, float]]:
        return _arrived, (self.options, self._patience_seconds)

    @property
    def down(self) -> dict[str, str]:
        """The servers that are skipped, and why, as of the last listing."""
        return self._outages.now

    @property
    def names(self) -> list[str]:
        """The servers' names, sorted; with those that were found by DNS names."""
        self._refresh()
        return sorted(self._servers)

    def add(self, server: Server) -> None:
        """Add a server that was found by its DNS name, or has another address now."""
        if self._servers.get(server.name) != server:
            self._servers[server.name] = server
            self._drop_client(server.name)

    def _refresh(self) -> Found:
        """Take over what was found by DNS names."""
        found = self._discovery.found()
        known = [name for name, server in self._servers.items() if server.origin]
        for name in known:
            if name not in found.servers and not self._reached:
                del self._servers[name]
                self._drop_client(name)
        for server in found.servers.values():
            self.add(server)
        return found

    def _drop_client(self, name: str) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            client.close()

    def _identify(self, server: Server) -> LogHistory:
        client = self._client_of(server)
        try:
            return client.history()
        finally:
            client.close()

    def client(self, name: str) -> ServiceClient:
        """Return the client of one server, given by its name, or by its log after `standing`."""
        name = self.name_of(name)
        if name not in self._clients:
            self._clients[name] = self._new_client(name)
        return self._clients[name]

    def _new_client(self, name: str) -> ServiceClient:
        return self._client_of(self._servers[name])

    def _client_of(self, server: Server) -> ServiceClient:
        options = self.options
        timeout, retries, patience = options.timeout_seconds, options.retries, self._patience_seconds
        if self._skips:  # the probes try again
            timeout, retries, patience = min(timeout, SKIPPED_TIMEOUT_SECONDS), 0, 0.0
        return ServiceClient(
            server,
            token=options.token_of(server.origin or server.name),
            timeout_seconds=timeout,
            retries=retries,
            patience_seconds=patience,
            reached=self._reached,
        )

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
        self._outages.now = {}
        looked = self._refresh()
        for refusal in looked.refused:
            raise refusal
        for error in looked.down:
            self.report_down(error)
        for name, answer in self._list_all():
            if isinstance(answer, ServerDownError):
                self.report_down(answer)
            else:
                self._outages.responded(name)
                found[name] = answer
        return found

    def distinct(self) -> dict[str, Listed]:
        """Return what `survey` returns, with each log once.

        Raises:
            OptionError: a server is a load balancer, or two servers have live copies of a log.
            ServerDownError: a server is down, unless the options say to skip it.
        """
        standing = arrange(Checkpoint(), self.survey(), self._balanced)
        if standing.held:
            raise OptionError("; ".join(f"servers: {held.sentence}" for held in standing.held.values()))
        return {listed.server: listed for listed in standing.logs.values()}

    def standing(self, known: Checkpoint, found: dict[str, Listed] | None = None) -> tuple[Checkpoint, Standing]:
        """List all logs, and compare their histories with the checkpoint.

        Args:
            known: the checkpoint.
            found: what `survey` has just returned; None to request it.

        Returns:
            The checkpoint by the ids of logs, without those that the options forget; and which logs may be read.

        Raises:
            OptionError: a log that the options forget is there.
            ReopenedError: a log was opened since it was listed.
            ServerDownError: a server is down, unless the options say to skip it.
        """
        found = self.survey() if found is None else found
        known = placed(known, found)
        known = known.without(forgotten(self.options.forget, known, found))
        standing = arrange(known, found, self._balanced)
        self._report_missing(known, standing)
        self._places = {log: listed.server for log, listed in standing.logs.items()}
        for log, listed in list(standing.logs.items()):
            try:
                evidence = self._compare(log, known.at.get(log), listed)
            except ServerDownError as error:
                self.report_down(error)
                del standing.logs[log]
                continue
            if evidence is not None:
                standing.back[log] = evidence
        return known, standing

    def _report_missing(self, known: Checkpoint, standing: Standing) -> None:
        """Report the logs of the checkpoint that no address of a DNS name has: their servers are down."""
        for log, name in known.servers.items() if self._discovery.lookups else ():
            there = log in standing.logs or log in standing.held or name in self._servers
            if not there and log in known.positions:
                self.report_down(ServerDownError(name, self._discovery.lookups, f"no address has its log, {log}"))

    def _compare(self, log: str, at: At | None, listed: Listed) -> str | None:
        """Return the evidence that a log lacks the state *at*, or None. It is requested once for the same states."""
        if at is None:
            return None
        history = (at, listed.opening, listed.at and listed.at.opening)
        if history == self._proved.get(log):
            return None
        openings = self._openings(log, listed) if needs_openings(at, listed.at) else []
        evidence = lost_state(at, listed.at, openings)
        if evidence is None and openings:
            self._proved[log] = history
        return evidence

    def _openings(self, log: str, listed: Listed) -> list[Opening]:
        found = self.client(log).history()
        if (found.log, found.opening) != (listed.log, listed.opening):
            raise ReopenedError
        return found.openings

    def prove(self, known: Checkpoint, surveys: dict[str, Listed]) -> dict[str, Answers]:
        """Request what the listings leave open about the positions in *known* (see `proof`); usually nothing.

        Args:
            known: the checkpoint.
            surveys: the listings by log; a log whose server goes down meanwhile is removed.

        Returns:
            log → what its server returned.

        Raises:
            ReopenedError: a log was opened since it was listed.
            ServerDownError: a server is down, unless the options say to skip it.
        """
        found: dict[str, Answers] = {}
        for name, listed in list(surveys.items()):
            asked = questions(known, name, listed, self.options.subscription.includes)
            try:
                found[name] = self._answers(name, listed, asked)
            except ServerDownError as error:
                self.report_down(error)
                del surveys[name]
        return found

    def _answers(self, name: str, listed: Listed, asked: Questions) -> Answers:
        gone = [PlanStart(queue, queue_id, 0, 0) for queue, queue_id in asked.gone.items()]
        tails = [PlanStart(queue, queue_id, None, stop) for queue, (queue_id, stop) in asked.tails.items()]
        return Answers(
            {plan.queue: plan.ended for plan in self._plan(name, gone, listed)},
            {plan.queue: plan.tail for plan in self._plan(name, tails, listed, tails=True)},
        )

    def _plan(self, name: str, starts: list[PlanStart], listed: Listed, *, tails: bool = False) -> list[QueuePlan]:
        client = self.client(name)
        return same_opening(lambda: client.plan(starts, opening=listed.opening, tails=tails, log=listed.log))

    def advance(
        self, positions: Offset, surveys: Mapping[str, Listed], stops: Offset | None, limits: Limits
    ) -> list[tuple[str, QueuePlan]]:
        """Return how far the limits reach from *positions*: (log, plan) of each queue that advances.

        No queue advances past the end that was listed: so the listed state of its log covers what is read.

        Args:
            positions: where the last batch ended.
            surveys: the listings by log.
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
            if self.name_of(name) not in self.down:
                plans = self._advance_one(name, surveys[name], part, records.get(key), size.get(key))
                found += [(name, plan) for plan in plans]
        # A queue that was truncated or recreated between listing and plan does not advance: the next check reports it.
        return [(name, plan) for name, plan in found if plan.status == "ok"]

    def _advance_one(
        self, name: str, listed: Listed, starts: list[PlanStart], records: int | None, size: int | None
    ) -> list[QueuePlan]:
        client, opening = self.client(name), listed.opening
        try:
            return same_opening(
                lambda: client.plan(
                    starts,
                    records_max=records,
                    bytes_max=size,
                    piece_records=PIECE_RECORDS,
                    piece_bytes=PIECE_BYTES,
                    opening=opening,
                    log=listed.log,
                )
            )
        except ServerDownError as error:
            self.report_down(error)
            return []

    def partitions(
        self,
        wanted: Iterable[tuple[str, str, int, int, int]],
        names: Mapping[str, str] | None = None,
        planned: Mapping[tuple[str, str], QueuePlan] = MappingProxyType({}),
    ) -> list[Partition]:
        """Divide what is *wanted*, (log or server, queue, id, start, stop), into partitions.

        Args:
            wanted: what is read; a log may be anywhere, as long as a server has it.
            names: log → the server's name that its rows carry; servers keep their own.
            planned: (log, queue) → a plan; it is used instead of a request if it is that of the range.

        Raises:
            DataLossError: a range is no longer complete. With `failOnDataLoss=false` the rest of it is read.
            LogMissingError: no server has a log of the batch.
            ServerDownError, ServiceRefusedError: a service could not be reached, or refused the request.
        """
        names = names or {}
        starts: dict[str, list[PlanStart]] = {}
        ranges: dict[str, list[Range]] = {}
        for key, queue, queue_id, start, stop in wanted:
            ready = planned.get((key, queue))
            if ready is not None and (ready.status, ready.id, ready.start, ready.stop) == ("ok", queue_id, start, stop):
                ranges.setdefault(key, []).extend(ready.pieces)
            else:
                starts.setdefault(key, []).append(PlanStart(queue, queue_id, start, stop))
        self._locate(starts.keys() & names.keys(), names)
        for key, asked in starts.items():
            plans = self._plan_pieces(key, asked, names)
            shown = names.get(key, key)
            ranges.setdefault(key, []).extend(
                piece for begun, plan in zip(asked, plans, strict=True) for piece in self._pieces(shown, begun, plan)
            )
        options = self.options
        if not options.payload:  # then payloads are not transferred, and cost a task nothing
            ranges = {key: [piece._replace(bytes=0) for piece in pieces] for key, pieces in ranges.items()}
        every = [piece for pieces in ranges.values() for piece in pieces]
        cores = options.parallelism or _cores()
        size = partition_size(every, options.partitions_min, options.records_per_partition, cores)
        return [
            partition
            for key, pieces in sorted(ranges.items(), key=lambda each: names.get(each[0], each[0]))
            for partition in pack(
                names.get(key, key),
                pieces,
                size,
                log=self.log_of(key),
                address=self.name_of(key),
                place=self._place_of(key),
            )
        ]

    def _plan_pieces(self, key: str, starts: list[PlanStart], names: Mapping[str, str]) -> list[QueuePlan]:
        """Request the pieces of *starts*; if the log has moved since it was listed, at its new address."""
        try:
            return self._pieces_of(key, starts)
        except ServiceRefusedError as error:
            if error.code != "other_log" or key not in names:
                raise
        del self._places[key]
        self._locate({key}, names)
        return self._pieces_of(key, starts)

    def _pieces_of(self, key: str, starts: list[PlanStart]) -> list[QueuePlan]:
        client, log = self.client(key), self.log_of(key)
        return client.plan(starts, piece_records=PIECE_RECORDS, piece_bytes=PIECE_BYTES, log=log)

    def name_of(self, key: str) -> str:
        """Return the name of the server that has the log *key*; *key* itself if it is a server."""
        return self._places.get(key, key)

    def _place_of(self, key: str) -> Server | None:
        """Return the server that has the log *key*, if tasks do not know it from the options."""
        server = self._servers.get(self.name_of(key))
        return server if server is not None and server.origin else None

    def log_of(self, key: str) -> str:
        """Return the log that requests about *key*, a log or a server, are for; "" for any."""
        return self._logs.get(self.name_of(key), "")

    def _locate(self, logs: Collection[str], names: Mapping[str, str]) -> None:
        """Find the servers that have *logs*, unless the last listing has shown it: the first call may plan a batch."""
        if all(self._logs.get(self._places.get(log, "")) == log for log in logs):
            return
        found = self.survey()
        while not _has_all(found, logs) and self.down:
            self.wait_for_down(known=True)
            found = self.survey()
        at = {listed.log: name for name, listed in found.items()}
        for log in logs:
            name = names[log] if names[log] in found and found[names[log]].log == log else at.get(log)
            if name is None and log not in map(named, found):
                raise LogMissingError(
                    f"server {names[log]!r}: a batch that was begun reads the log {log}, and no server has it: serve "
                    "it under one of the names"
                )
            self._places[log] = name or names[log]

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
        if self._outages.is_down(name):
            return ServerDownError(name, client.url, "it was down, and has not responded since")
        try:
            self.before_listing(name)
            listing = client.listing()
            self._note(name, client, listing)
        except ServerDownError as error:
            return error
        known = self._listed.get(name)
        if known is None or known[0] is not listing:  # an unchanged listing is the same object
            queues = select(listing.queues, self.options.subscription)
            listed = Listed(queues, listing.log, listing.opening, listing.opened or {}, listing.at)
            known = self._listed[name] = listing, listed
        return known[1]

    def _note(self, name: str, client: ServiceClient, listing: ServiceListing) -> None:
        """Note which log *name* responds with; if it is another one than before, ask again on new connections."""
        self._logs[name] = listing.log
        seen = self._seen.setdefault(name, [])
        if seen[-1:] == [(listing.log, listing.opening)]:
            return
        seen.append((listing.log, listing.opening))
        for _ in range(IDENTIFIED_AT_FIRST):
            client.close()
            found = client.history()
            if (found.log, found.opening) != seen[-1]:
                seen.append((found.log, found.opening))
        if alternates(seen):
            self._balanced[name] = balanced_sentence(seen)
        del seen[:-SEEN_MAX]

    def report_down(self, error: ServerDownError) -> None:
        """Raise *error*; if the options say so, skip the server for a while instead."""
        self._outages.report(error)

    def wait_for_down(self, *, known: bool = False) -> None:
        """Wait a moment for servers that are down; arguments and errors are those of `Outages.wait`."""
        self._outages.wait(known=known)

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


def _starts(positions: Mapping[str, list[int]], listing: Listing, stops: Offset | None, log: str) -> list[PlanStart]:
    """Return the starts of those queues of one log that have something to read."""
    found = []
    for queue, (queue_id, position) in positions.items():
        if queue not in listing or listing[queue].id != queue_id:
            continue
        stop = listing[queue].next_position
        if stops is not None:
            target = stops.get(log, {}).get(queue)
            if target is None or target[0] != queue_id:
                continue
            stop = min(stop, target[1])
        if position < stop:
            found.append(PlanStart(queue, queue_id, position, stop))
    return found


def _has_all(found: Mapping[str, Listed], logs: Collection[str]) -> bool:
    there = {listed.log for listed in found.values()} | {named(name) for name in found}
    return there.issuperset(logs)


def same_opening(ask: Callable[[], T]) -> T:
    """Return what *ask* returns. Raises ReopenedError if it is refused because the log was reopened or moved."""
    try:
        return ask()
    except ServiceRefusedError as error:
        if error.code in ("reopened", "other_log"):
            raise ReopenedError from error
        raise


def _arrived(options: Options, patience_seconds: float) -> Fleet:
    """Return the fleet of a task. The driver has just reached the servers, so the task waits for them."""
    return Fleet(options, patience_seconds=patience_seconds, reached=True)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

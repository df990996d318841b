"""The logs of one query: where each is, whether it is still what the checkpoint continues, and which of them are read.

`survey` returns what each server has (see `listings`). `standing` returns what each log has, and which logs are held
back; afterwards logs are requested by their ids, wherever they are. Each request names its log, so that another log
refuses it.

What follows if a server is down is decided in `outages`; what is requested for a batch, in `planning`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeVar

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.log_schemas import OpeningResponse
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.positions.history import (
    FORGET_DIGITS,
    Standing,
    forgotten,
    lost_state,
    needs_openings,
    placed,
)
from mrecordlog_async.spark.positions.offsets import DataLossError
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.listings import Listings
from mrecordlog_async.spark.services.outages import Outages
from mrecordlog_async.spark.services.servers import QueryServers
from mrecordlog_async.spark.settings.offset import At, Offset, named
from mrecordlog_async.spark.settings.option_values import OptionError
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

T = TypeVar("T")

NO_ORIGINS: Mapping[str, str] = MappingProxyType({})


class ReopenedError(Exception):
    """A log was reopened, or moved to another address, between two requests about it; both must be repeated.

    server: the name of the server that had it.
    """

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.server = server


class LogMissingError(RecordLogError):
    """No server has a log of a batch that was begun."""


class Fleet:
    """The services that the options name. Connects on the first request; a pickled copy starts over.

    What lists or asks them raises ServerDownError if a server is down, unless the options say to skip it, and what
    follows a listing raises ReopenedError if a log was opened since.
    """

    def __init__(self, options: Options, *, patience_seconds: float = 0.0, reached: bool = False) -> None:
        self.options = options
        self._patience_seconds = patience_seconds
        self.servers = QueryServers(options, patience_seconds=patience_seconds, reached=reached)
        self.outages = Outages(options, patience_seconds, self.servers)
        self.listings = Listings(options, self.servers, self.outages)
        self._places: dict[str, str] = {}  # log → the server that has it, as of the last listing
        self._proved: dict[str, tuple[object, ...]] = {}  # log → the history that was last compared

    def __reduce__(self) -> tuple[Callable[[Options, float], Fleet], tuple[Options, float]]:
        return _arrived, (self.options, self._patience_seconds)

    @property
    def names(self) -> list[str]:
        """The servers' names, sorted; with those that were found by DNS names."""
        return [each.name for each in self.servers.present()]

    @property
    def down(self) -> dict[str, str]:
        """The servers that are skipped, and why, as of the last listing."""
        return self.outages.now

    def client(self, name: str) -> ServiceClient:
        """Return the client of one server, given by its name, or by its log after `standing`."""
        return self.servers.client(self.name_of(name))

    def close(self) -> None:
        """Close all connections."""
        self.servers.close()

    def survey(self) -> dict[str, Listed]:
        """List the subscribed queues of every server that responds; for the errors see `Listings.survey`."""
        return self.listings.survey()

    def distinct(self) -> dict[str, Listed]:
        """Return what `survey` returns, with each log once.

        Raises:
            OptionError: a server is a load balancer, or two servers have live copies of a log.
        """
        standing = self.listings.arranged(Offset(), self.survey())
        if standing.held:
            raise OptionError("; ".join(f"servers: {held.sentence}" for held in standing.held.values()))
        return {listed.server: listed for listed in standing.logs.values()}

    def standing(self, known: Offset, found: dict[str, Listed] | None = None) -> tuple[Offset, Standing]:
        """List all logs, and compare their histories with the checkpoint.

        Args:
            known: the checkpoint.
            found: what `survey` has just returned; None to request it.

        Returns:
            The checkpoint by the ids of logs, without those that the options forget; and which logs may be read.

        Raises:
            OptionError: a server has a log that the options forget.
        """
        found = self.survey() if found is None else found
        known = placed(known, found)
        known = known.without(self.forgotten(known, found))
        standing = self.listings.arranged(known, found)
        self._report_missing(known, standing)
        # Before the histories are requested: `client` finds a server by its log.
        self._places = {log: listed.server for log, listed in standing.logs.items()}
        for log, listed in list(standing.logs.items()):
            try:
                evidence = self._compare(log, known.at.get(log), listed)
            except ServerDownError as error:
                self.outages.report(error)
                del standing.logs[log]
                continue
            if evidence is not None:
                standing.back[log] = evidence
        return known, standing

    def forgotten(self, known: Offset, found: Mapping[str, Listed] | None = None) -> frozenset[str]:
        """Return the logs of the checkpoint *known* that the options forget.

        found: what `survey` has just returned; None to request it if a log would be forgotten.

        Raises:
            OptionError: a server has a log that the options forget.
        """
        if found is None and not any(log.startswith(self.options.forget) for log in known.positions):
            return frozenset()
        return forgotten(self.options.forget, known, self.survey() if found is None else found)

    def _report_missing(self, known: Offset, standing: Standing) -> None:
        """Report the logs of the checkpoint that no address of their DNS names has any more: their servers are down."""
        for log, origin in known.origins.items():
            name = known.servers[log]
            there = log in standing.logs or log in standing.held or name in self.servers
            if not there and origin in self.servers.lookup_names:
                self._report_vanished(log, name)

    def _report_vanished(self, log: str, name: str) -> None:
        """Report that the server *name*, which had *log*, has no address any more: it is down."""
        self.outages.report(ServerDownError(name, self.servers.lookups, f"no address has its log, {log}"))

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

    def _openings(self, log: str, listed: Listed) -> list[OpeningResponse]:
        found = self.client(log).history()
        if (found.id, found.opening) != (listed.log, listed.opening):
            raise ReopenedError(self.name_of(log))
        return found.openings

    def name_of(self, key: str) -> str:
        """Return the name of the server that has the log *key*; *key* itself if it is a server."""
        return self._places.get(key, key)

    def found_at(self, key: str) -> Endpoint | None:
        """Return the server that has the log *key*, if tasks do not know it from the options."""
        return self.servers.found_at(self.name_of(key))

    def log_of(self, key: str) -> str:
        """Return the log that requests about *key*, a log or a server, are for; "" for any."""
        return self.servers[self.name_of(key)].log

    def locate(self, logs: Collection[str], names: Mapping[str, str], origins: Mapping[str, str] = NO_ORIGINS) -> None:
        """Find the servers that have *logs*, unless the last listing has shown it: the first call may plan a batch.

        names: log → its server. origins: log → the DNS name by which its server was found, as in a checkpoint.
        """
        if all(log in self._places and self.servers[self._places[log]].log == log for log in logs):
            return
        found = self._survey_for(logs, names, origins)
        while not _has_all(found, logs) and self.down:
            self.outages.wait(known=True)
            found = self._survey_for(logs, names, origins)
        at = {listed.log: name for name, listed in found.items()}
        for log in logs:
            name = names[log] if names[log] in found and found[names[log]].log == log else at.get(log)
            if name is None and log not in map(named, found):
                raise LogMissingError(
                    f"server {names[log]!r}: a batch that was begun reads the log {log}, and no server has it. Serve "
                    "it under one of the names; if it is lost, forget it (--forget, option forget: "
                    f"{log[:FORGET_DIGITS]})"
                )
            self._places[log] = name or names[log]

    def _survey_for(
        self, logs: Collection[str], names: Mapping[str, str], origins: Mapping[str, str]
    ) -> dict[str, Listed]:
        """Return what `survey` returns. A server of *logs* that vanished from its DNS name is down."""
        found = self.survey()
        for log in logs:
            looked_up = origins.get(log) in self.servers.lookup_names
            if looked_up and names[log] not in self.servers and not _has_all(found, [log]):
                self._report_vanished(log, names[log])
        return found

    def report_losses(self, losses: list[str]) -> None:
        """Raise DataLossError for what is lost; with `failOnDataLoss=false` log it instead."""
        if not losses:
            return
        if self.options.fail_on_data_loss:
            raise DataLossError("; ".join(losses) + "; to continue with what is left, set failOnDataLoss=false")
        for loss in losses:
            logger.warning("records are lost: %s", loss)

    def lose(self, log: str) -> None:
        """Note that *log* is not where the last listing showed it: `locate` looks for it."""
        self._places.pop(log, None)


def _has_all(found: Mapping[str, Listed], logs: Collection[str]) -> bool:
    there = {listed.log for listed in found.values()} | {named(name) for name in found}
    return there.issuperset(logs)


def same_opening(ask: Callable[[], T]) -> T:
    """Return what *ask* returns. Raises ReopenedError if it is refused because the log was reopened or moved."""
    try:
        return ask()
    except ServiceRefusedError as error:
        if error.code in ("reopened", "other_log"):
            raise ReopenedError(error.server) from error
        raise


def _arrived(options: Options, patience_seconds: float) -> Fleet:
    """Return the fleet of a task. The driver has just reached the servers, so the task waits for them."""
    return Fleet(options, patience_seconds=patience_seconds, reached=True)

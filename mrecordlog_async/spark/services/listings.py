"""Lists the servers of a query again and again: what each has, which log that is, and which of them to leave out.

1. Every server that is not skipped is listed, all at once. One that shows another log or opening than before is asked
   again, on new connections: a load balancer chooses for each connection.
2. What the addresses have shown goes to the roster (`servers.roster`), which knows load balancers and copies.
3. A failure is reported to `outages`, which fails the query or lets it continue without the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.servers.outages import LOOK_SECONDS
from mrecordlog_async.servers.roster import PROBES_OF_NEW, Roster, Seen, Sighting
from mrecordlog_async.spark.positions.history import Standing, arrange
from mrecordlog_async.spark.positions.offsets import select
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.outages import Outages
from mrecordlog_async.spark.services.servers import Failure, QueryServer, QueryServers
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.options import Options

LISTED_AT_ONCE = 16


class _Response(NamedTuple):
    """Listing of one server, and the log and opening that it showed each time that it was asked."""

    listed: Listed
    seen: list[Sighting]


class Listings:
    """The listings of one query's servers. For one thread, except where a method says otherwise.

    Attributes:
        before_listing: called with the name of each server before it is listed, in the thread that lists it.
    """

    def __init__(self, options: Options, servers: QueryServers, outages: Outages) -> None:
        self.before_listing: Callable[[str], None] = lambda name: None
        self._subscription = options.subscription
        self._servers = servers
        self._outages = outages
        self._roster = Roster()

    def survey(self) -> dict[str, Listed]:
        """List the subscribed queues of every server that responds.

        Raises:
            ServerDownError: a server is down, unless the options say to skip it.
            ServiceRefusedError: a server refuses to list its queues, unless the options say to skip it. Even if they
                do, but no other server has ever responded: then nothing would be left to read.
        """
        self._outages.begin()  # before anything can fail: what is reported from here on is down as of this listing
        looked = self._servers.refresh()
        failed: list[Failure] = [*looked.refused, *looked.down]
        found: dict[str, Listed] = {}
        for server, response in self._list_all():
            if isinstance(response, _Response):
                self._outages.responded(server)
                server.log = response.listed.log
                found[server.name] = response.listed
            else:
                failed.append(response)
        for error in failed:
            if isinstance(error, ServiceRefusedError) and not self._outages.has_reached_any:
                raise error
            self._outages.report(error)
        return found

    def arranged(self, known: Offset, found: Mapping[str, Listed]) -> Standing:
        """Return which logs of *found* may be read, as `arrange` does: load balancers and copies are held back."""
        now = _clock()
        balancers, copies = dict[str, str](), dict[str, str]()
        for name, listed in found.items():
            endpoint = self._servers[name].endpoint
            if endpoint is not None and (why := self._roster.why_balancer(endpoint, now)):
                balancers[name] = why
            elif why := self._roster.why_copied(listed.log, now):
                copies[listed.log] = why
        return arrange(known, found, balancers, copies)

    def _list_all(self) -> list[tuple[QueryServer, _Response | Failure]]:
        servers = self._servers.present()
        endpoints = {each.name: each.endpoint for each in servers if each.endpoint is not None}
        self._roster.note_listed(endpoints.values(), _clock())
        if len(servers) <= 1:  # none, if no DNS name was found
            responses = [(each, self._list_one(each)) for each in servers]
        else:
            with ThreadPoolExecutor(min(len(servers), LISTED_AT_ONCE)) as threads:
                responses = list(zip(servers, threads.map(self._list_one, servers), strict=True))
        self._note({endpoints[each.name]: response for each, response in responses})
        return responses

    def _note(self, responses: Mapping[Endpoint, _Response | Failure]) -> None:
        """Note what each address has shown. The roster belongs to one thread, so this is done after the listings."""
        for endpoint in self._roster.endpoints():
            response = responses.get(endpoint)
            if isinstance(response, _Response):
                for seen, asked, now in response.seen:
                    self._roster.see(endpoint, seen, asked, now)
            else:  # it did not respond, or nothing is called so any more
                self._roster.miss(endpoint, _clock())

    def _list_one(self, server: QueryServer) -> _Response | Failure:
        client = self._servers.client(server.name)
        if self._outages.is_down(server):  # a thread of its own asks whether it responds again
            return ServerDownError(server.name, client.url, "it was down, and has not responded since")
        try:
            self.before_listing(server.name)
            return self._ask(server, client)
        except (ServerDownError, ServiceRefusedError) as error:
            return error

    def _ask(self, server: QueryServer, client: ServiceClient) -> _Response:
        """List one server; if it shows another log or opening than before, ask again on new connections."""
        assert server.endpoint is not None, "it is present"
        asked = _clock()  # before the request: what was under way while a log was opened again proves nothing
        listing = client.listing()
        if server.listed is None or server.listed[0] is not listing:  # an unchanged listing is the same object
            subscribed = replace(listing, queues=select(listing.queues.values(), self._subscription))
            server.listed = listing, subscribed
        seen = [Sighting(Seen(listing.log, listing.opening), asked, _clock())]
        if self._asks_again(server, server.endpoint, seen[0].seen, asked):
            server.asked_again_at = asked
            for _ in range(PROBES_OF_NEW - 1):
                client.close()
                asked = _clock()
                found = client.history()
                seen.append(Sighting(Seen(found.id, found.opening), asked, _clock()))
        return _Response(server.listed[1], seen)

    def _asks_again(self, server: QueryServer, endpoint: Endpoint, seen: Seen, now: float) -> bool:
        """Return whether *endpoint* is new, shows something new, or is refused and was not asked again for a while.

        A refusal would end unnoticed otherwise: a load balancer keeps a connection to one server.
        """
        if not self._roster.showed(endpoint, seen):  # other threads read the roster, too; none changes it now
            return True
        refused = self._roster.why_refused(seen.log_id, endpoint, now) is not None
        return refused and now >= server.asked_again_at + LOOK_SECONDS


_clock: Callable[[], float] = time.monotonic

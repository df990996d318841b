"""The servers of one query: the state of each, its address, and a connection to it.

Those that the options name are known from the start; those behind DNS names are found (`lookups`).
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from math import inf

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.servers.outages import Absence
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceConnection, ServiceRefusedError
from mrecordlog_async.spark.services.lookups import Discovery, Found
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options

SKIPPED_TIMEOUT_SECONDS = 10.0
"""Timeout of one response if servers that do not respond are skipped: the others wait this long, once.

It also applies to servers that may be at another address meanwhile.
"""

Failure = ServerDownError | ServiceRefusedError
"""Reason why a server is down: it does not respond, or it refuses what every query requests."""


class Probe:
    """One attempt to reach a server, in a thread that ends with the process. responds: None while it is unknown.

    client: used by this thread alone.
    """

    def __init__(self, client: ServiceClient) -> None:
        self.responds: bool | None = None
        self._client = client
        threading.Thread(target=self._run, daemon=True, name="mrecordlog-probe").start()

    def _run(self) -> None:
        responds = True
        try:
            self._client.probe()
        except ServiceRefusedError:
            pass  # it responds; the next listing reports what it refuses
        except (OSError, ServerDownError):
            responds = False
        finally:
            self._client.close()
            self.responds = responds


@dataclass(slots=True, eq=False)
class QueryServer:
    """One server of a query, or the DNS name of several: everything that is known by its name."""

    name: str
    endpoint: Endpoint | None = None  # where it is; None while it is nowhere, as one that vanished from its DNS name
    client: ServiceClient | None = None  # its connection; None until it is used
    log: str = ""  # the log that it listed last; "" for none
    listed: tuple[Listed, Listed] | None = None  # what it listed last, and the response from which it was made
    asked_again_at: float = -inf  # when it was last asked for its log on new connections
    reached: bool = False  # it has responded once
    responded: bool = False  # it responded to the last listing
    down: bool = False  # it is skipped, as of the last listing
    absence: Absence = field(default_factory=Absence)  # since when it has been down
    why: Failure | None = None  # the first error of this outage
    skipped_until: float | None = None  # no request is sent before, not even a probe; None if it may be listed
    probe: Probe | None = None  # the attempt to reach it that runs in the background

    def move(self, endpoint: Endpoint | None) -> None:
        """Note where the server is now; the connection to its earlier address is closed.

        Requests to the new address still name its log: another log that has the address refuses them.
        """
        if endpoint != self.endpoint:
            self.endpoint, self.log = endpoint, "" if endpoint is None else self.log
            self.close()

    def close(self) -> None:
        """Close the connection."""
        client, self.client = self.client, None
        if client is not None:
            client.close()


class QueryServers:
    """The servers of one query. Connects on the first request.

    patience_seconds: how long a server is waited for that has responded before. reached: all of them have, elsewhere.
    """

    def __init__(self, options: Options, *, patience_seconds: float, reached: bool) -> None:
        self._options = options
        self._patience_seconds = patience_seconds
        self._reached = reached
        # A task needs its server, whatever the options say: a batch that was begun cannot leave anything out.
        self._skips = options.when_down is not WhenDown.FAIL and not reached
        self._by_name: dict[str, QueryServer] = {}
        for server in options.servers:
            if isinstance(server, Endpoint):
                self.add(server)
        lookups = [server for server in options.servers if isinstance(server, Lookup)]
        self.lookup_names = frozenset(lookup.name for lookup in lookups)
        self._discovery = Discovery(lookups, frozenset(self._by_name), self._identify)

    @property
    def lookups(self) -> str:
        """The DNS names that stand for servers, for messages; "" if there are none."""
        return self._discovery.lookups

    def __getitem__(self, name: str) -> QueryServer:
        """Return what is known of the server *name*, which may be nowhere."""
        if name not in self._by_name:
            self._by_name[name] = QueryServer(name)
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name and self._by_name[name].endpoint is not None

    def every(self) -> list[QueryServer]:
        """Return all that is known, including names that no server has at present."""
        return list(self._by_name.values())

    def present(self) -> list[QueryServer]:
        """Return the servers that are somewhere, by name; with those that were found by DNS names."""
        self.refresh()
        return [each for _, each in sorted(self._by_name.items()) if each.endpoint is not None]

    def refresh(self) -> Found:
        """Take over what was found by DNS names, and return it."""
        found = self._discovery.found()
        for server in self._by_name.values():
            if server.endpoint is not None and server.endpoint.origin and server.name not in found.servers:
                server.move(None)
        for endpoint in found.servers.values():
            self.add(endpoint)
        return found

    def add(self, endpoint: Endpoint) -> None:
        """Add a server, or note that it has another address now."""
        self[endpoint.name].move(endpoint)

    def found_at(self, name: str) -> Endpoint | None:
        """Return where the server *name* is if it was found by a DNS name: tasks do not know it from the options."""
        endpoint = self[name].endpoint
        return endpoint if endpoint is not None and endpoint.origin else None

    def client(self, name: str) -> ServiceClient:
        """Return the client of the server *name*."""
        server = self[name]
        if server.client is None:
            server.client = self.new_client(name)
        return server.client

    def new_client(self, name: str) -> ServiceClient:
        """Return another client of the server *name*, with a separate connection."""
        endpoint = self[name].endpoint
        if endpoint is None:
            raise KeyError(name)
        return self._client_of(endpoint)

    def close(self) -> None:
        """Close all connections."""
        for server in self._by_name.values():
            server.close()

    def _client_of(self, endpoint: Endpoint) -> ServiceClient:
        options = self._options
        timeout, retries, patience = options.timeout_seconds, options.retries, self._patience_seconds
        if self._skips:  # the probes try again
            timeout, retries, patience = min(timeout, SKIPPED_TIMEOUT_SECONDS), 0, 0.0
        elif endpoint.origin and patience and not self._reached:  # `Outages.repeated` waits, for another address, too
            timeout, patience = min(timeout, SKIPPED_TIMEOUT_SECONDS), 0.0
        return ServiceClient(
            ServiceConnection(
                endpoint,
                token=options.token_of(endpoint.token_name),
                timeout_seconds=timeout,
                retries=retries,
                patience_seconds=patience,
                reached=self._reached,
            )
        )

    def _identify(self, endpoint: Endpoint) -> LogResponse:
        with closing(self._client_of(endpoint)) as client:
            return client.history()

"""The servers of one query: their names, their addresses, and a connection to each.

Those that the options name are known from the start; those behind DNS names are found (`lookups`).
"""

from __future__ import annotations

from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.lookups import Discovery, Found
from mrecordlog_async.spark.services.responses import LogHistory
from mrecordlog_async.spark.settings.option_values import Server
from mrecordlog_async.spark.settings.options import Options

SKIPPED_TIMEOUT_SECONDS = 10.0
"""How long one response may take if servers that do not respond are skipped: so long the others wait for it, once.

Also if they may be at another address meanwhile.
"""


class Servers:
    """The servers that the options name. Connects on the first request.

    patience_seconds: how long a server is waited for that has responded before. reached: all of them have, elsewhere.
    """

    def __init__(self, options: Options, *, patience_seconds: float, reached: bool) -> None:
        self._options = options
        self._patience_seconds = patience_seconds
        self._reached = reached
        # A task needs its server, whatever the options say: a batch that was begun cannot leave anything out.
        self._skips = not options.fail_on_server_down and not reached
        self._known = {server.name: server for server in options.servers if not server.is_lookup}
        lookups = [server for server in options.servers if server.is_lookup]
        self.lookup_names = frozenset(server.name for server in lookups)
        self._discovery = Discovery(lookups, frozenset(self._known), self._identify)
        self._clients: dict[str, ServiceClient] = {}

    @property
    def lookups(self) -> str:
        """The DNS names that stand for servers, for messages; "" if there are none."""
        return self._discovery.lookups

    @property
    def names(self) -> list[str]:
        """The servers' names, sorted; with those that were found by DNS names."""
        self.refresh()
        return sorted(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def refresh(self) -> Found:
        """Take over what was found by DNS names, and return it."""
        found = self._discovery.found()
        for name in [name for name, server in self._known.items() if server.origin]:
            if name not in found.servers:
                del self._known[name]
                self._drop_client(name)
        for server in found.servers.values():
            self.add(server)
        return found

    def add(self, server: Server) -> None:
        """Add a server that was found by its DNS name, or has another address now."""
        if self._known.get(server.name) != server:
            self._known[server.name] = server
            self._drop_client(server.name)

    def found_one(self, name: str) -> Server | None:
        """Return the server *name* if it was found by a DNS name: tasks do not know it from the options."""
        server = self._known.get(name)
        return server if server is not None and server.origin else None

    def client(self, name: str) -> ServiceClient:
        """Return the client of the server *name*."""
        if name not in self._clients:
            self._clients[name] = self.new_client(name)
        return self._clients[name]

    def new_client(self, name: str) -> ServiceClient:
        """Return another client of the server *name*, with a separate connection."""
        return self._client_of(self._known[name])

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def _client_of(self, server: Server) -> ServiceClient:
        options = self._options
        timeout, retries, patience = options.timeout_seconds, options.retries, self._patience_seconds
        if self._skips:  # the probes try again
            timeout, retries, patience = min(timeout, SKIPPED_TIMEOUT_SECONDS), 0, 0.0
        elif server.origin and patience and not self._reached:  # `Outages.repeated` waits, for another address, too
            timeout, patience = min(timeout, SKIPPED_TIMEOUT_SECONDS), 0.0
        return ServiceClient(
            server,
            token=options.token_of(server.origin or server.name),
            timeout_seconds=timeout,
            retries=retries,
            patience_seconds=patience,
            reached=self._reached,
        )

    def _identify(self, server: Server) -> LogHistory:
        client = self._client_of(server)
        try:
            return client.history()
        finally:
            client.close()

    def _drop_client(self, name: str) -> None:
        client = self._clients.pop(name, None)
        if client is not None:
            client.close()

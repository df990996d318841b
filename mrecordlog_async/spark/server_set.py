"""The servers of one drain, each with a thread: those that are named, and those that a DNS name stands for now.

A service behind a DNS name is called what it calls itself. Its address may change; its log is what counts. One that is
no longer found stays, at its last address: it is down until it is found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark.consuming import ConsumerOfDrain
from mrecordlog_async.spark.log_server import DRIVER_SECONDS, LogServer
from mrecordlog_async.spark.server_thread import ServerThread
from mrecordlog_async.spark.services.lookups import Discovery


class ServerSet:
    """The servers that *given* stand for. For one thread."""

    def __init__(
        self,
        given: Sequence[Endpoint | Lookup],
        tokens: Mapping[str, str] | None = None,
        consumer: ConsumerOfDrain | None = None,
    ) -> None:
        """Look nothing up yet.

        Args:
            given: servers and DNS names.
            tokens: name of a server, or of a DNS name → token; "" is that of all others.
            consumer: acknowledge as this one instead of truncating.
        """
        self._tokens, self._consumer = tokens or {}, consumer
        named = [each for each in given if isinstance(each, Endpoint)]
        lookups = [each for each in given if isinstance(each, Lookup)]
        self._threads = {each.name: ServerThread(self.server(each), consumer) for each in named}
        self._discovery = Discovery(lookups, frozenset(self._threads), self._identify)
        self._has_lookups = bool(lookups)

    def server(self, endpoint: Endpoint, *, seconds: float = DRIVER_SECONDS) -> LogServer:
        """Return a client of the server at *endpoint*, with its token. seconds: longest silence of the service."""
        token = self._tokens.get(endpoint.token_name, self._tokens.get(""))
        return LogServer(endpoint.name, endpoint, token, seconds=seconds)

    def _identify(self, endpoint: Endpoint) -> LogResponse:
        with closing(self.server(endpoint)) as server:
            return server.identity()

    def __call__(self) -> list[ServerThread]:
        """Return the servers as they are known now."""
        if self._has_lookups:
            for name, endpoint in self._discovery.found().servers.items():
                known = self._threads.get(name)
                if known is None:
                    self._threads[name] = ServerThread(self.server(endpoint), self._consumer)
                elif known.server.endpoint != endpoint:
                    known.moved(endpoint)
        return list(self._threads.values())

    @property
    def unfound(self) -> dict[str, str]:
        """DNS names, and addresses behind them, that gave no service → why."""
        if not self._has_lookups:
            return {}
        found = self._discovery.found()
        return {each.server: each.reason for each in found.down} | {each.server: each.reason for each in found.refused}

    def endpoints(self) -> list[Endpoint]:
        """Return where the servers are that are known now."""
        return [each.server.endpoint for each in self._threads.values()]

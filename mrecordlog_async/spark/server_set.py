"""The servers of one drain, each with a thread: those that are named, and those that a DNS name stands for now.

A service behind a DNS name is called what it calls itself. Its address may change; its log is what counts. One that is
no longer found stays, at its last address: it is down until it is found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerHolder, ConsumerOfDrain, Holds
from mrecordlog_async.spark.discovery import Discovery
from mrecordlog_async.spark.log_server import DRIVER, TASK, LogServer, Patience
from mrecordlog_async.spark.server_thread import ServerThread


class ServerSet:
    """The servers that *given* stand for. For one thread.

    Attributes:
        origins: What the options call a DNS name → the name.
    """

    def __init__(
        self,
        given: Sequence[Endpoint | Lookup],
        tokens: Mapping[str, str] | None = None,
        consumer: ConsumerOfDrain | None = None,
        *,
        patience: Patience = DRIVER,
        in_tasks: Patience = TASK,
    ) -> None:
        """Look nothing up yet.

        Args:
            given: servers and DNS names.
            tokens: name of a server, or of a DNS name → token; "" is that of all others.
            consumer: acknowledge as this one instead of truncating.
            patience: of the calls of this process.
            in_tasks: of those of tasks.
        """
        self._tokens, self._consumer, self._patience = tokens or {}, consumer, (patience, in_tasks)
        named = [each for each in given if isinstance(each, Endpoint)]
        lookups = [each for each in given if isinstance(each, Lookup)]
        self._holds = Holds()
        self._threads = {each.name: self._thread(each) for each in named}
        self._discovery = Discovery(lookups, frozenset(self._threads), self._identify)
        self._has_lookups = bool(lookups)
        self.origins = {each.name: str(each) for each in lookups}

    def server(self, endpoint: Endpoint, *, seconds: float | None = None) -> LogServer:
        """Return a client of the server at *endpoint*, with its token. seconds: longest silence of the service."""
        token = self._tokens.get(endpoint.token_name, self._tokens.get(""))
        patience, in_tasks = self._patience
        patience = patience if seconds is None else patience._replace(seconds=seconds)
        return LogServer(endpoint.name, endpoint, token, patience=patience, in_tasks=in_tasks)

    def hold(self, consumer: ConsumerOfDrain) -> None:
        """Acknowledge as *consumer* from now on; nothing was surveyed yet."""
        self._consumer = consumer
        for each in self._threads.values():
            each.holder = ConsumerHolder(consumer, each.server, self._holds)

    def _thread(self, endpoint: Endpoint) -> ServerThread:
        server = self.server(endpoint)
        return ServerThread(server, self._consumer and ConsumerHolder(self._consumer, server, self._holds))

    def _identify(self, endpoint: Endpoint) -> LogResponse:
        with closing(self.server(endpoint)) as server:
            return server.identity()

    def __call__(self) -> list[ServerThread]:
        """Return the servers as they are known now."""
        if self._has_lookups:
            for name, endpoint in self._discovery.found().servers.items():
                known = self._threads.get(name)
                if known is None:
                    self._threads[name] = self._thread(endpoint)
                elif known.server.endpoint != endpoint:
                    known.moved(endpoint)
        return list(self._threads.values())

    @property
    def unfound(self) -> dict[str, ServerDownError | ServiceRefusedError]:
        """DNS names, and addresses behind them, that gave no service → why."""
        if not self._has_lookups:
            return {}
        found = self._discovery.found()
        return {**{each.server: each for each in found.down}, **{each.server: each for each in found.refused}}

    def endpoints(self) -> list[Endpoint]:
        """Return where the servers are that are known now."""
        return [each.server.endpoint for each in self._threads.values()]

"""Finds the services behind DNS names: `dns+http://wal:8080` stands for every address of `wal` (see `servers.names`).

1. At the first call, and then every `LOOK_SECONDS` in the background, the names are looked up, and each address is
   asked which service it is: a resolver or an address that hangs delays no batch.
2. A service is called what it calls itself (`serve --name`, by default its host name), because addresses change. If
   several logs have one name, the first digits of their ids are added.
3. A service that was found once stays, at its last address: it is down until it is found again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from mrecordlog_async.protocol.log_schemas import LogResponse
from mrecordlog_async.servers.names import Endpoint, Lookup
from mrecordlog_async.servers.outages import LOOK_SECONDS
from mrecordlog_async.servers.resolve import look_up
from mrecordlog_async.spark.connection import ServerDownError, ServiceRefusedError

logger = logging.getLogger("mrecordlog_async.spark")

ASKED_AT_ONCE = 16
LOG_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a look."""

    servers: Mapping[str, Endpoint] = field(default_factory=dict)  # the services by name, even those of earlier looks
    down: Sequence[ServerDownError] = ()  # names and addresses that gave no service
    refused: Sequence[ServiceRefusedError] = ()  # addresses that refused to say which service they are


class Discovery:
    """Looks up the DNS names of one drain or stream. `found` is for one thread."""

    def __init__(
        self, lookups: Sequence[Lookup], names_taken: Collection[str], identify: Callable[[Endpoint], LogResponse]
    ) -> None:
        """identify: requests which log a service has, over its own connection."""
        self._wanted = lookups
        self._names_taken = names_taken
        self._identify = identify
        self._endpoints: dict[Lookup, list[Endpoint]] = {}  # what each name stood for at the last look that succeeded
        self._ambiguous: set[str] = set()
        self._found = Found()
        self._looked_at: float | None = None
        self._thread: threading.Thread | None = None

    def found(self) -> Found:
        """Return what the last look has found; the first call waits for it."""
        now = _clock()
        due = self._looked_at is None or now - self._looked_at >= LOOK_SECONDS
        if self._wanted and due and (self._thread is None or not self._thread.is_alive()):
            first, self._looked_at = self._looked_at is None, now
            self._thread = threading.Thread(target=self._look, daemon=True, name="mrecordlog-discovery")
            self._thread.start()
            if first:
                self._thread.join()
        return self._found

    def _look(self) -> None:
        down: list[ServerDownError] = []
        refused: list[ServiceRefusedError] = []
        there: dict[str, tuple[str, Endpoint]] = {}  # log → the name of its service, and where it is
        endpoints = [each for lookup in self._wanted for each in self._look_up(lookup, down)]
        with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
            for endpoint, known in zip(endpoints, threads.map(self._ask, endpoints), strict=True):
                if isinstance(known, ServerDownError):
                    down.append(known)
                elif isinstance(known, ServiceRefusedError):
                    refused.append(known)
                else:
                    there.setdefault(known.id, (known.name, endpoint))
        servers = self._named(there)
        # The last address of a service that was not found may be another one's by now.
        used = {str(each) for each in servers.values()}
        kept = {name: each for name, each in self._found.servers.items() if str(each) not in used}
        lost = {str(each) for each in kept.values()}
        # What such an address refuses or fails, the service's own listing reports.
        self._found = Found(
            kept | servers,
            [error for error in down if error.server not in lost],
            [error for error in refused if error.server not in lost],
        )

    def _look_up(self, lookup: Lookup, down: list[ServerDownError]) -> list[Endpoint]:
        try:
            # Called what they are until they say their names.
            self._endpoints[lookup] = [replace(each, name=str(each)) for each in look_up(lookup)]
        except OSError as error:  # keep what it stood for last
            if lookup not in self._endpoints:
                down.append(ServerDownError(lookup.name, str(lookup), f"the name was not found: {error}"))
        return self._endpoints.get(lookup, [])

    def _ask(self, endpoint: Endpoint) -> LogResponse | ServerDownError | ServiceRefusedError:
        try:
            return self._identify(endpoint)
        except (ServerDownError, ServiceRefusedError) as error:
            return error
        except OSError as error:
            return ServerDownError(endpoint.name, endpoint.url, str(error))

    def _named(self, there: Mapping[str, tuple[str, Endpoint]]) -> dict[str, Endpoint]:
        count = Counter(name for name, _ in there.values())
        self._ambiguous |= {name for name, logs in count.items() if logs > 1 or not name or name in self._names_taken}
        named = {}
        for log, (name, endpoint) in there.items():
            shown = f"{name}-{log[:LOG_DIGITS]}" if name in self._ambiguous else name
            named[shown] = replace(endpoint, name=shown)
        return named


_clock: Callable[[], float] = time.monotonic

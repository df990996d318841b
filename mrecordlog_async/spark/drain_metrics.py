"""`/metrics` of a running drain, for Prometheus: what it has stored, and how far it is behind.

The lag is measured when it is requested, from the logs and from what the output had at the last look: it grows even
while the drain hangs.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.protocol.metric_text import CONTENT_TYPE, metric_head, metric_line
from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.connection import retries
from mrecordlog_async.spark.drain_loop import DrainTotals
from mrecordlog_async.spark.log_server import LogServer
from mrecordlog_async.spark.losses import waiting
from mrecordlog_async.spark.planning import Includes
from mrecordlog_async.spark.state import DrainState, QueueAt

logger = logging.getLogger("mrecordlog_async.spark")

LOOPBACK = "127.0.0.1"

COUNTERS = {
    "drain_rows_total": ("rows", "Rows stored since the drain started"),
    "drain_bytes_total": ("bytes", "Payload bytes of these rows"),
    "drain_batches_total": ("batches", "Batches with rows stored since the drain started"),
    "drain_failed_batches_total": ("failed", "Batches that were not stored, and were planned anew"),
}
"""Metric name → attribute of `DrainTotals`, help."""


class MetricsAddressError(RecordLogError, ValueError):
    """The address for metrics is malformed, or cannot be listened at."""


class Behind(NamedTuple):
    """Records that wait on one server. seconds: age of the oldest record that is not stored; 0.0 if there is none."""

    records: int
    seconds: float


class DrainLag:
    """Measures the lag of one drain, over connections of its own. For one thread at a time."""

    def __init__(
        self,
        endpoints: Callable[[], list[Endpoint]],
        connect: Callable[[Endpoint], LogServer],
        state: Callable[[], DrainState],
        includes: Includes,
    ) -> None:
        """Connect to nothing yet.

        Args:
            endpoints: returns the servers that are known now.
            connect: returns a client of one.
            state: returns what the output had at the last look.
            includes: whether a queue is subscribed.
        """
        self._endpoints, self._connect, self._state, self._includes = endpoints, connect, state, includes
        self._servers: dict[str, LogServer] = {}

    def measure(self) -> dict[str, Behind | None]:
        """Return server → what waits there; None for one that cannot be reached."""
        found: dict[str, Behind | None] = {}
        for endpoint in self._endpoints():
            server = self._servers.get(endpoint.name)
            if server is None or server.endpoint != endpoint:
                server = self._servers[endpoint.name] = self._connect(endpoint)
            try:
                found[endpoint.name] = self._behind(server)
            except RecordLogError:
                found[endpoint.name] = None
        return found

    def _behind(self, server: LogServer) -> Behind:
        listing = server.listing()
        known = self._state().logs.get(listing.log)
        records, times, kept = 0, list[datetime | None](), list[PlanStart]()
        for name, each in listing.queues.items():
            stored = known.queues.get(name) if known is not None else None
            at = stored if stored is not None and stored.id == each.id else QueueAt(each.id, each.first_position)
            if not self._includes(name) or not each.records or at.next >= each.next_position:
                continue
            records += waiting(at, each)
            if at.next <= each.first_position:
                times.append(each.oldest_time)
            else:  # other consumers need records that are stored already
                kept.append(PlanStart(name, at.next, at.id))
        if kept:
            times += [each.time for each in server.plan(kept, PlanRequest(times=True), listing)]
        oldest = min((time for time in times if time is not None), default=None)
        return Behind(records, max((_now() - oldest).total_seconds(), 0.0) if oldest is not None else 0.0)

    def close(self) -> None:
        """Close the connections."""
        for each in self._servers.values():
            each.close()


def render(totals: DrainTotals, behind: dict[str, Behind | None]) -> bytes:
    """Return the text that Prometheus reads."""
    parts = []
    counted = {name: (getattr(totals, attribute), text) for name, (attribute, text) in COUNTERS.items()}
    counted["drain_request_retries_total"] = (retries.count, "Requests to services that were sent again")
    for name, (value, text) in counted.items():
        parts += [metric_head(name, text, "counter"), metric_line(name, value)]
    parts.append(metric_head("drain_last_commit_timestamp_seconds", "When a batch with rows was last stored"))
    if totals.last_commit is not None:
        parts.append(metric_line("drain_last_commit_timestamp_seconds", totals.last_commit))
    reached = {name: each for name, each in behind.items() if each is not None}
    parts.append(metric_head("drain_lag_records", "Records that are not stored yet"))
    parts += [metric_line("drain_lag_records", each.records, server=name) for name, each in reached.items()]
    parts.append(metric_head("drain_lag_seconds", "Age of the oldest record that is not stored yet"))
    parts += [metric_line("drain_lag_seconds", each.seconds, server=name) for name, each in reached.items()]
    parts.append(metric_head("drain_server_up", "1 if the drain reaches the service"))
    return b"".join(parts + [metric_line("drain_server_up", name in reached, server=name) for name in behind])


@contextmanager
def metrics_served(address: str | None, totals: DrainTotals, lag: DrainLag) -> Iterator[str | None]:
    """Serve the metrics at *address*, HOST:PORT, until the end of the block; yield their URL. None serves nothing.

    Port 0 chooses one. Raises MetricsAddressError.
    """
    if address is None:
        yield None
        return
    host, port = parse_address(address)
    lock = threading.Lock()  # the connections of the lag are for one thread

    def text() -> bytes:
        with lock:
            return render(totals, lag.measure())

    try:
        server = MetricsServer(host, port, _handler(text))
    except OSError as error:
        raise MetricsAddressError(
            f"--metrics {address}: cannot listen there ({error.strerror}); choose another address"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="mrecordlog-metrics")
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        lag.close()


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, or PORT for the loopback address. Raises MetricsAddressError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise MetricsAddressError(f"--metrics: expected HOST:PORT or PORT, not {text!r}")
    return host.strip("[]") or LOOPBACK, int(port)


class MetricsServer(ThreadingHTTPServer):
    """Serves on IPv4, or on IPv6 where *host* is such an address."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of a bug, but none where the client has hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(text: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the standard library's name
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, explain="metrics are at /metrics")
                return
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each request."""

    return Handler


def _now() -> datetime:
    return datetime.now(UTC)

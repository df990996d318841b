"""`/metrics` of a running drain, for Prometheus: what it has stored, how far it is behind, how often it tried again.

The lag is measured when it is requested, from the logs and the checkpoint: it grows even while the query hangs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.protocol.bulk_schemas import PlanRequest, PlanStart
from mrecordlog_async.protocol.metric_text import CONTENT_TYPE, metric_head, metric_line
from mrecordlog_async.spark.checkpoints.batches import COMMITS, SparkBatches, newest
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.drain_metrics import MetricsServer
from mrecordlog_async.spark.positions.history import key_of, placed
from mrecordlog_async.spark.positions.offsets import Listing, backlog
from mrecordlog_async.spark.positions.proof import Listed
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.offset import Offset
from mrecordlog_async.spark.settings.option_values import WhenDown
from mrecordlog_async.spark.settings.options import Options

logger = logging.getLogger("mrecordlog_async.spark")

LOOPBACK = "127.0.0.1"

SCRAPE_SECONDS = 3.0
"""Seconds that a scrape waits for one response of a service."""

COUNTERS = {
    "drain_rows_total": ("records", "Rows stored since the drain started"),
    "drain_bytes_total": ("bytes", "Payload bytes of these rows"),
    "drain_batches_total": ("batches", "Batches with rows stored since the drain started"),
    "drain_request_retries_total": ("request_retries", "Requests to services that were sent again"),
    "drain_task_retries_total": ("task_retries", "Tasks of Spark that failed; each runs again, or ends the drain"),
}
"""Metric name → attribute of `DrainProgress`, help."""


class DrainMetrics:
    """Renders the metrics of one drain; several threads may do so at a time."""

    def __init__(self, progress: DrainProgress, lag: Lag) -> None:
        self._progress = progress
        self._lag = lag
        self._lock = threading.Lock()

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        parts = []
        for name, (attribute, documentation) in COUNTERS.items():
            parts += [
                metric_head(name, documentation, "counter"),
                metric_line(name, getattr(self._progress, attribute)),
            ]
        parts.append(metric_head("drain_last_commit_timestamp_seconds", "When a batch with rows was last stored"))
        if self._progress.last_commit is not None:
            parts.append(metric_line("drain_last_commit_timestamp_seconds", self._progress.last_commit))
        return b"".join(parts + self._render_lag())

    def _render_lag(self) -> list[bytes]:
        with self._lock:  # its connections are for one thread
            behind, names = self._lag.measure(), self._lag.fleet.names
        parts = [metric_head("drain_lag_records", "Records that are not stored yet")]
        parts += [metric_line("drain_lag_records", each.records, server=name) for name, each in behind.items()]
        parts.append(metric_head("drain_lag_seconds", "Age of the oldest record that is not stored yet"))
        parts += [metric_line("drain_lag_seconds", each.seconds, server=name) for name, each in behind.items()]
        parts.append(metric_head("drain_server_up", "1 if the drain reaches the service"))
        return parts + [metric_line("drain_server_up", name in behind, server=name) for name in names]


@contextmanager
def metrics_served(
    address: str | None, progress: DrainProgress, batches: SparkBatches, options: Options, report: Callable[[str], None]
) -> Iterator[None]:
    """Serve the metrics of a drain at *address*, HOST:PORT, until the end of the block; None serves nothing.

    Port 0 chooses one. report: called with a sentence that names the address.

    Raises:
        RefusedError: the address is malformed or cannot be listened at.
    """
    if address is None:
        yield
        return
    # A scrape must not wait long for a server that hangs; that is then skipped until it responds.
    quick = replace(
        options, timeout_seconds=min(options.timeout_seconds, SCRAPE_SECONDS), retries=0, when_down=WhenDown.SKIP
    )
    with closing(Fleet(quick)) as fleet, served(address, DrainMetrics(progress, Lag(batches, fleet))) as (host, port):
        report(f"metrics: http://{host}:{port}/metrics")
        yield


@contextmanager
def served(address: str, metrics: DrainMetrics) -> Iterator[tuple[str, int]]:
    """Serve *metrics* at *address* until the end of the block; yield host and port of its URL. Raises RefusedError."""
    host, port = parse_address(address)
    try:
        server = MetricsServer(host, port, _handler(metrics))
    except OSError as error:
        raise RefusedError(
            f"--metrics {address}: cannot listen there ({error.strerror}); choose another address"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True, name="mrecordlog-metrics")
    thread.start()
    try:
        yield f"[{host}]" if ":" in host else host, server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, or PORT for the loopback address. Raises RefusedError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise RefusedError(f"--metrics: expected HOST:PORT or PORT, not {text!r}")
    return host.strip("[]") or LOOPBACK, int(port)


def _handler(metrics: DrainMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the standard library's name
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, explain="metrics are at /metrics")
                return
            try:
                body = metrics.render()
            except (OSError, RecordLogError) as error:
                logger.warning("/metrics: %s", error)
                self.send_error(500, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each request."""

    return Handler


_clock: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731  # replaced by tests


class Behind(NamedTuple):
    """Records that wait on one server. seconds: age of the oldest record that is not stored; 0.0 if there is none."""

    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """Measures the lag of one query. For one thread at a time."""

    batches: SparkBatches
    fleet: Fleet

    def measure(self) -> dict[str, Behind]:
        """Return server → what waits there; a server that cannot be reached is missing."""
        try:
            surveys = self.fleet.survey()
        except ServiceRefusedError:  # no server lists its queues
            surveys = {}
        positions = placed(self._committed(), surveys).positions
        found = {}
        for server, listed in surveys.items():
            known = positions.get(key_of(server, listed), {})
            try:
                found[server] = self._behind(server, known, listed)
            except (OSError, ServerDownError, ServiceRefusedError):
                continue  # it was listed a moment ago: the next measurement has it
        return found

    def _committed(self) -> Offset:
        return self.batches.offset_at(newest(self.batches.checkpoint, COMMITS)) or Offset()

    def _behind(self, server: str, known: Mapping[str, list[int]], listed: Listed) -> Behind:
        waiting = {queue: at for queue, at in _positions(known, listed.queues) if _waits(at, listed.queues[queue])}
        times = [
            listed.queues[queue].oldest_time for queue, at in waiting.items() if _is_first(at, listed.queues[queue])
        ]
        kept = [
            PlanStart(queue, at[1], at[0]) for queue, at in waiting.items() if not _is_first(at, listed.queues[queue])
        ]
        if kept:  # other consumers need records that are stored already
            times += [plan.time for plan in self.fleet.client(server).plan(kept, PlanRequest(times=True))]
        oldest = min((time for time in times if time is not None), default=None)
        seconds = max((_clock() - oldest).total_seconds(), 0.0) if oldest is not None else 0.0
        return Behind(backlog(waiting, listed.queues), seconds)


def _positions(known: Mapping[str, list[int]], listing: Listing) -> Iterator[tuple[str, list[int]]]:
    """Yield (queue, [id, next position to store]); a queue that is not in the checkpoint begins at its first record."""
    for queue, summary in listing.items():
        at = known.get(queue)
        yield queue, at if at is not None and at[0] == summary.id else [summary.id, summary.first_position]


def _waits(at: list[int], summary: QueueSummary) -> bool:
    return summary.records > 0 and at[1] < summary.next_position


def _is_first(at: list[int], summary: QueueSummary) -> bool:
    return at[1] <= summary.first_position

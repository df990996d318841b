"""`/metrics`: the core's counters, for Prometheus. Numbers are computed on request; an append pays nothing.

Queues have their own series only if `metrics_per_queue` is set, consumers always. `/v1/stats` names the queue that
keeps old segments.
`Collector` may also be registered with an application's own registry, which usually has the process's numbers already.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import accumulate, islice
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector as PrometheusCollector

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.metrics import Counters, Histogram, SegmentPin
from mrecordlog_async.model import LastEnd, LogState
from mrecordlog_async.protocol.metric_text import PREFIX, metric_head, metric_line
from mrecordlog_async.service.reading.queue_checks import summary_of
from mrecordlog_async.service.service import VERSION, Service
from mrecordlog_async.service.watching.consumer_metrics import render_consumers
from mrecordlog_async.service.watching.stats import find_pin
from mrecordlog_async.service.wire.connections import ConnectionCounts
from mrecordlog_async.service.wire.turns import Turns
from mrecordlog_async.storage.segment import segment_name

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
QUEUES_AT_ONCE = 250
QUEUES_COLLECTED = 1_000

COUNTERS = {
    "appended_records": ("appended_records", "Records stored"),
    "appended_bytes": ("appended_bytes", "Payload bytes stored"),
    "truncated_records": ("truncated_records", "Records dropped by truncates and deletes"),
    "expired_records": ("expired_records", "Records dropped because they were older than max_age"),
    "duplicates": ("duplicates", "Appends of records that were already stored"),
    "written_bytes": ("written_bytes", "Bytes written to segments"),
    "commits": ("commits", "Batches written"),
    "syncs": ("syncs", "Syncs of a segment"),
    "segments_created": ("rolls", "Segments begun after a full one"),
    "segments_removed": ("segments_removed", "Segments removed"),
    "io_errors": ("io_errors", "Disk errors"),
}
"""Metric name → attribute of `Counters`, help."""

HISTOGRAMS = {
    "append_seconds": "From the call of an append to its return",
    "commit_seconds": "Time to write and sync a batch",
    "sync_seconds": "Time of a sync; where one call writes and syncs, of both",
    "roll_seconds": "Time of a batch that began a new segment",
    "commit_records": "Records in a batch",
    "commit_bytes": "Bytes in a batch",
}

USAGE = {
    "memory_used_bytes": ("memory_bytes", "Memory of retained records"),
    "memory_limit_bytes": ("memory_limit_bytes", "Limit of memory_used_bytes"),
    "disk_used_bytes": ("disk_bytes", "Disk space reserved for segments"),
    "disk_written_bytes": ("disk_written_bytes", "Disk space that holds data"),
    "disk_limit_bytes": ("disk_limit_bytes", "Limit of disk_used_bytes"),
    "pending_bytes": ("pending_bytes", "Bytes of calls that wait for the writer"),
    "queues": ("queues", "Queues"),
    "segments": ("segments", "Segments"),
}

PER_QUEUE = {
    "queue_records": ("records", "Records retained"),
    "queue_bytes": ("bytes", "Payload bytes retained"),
    "queue_start_position": ("first_position", "Lowest position not truncated"),
    "queue_next_position": ("next_position", "Position of the next record"),
    "queue_oldest_record_age_seconds": ("age_seconds", "Age of the oldest record; 0 for an empty queue"),
}


class Oldest(NamedTuple):
    """The oldest segment: its age (see `oldest_age`; None if unknown) and the queue that keeps it."""

    age_seconds: float | None
    pin: SegmentPin | None


class Collector(PrometheusCollector):
    """The metrics of one service.

    oldest: facts that take long to find. Without them, the queue that keeps most segments is searched for in one go,
    and the age of the oldest segment, which only the disk knows, is left out. queues: add series for at most
    `QUEUES_COLLECTED` queues if the service's options ask for them: a registry cannot let other tasks run while it
    collects. `/metrics` adds these series itself, in turns.
    """

    def __init__(self, service: Service, oldest: Oldest | None = None, *, queues: bool = True) -> None:
        self._service = service
        self._oldest = oldest
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        yield from _service(self._service)
        log = self._service.log_or_none
        if log is None:
            return
        yield _gauge("uptime_seconds", "Seconds since the log was opened", self._service.uptime_seconds)
        yield from _counters(log.stats())
        yield from _usage(log)
        yield from _segments(self._oldest or Oldest(None, log.pin()))
        if self._queues and self._service.options.metrics_per_queue and log.state is not LogState.CLOSED:
            yield from _queues(log)


async def render(service: Service) -> list[bytes]:
    """Return the text that Prometheus reads, in parts; it is built in turns."""
    log = service.log_or_none
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(service, await _find_oldest(log) if log is not None else None, queues=False))
    parts = [generate_latest(registry), await asyncio.to_thread(_process)]
    if log is not None and log.state is not LogState.CLOSED:
        if service.options.metrics_per_queue:
            parts += await _render_queues(service, log)
        parts += await render_consumers(service, log)
    return parts


def _process() -> bytes:
    """Return memory, descriptors and CPU time of this process, which the system keeps in files. Runs in a thread."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


async def _render_queues(service: Service, log: MultiRecordLog) -> list[bytes]:
    """Return the series of the first queues by name, and one series that counts the queues left out."""
    turns, most = Turns(), service.options.metrics_queues
    names = await service.names.sorted(log)
    left_out = "queues_without_series"
    parts = [metric_head(left_out, "Queues without their own series"), metric_line(left_out, max(len(names) - most, 0))]
    for name, (attribute, documentation) in PER_QUEUE.items():
        parts.append(metric_head(name, documentation))
        for at in range(0, min(len(names), most), QUEUES_AT_ONCE):
            some = [summary_of(log, queue) for queue in names[at : min(at + QUEUES_AT_ONCE, most)]]
            lines = [
                metric_line(name, getattr(one, attribute) or 0, queue=one.queue) for one in some if one is not None
            ]
            parts.append(b"".join(lines))
            await turns.rest()
    return parts


async def _find_oldest(log: MultiRecordLog) -> Oldest:
    return Oldest(await asyncio.to_thread(oldest_age, *_oldest_segment(log)), await find_pin(log))


def oldest_age(path: str, is_current: bool) -> float:
    """Return the seconds since the last write to the segment at *path*, the oldest; 0 if it is the current one.

    The oldest record that keeps the segment is at least this old. 0 as well if the segment was just removed.
    """
    if is_current:
        return 0.0
    try:
        return max(time.time() - os.stat(path).st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def _oldest_segment(log: MultiRecordLog) -> tuple[str, bool]:
    segments = log.segments
    return f"{log.directory}/{segment_name(segments[0])}", len(segments) == 1


def _service(service: Service) -> Iterator[Metric]:
    yield _gauge("recovery_fraction", "Fraction of the log that recovery has read", service.fraction)
    yield _gauge("tails", "Clients that wait for records", service.tails)
    bodies, sending = service.bodies.budget, service.sending
    yield _gauge("receiving_bytes", "Request bodies being received, or waiting to be stored", bodies.used)
    yield _gauge("receiving_limit_bytes", "Limit of receiving_bytes", bodies.limit)
    yield _counter("receiving_refused", "Requests refused by receiving_limit_bytes", bodies.refused)
    yield _gauge("sending_bytes", "Bytes held by responses being sent", sending.used)
    yield _gauge("sending_limit_bytes", "Limit of sending_bytes", sending.budget.limit)
    yield _counter("sending_refused", "Requests refused by sending_limit_bytes", sending.budget.refused)
    yield _counter("http_readers_dropped", "Clients dropped because they read too slowly", sending.dropped)
    if service.connections.known:
        yield from _connections(service.connections)
    state = GaugeMetricFamily(f"{PREFIX}state", "1 for the current state of the log", labels=("state",))
    for name in LogState:
        state.add_metric((name.value,), float(service.state is name))
    yield state
    yield _counter("http_requests", "Requests", service.requests)
    problems = CounterMetricFamily(f"{PREFIX}http_problems", "Responses other than success", labels=("status",))
    for status, count in sorted(service.problems.items()):
        problems.add_metric((str(status),), count)
    yield problems
    build = GaugeMetricFamily(f"{PREFIX}build_info", "Version of the service", labels=("version",))
    build.add_metric((VERSION,), 1)
    yield build


def _connections(counts: ConnectionCounts) -> Iterator[Metric]:
    yield _gauge("http_connections", "Open connections, counted every second", counts.open)
    yield _gauge("unread_bytes", "Bytes of waiting requests and unread responses", counts.unread_bytes)
    yield _counter("http_connections_refused", "Connections refused above the limit", counts.refused)
    yield _counter(
        "http_connections_cut", "Connections cut: idle, slow in their TLS handshake, or holding too much", counts.cut
    )


def _counters(counters: Counters) -> Iterator[Metric]:
    for name, (attribute, documentation) in COUNTERS.items():
        yield _counter(name, documentation, getattr(counters, attribute))
    rejected = CounterMetricFamily(f"{PREFIX}append_rejected", "Appends refused, each once", labels=("reason",))
    for reason, count in counters.refused.items():
        rejected.add_metric((reason,), count)
    yield rejected
    for name, documentation in HISTOGRAMS.items():
        histogram: Histogram = getattr(counters, name)
        yield HistogramMetricFamily(
            f"{PREFIX}{name}", documentation, buckets=list(_buckets(histogram)), sum_value=histogram.sum
        )


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    bounds = [*map(repr, map(float, histogram.bounds)), "+Inf"]
    return zip(bounds, accumulate(histogram.counts), strict=True)


def _usage(log: MultiRecordLog) -> Iterator[Metric]:
    usage = log.resource_usage()
    for name, (attribute, documentation) in USAGE.items():
        yield _gauge(name, documentation, getattr(usage, attribute))
    report = log.recovery_report
    documentation = "Seconds that the commit under way, or other work on the disk, has taken so far"
    yield _gauge("under_way_seconds", documentation, log.under_way_seconds)
    yield _gauge("waiting_seconds", "Seconds that the oldest unfinished call has waited", log.waiting_seconds)
    documentation = "1 if a write or sync failed: nothing is stored until the log is opened again"
    yield _gauge("failed", documentation, log.failure is not None)
    yield _gauge("pending_records", "Records that wait for the writer", log.pending_records)
    last_end = GaugeMetricFamily(f"{PREFIX}last_end", "1 for how the opening before this one ended", labels=("end",))
    for end in LastEnd:
        last_end.add_metric((end.value,), float(report.last_end is end))
    yield last_end
    workers = GaugeMetricFamily(f"{PREFIX}workers", "Workers of the application, by state", labels=("state",))
    for field in fields(log.workers):
        workers.add_metric((field.name,), getattr(log.workers, field.name))
    yield workers
    yield _counter("unclosed_ends", "Openings of this log that had not been closed", report.unclosed_ends)
    yield _gauge("recovery_seconds", "Seconds that opening took", report.seconds)
    yield _counter("recovered_records", "Records read at opening", report.records)
    yield _counter("recovered_bytes", "Payload bytes read at opening", report.bytes)
    yield _counter("dropped_bytes", "Bytes of a torn tail, discarded at opening", report.dropped_bytes)


def _segments(oldest: Oldest) -> Iterator[Metric]:
    if oldest.age_seconds is not None:
        documentation = "Seconds since the last write to the oldest segment, 0 if it is the only one"
        yield _gauge("oldest_segment_age_seconds", documentation, oldest.age_seconds)
    pin = oldest.pin
    segments, alone = (pin.segments, pin.alone) if pin is not None else (0, 0)
    yield _gauge("pinned_segments", "Segments kept by the queue that keeps most, except the current one", segments)
    yield _gauge("pinned_segments_alone", "Those of pinned_segments that no other queue keeps", alone)


def _queues(log: MultiRecordLog) -> Iterator[Metric]:
    _, names = log.names()
    found = [summary_of(log, name) for name in islice(names, QUEUES_COLLECTED)]
    for name, (attribute, documentation) in PER_QUEUE.items():
        family = GaugeMetricFamily(PREFIX + name, documentation, labels=("queue",))
        for summary in found:
            if summary is not None:
                family.add_metric((summary.queue,), getattr(summary, attribute) or 0)
        yield family


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, documentation, value)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, documentation, value)

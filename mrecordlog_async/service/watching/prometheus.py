"""`/metrics`: the core's counters, for Prometheus. Numbers are computed on request; an append pays nothing.

Queues have their own series only if `metrics_per_queue` is set, consumers always. `/v1/stats` names the queue that
keeps old segments. `ServiceCollector` may also be registered with an application's own registry, which usually has the
process's numbers already.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import accumulate, islice
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.metrics import (
    COUNTERS,
    OF_A_CONSUMER,
    OF_A_QUEUE,
    STATE,
    USAGE,
    Histogram,
    SegmentPin,
    Series,
    counted,
    gauged,
)
from mrecordlog_async.model import ConsumerSummary, LogState
from mrecordlog_async.protocol.metric_text import PREFIX, metric_head, metric_line
from mrecordlog_async.service.reading.queue_checks import summary_of
from mrecordlog_async.service.service import VERSION, Service
from mrecordlog_async.service.turns import Turns, sorted_in_turns
from mrecordlog_async.service.watching.stats import find_pin
from mrecordlog_async.storage.segment import segment_name

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
QUEUES_AT_ONCE = 250
QUEUES_COLLECTED = 1_000

SERVICE = (
    gauged("fraction", "recovery_fraction", "Fraction of the log that recovery has read"),
    gauged("tails", "tails", "Clients that wait for records"),
    gauged("bodies.budget.used", "receiving_bytes", "Request bodies being received, or waiting to be stored"),
    gauged("bodies.budget.limit", "receiving_limit_bytes", "Limit of receiving_bytes"),
    counted("bodies.budget.refused", "receiving_refused", "Requests refused by receiving_limit_bytes"),
    gauged("sending.used", "sending_bytes", "Bytes held by responses being sent"),
    gauged("sending.budget.limit", "sending_limit_bytes", "Limit of sending_bytes"),
    counted("sending.budget.refused", "sending_refused", "Requests refused by sending_limit_bytes"),
    counted("sending.dropped", "http_readers_dropped", "Clients dropped because they read too slowly"),
)
CONNECTIONS = (
    gauged("open", "http_connections", "Open connections, counted every second"),
    gauged("unread_bytes", "unread_bytes", "Bytes of waiting requests and unread responses"),
    counted("refused", "http_connections_refused", "Connections refused above the limit"),
    counted("cut", "http_connections_cut", "Connections cut: idle, slow in their TLS handshake, or holding too much"),
)
REQUESTS = (
    Series(
        "state",
        "gauge",
        "1 for the current state of the log",
        lambda service: {name.value: service.state is name for name in LogState},
        "state",
    ),
    counted("requests", "http_requests", "Requests"),
    Series(
        "http_problems",
        "counter",
        "Responses other than success",
        lambda service: {str(status): count for status, count in sorted(service.problems.items())},
        "status",
    ),
    Series("build_info", "gauge", "Version of the service", lambda _: {VERSION: 1}, "version"),
)
UPTIME = gauged("uptime_seconds", "uptime_seconds", "Seconds since the log was opened")

OLDEST = gauged(
    "age_seconds",
    "oldest_segment_age_seconds",
    "Seconds since the last write to the oldest segment, 0 if it is the only one",
)
PINNED = (
    Series(
        "pinned_segments",
        "gauge",
        "Segments kept by the queue that keeps most, except the current one",
        lambda oldest: oldest.pin.segments if oldest.pin is not None else 0,
    ),
    Series(
        "pinned_segments_alone",
        "gauge",
        "Those of pinned_segments that no other queue keeps",
        lambda oldest: oldest.pin.alone if oldest.pin is not None else 0,
    ),
)


class Oldest(NamedTuple):
    """The oldest segment: its age (see `oldest_age`; None if unknown) and the queue that keeps it."""

    age_seconds: float | None
    pin: SegmentPin | None


class ServiceCollector(Collector):
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
        yield from _families(SERVICE, self._service)
        if self._service.connections.known:
            yield from _families(CONNECTIONS, self._service.connections)
        yield from _families(REQUESTS, self._service)
        log = self._service.log_or_none
        if log is None:
            return
        yield _family(UPTIME, UPTIME.get(self._service))
        yield from _families(COUNTERS, log.stats())
        yield from _families(USAGE, log.resource_usage())
        yield from _families(STATE, log)
        oldest = self._oldest or Oldest(None, log.inspection.pin())
        if oldest.age_seconds is not None:
            yield _family(OLDEST, oldest.age_seconds)
        yield from _families(PINNED, oldest)
        if self._queues and self._service.options.metrics_per_queue and log.state is not LogState.CLOSED:
            yield from _queues(log)


async def render(service: Service) -> list[bytes]:
    """Return the text that Prometheus reads, in parts; it is built in turns."""
    log = service.log_or_none
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service, await _find_oldest(log) if log is not None else None, queues=False))
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
    for series in OF_A_QUEUE:
        parts.append(metric_head(series.sample, series.help, series.kind))
        for at in range(0, min(len(names), most), QUEUES_AT_ONCE):
            values = _values(series, log, names[at : min(at + QUEUES_AT_ONCE, most)])
            parts.append(b"".join(metric_line(series.sample, value, queue=queue) for queue, value in values))
            await turns.rest()
    return parts


def _values(series: Series, log: MultiRecordLog, queues: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield each of *queues* that exists, and its number; 0 where it has none."""
    for queue in queues:
        if (summary := summary_of(log, queue)) is not None:
            yield queue, series.get(summary) or 0


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


def _families(table: Iterable[Series], source: object) -> Iterator[Metric]:
    return (_family(series, series.get(source)) for series in table if series.name)


def _family(series: Series, value: Any) -> Metric:
    name = PREFIX + series.name
    if series.kind == "histogram":
        histograms = HistogramMetricFamily(name, series.help, labels=(series.label,) if series.label else ())
        for label, histogram in (value if series.label else {"": value}).items():
            histograms.add_metric((label,) if series.label else (), list(_buckets(histogram)), histogram.sum)
        return histograms
    kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    if not series.label:
        return kind(name, series.help, value)
    family = kind(name, series.help, labels=(series.label,))
    for label, number in value.items():
        family.add_metric((label,), number)
    return family


def _buckets(histogram: Histogram) -> Iterable[tuple[str, float]]:
    bounds = [*map(repr, map(float, histogram.bounds)), "+Inf"]
    return zip(bounds, accumulate(histogram.counts), strict=True)


def _queues(log: MultiRecordLog) -> Iterator[Metric]:
    names = list(islice(log.inspection.names()[1], QUEUES_COLLECTED))
    for series in OF_A_QUEUE:
        yield _family(series._replace(label="queue"), dict(_values(series, log, names)))


LEFT_OUT = "consumers_without_series"
CONSUMERS_AT_ONCE = 250


async def render_consumers(service: Service, log: MultiRecordLog) -> list[bytes]:
    """Return the series of the first consumers by queue and name, and one series that counts those left out."""
    turns, most = Turns(), service.options.metrics_queues
    names: list[str] = []
    for found in log.inspection.queues_with_consumers():
        names = nsmallest(most, names + found)  # no further queue can be among the first consumers
        await turns.rest()
    shown: list[ConsumerSummary] = []
    for name in names:
        shown += await _first_consumers(log, name, most - len(shown), turns)
        await turns.rest()
        if len(shown) == most:
            break
    left_out = log.inspection.consumer_count - len(shown)
    parts = [metric_head(LEFT_OUT, "Consumers without their own series"), metric_line(LEFT_OUT, left_out)]
    for series in OF_A_CONSUMER:
        parts.append(metric_head(series.sample, series.help, series.kind))
        for one in shown:
            if (value := series.get(one)) is not None:
                parts.append(metric_line(series.sample, value, queue=one.queue, consumer=one.consumer))
            await turns.rest()
    return parts


async def _first_consumers(log: MultiRecordLog, queue: str, most: int, turns: Turns) -> list[ConsumerSummary]:
    """Return where the first consumers of *queue* are, by name; nothing if it was deleted meanwhile."""
    if not log.queue_exists(queue):
        return []
    found: list[ConsumerSummary] = []
    names = (await sorted_in_turns(log.inspection.consumer_names(queue)))[:most]
    for at in range(0, len(names), CONSUMERS_AT_ONCE):
        await turns.rest()
        if log.queue_exists(queue):
            found += log.inspection.consumer_summaries(queue, names[at : at + CONSUMERS_AT_ONCE])
    return found

"""How far the consumers are behind, for Prometheus: the series that alerts are made of."""

from __future__ import annotations

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.protocol.metric_text import metric_head, metric_line
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.turns import Turns

PER_CONSUMER = {
    "consumer_waiting_records": ("records", "Records that a consumer has not acknowledged"),
    "consumer_waiting_bytes": ("bytes", "Payload bytes that a consumer has not acknowledged"),
    "consumer_waiting_seconds": ("oldest_seconds", "Age of the oldest record that a consumer has not acknowledged"),
    "consumer_skipped_records": ("skipped", "Records truncated before a consumer acknowledged them, since the open"),
}
LEFT_OUT = "consumers_without_series"


async def render_consumers(service: Service, log: MultiRecordLog) -> list[bytes]:
    """Return the series of the first consumers by queue and name, and one series that counts those left out."""
    turns, most = Turns(), service.options.metrics_queues
    names: list[str] = []
    for found in log.queues_with_consumers():
        names += found
        await turns.rest()
    shown: list[ConsumerSummary] = []
    left_out = 0
    for name in sorted(names):
        consumers = list(log.consumers(name).values()) if log.queue_exists(name) else []
        room = most - len(shown)
        shown += consumers[:room]
        left_out += max(len(consumers) - room, 0)
        await turns.rest()
    parts = [metric_head(LEFT_OUT, "Consumers without their own series"), metric_line(LEFT_OUT, left_out)]
    for metric, (attribute, documentation) in PER_CONSUMER.items():
        parts.append(metric_head(metric, documentation))
        for one in shown:
            parts.append(metric_line(metric, getattr(one, attribute) or 0, queue=one.queue, consumer=one.consumer))
            await turns.rest()
    return parts

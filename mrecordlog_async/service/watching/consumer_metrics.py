"""The lag of consumers for Prometheus: the series that alerts are made of."""

from __future__ import annotations

from heapq import nsmallest

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.metrics import OF_A_CONSUMER
from mrecordlog_async.model import ConsumerSummary
from mrecordlog_async.protocol.metric_text import metric_head, metric_line
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.wire.turns import Turns, sorted_in_turns

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
        parts.append(metric_head(series.name, series.help, series.kind))
        for one in shown:
            parts.append(metric_line(series.name, series.get(one) or 0, queue=one.queue, consumer=one.consumer))
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

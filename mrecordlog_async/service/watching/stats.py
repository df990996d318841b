"""The service's statistics, for `/v1/stats` and the page."""

from __future__ import annotations

import errno
from math import isinf

from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.metrics import COUNTERS, Histogram, SegmentPin
from mrecordlog_async.protocol.schemas import (
    PinResponse,
    RecentTimesResponse,
    SegmentsResponse,
    StatsResponse,
    TimesResponse,
    UsageResponse,
)
from mrecordlog_async.service.service import VERSION, Service
from mrecordlog_async.service.turns import Turns


async def find_pin(log: MultiRecordLog) -> SegmentPin | None:
    """Do what `Inspection.pin` does, in turns: a million queues take 0.14 s."""
    turns, found = Turns(), None
    for found in log.inspection.pin_in_steps():  # noqa: B007  # the last one counts
        await turns.rest()
    return found


async def stats_of(service: Service) -> StatsResponse:
    """Return the current numbers; those of the log are zero during recovery."""
    response = StatsResponse(
        state=service.state,
        fraction=service.fraction,
        tails=service.tails,
        receiving_bytes=service.bodies.budget.used,
        requests=service.requests,
        problems={str(status): count for status, count in sorted(service.problems.items())},
        receiving_limit_bytes=service.bodies.budget.limit,
        sending_bytes=service.sending.used,
        sending_limit_bytes=service.sending.budget.limit,
        dropped_readers=service.sending.dropped,
        version=VERSION,
        name=service.name,
        uptime_seconds=round(service.uptime_seconds, 1),
    )
    log = service.log_or_none
    if log is None:
        return response
    pin = await find_pin(log)
    counters = log.stats()
    response.usage = usage_of(log)
    response.beyond_memory = log.limits.beyond_memory
    response.policy = _policy(log)
    response.segments = SegmentsResponse(log.segments[0], log.segments[-1], log.inspection.pinned_segments())
    response.pending_records = log.inspection.pending_records
    response.pin = PinResponse(*pin) if pin is not None else None
    response.counters = {one.key: one.get(counters) for one in COUNTERS if one.kind == "counter" and not one.label}
    response.refused = counters.refused
    response.damaged = counters.damaged
    response.append_seconds = _times(counters.append_seconds)
    response.commit_seconds = _times(counters.commit_seconds)
    response.sync_seconds = _times(counters.sync_seconds)
    response.last_minute = RecentTimesResponse(**{name: _times(one) for name, one in counters.last_minute.items()})
    response.under_way_seconds = log.inspection.under_way_seconds
    response.waiting_seconds = log.inspection.waiting_seconds
    response.workers = log.workers.by_state()
    response.failure = cause_of_failure(log)
    return response


def usage_of(log: MultiRecordLog) -> UsageResponse:
    """Return the resources in use."""
    usage = log.resource_usage()
    return UsageResponse(**{name: getattr(usage, name) for name in UsageResponse.__struct_fields__})


def cause_of_failure(log: MultiRecordLog) -> str | None:
    """Return why *log* has failed, without paths and system messages, which only the service's own log contains."""
    failure = log.inspection.failure
    if failure is None:
        return None
    error = failure if isinstance(failure, OSError) else failure.__cause__
    number = error.errno if isinstance(error, OSError) else None
    code = errno.errorcode.get(number or 0, "see the service's log")
    return f"a write or sync failed ({code}); nothing is stored until the log is opened again; reads work"


def _policy(log: MultiRecordLog) -> str:
    policy = log.persist_policy
    return f"{policy.interval_seconds:g} s" if policy.kind == "interval" else policy.kind


def _times(histogram: Histogram) -> TimesResponse:
    quantiles = map(histogram.quantile, (0.5, 0.9, 0.99))
    return TimesResponse(histogram.count, histogram.sum, *(None if isinf(one) else one for one in quantiles))

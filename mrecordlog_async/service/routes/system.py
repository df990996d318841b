"""The service itself: health, readiness, statistics and metrics."""

from __future__ import annotations

from mrecordlog_async.compiled import BUILD
from mrecordlog_async.model import LogState
from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.log_schemas import LogResponse, OpeningResponse
from mrecordlog_async.protocol.schemas import HealthResponse, ReadyResponse, StatsResponse
from mrecordlog_async.service.http import PIECE_BYTES, SMALL_BYTES, HttpRequest, HttpResponse, Stream
from mrecordlog_async.service.reading.parameters import check_query
from mrecordlog_async.service.routes.queues import at_of, hex_of
from mrecordlog_async.service.routes.route import Route, json_response
from mrecordlog_async.service.sending import HELD_BYTES
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching import prometheus
from mrecordlog_async.service.watching.stats import cause_of_failure, stats_of, usage_of


async def health(service: Service, request: HttpRequest) -> HttpResponse:
    """Respond 200 while the process runs, whatever the state of its log."""
    return json_response(HealthResponse("alive"))


async def ready(service: Service, request: HttpRequest) -> HttpResponse:
    """Respond 200 only while records are accepted and the disk responds."""
    state = service.state
    cause = _cause(service, state)
    return json_response(ReadyResponse(state, round(service.fraction, 4), cause), 200 if cause is None else 503)


def _cause(service: Service, state: LogState) -> str | None:
    """Return why the service is not ready; None if it is."""
    match state:
        case LogState.OPEN:
            seconds = service.log.inspection.under_way_seconds
            if 0 < service.options.stall_seconds <= seconds:
                return f"the disk has not responded for {seconds:.1f} s"
            failed = service.log.workers.failed
            return f"workers of the application that failed and do not run any more: {failed}" if failed else None
        case LogState.RECOVERING:
            waits_for = service.waits_for
            return f"the log is still open in {waits_for}" if waits_for else "the log is being recovered"
        case LogState.FAILED:
            return cause_of_failure(service.log)
    return "the service is shutting down"


async def stats(service: Service, request: HttpRequest) -> HttpResponse:
    """Return the statistics as JSON."""
    check_query(request, ())
    return json_response(await stats_of(service))


async def show_log(service: Service, request: HttpRequest) -> HttpResponse:
    """Show which log this is, whether it went back to an older state, and how far it has come."""
    check_query(request, ())
    log = service.log
    openings = [OpeningResponse(hex_of(one.nonce), one.first_batch) for one in log.inspection.openings]
    durable = log.inspection.durable_batch
    usage = usage_of(log)
    return json_response(
        LogResponse(service.log_id, service.name, service.opening, openings, durable, at_of(log), BUILD, usage)
    )


async def metrics(service: Service, request: HttpRequest) -> HttpResponse:
    """Return the metrics for Prometheus."""
    parts = await prometheus.render(service)
    size = sum(map(len, parts))
    if size <= SMALL_BYTES:
        return HttpResponse(b"".join(parts), content_type=prometheus.CONTENT_TYPE)
    out = service.sending.enter(size + HELD_BYTES)
    return Stream(wire.gather(parts, PIECE_BYTES), out, prometheus.CONTENT_TYPE, size=size)


ROUTES = (
    Route(
        "GET",
        "/healthz",
        health,
        "Report whether the process is alive",
        returns=HealthResponse,
        open_to_all=True,
        head=True,
    ),
    Route(
        "GET",
        "/readyz",
        ready,
        "Report whether the service accepts records",
        returns=ReadyResponse,
        problems=(503,),
        open_to_all=True,
        head=True,
    ),
    Route("GET", "/metrics", metrics, "Metrics for Prometheus", formats=("text/plain",), problems=(429,), head=True),
    Route("GET", "/v1/log", show_log, "Which log this is, and how far it has come", returns=LogResponse, head=True),
    Route("GET", "/v1/stats", stats, "Statistics of the service and its log", returns=StatsResponse, head=True),
)

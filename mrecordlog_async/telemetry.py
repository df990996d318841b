"""OpenTelemetry spans and metrics, for an application that has configured its SDK. The core does not depend on it.

`find` decides once, when a log is opened or a service is built: without a configured provider it returns None, and
nothing here is called. Not even the API package is imported then: an application that has configured a provider has
imported it. So call `set_tracer_provider` and `set_meter_provider` first, or start the process with
`opentelemetry-instrument`.

| span | one for each | attributes |
|---|---|---|
| `mrecordlog.recovery` | opening of a log | directory, records, segments, bytes |
| `mrecordlog.commit` | batch; a failed one has an error | directory, log_records, bytes, sync_seconds, rolled |
| `GET /v1/queues/{queue}/records` … | request, below the caller's span if it sent one | those of HTTP servers |

Spans of commits are roots: a batch belongs to many callers.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mrecordlog_async.metrics import COUNTERS, UNDER_WAY, USAGE, Counters, Series
from mrecordlog_async.model import RecoveryReport

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger("mrecordlog_async")

NAME = "mrecordlog_async"
_UNSET = ("ProxyTracerProvider", "NoOpTracerProvider", "_ProxyMeterProvider", "NoOpMeterProvider")


@dataclass(frozen=True, slots=True)
class Observed:
    """Numbers that the instruments read of one open log. They read it on a thread of the SDK: plain numbers only.

    used: by the key of a series, for those that are not of `Counters`.
    """

    directory: str
    counters: Counters
    used: Mapping[str, Callable[[], float]]

    def values_of(self, series: Series) -> Iterator[tuple[float, dict[str, str]]]:
        """Yield each number of *series*, with its attributes."""
        where = {"mrecordlog.directory": self.directory}
        value: Any = self.used[series.key]() if series.key in self.used else series.get(self.counters)
        if not series.label:
            yield float(value), where  # always one type: databases of metrics refuse a series that changes its own
            return
        for label, number in list(value.items()):  # a copy: the log adds to it meanwhile
            yield number, where | {series.label: label}


class Telemetry:
    """The tracer and the meter of this process; either may be missing."""

    def __init__(self, tracer: Tracer | None, meter: Meter | None) -> None:
        self._tracer = tracer
        self._observed: tuple[Observed, ...] = ()  # replaced, never changed: another thread iterates over it
        self._commit_seconds: Histogram | None = None
        self._request_seconds: Histogram | None = None
        self._failure_is_logged = False  # of something that raised for a request
        if meter is not None:
            self._commit_seconds = meter.create_histogram("mrecordlog.commit.duration", "s", "Time of a batch")
            self._request_seconds = meter.create_histogram("http.server.request.duration", "s", "HTTP requests")
            self._observe(meter)

    def watch(self, log: Observed) -> None:
        """Have the instruments read *log*, until `forget`."""
        self._observed = (*self._observed, log)

    def forget(self, log: Observed) -> None:
        """Stop reading *log*: it is closed."""
        self._observed = tuple(one for one in self._observed if one is not log)

    def recovered(self, directory: str, report: RecoveryReport) -> None:
        """Record that *directory* was opened just now."""
        facts = {"records": report.records, "segments": report.segments, "bytes": report.bytes, "clean": report.clean}
        self._past("mrecordlog.recovery", report.seconds, {"directory": directory} | facts)

    def committed(self, directory: str, seconds: float, facts: Mapping[str, Any]) -> None:
        """Record a batch that was stored just now."""
        if self._commit_seconds is not None:
            self._commit_seconds.record(seconds, {"mrecordlog.directory": directory})
        self._past("mrecordlog.commit", seconds, {"directory": directory, **facts})

    def failed(self, directory: str, error: BaseException) -> None:
        """Record the batch or the sync that failed just now."""
        self._past("mrecordlog.commit", 0.0, {"directory": directory}, error)

    @contextmanager
    def request(
        self, method: str, route: str, path: str, headers: Mapping[str, str]
    ) -> Iterator[Callable[[int], None]]:
        """Make the span of a request while it is served. Yields a function to call with the status of the response.

        An error that the telemetry of the application raises is logged once, and does not fail the request.
        """
        begun, statuses, span = time.perf_counter(), list[int](), ExitStack()
        with self._telling():
            self._begin_span(span, statuses, method, route, path, headers)
        try:
            yield statuses.append
        except BaseException as error:
            with self._telling():
                span.__exit__(type(error), error, error.__traceback__)
            raise
        else:
            with self._telling():
                span.close()
        finally:
            with self._telling():
                self._time_request(time.perf_counter() - begun, method, route, statuses)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Do something about a request. That runs code of the application.

        An error concerns this request only: a client must not be able to end the telemetry of the others.
        """
        try:
            yield
        except Exception:
            if not self._failure_is_logged:
                logger.exception("OpenTelemetry raised an error for a request; further ones are not logged")
            self._failure_is_logged = True

    def _begin_span(
        self, stack: ExitStack, statuses: list[int], method: str, route: str, path: str, headers: Mapping[str, str]
    ) -> None:
        """Begin the span of a request, which ends with *stack*."""
        if self._tracer is not None:
            span = stack.enter_context(self._server_span(self._tracer, method, route, path, headers))
            stack.callback(_finish, span, statuses)

    def _time_request(self, seconds: float, method: str, route: str, statuses: list[int]) -> None:
        if self._request_seconds is not None:
            facts: dict[str, Any] = {"http.request.method": method, "http.route": route}
            facts |= {"http.response.status_code": statuses[0]} if statuses else {}
            self._request_seconds.record(seconds, facts)

    @staticmethod
    def _server_span(tracer: Tracer, method: str, route: str, path: str, headers: Mapping[str, str]) -> Any:
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        facts = {"http.request.method": method, "http.route": route, "url.path": path if _is_text(path) else route}
        caller = extract({name.lower(): value for name, value in headers.items() if _is_text(value)})
        name = f"{method} {route}"
        return tracer.start_as_current_span(name, context=caller, kind=SpanKind.SERVER, attributes=facts)

    def _past(self, name: str, seconds: float, facts: Mapping[str, Any], error: BaseException | None = None) -> None:
        """Record a span that ends now."""
        if self._tracer is None:
            return
        from opentelemetry.context import Context
        from opentelemetry.trace import Status, StatusCode

        now = time.time_ns()
        attributes = {f"mrecordlog.{fact}": value for fact, value in facts.items()}
        span = self._tracer.start_span(name, Context(), attributes=attributes, start_time=now - int(seconds * 1e9))
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(now)

    def _observe(self, meter: Meter) -> None:
        """Make an instrument for each series that has a unit. It is read when the SDK collects."""
        for series in (*COUNTERS, *USAGE, UNDER_WAY):
            if series.unit:
                gauge = series.kind == "gauge"
                create = meter.create_observable_gauge if gauge else meter.create_observable_counter
                create(f"mrecordlog.{series.key}", [self._reader(series)], series.unit)

    def _reader(self, series: Series) -> Callable[[CallbackOptions], Iterator[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(options: CallbackOptions) -> Iterator[Observation]:
            for log in self._observed:
                for value, attributes in log.values_of(series):
                    yield Observation(value, attributes)

        return observe


def _is_text(value: str) -> bool:
    """Return whether *value*, which a client sent, was UTF-8: propagators and exporters raise errors for the rest."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finish(span: Span, statuses: list[int]) -> None:
    from opentelemetry.trace import Status, StatusCode

    for status in statuses:
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))


_found: dict[tuple[int, int], Telemetry | None] = {}
"""By the identities of the providers: instruments are made once. None if that raised an error."""


def find() -> Telemetry | None:
    """Return the telemetry of this process; None unless a provider of OpenTelemetry is configured.

    What a provider raises is logged once: it must not be an error of the log or of the service.
    """
    if "opentelemetry" not in sys.modules:
        return None
    try:
        from opentelemetry import metrics, trace
    except ImportError:  # something else has this name, or only a part of the package is installed
        return None
    key = (0, 0)
    try:
        tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
        traced, metered = (type(provider).__name__ not in _UNSET for provider in (tracers, meters))
        if not traced and not metered:
            return None
        key = (id(tracers), id(meters))
        if key not in _found:
            tracer = trace.get_tracer(NAME) if traced else None
            _found[key] = Telemetry(tracer, metrics.get_meter(NAME) if metered else None)
    except Exception:
        if key not in _found:
            logger.exception("OpenTelemetry raised an error; nothing is reported to it")
        _found[key] = None
    return _found[key]

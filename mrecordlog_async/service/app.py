"""The aiohttp application: all routes of one `Service`. `mrecordlog serve` runs it; other applications can mount it.

Every request passes route → guard (token, Host, Origin) → handler → response, and every error becomes a problem
document. One function around each handler does this; middlewares would cost each request more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, web

from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, problem_of, too_large
from mrecordlog_async.service.routes.openapi import TABLE
from mrecordlog_async.service.routes.route import Handler, Route
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.wire.access_log import AccessLogger
from mrecordlog_async.service.wire.formats import BEGUN, SMALL_BYTES, SmallResponse, seal
from mrecordlog_async.service.wire.receive import closing
from mrecordlog_async.telemetry import find

READ_BUFFER_BYTES = 64 * 1024
"""Bytes of a body that a connection reads ahead; it may hold about twice as many."""

UNREAD_BYTES = 256 * 1024
"""A client with more unread response bytes than this must read them before its next request is handled."""

ABOUT_THE_LOG = frozenset({404, 409, 410, 412})
"""Statuses of refusals that may state positions, or which log this is. One that is refused a token learns neither."""

TAKES_CONTINUE = "mrecordlog.takes_continue"
"""Extra information of a transport on which HTTP/1.0 stands for whatever version the client speaks."""

SERVICE = web.AppKey("mrecordlog.service", Service)


def build_app(service: Service) -> web.Application:
    """Return an application, or sub-application, that serves *service*. It neither opens nor closes the log."""
    # 0 stands for none: `receive` has the limits, and expands bodies within them.
    app = web.Application(client_max_size=0, handler_args={"auto_decompress": False})
    app[SERVICE] = service
    for route in TABLE:
        for method in _methods(route):
            app.router.add_route(
                method,
                _pattern(route.path),
                _traced(
                    route.path, _guarded(service, route.handler, route.open_to_all, takes_body=route.takes is not None)
                ),
                expect_handler=_expecting(service, route),
            )
    # Other paths get a problem document too, after the same guard.
    nothing = _guarded(service, _nothing_here, False)
    app.router.add_route("*", r"/{path:[\s\S]*}", nothing, expect_handler=_refuse_expect)
    return app


def build_runner(service: Service, *, access_log: bool = False, lingering_seconds: float = 0) -> web.AppRunner:
    """Return what runs the application of *service* on the connections that the caller accepts.

    lingering_seconds: how long the rest of a refused body is read, so that its sender sees the response.
    """
    # aiohttp would log a traceback for every malformed request; those are the client's errors, not ours.
    quiet = logging.getLogger("mrecordlog_async.service.connection")
    quiet.setLevel(logging.CRITICAL)
    return web.AppRunner(
        build_app(service),
        access_log=logging.getLogger("mrecordlog_async.access") if access_log else None,
        access_log_class=AccessLogger,
        logger=quiet,
        handler_cancellation=True,
        keepalive_timeout=service.options.idle_seconds,
        lingering_time=lingering_seconds,
        read_bufsize=READ_BUFFER_BYTES,
        shutdown_timeout=1.0,
    )


def _pattern(path: str) -> str:
    return path.replace("{queue}", r"{queue:[^/]+}").replace("{consumer}", r"{consumer:[^/]+}")


def _traced(
    route: str, handle: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return *handle* with a span for each request; *handle* itself if OpenTelemetry is not configured."""
    telemetry = find()
    if telemetry is None:
        return handle

    async def traced(request: web.Request) -> web.StreamResponse:
        with telemetry.request(request.method, route, request.path, request.headers) as note_status:
            response = await handle(request)
            note_status(response.status)
            return response

    return traced


def _guarded(
    service: Service, handler: Handler, open_to_all: bool, *, takes_body: bool = False
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    guard = service.guard.check

    async def handle(request: web.Request) -> web.StreamResponse:
        # Before the guard: a shutdown waits for every request that has begun, even for one that is refused.
        service.requests += 1
        service.active += 1
        try:
            guard(request, open_to_all=open_to_all)
            if not open_to_all and (expected := request.headers.get(LOG_ID)) is not None:
                service.check_log(expected)
            if not takes_body and request.body_exists:
                _check_stray_body(request)
            # One that sends requests and reads no responses would pile up small ones, which no budget is charged for.
            transport = request.transport
            if transport is not None and transport.get_write_buffer_size() > UNREAD_BYTES:
                with service.sending.enter(request, UNREAD_BYTES) as out:
                    if not await out.wait_writable():
                        return _cut_connection(request)
            response = await handler(service, request)
            if not response.prepared:
                if service.shutting_down:
                    response.force_close()
                if type(response) is not SmallResponse:
                    seal(response)
                    if service.log_id and not open_to_all:
                        response.headers[LOG_ID] = service.log_id
            return response
        except ConnectionError:
            return _cut_connection(request)
        except Exception as error:
            # No local variable may keep the error: its traceback refers to this frame, and frames below hold bodies.
            return _respond_to_error(service, request, error)
        finally:
            service.end_request()

    return handle


def _check_stray_body(request: web.BaseRequest) -> None:
    """Refuse a large body on a route that reads none: it would stay in memory as long as the request runs."""
    length = request.content_length
    if length is None:
        detail = "this route reads no body, and the one of this request has no Content-Length; send no body"
        raise closing(ProblemError(413, "too_large", detail))
    if length > SMALL_BYTES:
        raise closing(too_large(length, SMALL_BYTES, "bytes of a body that this route does not read"))


def _respond_to_error(service: Service, request: web.Request, error: Exception) -> web.StreamResponse:
    """Return the problem document of *error*; if the response has already begun, cut the connection instead."""
    problem = problem_of(error)
    service.problems[problem.status] = service.problems.get(problem.status, 0) + 1
    if problem.code in ("unauthorized", "host", "origin", "busy"):
        _note_refused(service, request, problem)
    if service.log_id and problem.status in ABOUT_THE_LOG:
        problem.headers[LOG_ID] = service.log_id
    return _response(problem) if BEGUN not in request else _cut_connection(request)


def _note_refused(service: Service, request: web.Request, problem: ProblemError) -> None:
    """Log that requests are refused: of clients that must not get in, or above a limit of the service."""
    if problem.code == "busy":
        service.refused.note(f"busy {problem.facts.get('resource')}", problem.detail)
    else:
        service.refused.note(problem.code, f"{problem.detail}; the first one came from {request.remote or 'a socket'}")


def _cut_connection(request: web.Request) -> web.StreamResponse:
    """Cut the connection, and return a response that is never sent.

    A second head would look like part of the body that has begun. Nothing is raised: the web framework keeps an
    exception with its traceback, and the traceback keeps the pieces that were being sent.
    """
    if request.transport is not None:
        request.transport.abort()
    begun: web.StreamResponse | None = request.get(BEGUN)
    return begun if begun is not None else web.Response(status=499, reason="Client Closed Request")


def _response(problem: ProblemError) -> web.Response:
    response = web.Response(
        status=problem.status, body=problem.document(), content_type=CONTENT_TYPE, headers=problem.headers or None
    )
    seal(response)
    return response


def _expecting(service: Service, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """Return a handler for `Expect: 100-continue`: a request that will be refused need not send its body."""

    async def expect(request: web.Request) -> web.StreamResponse | None:
        try:
            service.guard.check(request, open_to_all=route.open_to_all)
            service.bodies.check(request)
        except ProblemError as problem:
            return _refusal(problem)
        transport = request.transport
        if transport is not None and request.headers.get("Expect", "").lower() == "100-continue":
            # A client of HTTP/1.0 would take it for the response (RFC 9110, section 10.1.1).
            takes = request.version >= HttpVersion11 or transport.get_extra_info(TAKES_CONTINUE)
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" if takes else b"")
        return None

    return expect


def _refusal(problem: ProblemError) -> web.Response:
    response = _response(problem)
    response.force_close()
    return response


async def _refuse_expect(request: web.Request) -> web.StreamResponse | None:
    return None


async def _nothing_here(service: Service, request: web.Request) -> web.StreamResponse:
    """Respond to a wrong method (405) or a wrong path (404)."""
    path = request.match_info["path"]
    allowed = sorted({method for route in TABLE if _fits(route, path.split("/")) for method in _methods(route)})
    if allowed:
        headers = {"Allow": ", ".join(allowed)}
        raise ProblemError(405, "method", f"this path supports {headers['Allow']}", headers=headers)
    raise ProblemError(404, "no_route", "no such route; see /openapi.json")


def _methods(route: Route) -> tuple[str, ...]:
    return (route.method, "HEAD") if route.head else (route.method,)


def _fits(route: Route, segments: list[str]) -> bool:
    pattern = route.path.strip("/").split("/")
    return len(pattern) == len(segments) and all(
        part == segment or (part in ("{queue}", "{consumer}") and segment != "")
        for part, segment in zip(pattern, segments, strict=True)
    )

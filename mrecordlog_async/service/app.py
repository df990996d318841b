"""The service as an ASGI application: `mrecordlog serve` runs it, other applications mount it.

Every request passes head → route → guard (token, Host, Origin) → handler → response, and every error becomes a problem
document.
"""

from __future__ import annotations

from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.problems import CONTENT_TYPE, ProblemError, problem_of, too_many_connections
from mrecordlog_async.service.http import HttpRequest, HttpResponse, Receive, Scope, Send, closing
from mrecordlog_async.service.routes.openapi import TABLE
from mrecordlog_async.service.routes.route import Route
from mrecordlog_async.service.service import Service

ABOUT_THE_LOG = frozenset({404, 409, 410, 412})
"""Statuses of refusals that may state positions, or which log this is. One that is refused a token learns neither."""

NAMES = {3: "{queue}", 5: "{consumer}"}
"""The segments of a path that are names."""


class App:
    """The application of one service. It neither opens nor closes the log."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._routes: dict[str, dict[str, Route]] = {}
        for route in TABLE:
            methods = self._routes.setdefault(route.path, {})
            methods[route.method] = route
            if route.head:
                methods["HEAD"] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of HTTP."""
        await self.serve(HttpRequest(scope, receive, send))

    async def serve(self, request: HttpRequest) -> None:
        """Respond to *request*. A response that breaks off has no end: the server then cuts the connection."""
        service, is_whole = self.service, False
        service.requests += 1
        service.active += 1
        try:
            await self._respond(request)
            is_whole = True
        except ConnectionError:  # the client left, was dropped, or has a part of what broke off
            pass
        finally:
            request.end()
            service.end_request()
        if not is_whole:  # it counts no longer: the server may wait for the reader
            await request.break_off()

    async def refuse(self, request: HttpRequest, problem: ProblemError) -> None:
        """Respond to *request* with *problem*, and close its connection."""
        await self._send(self._problem(request, closing(problem)), request)

    async def _respond(self, request: HttpRequest) -> None:
        try:
            await self._send(await self._response(request), request)
            return
        except ConnectionError:
            raise
        except Exception as error:
            # No local variable may keep the error: its traceback refers to this frame, and frames below hold bodies.
            problem = self._problem(request, error)
        if request.begun:  # a second head would look like a part of the body
            raise ConnectionResetError("the response broke off")
        await self._send(problem, request)

    async def _send(self, response: HttpResponse, request: HttpRequest) -> None:
        if self.service.shutting_down:
            response.headers["connection"] = "close"
        await response.respond(request)

    async def _response(self, request: HttpRequest) -> HttpResponse:
        service = self.service
        if service.active > service.options.connections:  # where the server counts no connections
            raise closing(too_many_connections(service.active, service.options.connections))
        request.check_head()
        route = self._find(request)
        open_to_all = isinstance(route, Route) and route.open_to_all
        service.guard.check(request, open_to_all=open_to_all)
        if isinstance(route, ProblemError):
            raise route
        if not open_to_all and (expected := request.header(b"x-log-id")) is not None:
            service.check_log(expected)
        if request.unread and route.takes is None:
            await service.bodies.discard(request)
        response = await route.handler(service, request)
        if service.log_id and not open_to_all:
            response.headers[LOG_ID] = service.log_id
        return response

    def _find(self, request: HttpRequest) -> Route | ProblemError:
        """Return the route of a request, or the problem of its path (404) or its method (405)."""
        path = request.path
        methods = self._routes.get(path)
        if methods is None and path.startswith("/v1/queues/"):
            parts = path.split("/")
            request.names = tuple(parts[3:6:2])
            if "" not in request.names:
                fixed = [NAMES.get(number, part) for number, part in enumerate(parts)]
                methods = self._routes.get("/".join(fixed))
        if methods is None:
            return ProblemError(404, "no_route", "no such route; see /openapi.json")
        route = methods.get(request.method)
        if route is None:
            allowed = ", ".join(sorted(methods))
            return ProblemError(405, "method", f"this path supports {allowed}", headers={"Allow": allowed})
        return route

    def _problem(self, request: HttpRequest, error: Exception) -> HttpResponse:
        service, problem = self.service, problem_of(error)
        service.problems[problem.status] = service.problems.get(problem.status, 0) + 1
        if problem.code == "busy":
            service.refused.note(f"busy {problem.facts.get('resource')}", problem.detail)
        elif problem.code in ("unauthorized", "host", "origin"):
            client = request.scope.get("client")
            where = client[0] if client else "a socket"
            service.refused.note(problem.code, f"{problem.detail}; the first one came from {where}")
        if service.log_id and problem.status in ABOUT_THE_LOG:
            problem.headers[LOG_ID] = service.log_id
        return problem_response(problem)


def problem_response(problem: ProblemError) -> HttpResponse:
    """Return the response for *problem*."""
    return HttpResponse(problem.document(), problem.status, CONTENT_TYPE, problem.headers)

"""`/openapi.json`, generated from the table of routes and the types of their bodies, so it cannot contradict them."""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from mrecordlog_async.names import NEW_NAME
from mrecordlog_async.protocol import problems
from mrecordlog_async.protocol.log_schemas import LOG_ID
from mrecordlog_async.protocol.schemas import Problem
from mrecordlog_async.service import routes
from mrecordlog_async.service.http import JSON, HttpRequest, HttpResponse
from mrecordlog_async.service.routes.route import Route
from mrecordlog_async.service.service import VERSION, Service

EVERY_ROUTE_PROBLEMS = (400, 401, 403, 412, 421, 503)
BODY_PROBLEMS = (408, 413, 415, 429)
"""Of every route that takes a body: too slow, too large, encoded, or above the budget of all bodies."""


async def schema(service: Service, request: HttpRequest) -> HttpResponse:
    """Describe the routes as OpenAPI."""
    return HttpResponse(_document_bytes())


ROUTES = (Route("GET", "/openapi.json", schema, "This document", formats=("application/json",), head=True),)

TABLE = (*routes.TABLE, *ROUTES)
"""Every route that an application serves; if several match, the first wins."""


@cache
def _document_bytes() -> bytes:
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = {kind for route in TABLE for kind in (route.takes, route.returns) if kind is not None} | {Problem}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    for component in components.values():
        component["description"] = cleandoc(component["description"])
    references = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in TABLE:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mrecordlog", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }


def _operation(route: Route, references: dict[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "description": (route.handler.__doc__ or "").strip(),
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, references),
    }
    if route.takes is not None:
        content: dict[str, Any] = {JSON: {"schema": references[route.takes]}}
        content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in route.accepts}
        required = any(field.required for field in msgspec.structs.fields(route.takes))
        operation["requestBody"] = {"required": required, "content": content}
    if route.open_to_all:
        operation["security"] = []
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    description = f"percent-encoded once; a new name has {NEW_NAME}"
    return [
        {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
        for name in ("queue", "consumer")
        if f"{{{name}}}" in route.path
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}
        for name, description in route.parameters
    ]


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    if route.open_to_all:
        return []
    description = "the log that the request is for, as a response named it; 412 if another log responds here by now"
    return [{"name": LOG_ID, "in": "header", "description": description, "schema": {"type": "string"}}]


def _responses(route: Route, references: dict[type, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.returns is not None:
        content[route.formats[0] if route.formats else JSON] = {"schema": references[route.returns]}
    for kind in route.formats:
        content.setdefault(kind, {"schema": {"type": "object" if kind == "application/json" else "string"}})
    success: dict[str, Any] = {"description": route.summary}
    if content:
        success["content"] = content
    problem = {"content": {problems.CONTENT_TYPE: {"schema": references[Problem]}}}
    responses: dict[str, Any] = {str(route.status): success}
    of_body = BODY_PROBLEMS if route.takes is not None else ()
    for status in sorted({*route.problems, *EVERY_ROUTE_PROBLEMS, *of_body}):
        described = {"description": "see code and detail"} | problem if status >= 400 else success
        responses.setdefault(str(status), {"description": "not modified"} if status == 304 else described)
    return responses

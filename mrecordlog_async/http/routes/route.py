"""What a route is: where it is, what does it, and what the schema says about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from mrecordlog_async.http.service import Service

Handler = Callable[[Service, web.Request], Awaitable[web.StreamResponse]]

JSON = "application/json"
JSON_BODY_BYTES = 16 * 1024 * 1024
"""A JSON request other than an append: ten thousand queues fit several times."""


@dataclass(frozen=True, slots=True)
class Route:
    """A method on a path.

    takes and answers: the types of JSON bodies. formats: content types of an answer that is not JSON (or not only).
    parameters: query parameters, with a sentence each. problems: the statuses it may answer besides those that
    every route may. open_to_all: no token needed. head: HEAD works too.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    status: int = 200
    takes: type[msgspec.Struct] | None = None
    accepts: tuple[str, ...] = ()
    answers: type[msgspec.Struct] | None = None
    formats: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    problems: tuple[int, ...] = ()
    open_to_all: bool = False
    head: bool = False


def json_answer(answer: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return *answer* as JSON."""
    return web.Response(status=status, body=encode_json(answer), content_type=JSON, headers=headers)


encode_json = msgspec.json.Encoder().encode

"""`Route`: path, handler and description of a route, and the JSON bodies that handlers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from mrecordlog_async.protocol import wire
from mrecordlog_async.protocol.problems import bad_request, too_large
from mrecordlog_async.service.http import JSON, PIECE_BYTES, SMALL_BYTES, HttpRequest, HttpResponse, Stream
from mrecordlog_async.service.sending import HELD_BYTES
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.turns import Turns

T = TypeVar("T")

Handler = Callable[[Service, HttpRequest], Awaitable[HttpResponse]]

ITEMS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Route:
    """A method on a path.

    takes and returns: types of JSON bodies. formats: content types of a response that is not JSON (or not only).
    parameters: query parameters, with a sentence each. problems: statuses besides those that every route may return,
    and every route with a body. open_to_all: no token is needed. head: HEAD works too.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    status: int = 200
    takes: type[msgspec.Struct] | None = None
    accepts: tuple[str, ...] = ()
    returns: type[msgspec.Struct] | None = None
    formats: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()
    problems: tuple[int, ...] = ()
    open_to_all: bool = False
    head: bool = False


def json_response(body: Any, status: int = 200) -> HttpResponse:
    """Return *body* as a small JSON response."""
    return HttpResponse(encode_json(body), status)


def json_of(service: Service, parts: list[bytes]) -> HttpResponse:
    """Return *parts* as one JSON response; a large one is charged as a whole until it is sent."""
    size = sum(map(len, parts))
    if size <= SMALL_BYTES:
        return HttpResponse(b"".join(parts))
    out = service.sending.enter(size + HELD_BYTES)
    return Stream(wire.gather(parts, PIECE_BYTES), out, JSON, size=size)


async def encode_list(items: Sequence[Any]) -> list[bytes]:
    """Return *items* as the inside of a JSON list, encoded in turns."""
    turns, parts = Turns(), list[bytes]()
    for at in range(0, len(items), ITEMS_AT_ONCE):
        parts.append((b"," if at else b"") + encode_json(items[at : at + ITEMS_AT_ONCE])[1:-1])
        await turns.rest()
    return parts


async def decode_control(
    decoder: msgspec.json.Decoder[T], body: bytes, entries_max: int | None = None, strings_max: int = 0
) -> T:
    """Decode a JSON body; raise problem 413 above *entries_max* objects, 400 for a member that appears twice.

    strings_max: strings that stand in lists, outside of objects, which are allowed on top of those of the objects.
    """
    # Counted before decoding: only objects and their members take much time.
    objects = body.count(b"{")
    if entries_max is not None and objects - 1 > entries_max:  # there may be braces in names
        objects = await _count_objects(body)
    if entries_max is not None and objects - 1 > entries_max:
        raise too_large(objects - 1, entries_max, "entries in one request")
    if body.count(b'"') - body.count(b'\\"') > QUOTES_PER_OBJECT * (objects + 5) + 2 * strings_max:
        raise bad_request(_TWICE, "bad_body")
    decoded = decoder.decode(body)
    if len(body) <= SMALL_BYTES:
        _check_duplicates(body)
    else:
        await asyncio.to_thread(_check_duplicates, body)
    return decoded


async def receive_small(service: Service, request: HttpRequest, decoder: msgspec.json.Decoder[T]) -> T:
    """Receive and decode a body of one small object; without a body it has its defaults."""
    with service.bodies.budget.charge() as charge:
        body = await service.bodies.receive_control(request, charge)
        return await decode_control(decoder, body or b"{}", 1)


_TWICE = "an object has a member twice; send each member once"

QUOTES_PER_OBJECT = 14
"""No entry has more than five members and two string values, so objects with more quotes on average repeat members. A
million members in one object blocked the event loop for 60 ms."""


async def _count_objects(body: bytes) -> int:
    """Return the number of braces outside of strings."""
    turns, objects, outside = Turns(), 0, True
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    for at in range(0, len(body), COUNTED_BYTES):
        parts = body[at : at + COUNTED_BYTES].split(b'"')
        objects += sum(part.count(b"{") for part in parts[0 if outside else 1 :: 2])
        outside ^= len(parts) % 2 == 0  # an odd number of quotes
        await turns.rest()
    return objects


COUNTED_BYTES = 32 * 1024
"""Bytes in which braces are counted at once. If all are quotes, that takes 2 ms."""


def _check_duplicates(body: bytes) -> None:
    json.loads(body, object_pairs_hook=_refuse_duplicates)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise bad_request(_TWICE, "bad_body")


encode_json = msgspec.json.Encoder().encode

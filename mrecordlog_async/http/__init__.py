"""The log over HTTP: the service, its client, and the embeds for aiohttp and FastAPI applications.

The rooms: `wire` (runs as bytes), `messages` (every JSON body as a type), `routes` (what each path does), `planning`
(the bulk routes' thinking), `guard`, `bodies`, `answers`, `connections` (who is let in, and the limits on the way in
and out), `service` (what the routes of one log share), `app` and `server` (as an application, as a process), `client`,
`transport`, `retrying` and `producer`, `embed` and `fastapi`.

What needs aiohttp is imported when it is first asked for: `wire` and `messages` work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mrecordlog_async.http.client import RecordLogClient
    from mrecordlog_async.http.embed import LOG, setup
    from mrecordlog_async.http.options import ServiceOptions
    from mrecordlog_async.http.producer import Producer
    from mrecordlog_async.http.replies import ServiceError
    from mrecordlog_async.http.retrying import OutcomeUnknownError, ServiceUnreachableError

__all__ = [
    "LOG",
    "OutcomeUnknownError",
    "Producer",
    "RecordLogClient",
    "ServiceError",
    "ServiceOptions",
    "ServiceUnreachableError",
    "setup",
]

_ROOMS = {
    "LOG": "embed",
    "OutcomeUnknownError": "retrying",
    "Producer": "producer",
    "RecordLogClient": "client",
    "ServiceError": "replies",
    "ServiceOptions": "options",
    "ServiceUnreachableError": "retrying",
    "setup": "embed",
}


def __getattr__(name: str) -> object:
    """Import the room that holds *name*."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)

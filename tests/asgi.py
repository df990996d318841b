"""ASGI applications called without a server, by the messages that one would send."""

from __future__ import annotations

import asyncio
from typing import Any


async def call_asgi(
    app: Any, path: str, state: dict[str, Any], method: str = "GET", body: bytes = b"", **more: Any
) -> tuple[int, bytes]:
    """Send one request to an ASGI application; return status and body. *more*: members of the scope."""
    sent: list[dict[str, Any]] = []
    received = False

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:
            await asyncio.Event().wait()  # the client stays
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"x")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": dict(state),
        **more,
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

"""Both clients behind one face: what a test asks of tasks, it asks of threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest

from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient


class InThreads:
    """A blocking client, or something of one, whose calls are awaited: each runs in a thread."""

    def __init__(self, url: str, **options: Any) -> None:
        self.blocking: Any = BlockingRecordLogClient(url, **options)

    @classmethod
    def of(cls, blocking: object) -> InThreads:
        self = cls.__new__(cls)
        self.blocking = blocking
        return self

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.blocking, name)
        return (lambda *given, **more: asyncio.to_thread(member, *given, **more)) if callable(member) else member

    def tail(self, *given: Any) -> InThreads:
        return self.of(self.blocking.tail(*given))

    def producer(self, queue: str) -> InThreads:
        return self.of(self.blocking.producer(queue))

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.blocking.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.blocking.__exit__, *error)


Face = Callable[..., Any]
"""Makes a client. Its calls are awaited, whichever it is, so their types are those of no class."""

faces = pytest.mark.parametrize("face", [RecordLogClient, InThreads], ids=["tasks", "threads"])


async def payloads(client: Any, queue: str) -> list[bytes]:
    """Return what *queue* has."""
    if isinstance(client, InThreads):
        return await asyncio.to_thread(lambda: [record.payload for record in client.blocking.range(queue)])
    return [record.payload async for record in client.range(queue)]

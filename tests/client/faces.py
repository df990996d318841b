"""Both clients behind one face: what a test asks of tasks, it asks of threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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

    def consumer(self, *given: Any) -> InThreads:
        return self.of(self.blocking.consumer(*given))

    def available(self, **limits: Any) -> AsyncIterator[Any]:
        return self._each(self.blocking.available(**limits))

    def range(self, *bounds: Any) -> AsyncIterator[Any]:
        return self._each(self.blocking.range(*bounds))

    async def _each(self, found: Iterator[Any]) -> AsyncIterator[Any]:
        while (one := await asyncio.to_thread(next, found, None)) is not None:
            yield one

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.blocking.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.blocking.__exit__, *error)


Face = Callable[..., Any]
"""Makes a client. Its calls are awaited, whichever it is, so their types are those of no class."""

faces = pytest.mark.parametrize("face", [RecordLogClient, InThreads], ids=["tasks", "threads"])


async def outcome(call: Awaitable[Any]) -> Any:
    """Return what *call* returns or raises, which it does before a test that hangs would be ended."""
    task = asyncio.ensure_future(call)
    ended, _ = await asyncio.wait([task], timeout=30)
    assert ended, "the call does not end"
    return task.exception() or task.result()

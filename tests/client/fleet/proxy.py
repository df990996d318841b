"""A proxy in front of services: it can lose a request or its response, change its target, or spread connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from tests.client.scripted import listening

APPEND = (b"POST /v1/queues/", b"/records")


@dataclass
class Proxy:
    """Forwards each connection to one of the *targets*, in turn.

    lose: what happens to the next append; it is cleared then. lost: set once that has happened. awake: while it is not
    set, connections are accepted and nothing is forwarded. held: set once an append waits for that.
    """

    targets: Sequence[int]
    url: str = ""
    lose: Literal["", "request", "response"] = ""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    turn: count[int] = field(default_factory=count)
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.awake.set()

    def cut(self) -> None:
        """Break every connection, and let no new one reach a target."""
        self.targets = [1]  # nothing listens there
        for writer in self.open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.targets[next(self.turn) % len(self.targets)]
        try:
            there = await asyncio.open_connection("127.0.0.1", target)
        except ConnectionError:
            writer.transport.abort()
            return
        self.open |= {writer, there[1]}
        losing = asyncio.Event()
        both = [
            asyncio.ensure_future(self.forward(reader, there[1], losing, appends=True)),
            asyncio.ensure_future(self.forward(there[0], writer, losing, appends=False)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        finally:
            self.open -= {writer, there[1]}
            there[1].transport.abort()
            writer.transport.abort()

    async def forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event, *, appends: bool
    ) -> None:
        while data := await reader.read(65_536):
            if not self.awake.is_set():
                if appends and all(part in data for part in APPEND):
                    self.held.set()
                await self.awake.wait()
            if appends and self.lose and all(part in data for part in APPEND):
                if self.lose == "request":
                    self.note_lost()
                    return
                losing.set()  # the whole request is in one piece: records of these tests are small
            elif not appends and losing.is_set():
                self.note_lost()
                return
            writer.write(data)

    def note_lost(self) -> None:
        self.lose = ""
        self.lost.set()


@asynccontextmanager
async def proxied(*targets: int) -> AsyncIterator[Proxy]:
    """Run a proxy on a free port."""
    proxy = Proxy(targets)
    async with listening(proxy.serve) as proxy.url:
        yield proxy

"""Redis Streams with appendfsync always: the append-only file is synced before clients get their responses.

One connection for appends, pipelined: the XADDs of a thousand callers are sent in one write, and Redis syncs once for
all that it read together. A second one for everything else.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from tests.benchmarks.peers.server import Server, find_program, free_port

READ_RECORDS = 10_000


class RedisError(Exception):
    """Redis returned an error."""


class RedisStore:
    """A `redis-server` in its own directory."""

    def __init__(self, server: Server, appends: Appends, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._server = server
        self._appends = appends
        self._reader = reader
        self._writer = writer
        self.append_record = appends.append_record

    @classmethod
    async def start(cls, directory: str) -> RedisStore:
        """Start the server; MissingPeerError where it is not installed."""
        program, port = find_program("redis-server"), free_port()
        os.mkdir(directory)
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",
        }
        command = [program, *(word for name, value in options.items() for word in (f"--{name}", value))]
        server = Server(command, port, os.path.join(directory, "output"))
        try:
            await server.wait()
            loop = asyncio.get_running_loop()
            _, appends = await loop.create_connection(Appends, "127.0.0.1", port)
            store = cls(server, appends, *await asyncio.open_connection("127.0.0.1", port))
            _, policy = await store._ask(b"CONFIG", b"GET", b"appendfsync")
            assert policy == b"always", "redis does not sync every append"
        except BaseException:
            await server.stop()
            raise
        return store

    async def create_queue(self, queue: str) -> None:
        """Create nothing: the first XADD creates a stream."""

    async def append_records(self, queue: str, position: None, payloads: Sequence[bytes]) -> bytes:
        """Append several records in one pipeline, not in one transaction; return the last one's entry id."""
        return (await asyncio.gather(*(self.append_record(queue, None, payload) for payload in payloads)))[-1]

    async def truncate(self, queue: str, position: int) -> None:
        """Delete all records of *queue*; positions are entry ids here."""
        await self._ask(b"XTRIM", queue.encode(), b"MAXLEN", b"0")

    async def read(self, queues: Iterable[str]) -> list[bytes]:
        """Return all payloads of *queues*, one queue after the other."""
        return [payload for queue in queues for payload in await self._read(queue)]

    async def _read(self, queue: str) -> list[bytes]:
        found: list[bytes] = []
        after = b"-"
        while entries := await self._ask(b"XRANGE", queue.encode(), after, b"+", b"COUNT", b"%d" % READ_RECORDS):
            found += [fields[1] for _, fields in entries]
            after = b"(" + entries[-1][0]
        return found

    def range(self, queue: str) -> Iterable[tuple[int, bytes]]:
        """Not offered: a server is read with `read`."""
        raise NotImplementedError("Redis is read over its connection")

    async def close(self) -> None:
        """Stop the server."""
        self._appends.close()
        self._writer.close()
        await self._server.stop()

    async def _ask(self, *words: bytes) -> Any:
        self._writer.write(_command(words))
        return await self._response()

    async def _response(self) -> Any:
        """Read one response: a line with its kind and length, and what follows."""
        line = (await self._reader.readline())[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"*":
            return [await self._response() for _ in range(int(rest))]
        if kind == b"$":
            return (await self._reader.readexactly(int(rest) + 2))[:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        return rest


class Appends(asyncio.Protocol):
    """The connection for appends. Its only responses are entry ids: a line with a length, and a line with the id."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._outgoing: list[bytes] = []
        self._rest = b""

    async def append_record(self, queue: str, position: None, payload: bytes) -> bytes:
        """Append *payload*; return its entry id when it would survive a power cut."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(future)
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._outgoing.append(_command((b"XADD", queue.encode(), b"*", b"p", payload)))
        return await future

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self._transport: asyncio.WriteTransport = transport

    def data_received(self, data: bytes) -> None:
        """Complete one call per complete response."""
        *lines, self._rest = (self._rest + data).split(b"\r\n")
        if len(lines) % 2:  # the id after the last length has not arrived yet
            self._rest = lines.pop() + b"\r\n" + self._rest
        for length, entry in zip(lines[::2], lines[1::2], strict=True):
            future = self._waiting.popleft()
            if future.done():  # its caller was cancelled
                continue
            if length.startswith(b"$"):
                future.set_result(entry)
            else:
                future.set_exception(RedisError(length.decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all calls that still wait."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error or ConnectionError("redis closed the connection"))

    def _send(self) -> None:
        self._transport.write(b"".join(self._outgoing))
        self._outgoing = []


def _command(words: tuple[bytes, ...]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])

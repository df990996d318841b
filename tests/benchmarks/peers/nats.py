"""NATS JetStream with `sync_interval: always`, which syncs every message before it acknowledges it (2.10 and later).

One connection, pipelined. Each message names its own inbox for the acknowledgement, as JetStream clients do.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.benchmarks.peers.peer import MissingPeerError
from tests.benchmarks.peers.server import Server, find_program, free_port

SUBJECT = "log"
STREAM = "LOG"
INBOX = "_INBOX.bench."
FIRST_WITH_SYNC_ALWAYS = (2, 10)
CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: {directory}, sync_interval: always }}
max_payload: 8388608
"""


class NatsStore:
    """A `nats-server` in its own directory."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._connection = connection

    @classmethod
    async def start(cls, directory: str) -> NatsStore:
        """Start the server; MissingPeerError where none is installed that can sync every message."""
        program, port = find_program("nats-server"), free_port()
        os.mkdir(directory)
        config = os.path.join(directory, "config")
        await _check_version(program)
        await asyncio.to_thread(_write, config, CONFIG.format(port=port, directory=json.dumps(directory)))
        server = Server([program, "-c", config], port, os.path.join(directory, "output"))
        try:
            await server.wait()
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            store = cls(server, connection)
            await store._make_stream()
        except BaseException:
            await server.stop()
            raise
        return store

    async def create_queue(self, queue: str) -> None:
        """Create nothing: a queue is a subject of the stream."""

    async def append_record(self, queue: str, position: None, payload: bytes) -> int:
        """Append *payload*; return its sequence number when it would survive a power cut."""
        response = await self._connection.ask(f"{SUBJECT}.{queue}", payload)
        _, found, number = response.partition(b'"seq":')
        if not found:
            raise RuntimeError(f"NATS did not store a message: {response!r}")
        return int(number.partition(b",")[0].rstrip(b"} "))

    async def append_records(self, queue: str, position: None, payloads: Sequence[bytes]) -> int:
        """Append several records in one pipeline, not in one transaction; return the last one's sequence number."""
        return (await asyncio.gather(*(self.append_record(queue, None, payload) for payload in payloads)))[-1]

    async def truncate(self, queue: str, position: int) -> None:
        """Delete all messages of *queue*; positions count over all queues here."""
        request = json.dumps({"filter": f"{SUBJECT}.{queue}"}).encode()
        _check(await self._connection.ask(f"$JS.API.STREAM.PURGE.{STREAM}", request))

    def range(self, queue: str) -> Iterable[tuple[int, bytes]]:
        """Not offered: a server is read with `read`."""
        raise NotImplementedError("NATS is read over its connection")

    async def read(self, queues: Iterable[str]) -> list[bytes]:
        """Return all messages of all queues, with one consumer that pushes them: the server limits their number."""
        state = json.loads(await self._connection.ask(f"$JS.API.STREAM.INFO.{STREAM}", b""))["state"]
        found: list[bytes] = []
        complete = asyncio.Event()

        def take(payload: bytes) -> None:
            found.append(payload)
            if len(found) >= state["messages"]:
                complete.set()

        wanted = {
            "deliver_subject": self._connection.subscribe("read", take),
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
        }
        request = json.dumps({"stream_name": STREAM, "config": wanted}).encode()
        _check(await self._connection.ask(f"$JS.API.CONSUMER.CREATE.{STREAM}", request))
        if state["messages"]:
            await complete.wait()
        return found

    async def close(self) -> None:
        """Stop the server."""
        self._connection.close()
        await self._server.stop()

    async def _make_stream(self) -> None:
        config = {"name": STREAM, "subjects": [f"{SUBJECT}.>"], "storage": "file", "num_replicas": 1, "max_msgs": -1}
        _check(await self._connection.ask(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode()))


class Connection(asyncio.Protocol):
    """One connection that speaks enough of the protocol: CONNECT, SUB, PUB with an inbox, MSG, PING."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._takers: dict[bytes, Callable[[bytes], None]] = {}
        self._outgoing: list[bytes] = []
        self._asked = 0
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        self._transport: asyncio.WriteTransport = transport
        transport.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nSUB %b* 1\r\n' % INBOX.encode())

    async def ask(self, subject: str, payload: bytes) -> bytes:
        """Publish *payload* and wait for the response."""
        self._asked += 1
        inbox = b"%b%d" % (INBOX.encode(), self._asked)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[inbox] = future
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._outgoing.append(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(payload), payload))
        return await future

    def subscribe(self, name: str, take: Callable[[bytes], None]) -> str:
        """Call *take* with every message that arrives at the inbox whose subject is returned."""
        self._takers[b"2"] = take
        subject = f"{INBOX}to.{name}"
        self._transport.write(b"SUB %b 2\r\n" % subject.encode())
        return subject

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take the whole messages out of what arrived."""
        data = self._data + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            after = end + 2
            if words[0] == b"MSG":
                stop = after + int(words[-1])
                if len(data) < stop + 2:
                    break
                self._give(words[1], words[2], data[after:stop])
                after = stop + 2
            elif words[0] == b"PING":
                self._transport.write(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise ConnectionError(data[at:end].decode(errors="replace"))
            at = after
        self._data = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all calls that still wait."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error or ConnectionError("nats closed the connection"))

    def _give(self, subject: bytes, subscription: bytes, payload: bytes) -> None:
        if subscription in self._takers:
            self._takers[subscription](payload)
        else:
            future = self._waiting.pop(subject)
            if not future.done():  # its caller may have been cancelled
                future.set_result(payload)

    def _send(self) -> None:
        self._transport.write(b"".join(self._outgoing))
        self._outgoing = []


async def _check_version(program: str) -> None:
    process = await asyncio.create_subprocess_exec(program, "--version", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    found = re.search(r"v(\d+)\.(\d+)", output.decode())
    if found is None or (int(found[1]), int(found[2])) < FIRST_WITH_SYNC_ALWAYS:
        raise MissingPeerError(f"{output.decode().strip()} cannot sync every message, 2.10 and later can")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _check(response: bytes) -> None:
    error = json.loads(response).get("error")
    if error is not None:
        raise RuntimeError(f"NATS refused: {error['description']}")

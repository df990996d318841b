"""NATS JetStream with `sync_interval: always`, which syncs every message before it acknowledges it (2.10 and later).

One connection, pipelined. Each message asks for an acknowledgement at an inbox of its own, as JetStream clients do.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from typing import Any

from tests.benchmarks.peers.peer import MissingPeerError
from tests.benchmarks.peers.server import Server, find_program, free_port

SUBJECT = "log"
STREAM = "LOG"
INBOX = "_INBOX.bench."
FIRST_WITH_SYNC_ALWAYS = (2, 10)
CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: {directory}, {sync} }}
max_payload: 8388608
"""


class NatsStore:
    """A `nats-server` in a directory of its own."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._connection = connection

    @classmethod
    async def start(cls, directory: str, *, sync: bool = True) -> NatsStore:
        """Start the server; MissingPeerError where there is none that can sync every message."""
        program, port = find_program("nats-server"), free_port()
        os.mkdir(directory)
        config = os.path.join(directory, "config")
        if sync:
            await _check_version(program)
        always = "sync_interval: always" if sync else ""
        await asyncio.to_thread(_write, config, CONFIG.format(port=port, directory=json.dumps(directory), sync=always))
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

    async def append(self, payload: bytes) -> None:
        """See `ServerStore`."""
        answer = await self._connection.ask(SUBJECT, payload)
        if b'"seq"' not in answer:
            raise RuntimeError(f"NATS did not store a message: {answer!r}")

    async def read(self) -> list[bytes]:
        """See `ServerStore`: a consumer that pushes all that is there."""
        state = json.loads(await self._connection.ask(f"$JS.API.STREAM.INFO.{STREAM}", b""))["state"]
        found: list[bytes] = []
        complete = asyncio.Event()

        def take(payload: bytes) -> None:
            found.append(payload)
            if len(found) >= state["messages"]:
                complete.set()

        subject = self._connection.subscribe("read", take)
        wanted = {"deliver_subject": subject, "deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
        request = json.dumps({"stream_name": STREAM, "config": wanted}).encode()
        _check(await self._connection.ask(f"$JS.API.CONSUMER.CREATE.{STREAM}", request))
        if state["messages"]:
            await complete.wait()
        return found

    async def close(self) -> None:
        """See `ServerStore`."""
        self._connection.close()
        await self._server.stop()

    async def _make_stream(self) -> None:
        config = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 1, "max_msgs": -1}
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
        """Publish *payload* and wait for the answer."""
        self._asked += 1
        inbox = b"%b%d" % (INBOX.encode(), self._asked)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[inbox] = future
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._outgoing.append(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(payload), payload))
        return await future

    def subscribe(self, name: str, take: Callable[[bytes], None]) -> str:
        """Have *take* called with every message that comes to the inbox whose subject is returned."""
        self._takers[b"2"] = take
        subject = f"{INBOX}to.{name}"
        self._transport.write(b"SUB %b 2\r\n" % subject.encode())
        return subject

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take whole messages off what has come."""
        data = self._data + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split(b" ")
            behind = end + 2
            if words[0] == b"MSG":
                stop = behind + int(words[-1])
                if len(data) < stop + 2:
                    break
                self._give(words[1], words[2], data[behind:stop])
                behind = stop + 2
            elif words[0] == b"PING":
                self._transport.write(b"PONG\r\n")
            elif words[0] == b"-ERR":
                raise ConnectionError(data[at:end].decode(errors="replace"))
            at = behind
        self._data = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everybody who still waits."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error or ConnectionError("nats closed the connection"))

    def _give(self, subject: bytes, subscription: bytes, payload: bytes) -> None:
        if subscription in self._takers:
            self._takers[subscription](payload)
        else:
            self._waiting.pop(subject).set_result(payload)

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


def _check(answer: bytes) -> None:
    error = json.loads(answer).get("error")
    if error is not None:
        raise RuntimeError(f"NATS refused: {error['description']}")

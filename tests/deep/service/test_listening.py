"""From `accept` to the first request: what counts as a connection, and what a flood of handshakes may hold."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from mrecordlog_async.service import connections
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.tls import Certificate
from tests.certificates import client_hello, make_certificate, trusting
from tests.served import Served, serving
from tests.serving import Process

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
LOOPS = ["asyncio", "uvloop"]


@asynccontextmanager
async def serving_tls(directory: Path, options: ServiceOptions) -> AsyncIterator[tuple[Served, ssl.SSLContext]]:
    cert, key = await asyncio.to_thread(make_certificate, directory.parent)
    certificate = await asyncio.to_thread(Certificate, str(cert), str(key))
    trusted = await asyncio.to_thread(trusting, cert)
    async with serving(directory, options, context=certificate.context) as served:
        yield served, trusted


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(served: Served, sent: bytes = b"") -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(sent)
    return reader, writer


async def is_cut(connection: Connection) -> bool:
    """Wait until the service ends the connection."""
    reader, writer = connection
    with suppress(ConnectionError):
        await reader.read()  # with the service's part of a handshake
    writer.transport.abort()
    return True


async def status(served: Served, context: ssl.SSLContext | None) -> bytes:
    """Return the status of a request on its own connection, with TLS if there is a *context*; b"" if it was cut."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        writer.write(HEALTH)
        found = (await reader.readline())[9:12]
    except OSError:
        return b""
    writer.transport.abort()
    return found


async def counted(served: Served, wanted: int) -> None:
    while len(served.connections.open) != wanted:
        await asyncio.sleep(0.001)


@needs_openssl
@pytest.mark.parametrize("sent", [b"", client_hello()], ids=["silent", "hello"])
async def test_a_handshake_counts_as_a_connection_and_the_oldest_makes_room(
    directory: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """However many clients never end theirs, few handshakes hold memory, and an honest client is served."""
    monkeypatch.setattr(connections, "HANDSHAKES", 4)
    monkeypatch.setattr(connections, "SLOW_SECONDS", 0.0)
    async with serving_tls(directory, ServiceOptions()) as (served, context):
        held = []
        for number in range(10):
            held.append(await connect(served, sent))
            await counted(served, min(number + 1, 4))
        assert await status(served, context) == b"200"
        assert all([await is_cut(one) for one in held[:6]])
        assert served.connections.counts.cut == 7
        for _, writer in held:
            writer.transport.abort()
        await counted(served, 0)


@needs_openssl
async def test_a_new_connection_waits_while_no_handshake_is_slow(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many honest clients may come at once: none of them is cut for the next one."""
    monkeypatch.setattr(connections, "HANDSHAKES", 4)
    monkeypatch.setattr(connections, "SLOW_SECONDS", 3_600.0)
    async with serving_tls(directory, ServiceOptions()) as (served, context):
        assert await asyncio.gather(*(status(served, context) for _ in range(50))) == [b"200"] * 50
        held = [await connect(served) for _ in range(4)]
        await counted(served, 4)
        waiting = asyncio.create_task(status(served, context))
        held[0][1].transport.abort()
        assert await waiting == b"200"
        assert served.connections.counts.cut == 0
        for _, writer in held:
            writer.transport.abort()


@needs_openssl
async def test_handshakes_use_up_the_connections_until_they_are_slow(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit, a new connection is closed without a response; it replaces a handshake that takes too long."""
    async with serving_tls(directory, ServiceOptions(connections=3)) as (served, context):
        held = [await connect(served) for _ in range(3)]
        await counted(served, 3)
        assert await status(served, context) == b""
        assert (served.connections.counts.refused, served.connections.counts.cut) == (1, 0)
        monkeypatch.setattr(connections, "SLOW_SECONDS", 0.0)
        assert await status(served, context) == b"200"
        assert served.connections.counts.cut
        for _, writer in held:
            writer.transport.abort()


@needs_openssl
async def test_a_handshake_has_a_deadline(directory: Path) -> None:
    """A client that sends nothing is cut after the time for a request's head, and counts no longer."""
    async with serving_tls(directory, ServiceOptions(header_seconds=0.1)) as (served, _):
        for sent in (b"", client_hello(), client_hello()[:9]):
            assert await is_cut(await connect(served, sent))
        assert await is_cut(await connect(served, HEALTH))  # at once: this is not TLS
        await counted(served, 0)


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=needs_openssl)])
async def test_a_burst_of_connections_stays_within_the_limit(directory: Path, tls: bool) -> None:
    """Many that are accepted in one turn of the event loop count one by one; none gets in unseen."""
    async with (
        serving_tls(directory, ServiceOptions(connections=5))
        if tls
        else _without_context(directory, ServiceOptions(connections=5))
    ) as (served, context):
        clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(60)]  # nothing is accepted yet
        while not served.connections.counts.refused:
            assert len(served.connections.open) <= 5
            await asyncio.sleep(0)
        while served.connections.counts.refused < 55:
            assert len(served.connections.open) <= 5
            await asyncio.sleep(0)
        await counted(served, 5)
        for client in clients:
            client.close()
        await counted(served, 0)
        assert await status(served, context) == b"200"


@asynccontextmanager
async def _without_context(directory: Path, options: ServiceOptions) -> AsyncIterator[tuple[Served, None]]:
    async with serving(directory, options) as served:
        yield served, None


async def test_a_system_without_descriptors_does_not_stop_the_service(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection waits in the socket's queue, and is accepted after a pause; the event loop does not spin."""
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.01)
    async with serving(directory) as served:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.socket()
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.connect(("127.0.0.1", served.port))
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, before[1]))
        try:
            while "no connection is accepted" not in caplog.text:
                await asyncio.sleep(0.001)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await counted(served, 1)
        client.close()


SERVE = """
import sys
from mrecordlog_async.support import event_loop as serve
from mrecordlog_async.cli.main import main
if sys.argv.pop(1) == "asyncio":
    serve.loop_factory = lambda: None
sys.exit(main(sys.argv[1:]))
"""


class OnLoop(Process):
    """`mrecordlog serve` on a certain event loop, and with a limit of open files."""

    def __init__(
        self, loop: str, directory: Path, arguments: list[str], files_max: int = 0, scheme: str = "http"
    ) -> None:
        super().__init__(directory, arguments, scheme=scheme)
        self._program = [sys.executable, "-c", SERVE, loop]
        if files_max:
            self._program = ["sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *self._program]

    def _spawn(self, arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._program, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=needs_openssl)])
def test_no_connection_takes_the_descriptors_of_the_log(tmp_path: Path, tls: bool, loop: str) -> None:
    """Clients that connect and send nothing do not keep the log from starting its next segment."""
    arguments = ["--segment-bytes", "64KiB"]
    context = None
    if tls:
        cert, key = make_certificate(tmp_path)
        arguments += ["--tls-cert", str(cert), "--tls-key", str(key)]
        context = trusting(cert)
    with OnLoop(loop, tmp_path / "wal", arguments, files_max=128, scheme="https" if tls else "http") as service:
        honest = socket.create_connection(("127.0.0.1", service.port))
        honest = context.wrap_socket(honest, server_hostname="localhost") if context is not None else honest
        assert ask(honest, "PUT", "/v1/queues/q") == 201
        held = []
        for number in range(400):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", service.port))
            held.append(client)
            if number % 4 == 0:
                assert ask(honest, "POST", "/v1/queues/q/records", bytes(3_000)) == 200
        code, stderr = service.stop()
        assert code == 0
        assert "Too many open files" not in stderr
        for client in [honest, *held]:
            client.close()


def ask(connection: socket.socket, method: str, path: str, body: bytes = b"") -> int:
    """Send a request and return the status of its response."""
    connection.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 16)
        assert piece, received
        received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    (length,) = (line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(rest) < int(length):
        rest += connection.recv(1 << 16)
    return int(head.split()[1])


@needs_openssl
@pytest.mark.parametrize("loop", LOOPS)
def test_handshakes_do_not_hold_up_the_end(tmp_path: Path, loop: str) -> None:
    """After SIGTERM they are cut: their clients have sent no request."""
    cert, key = make_certificate(tmp_path)
    arguments = ["--tls-cert", str(cert), "--tls-key", str(key)]
    with OnLoop(loop, tmp_path / "wal", arguments, scheme="https") as service:
        held = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(50)]
        for client in held[::2]:
            client.sendall(client_hello())
        code, stderr = service.stop(signal.SIGTERM)
        assert code == 0
        assert "Traceback" not in stderr
        assert "are dropped" not in stderr
        for client in held:
            client.settimeout(60)
            with suppress(ConnectionError), client:
                while client.recv(1 << 16):
                    pass

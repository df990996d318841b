"""Attacks on a service in its own process: the kernel bounds its memory, and its loop's CPU time is measured.

`Target` runs `mrecordlog serve` (unchanged, with one thread more) under a limit of its data segment: allocations beyond
it fail. The thread pings the event loop every few milliseconds and records how much CPU time the loop's thread used
before it replied: a measure of stalls that does not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.certificates import client_hello

MIB = 1024 * 1024

WATCHED_SERVICE = """
import asyncio, ctypes, json, os, sys, threading, time

stalls_file = sys.argv.pop(1)
worst = 0.0


def watch(loop, clock):
    global worst
    while True:
        seen, ended = threading.Event(), []
        begun = time.clock_gettime(clock)
        try:
            # By the loop's own clock, when its turn has come: this thread may wait longer to run again.
            loop.call_soon_threadsafe(lambda: (ended.append(time.thread_time()), seen.set()))
        except RuntimeError:
            return
        seen.wait()
        used = ended[0] - begun
        anew = not os.path.exists(stalls_file)  # since some moment within this turn
        if anew or used > worst:
            used = 0.0 if anew else used
            worst = used
            with open(stalls_file + ".new", "w") as file:
                json.dump(worst, file)
            os.replace(stalls_file + ".new", stalls_file)  # nobody reads half of it
        time.sleep(0.002)


from mrecordlog_async.support import event_loop as command
made = command.loop_factory()

def factory():
    loop = (made or asyncio.new_event_loop)()
    clock = time.pthread_getcpuclockid(threading.get_ident())
    # The first seconds import modules; what counts is what requests cause.
    threading.Timer(0.0, lambda: threading.Thread(target=watch, args=(loop, clock), daemon=True).start()).start()
    return loop

command.loop_factory = lambda: factory
from mrecordlog_async.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Client:
    """Talks to a service: each request on its own connection, with TLS if it has a *context*."""

    def __init__(self, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.context = context

    async def call(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        """Send one request on its own connection; return status and body, status 0 if the connection was cut."""
        async with self.connection() as (reader, writer):
            try:
                writer.write(request(method, path, body, headers + "Connection: close\r\n"))
                await writer.drain()
            except ConnectionError:
                pass  # refused before all of it was sent; there may be a response
            try:
                response = await reader.read()
            except OSError:
                return 0, b""
        head, _, rest = response.partition(b"\r\n\r\n")
        return (int(head.split()[1]), rest) if head else (0, b"")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def hang_without_handshake(self, sent: bytes, seconds: float) -> None:
        """Connect and send less than a whole TLS handshake."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        await asyncio.sleep(seconds)
        writer.transport.abort()

    async def hang(self, sent: bytes, seconds: float) -> None:
        """Send something and read nothing."""
        async with self.connection() as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(sent)
            await asyncio.sleep(seconds)


class Target(Client):
    """A service under attack. stall_seconds: the most CPU time that its loop used in one go."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        data_bytes: int | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._stalls = directory.parent / "stalls.json"
        self._stderr = directory.parent / "service.log"
        self._command = [sys.executable, "-c", WATCHED_SERVICE, str(self._stalls), "serve", str(directory)]
        self._command += ["--port", "0", *arguments]
        self._data_bytes = data_bytes
        super().__init__(context=context)

    def __enter__(self) -> Target:
        with open(self._stderr, "w") as stderr:  # not a pipe: nothing reads it, and a full one would block the service
            self.process = subprocess.Popen(
                self._command, stderr=stderr, preexec_fn=self._limit if self._data_bytes else None
            )
        while self.process.poll() is None:
            if found := re.search(r"listening on https?://\S+?:(\d+)", self.stderr):
                self.port = int(found[1])
                return self
            time.sleep(0.01)
        raise AssertionError(f"the service did not start: {self.stderr}")

    def _limit(self) -> None:
        assert self._data_bytes is not None
        resource.setrlimit(resource.RLIMIT_DATA, (self._data_bytes, self._data_bytes))

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def stderr(self) -> str:
        """What it logged so far."""
        return self._stderr.read_text()

    def stop(self) -> tuple[int, str]:
        """Stop it; return the exit code and what it logged."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        return self.process.returncode, self.stderr

    async def leftovers(self) -> dict[str, int]:
        """Return what requests still hold, once it is nothing or has not changed for a minute."""
        found: dict[str, int] = {}
        unchanged = 0
        while unchanged < 600:
            status, response = await self.call("GET", "/v1/stats")
            numbers: dict[str, Any] = json.loads(response) if status == 200 else {"receiving_bytes": -1}
            names = ("receiving_bytes", "sending_bytes", "tails", "pending_records")
            held = {name: numbers[name] for name in names if numbers.get(name)}
            if not held:
                return held
            unchanged = unchanged + 1 if held == found else 0
            found = held
            await asyncio.sleep(0.1)
        return found

    @property
    def stall_seconds(self) -> float:
        return float(json.loads(self._stalls.read_text())) if self._stalls.exists() else 0.0

    def forget_stalls(self) -> None:
        """Count again."""
        self._stalls.unlink(missing_ok=True)

    def resident_bytes(self, peak: bool = False) -> int:
        """Return the memory in use, or its peak."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)" if peak else r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) * 1024


def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    """Return a request as it is sent."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
    )


class Honest:
    """A producer that keeps every rule: all its appends and truncates must succeed."""

    def __init__(self, target: Client, queue: str) -> None:
        self.target, self.queue = target, queue
        self.acknowledged = 0
        self.truncated = 0
        self.busy = 0
        self.cut = 0  # connections that were cut before their request: in a flood, handshakes that took too long
        self.taken: list[float] = []  # seconds of each append, with what it waited after 429

    async def run(self, stop: asyncio.Event) -> None:
        """Append a record at a time and truncate after every tenth, until asked to stop."""
        assert (await self._call("PUT", f"/v1/queues/{self.queue}?exist_ok=1"))[0] in (200, 201)
        while not stop.is_set():
            begun = asyncio.get_running_loop().time()
            await self._append()
            self.taken.append(asyncio.get_running_loop().time() - begun)
            if self.acknowledged % 10 == 0:
                await self.check()  # what is truncated unseen could have been lost unseen
                await self._truncate(self.acknowledged - 1)
            await asyncio.sleep(0.02)

    async def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        while True:
            try:
                return await self.target.call(method, path, body)
            except OSError:  # from connecting: nothing was sent
                if self.target.context is None:
                    raise
                self.cut += 1
                await asyncio.sleep(0.1)

    async def _append(self) -> None:
        path = f"/v1/queues/{self.queue}/records?position={self.acknowledged}"
        status, response = await self._call("POST", path, b"%d" % self.acknowledged)
        while status == 429:
            self.busy += 1
            await asyncio.sleep(0.2)
            status, response = await self._call("POST", path, b"%d" % self.acknowledged)
        assert status == 200, (status, response)
        self.acknowledged += 1

    async def _truncate(self, position: int) -> None:
        body = b'{"position":%d}' % position
        status, response = await self._call("POST", f"/v1/queues/{self.queue}/truncate", body)
        assert status == 200, (status, response)
        assert json.loads(response)["dropped"] == position + 1 - self.truncated, response
        self.truncated = position + 1

    async def check(self) -> None:
        """Compare what is stored with what was acknowledged."""
        status, response = await self._call("GET", f"/v1/queues/{self.queue}/records?as=text&limit=100000")
        stored = [json.loads(line) for line in body_of(response).splitlines()]
        assert status == 200
        assert [one["position"] for one in stored] == list(range(self.truncated, self.acknowledged))
        assert all(one["payload"] == str(one["position"]) for one in stored)


def body_of(response: bytes) -> bytes:
    """Return *response* without its chunked encoding."""
    if not re.match(rb"[0-9a-f]+\r\n", response):
        return response
    found, rest = b"", response
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        begin = rest.index(b"\r\n") + 2
        found, rest = found + rest[begin : begin + size], rest[begin + size + 2 :]
    return found


# Attacks. Each is the work of one client; run many at once. None checks its responses.

RECORDS = "/v1/queues/victim/records"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LARGE_HEAD = f"POST {RECORDS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 67108864\r\n\r\n".encode()


async def never_read(
    target: Client, seconds: float = 5.0, path: str = f"{RECORDS}?max_bytes=67108864", accept: str = "*/*"
) -> None:
    """Ask for much and read nothing."""
    await target.hang(request("GET", path, headers=f"Accept: {accept}\r\n"), seconds)


async def fetch_and_hang(target: Client, seconds: float = 5.0) -> None:
    """Request everything and read nothing, while the queue is truncated."""
    body = b'{"ranges":[{"queue":"victim","start":0,"stop":%d}]}' % VICTIM_RECORDS
    await target.hang(request("POST", "/v1/fetch", body), seconds)


async def announce(target: Client, seconds: float = 5.0) -> None:
    """Announce a large body and send nothing of it."""
    await target.hang(LARGE_HEAD, seconds)


async def stall(target: Client, seconds: float = 5.0, sent: int = 8 * MIB) -> None:
    """Send a part of a body and stop."""
    await target.hang(LARGE_HEAD + bytes(sent), seconds)


async def silent_connections(target: Client, seconds: float = 3.0, count: int = 100) -> None:
    """Connect and send nothing."""
    await asyncio.gather(*(target.hang_without_handshake(b"", seconds) for _ in range(count)))


async def handshakes_that_stop(target: Client, seconds: float = 3.0, count: int = 100) -> None:
    """Begin TLS handshakes and do not end them."""
    hello = client_hello()
    await asyncio.gather(*(target.hang_without_handshake(hello, seconds) for _ in range(count)))


async def in_the_past(target: Client, size: int = 20 * MIB) -> None:
    """Append a large body at a position that is taken: 409."""
    await target.call("POST", f"{RECORDS}?position=0", bytes(size))


async def million_lines(target: Client) -> None:
    """Send more records than one body may hold: 413."""
    await target.call("POST", RECORDS, b"\n" * 20_000_000, "Content-Type: application/x-ndjson\r\n")


async def million_strings(target: Client, count: int = 11_000_000) -> None:
    """Send JSON with millions of records."""
    body = b'{"records":[' + b'"YQ==",' * (count - 1) + b'"YQ=="]}'
    await target.call("POST", RECORDS, body[: 79 * MIB], "Content-Type: application/json\r\n")


async def many_lines_that_fit(target: Client) -> None:
    """Send as many records as one body may hold, in three formats: they are accepted, and split in turns."""
    await target.call("POST", RECORDS, b"\n" * 200_000, "Content-Type: application/x-ndjson\r\n")
    body = b'{"records":[' + b'"YQ==",' * 199_999 + b'"YQ=="]}'
    await target.call("POST", RECORDS, body, "Content-Type: application/json\r\n")


async def plan_small_pieces(target: Client) -> None:
    """Ask for a piece for each record."""
    await target.call("POST", "/v1/plan", b'{"piece_records":1}')


async def plan_twice(target: Client, times: int = 100_000) -> None:
    """Ask for the same queue again and again."""
    one = b'{"queue":"victim","start":1}'
    await target.call("POST", "/v1/plan", b'{"queues":[' + b",".join([one] * times) + b"]}")


async def wait_behind(target: Client, behind: bytes, seconds: float = 3.0) -> None:
    """Send something after a long poll, where it waits, and read nothing."""
    poll = request("GET", "/v1/queues/empty/records?wait=3")
    async with target.connection() as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(poll)
        await asyncio.sleep(0.2)
        writer.write(behind)
        await asyncio.sleep(seconds)


async def odd_json(target: Client, begin: bytes, repeated: bytes, end: bytes) -> None:
    """Send 60 MB of JSON that is not a list of many records."""
    body = begin + repeated * (60_000_000 // len(repeated)) + end
    await target.call("POST", RECORDS, body, "Content-Type: application/json\r\n")


async def fetch_each(target: Client, seconds: float = 4.0) -> None:
    """Ask for each small record on its own, as often as one fetch may, and read nothing."""
    ranges = b",".join(b'{"queue":"small","start":%d,"stop":%d}' % (at, at + 1) for at in range(50_000))
    await target.hang(request("POST", "/v1/fetch", b'{"ranges":[%s]}' % ranges), seconds)


async def fetch_twice(target: Client, times: int = 100_000) -> None:
    """Ask for the same range again and again."""
    one = b'{"queue":"victim","start":1,"stop":%d}' % VICTIM_RECORDS
    await target.call("POST", "/v1/fetch", b'{"payload":false,"ranges":[' + b",".join([one] * times) + b"]}")


async def truncate_many(target: Client, times: int = 90_000) -> None:
    """Truncate queues that do not exist, very often."""
    one = b'{"queue":"victim","position":0}'
    await target.call("POST", "/v1/truncate", b'{"queues":[' + b",".join([one] * times) + b"]}")


async def compressed(target: Client, kind: str) -> None:
    """Send one of `compressed_body`: it is refused, but for members that together are small."""
    encoding, body, query, expected = compressed_body(kind)
    status, _ = await target.call("POST", RECORDS + query, body, f"Content-Encoding: {encoding}\r\n")
    assert status in (0, 429, expected)


@cache
def compressed_body(kind: str) -> tuple[str, bytes, str, int]:
    """Return the encoding, the body, the query and the status of an attack with few bytes."""
    match kind:
        case "bomb":
            return "gzip", _gigabyte(), "", 413
        case "nested":
            return "gzip, gzip", gzip.compress(_gigabyte()), "", 415
        case "cut off":
            return "gzip", gzip.compress(bytes(60 * MIB))[:-9], "", 400
        case "members":
            return "gzip", gzip.compress(b"") * 10_000 + gzip.compress(b"x") * 10_000, "", 200
        case _:
            arrays = gzip.compress((b"[" * 10_000 + b"]" * 10_000) * 400)
            return "gzip", arrays, "?json=records", 400


def _gigabyte() -> bytes:
    return gzip.compress(bytes(64 * MIB), 9) * 16


VICTIM_RECORDS = 300


async def prepare(target: Client, size: int = 200_000, small: int = 200_000, queues: int = 2_000) -> None:
    """Store what attacks ask for: large records, many small ones, many queues."""
    async with asyncio.timeout(120):
        while (await target.call("GET", "/readyz"))[0] != 200:
            await asyncio.sleep(0.05)
    for queue in ("victim", "small", "empty"):
        assert (await target.call("PUT", f"/v1/queues/{queue}"))[0] == 201
    for _ in range(VICTIM_RECORDS):
        assert (await target.call("POST", RECORDS, bytes(size)))[0] == 200
    kind = "Content-Type: application/x-ndjson\r\n"
    for _ in range(small // 100_000):
        assert (await target.call("POST", "/v1/queues/small/records", b"\n" * 100_000, kind))[0] == 200
    for at in range(0, queues, 100):
        created = [target.call("PUT", f"/v1/queues/{number:06}-{'x' * 200}") for number in range(at, at + 100)]
        assert {status for status, _ in await asyncio.gather(*created)} == {201}

"""What one request may ask for, and what all together may hold: a refusal names its limit."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mrecordlog_async.options import Limits
from mrecordlog_async.service import sending
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading import fetch
from mrecordlog_async.service.routes import route
from mrecordlog_async.service.routes.bulk import LARGE_BYTES
from mrecordlog_async.service.sending import HELD_BYTES
from tests.cached_files import CachedFiles
from tests.served import Served, serving
from tests.service.test_security import HEAD, raw

RECORDS = "/v1/queues/q/records"
NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_announced_bodies_hold_nothing(directory: Path) -> None:
    """Only arrived bytes are charged: four clients that announce the whole budget do not block others."""
    async with serving(directory, ServiceOptions(body_bytes=1_000_000, bodies_bytes=1_000_000)) as served:
        await served.log.create_queue("q")
        async with raw(served) as one, raw(served) as two, raw(served) as three:
            for connection in (one, two, three):
                await connection.send(HEAD + b"Content-Length: 1000000\r\n\r\n")
            while served.service.active < 3:
                await asyncio.sleep(0.001)
            assert (await served.call("POST", RECORDS, bytes(500_000))).status == 200


async def test_a_truncate_passes_a_full_budget(directory: Path) -> None:
    """Uploads that fill the budget do not block requests that free memory."""
    async with serving(directory, ServiceOptions(body_bytes=1_000_000, bodies_bytes=1_000_000)) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [b"a", b"b"])
        async with raw(served) as upload, raw(served) as truncate:
            await upload.send(HEAD + b"Content-Length: 1000000\r\n\r\n" + bytes(999_999))
            while served.service.bodies.budget.used < 999_999:
                await asyncio.sleep(0.001)
            assert (await served.call("POST", RECORDS, bytes(10))).status == 429
            await truncate.send(b"POST /v1/queues/q/truncate HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n")
            await asyncio.sleep(0)
            await truncate.send(b'{"position":0}')
            assert await truncate.status() == 200
            assert (await served.call("POST", "/v1/plan", {})).status == 200


class SlowDisk(CachedFiles):
    """A disk whose syncs end when they are allowed to."""

    def __init__(self) -> None:
        self.slow = False

    def sync(self, handle: int) -> None:
        while self.slow:
            os.sched_yield()
        super().sync(handle)


async def test_bodies_are_charged_until_they_are_stored(directory: Path) -> None:
    """A body that waits for a slow disk stays charged, and its charge is returned with its response."""
    disk = SlowDisk()
    options = ServiceOptions(body_bytes=1_000_000, bodies_bytes=1_500_000)
    async with serving(directory, options, filesystem=disk) as served:
        await served.log.create_queue("q")
        disk.slow = True
        try:
            waiting = asyncio.create_task(served.call("POST", RECORDS, bytes(900_000)))
            while served.service.bodies.budget.used < 900_000:
                await asyncio.sleep(0.001)
            assert (await served.call("POST", RECORDS, bytes(900_000))).status == 429
        finally:
            disk.slow = False
        assert (await waiting).status == 200
        assert served.service.bodies.budget.used == 0
        assert (await served.call("GET", "/v1/stats")).json()["receiving_limit_bytes"] == 1_500_000


async def test_responses_share_one_budget(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that take nothing hold one piece each; above the budget the next one gets a 429."""
    monkeypatch.setattr(
        sending, "STALLED_SECONDS", 3_600.0
    )  # however long the second one takes, the first is not dropped
    async with serving(directory, ServiceOptions(sending_bytes=2 << 20)) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, bytes(30_000_000))
        request = b"GET /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n\r\n"
        async with raw(served) as one, raw(served) as two:
            for connection in (one, two):
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await connection.send(request)
            while served.service.sending.used < 2 << 20:
                await asyncio.sleep(0.001)
            refused = await served.call("GET", RECORDS)
            assert (refused.status, refused.json()["resource"]) == (429, "bytes being sent")
        while served.service.sending.used:
            await asyncio.sleep(0.001)
        whole = await served.call("GET", RECORDS, headers={"Accept": "application/octet-stream"})
        assert whole.body == bytes(30_000_000)


async def test_a_fetch_is_charged_for_a_window(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much it wants, its reader holds some of it at a time: a second one does not fit next to it."""
    monkeypatch.setattr(sending, "STALLED_SECONDS", 3_600.0)
    async with serving(directory, ServiceOptions(sending_bytes=8 << 20)) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [bytes(1_000_000)] * 30)
        body = b'{"ranges":[{"queue":"q","start":0,"stop":30}]}'
        async with raw(served) as reader:
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await reader.send(b"POST /v1/fetch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            while not served.service.sending.used:
                await asyncio.sleep(0.001)
            assert served.service.sending.used == HELD_BYTES + fetch.WINDOW_BYTES
            refused = await served.call("POST", "/v1/fetch", body, headers={"Content-Type": "application/json"})
            assert (refused.status, refused.json()["resource"]) == (429, "bytes being sent")
            small = b'{"ranges":[{"queue":"q","start":0,"stop":1}]}'
            while served.service.sending.active:
                reader.writer.transport.abort()
                await asyncio.sleep(0.001)
            done = await served.call("POST", "/v1/fetch", small, headers={"Content-Type": "application/json"})
            assert done.status == 200
        assert served.service.sending.used == 0


async def test_large_bulk_requests_are_worked_on_one_at_a_time(served: Served) -> None:
    """While one is decoded and answered, a second waits in line with its body alone, and a small one passes."""
    one = b'{"queue":"%s","position":0}' % (b"x" * 200)
    large = b'{"queues":[%s]}' % b",".join([one] * 6_000)
    async with served.service.heaviest:
        waiting = asyncio.create_task(served.call("POST", "/v1/truncate", BytesIO(large)))
        while served.service.bodies.budget.used < LARGE_BYTES:
            await asyncio.sleep(0.001)
        assert (await served.call("POST", "/v1/plan", {})).status == 200
        assert not waiting.done()
    assert (await waiting).status == 200
    assert served.service.bodies.budget.used == 0


async def test_a_fetch_whose_records_are_truncated_meanwhile_breaks_off(directory: Path) -> None:
    """A slow reader keeps a window of them, and the response has no end that looks whole."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [bytes(1_000_000)] * 30)
        async with served.session.post(
            served.url + "/v1/fetch", json={"ranges": [{"queue": "q", "start": 0, "stop": 30}]}
        ) as response:
            assert response.status == 200
            await served.log.truncate("q", 29)
            with pytest.raises(aiohttp.ClientError):
                await response.read()


async def created(served: Served, queue: str) -> str:
    await served.log.create_queue(queue)
    return queue


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_record_larger_than_a_piece_is_one_line(served: Served, as_text: bool) -> None:
    """Base64 and text are encoded piece by piece; joined they are the same line."""
    payload = ('ü"\\\n' * 200_000).encode() + b"\xff"
    await served.log.append_records("q", None, [b"before", payload, b"behind"])
    response = await served.call("GET", RECORDS + ("?as=text" if as_text else ""))
    import base64
    import json

    found = [json.loads(line)["payload"] for line in response.body.splitlines()]
    wanted = [b"before", payload, b"behind"]
    decoded = [one.decode(errors="replace") for one in wanted] if as_text else wanted
    assert (found if as_text else [base64.b64decode(one) for one in found]) == decoded


@pytest.mark.parametrize(
    ("method", "path", "body", "options", "status", "said"),
    [
        ("POST", "/v1/plan", {"queues": [{"queue": "q"}] * 3}, {}, 400, "twice"),
        ("POST", "/v1/plan", {"queues": [{"queue": "q"}] * 3}, {"entries": 2}, 413, "limit of 2"),
        ("POST", "/v1/plan", {"piece_records": 1}, {"pieces": 5}, 413, "limit of 5"),
        ("POST", "/v1/plan", {}, {"entries": 1}, 413, "limit of 1"),
        ("POST", "/v1/fetch", {"ranges": [{"queue": "q", "start": 0, "stop": 5}] * 2}, {}, 400, "overlap"),
        ("POST", "/v1/truncate", {"queues": [{"queue": "q", "position": 0}] * 3}, {"entries": 2}, 413, "limit of 2"),
        ("POST", "/v1/plan", {"queues": [{"queue": "x" * 99_999}]}, {"control_bytes": 1_000}, 413, "limit of 1000"),
        ("GET", "/v1/queues", b"x" * 70_000, {}, 413, "does not read"),
    ],
)
async def test_each_limit_is_named(
    directory: Path, method: str, path: str, body: Any, options: dict[str, Any], status: int, said: str
) -> None:
    """413 for too much, 400 for the same thing twice."""
    async with serving(directory, ServiceOptions(**options)) as served:
        for queue in ("q", "r"):
            await served.log.create_queue(queue)
        for _ in range(3):
            await served.log.append_records("q", None, [b"x" * 30_000] * 3)
        response = await served.call(method, path, body)
        assert response.status == status
        assert said in response.json()["detail"]


async def test_a_body_of_unknown_length_is_refused_where_none_is_read(served: Served) -> None:
    """The refusal does not compare a size that nobody knows with a limit."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    response = await served.call("DELETE", "/v1/queues/q", pieces())
    assert (response.status, served.log.list_queues()) == (413, ["q"])
    assert "has no Content-Length" in response.json()["detail"]
    assert "size" not in response.json()


async def test_a_client_that_left_is_charged_until_no_thread_has_its_body(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients that send and leave would fill the memory with bodies that wait for a thread."""
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def check(body: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    monkeypatch.setattr(route, "_check_duplicates", check)
    body = b'{"queues":[]%s}' % (b" " * 100_000)
    head = b"POST /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    try:
        async with raw(served) as connection:
            await connection.send(head + body)
            await begun.wait()
        while served.connections.known:
            await asyncio.sleep(0.001)
        await served.call("GET", "/healthz")
        assert served.service.bodies.budget.used > 0
        assert served.service.active == 1
    finally:
        go_on.set()
    while served.service.active:
        await asyncio.sleep(0.001)
    assert served.service.bodies.budget.used == 0


LONG = b"x" * 70_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RECORDS, b'{"%s":[]}' % LONG[:60_000]),
        ("/v1/queues/q/truncate", b'{"%s":1}' % LONG),
        ("/v1/plan", b'{"%s":1}' % LONG),
        ("/v1/plan", b'{"queues":[{"queue":"%s"}]}' % LONG),
        ("/v1/fetch", b'{"ranges":[{"queue":"%s","start":0,"stop":1}]}' % LONG),
        ("/v1/truncate", b'{"queues":[{"queue":"%s","position":1}]}' % LONG),
    ],
    ids=["append", "truncate", "plan", "plan of a name", "fetch of a name", "truncate of a name"],
)
async def test_a_refusal_does_not_repeat_what_was_sent(served: Served, path: str, body: bytes) -> None:
    """A member name or queue name as large as the body is not repeated in the response."""
    response = await served.call("POST", path, BytesIO(body), headers={"Content-Type": "application/json"})
    assert response.status == 400
    assert len(response.body) < 1_000


async def test_a_read_is_limited_by_records(directory: Path) -> None:
    """Records without a payload count too; the header says where to continue."""
    async with serving(directory, ServiceOptions(read_records=1_000)) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [b""] * 2_500)
        response = await served.call("GET", RECORDS)
        assert response.body.count(b"\n") == 1_000
        assert response.headers["X-Next-Position"] == "1000"


async def test_braces_in_names_are_no_entries(directory: Path) -> None:
    """The limit counts objects, not the bytes of their names; a quote or a backslash in a name does not hide any."""
    async with serving(directory, ServiceOptions(entries=3)) as served:
        for name in ("{" * 200, '{"{\\"{', "\\\\{"):
            await served.log.create_queue(name, exist_ok=True)
            entry = {"queue": name}
            response = await served.call("POST", "/v1/plan", {"queues": [entry]})
            assert response.status == 200
            response = await served.call("POST", "/v1/plan", {"queues": [entry] * 4})
            assert response.status == 413
            assert response.json()["size"] == 4
        many = b'{"queues":[' + b",".join([b'{"queue":"%b"}' % (b"{" * 5_000)] * 40) + b"]}"
        response = await served.call("POST", "/v1/plan", many)
        assert response.status == 413
        assert response.json()["size"] == 40


async def test_the_first_queues_by_size_are_listed(served: Served) -> None:
    """With an order, the queues that hold most or keep the oldest segment come first, however many there are."""
    for number, size in enumerate((5, 900, 40)):
        await served.log.create_queue(f"sized{number}")
        await served.log.append_records(f"sized{number}", None, [bytes(size)] * (3 - number))
    for order, expected in (("bytes", [1, 2]), ("records", [0, 1]), ("segment", [0, 1]), ("age", [0, 1])):
        page = (await served.call("GET", f"/v1/queues?order={order}&limit=2&prefix=sized")).json()
        assert [one["queue"] for one in page["queues"]] == [f"sized{number}" for number in expected]
        assert page["next"] is None


async def test_an_order_by_size_has_no_pages(served: Served) -> None:
    """It changes with every record, so it is refused without a limit, after a queue, and under an unknown name."""
    for query in ("order=bytes", "order=bytes&limit=2&after=q", "order=size&limit=2"):
        assert (await served.call("GET", f"/v1/queues?{query}")).status == 400


async def test_a_listing_has_pages(served: Served) -> None:
    """`next` of one page is `after` of the next one; nothing is missing or repeated."""
    names = [f"a{number:03}" for number in range(25)]
    for name in names:
        await served.log.create_queue(name)
    found: list[str] = []
    path = "/v1/queues?limit=10"
    while True:
        page = (await served.call("GET", path)).json()
        found += [one["queue"] for one in page["queues"]]
        if page["next"] is None:
            break
        path = f"/v1/queues?limit=10&after={page['next']}"
    assert found == [*names, "q"]
    prefixed = (await served.call("GET", "/v1/queues?prefix=a00&limit=3")).json()
    assert ([one["queue"] for one in prefixed["queues"]], prefixed["next"]) == (["a000", "a001", "a002"], "a002")


async def test_a_long_listing_is_made_in_turns_and_whole(served: Served) -> None:
    """Without a limit every queue is listed."""
    for at in range(0, 2_000, 500):
        await asyncio.gather(*(served.log.create_queue(f"{number:05}") for number in range(at, at + 500)))
    response = await served.call("GET", "/v1/queues")
    assert [one["queue"] for one in response.json()["queues"]] == served.log.list_queues()
    again = await served.call("GET", "/v1/queues", headers={"If-None-Match": response.headers["ETag"]})
    assert again.status == 304
    await served.log.delete_queue("00000")
    assert len((await served.call("GET", "/v1/queues")).json()["queues"]) == 2_000


class FailingDisk(CachedFiles):
    error: int | None = None

    def sync(self, handle: int) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        super().sync(handle)


async def test_a_tail_on_a_log_that_fails_ends_with_an_event(directory: Path) -> None:
    """The response had begun, so its end is an event and not another head."""
    disk = FailingDisk()
    async with serving(directory, filesystem=disk) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, b"a")
        async with raw(served) as tail, raw(served) as later:
            await tail.send(b"GET /v1/queues/q/tail HTTP/1.1\r\nHost: x\r\n\r\n")
            await tail.reader.readuntil(b"YQ==")
            disk.error = errno.EIO
            assert (await served.call("POST", RECORDS, b"b")).status == 503
            rest = await tail.reader.read()
            assert b"event: end\ndata: failed\n\n" in rest
            assert b"HTTP/1.1" not in rest
            await later.send(b"GET /v1/queues/q/tail?start=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            response = await later.reader.read()
            assert response.count(b"HTTP/1.1") == 1


async def test_a_queue_without_positions_left_is_not_worth_a_retry(served: Served) -> None:
    """409 without Retry-After: waiting does not help."""
    assert (await served.call("POST", f"{RECORDS}?position={2**63 - 2}", b"last")).status == 200
    response = await served.call("POST", RECORDS, b"more")
    assert (response.status, response.json()["code"], response.json()["resource"]) == (409, "log_full", "positions")
    assert "Retry-After" not in response.headers


async def test_responses_name_their_type_and_not_their_software(served: Served) -> None:
    """Browsers must not guess a type, and the version of the server is not sent."""
    await served.log.append_record("q", None, b"<script>")
    for path in (RECORDS, "/v1/queues", "/nothing", "/metrics", "/"):
        headers = (await served.call("GET", path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Server"] == "mrecordlog"


async def test_the_longest_idle_connection_is_replaced(directory: Path) -> None:
    """Idle connections do not block new ones."""
    now = asyncio.get_running_loop().time()
    async with serving(directory, ServiceOptions(connections=2)) as served, raw(served) as first, raw(served) as second:
        for connection in (first, second):
            await connection.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await connection.status() == 200
            served.connections.sweep(now)
            now += 1
        served.connections.sweep(now)
        async with raw(served) as third:
            await third.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await third.status() == 200


async def test_memory_that_waits_for_the_writer_counts_before_a_body_is_read(directory: Path) -> None:
    """A body that could never be retained is refused by its length."""
    async with serving(
        directory, limits=Limits(memory_bytes=2_000_000, record_bytes=1_000_000, pending_bytes=1_000_000)
    ) as served:
        await served.log.create_queue("q")
        await served.log.append_record("q", None, bytes(900_000))
        async with raw(served) as connection:
            await connection.send(HEAD + b"Content-Length: 1200000\r\n\r\nx")
            assert await connection.status() == 429

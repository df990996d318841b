from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.model import POSITION_MAX, text_of_tick
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.routes import tails
from tests.served import Served, serving

TAIL = "/v1/queues/q/tail"


async def events(response: aiohttp.ClientResponse, count: int) -> list[dict[str, str]]:
    """Read *count* events; comments are skipped."""
    found: list[dict[str, str]] = []
    event: dict[str, str] = {}
    while len(found) < count:
        line = (await response.content.readline()).decode()
        assert line, "the stream ended early"
        if line == "\n":
            if event:
                found.append(event)
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.rstrip("\n").partition(": ")
            event[name] = value
    return found


async def test_a_tail_sends_what_is_there_and_what_comes(served: Served) -> None:
    """Events carry position and payload, in order, on one connection."""
    await served.log.append_records("q", None, [b"a", b"b\nb"])
    async with served.session.get(served.url + TAIL + "?as=text") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        first = await events(response, 2)
        await served.log.append_record("q", None, b"c")
        last = await events(response, 1)
    queue_id = served.log.queue_summary("q").id
    assert [event["id"] for event in first + last] == [f"{position}-{queue_id}" for position in range(3)]
    assert [json.loads(event["data"])["payload"] for event in first + last] == ["a", "b\nb", "c"]


@pytest.mark.parametrize("last_seen", ["1", "1-{}"])
async def test_a_tail_resumes_after_the_last_event_seen(served: Served, last_seen: str) -> None:
    """A browser that lost the connection misses nothing and sees nothing twice. The position alone suffices."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    seen = {"Last-Event-ID": last_seen.format(served.log.queue_summary("q").id)}
    async with served.session.get(served.url + TAIL + "?start=0", headers=seen) as response:
        (event,) = await events(response, 1)
    time = text_of_tick(served.log.inspection.times("q").ticks[-1])
    assert json.loads(event["data"]) == {"position": 2, "time": time, "payload": "Yw=="}


async def test_a_tail_that_resumes_in_a_recreated_queue_begins_with_its_first_record(served: Served) -> None:
    """The client has seen none of its records, whatever the last position was."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    async with served.session.get(served.url + TAIL) as response:
        seen = (await events(response, 3))[-1]["id"]
    await served.log.delete_queue("q")
    await served.log.create_queue("q")
    await served.log.append_records("q", None, [b"d", b"e"])
    async with served.session.get(
        served.url + TAIL + "?as=text&start=next", headers={"Last-Event-ID": seen}
    ) as response:
        found = await events(response, 2)
    assert [json.loads(event["data"])["payload"] for event in found] == ["d", "e"]


@pytest.mark.parametrize("last_seen", ["2", "2-{}"])
async def test_a_tail_that_resumes_past_the_end_is_refused(served: Served, last_seen: str) -> None:
    """The client has seen what a restored log does not have: new records would take those positions unseen."""
    await served.log.append_records("q", None, [b"a", b"b"])
    seen = {"Last-Event-ID": last_seen.format(served.log.queue_summary("q").id)}
    refused = await served.call("GET", TAIL, headers=seen, timeout=aiohttp.ClientTimeout(60))
    assert (refused.status, refused.json()["code"], refused.json()["next_position"]) == (409, "ahead", 2)


async def test_a_tail_from_next_shows_only_what_comes(served: Served) -> None:
    """`start=next` skips the records that are already stored."""
    await served.log.append_record("q", None, b"old")
    async with served.session.get(served.url + TAIL + "?start=next&as=text") as response:
        await served.log.append_record("q", None, b"new")
        (event,) = await events(response, 1)
    assert json.loads(event["data"])["payload"] == "new"


async def test_a_tail_ends_with_its_queue(served: Served) -> None:
    """Deleting the queue ends the tail with an event that says so, even if the queue is recreated at once."""
    async with served.session.get(served.url + TAIL) as response:
        await asyncio.gather(served.log.delete_queue("q"), served.log.create_queue("q", exist_ok=True))
        (event,) = await events(response, 1)
        assert event == {"event": "end", "data": "deleted"}
        assert await response.content.read() == b""


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_tail_ends_with_a_queue_that_is_deleted_while_it_sends(
    served: Served, monkeypatch: pytest.MonkeyPatch, recreated: bool
) -> None:
    """It does not wait at that moment, and says so all the same, instead of breaking off."""
    send = tails.Events.send

    async def send_and_delete(self: tails.Events, *arguments: Any) -> bool:
        sent = await send(self, *arguments)
        monkeypatch.setattr(tails.Events, "send", send)
        await served.log.delete_queue("q")
        if recreated:
            await served.log.create_queue("q")
        return sent

    monkeypatch.setattr(tails.Events, "send", send_and_delete)
    await served.log.append("q", b"a")
    async with served.session.get(served.url + TAIL, timeout=aiohttp.ClientTimeout(10)) as response:
        _, end = await events(response, 2)
    assert end == {"event": "end", "data": "deleted"}


async def test_a_tail_of_a_sealed_queue_says_that_it_is_sealed(served: Served) -> None:
    """It ends after the last record; the queue and its records are still there."""
    await served.log.append("q", b"a")
    await served.log.seal_queue("q")
    async with served.session.get(served.url + TAIL) as response:
        record, end = await events(response, 2)
    assert (json.loads(record["data"])["position"], end) == (0, {"event": "end", "data": "sealed"})


async def test_a_tail_ends_when_the_service_goes_down(served: Served) -> None:
    """Tails never delay a shutdown."""
    async with served.session.get(served.url + TAIL) as response:
        served.service.begin_shutdown()
        (event,) = await events(response, 1)
    assert event == {"event": "end", "data": "closing"}
    assert served.service.tails == 0


async def test_a_tail_continues_after_a_truncation(served: Served) -> None:
    """Records that were dropped before they were sent are skipped."""
    async with served.session.get(served.url + TAIL + "?start=0&as=text") as response:
        await served.log.append_records("q", 5, [b"a", b"b"])
        await served.log.truncate("q", 5)
        seen = [json.loads(event["data"])["payload"] for event in await events(response, 1)]
    assert seen[-1] in ("a", "b")


async def test_a_tail_whose_records_were_all_truncated_waits(directory: Path) -> None:
    """It sends heartbeats, as at the end of a queue, and takes no CPU time until the next record."""
    async with serving(directory, ServiceOptions(heartbeat_seconds=0.01)) as served:
        await served.log.append_records("q", None, [b"a", b"b"], create=True)
        await served.log.truncate("q", 1)
        async with served.session.get(served.url + TAIL + "?start=0", timeout=aiohttp.ClientTimeout(10)) as response:
            assert await response.content.readline() == b": still here\n"
            await served.log.append("q", b"c")
            (event,) = await events(response, 1)
    assert json.loads(event["data"])["position"] == 2


async def test_a_client_that_leaves_is_forgotten(served: Served) -> None:
    """A tail ends on the server when its client has disconnected."""
    async with served.session.get(served.url + TAIL):
        assert served.service.tails == 1
    while served.service.tails:
        await asyncio.sleep(0.001)
    assert served.service.active == 0


async def test_heartbeats_keep_a_quiet_tail_alive(directory: Path) -> None:
    """Proxies and clients can tell a quiet queue from a dead connection."""
    async with serving(directory, ServiceOptions(heartbeat_seconds=0.01)) as served:
        await served.log.create_queue("q")
        async with served.session.get(served.url + TAIL) as response:
            assert await response.content.readline() == b": still here\n"


async def test_the_end_of_a_queue_that_has_used_all_positions_can_be_waited_for(directory: Path) -> None:
    """No record will come there, but the queue may be sealed or deleted; a client that has read all goes on there."""
    async with serving(directory, ServiceOptions(heartbeat_seconds=0.01, wait_seconds=0.01)) as served:
        await served.log.append("q", b"last", POSITION_MAX, create=True)
        end = POSITION_MAX + 1
        read = await served.call("GET", f"/v1/queues/q/records?start={end}&wait=1")
        assert (read.status, read.body, read.headers["X-Next-Position"]) == (200, b"", str(end))
        async with served.session.get(served.url + TAIL + "?start=next") as response:
            assert await response.content.readline() == b": still here\n"
            await served.log.seal_queue("q")
            assert (await events(response, 1))[0]["data"] == "sealed"
        async with RecordLogClient(served.url) as client:
            assert await client.wait_for("q", end) is False


async def test_a_reader_that_does_not_read_is_dropped(directory: Path) -> None:
    """Events are created only as fast as the client reads, and a client that stops is dropped."""
    async with serving(directory, ServiceOptions(write_seconds=0.2)) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [bytes(100_000)] * 300)
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(b"GET %s?start=0 HTTP/1.1\r\nHost: x\r\n\r\n" % TAIL.encode())
        while not served.service.tails:
            await asyncio.sleep(0.001)
        while served.service.tails:
            await asyncio.sleep(0.01)
        writer.transport.abort()


async def test_tails_are_limited(directory: Path) -> None:
    """More waiting clients than allowed get a 429."""
    async with serving(directory, ServiceOptions(tails=1)) as served:
        await served.log.create_queue("q")
        async with served.session.get(served.url + TAIL):
            response = await served.call("GET", TAIL)
            assert (response.status, response.json()["resource"], response.headers["Retry-After"]) == (
                429,
                "tails",
                "1",
            )
            assert (await served.call("GET", "/v1/queues/q/records?wait=1")).status == 429
            assert (await served.call("GET", "/v1/queues/q/records")).status == 200


async def test_numbers_are_streamed(served: Served) -> None:
    """The page gets its statistics as events."""
    async with served.session.get(served.url + "/v1/stats/stream") as response:
        (event,) = await events(response, 1)
    assert json.loads(event["data"])["state"] == "open"

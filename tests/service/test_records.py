from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest

from mrecordlog_async import Limits, Run
from mrecordlog_async.model import TICK_NS, text_of_tick, time_of_tick
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.support.clock import Clock
from tests.served import Served, serving

RECORDS = "/v1/queues/q/records"
NDJSON = {"Content-Type": "application/x-ndjson"}


def payloads(served: Served) -> list[bytes]:
    return [record.payload for record in served.log.range("q")]


@pytest.mark.parametrize("content_type", ["application/octet-stream", "text/csv", "application/x-www-form-urlencoded"])
async def test_a_body_is_one_record_whatever_its_type(served: Served, content_type: str) -> None:
    """`curl --data-binary @file` just works: the whole file, newlines included, is one record."""
    response = await served.call("POST", RECORDS, b"a\nb\n", headers={"Content-Type": content_type})
    assert response.json() == {"position": 0, "records": 1, "duplicate": False}
    assert payloads(served) == [b"a\nb\n"]


async def test_an_empty_body_is_an_empty_record(served: Served) -> None:
    """A record may be empty."""
    assert (await served.call("POST", RECORDS, b"")).json()["position"] == 0
    assert payloads(served) == [b""]


@pytest.mark.parametrize("type_", ["application/octet-stream", "application/x-ndjson"])
@pytest.mark.parametrize(
    "sent",
    [
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: Chunked\r\nExpect: x\r\n\r\n0\r\nTrailer: a\r\n\r\n",
        b"\r\n",
    ],
    ids=["chunked", "trailer", "no body"],
)
async def test_a_body_without_bytes_is_a_record_only_if_its_length_says_so(
    served: Served, sent: bytes, type_: str
) -> None:
    """What was to be the content may have been lost on the way: it is not acknowledged as an empty record."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"POST {urlsplit(served.url).path}{RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {type_}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n" + sent)
    response = await reader.read()
    writer.close()
    assert response.startswith(b"HTTP/1.1 400")
    assert b"send Content-Length: 0" in response
    assert payloads(served) == []


async def test_a_body_in_chunks_that_is_empty_changes_nothing_else(served: Served) -> None:
    """Without its body, a request means its defaults: a seal that names an incarnation would seal any."""

    async def nothing() -> AsyncIterator[bytes]:
        for piece in list[bytes]():
            yield piece

    for path in ("/v1/queues/q/seal", "/v1/queues/q/consumers/c/attach", "/v1/plan"):
        response = await served.call("POST", path, nothing())
        assert (response.status, response.json()["code"]) == (400, "bad_body")
    assert not served.log.queue_summary("q").sealed


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\n\nb\r\n", [b"a", b"", b"b\r"]),
        (b"\n", [b""]),
        (b"", []),
    ],
)
async def test_ndjson_is_a_record_a_line_as_it_is(served: Served, body: bytes, stored: list[bytes]) -> None:
    """Lines are stored unchanged, blank ones too; the last one needs no newline."""
    response = (await served.call("POST", RECORDS, body, headers=NDJSON)).json()
    assert response["records"] == len(stored)
    assert response["position"] == (len(stored) - 1 if stored else None)
    assert payloads(served) == stored


async def test_json_holds_base64(served: Served) -> None:
    """Binary records fit into JSON."""
    body = {"records": [base64.b64encode(b"\0\xff").decode(), ""]}
    assert (await served.call("POST", RECORDS, body)).json()["position"] == 1
    assert payloads(served) == [b"\0\xff", b""]


async def test_runs_are_stored_record_by_record(served: Served) -> None:
    """Runs from a bulk writer are stored as records, at the queue's next positions."""
    body = b"".join(wire.encode([wire.QueueRuns("q", 0, [Run.of(70, [b"a", b"bb"]), Run.of(90, [b"c"])])]))
    response = await served.call("POST", RECORDS, body, headers={"Content-Type": wire.CONTENT_TYPE})
    assert response.json() == {"position": 2, "records": 3, "duplicate": False}
    assert payloads(served) == [b"a", b"bb", b"c"]


async def test_a_cut_stream_of_runs_stores_nothing(served: Served) -> None:
    """A body that lost its end is refused as a whole."""
    body = b"".join(wire.encode([wire.QueueRuns("q", 0, [Run.of(0, [b"a"])])]))[:-8]
    response = await served.call("POST", RECORDS, body, headers={"Content-Type": wire.CONTENT_TYPE})
    assert (response.status, response.json()["code"]) == (400, "bad_body")
    assert payloads(served) == []


async def test_sending_the_same_records_at_their_position_stores_them_once(served: Served) -> None:
    """A retry after a lost response is reported as a repeat, with the same position."""
    first = await served.call("POST", RECORDS + "?position=0", b"a\nb\n", headers=NDJSON)
    again = await served.call("POST", RECORDS + "?position=0", b"a\nb\n", headers=NDJSON)
    assert first.json() == {"position": 1, "records": 2, "duplicate": False}
    assert again.json() == {"position": 1, "records": 2, "duplicate": True}
    assert payloads(served) == [b"a", b"b"]


async def test_other_records_at_a_taken_position_are_409(served: Served) -> None:
    """The response names the queue's next position."""
    await served.call("POST", RECORDS, b"a")
    response = await served.call("POST", RECORDS + "?position=0", b"b")
    assert (response.status, response.json()["code"], response.json()["next_position"]) == (409, "position_in_past", 1)


async def test_append_to_an_unknown_queue_is_404_unless_it_may_be_made(served: Served) -> None:
    """Queues are not created by accident."""
    assert (await served.call("POST", "/v1/queues/new/records", b"a")).status == 404
    assert (await served.call("POST", "/v1/queues/new/records?create=1", b"a")).json()["position"] == 0


@pytest.mark.parametrize("position", ["-1", "x", "1.0", "9223372036854775807", "0" * 5000, "%C2%B2", ""])
async def test_invalid_positions_are_400(served: Served, position: str) -> None:
    """A position is a whole number below 2**63, written in at most 19 digits."""
    response = await served.call("POST", f"{RECORDS}?position={position}", b"a")
    assert (response.status, response.json()["code"]) == (400, "parameter")
    assert payloads(served) == []


async def test_the_last_position_takes_a_record_and_no_more(served: Served) -> None:
    """Positions end at 2**63 - 2, even for the second record of a call."""
    last = 2**63 - 2
    assert (await served.call("POST", f"{RECORDS}?position={last}", b"a\nb\n", headers=NDJSON)).status == 400
    assert (await served.call("POST", f"{RECORDS}?position={last}", b"a")).json()["position"] == last


async def test_reads_have_their_format_by_accept(served: Served) -> None:
    """NDJSON is the default; lines, raw bytes and runs are available."""
    await served.log.append_records("q", None, [b"a", b"\xff"])

    async def read(accept: str | None, query: str = "") -> bytes:
        response = await served.call("GET", RECORDS + query, headers={} if accept is None else {"Accept": accept})
        assert (response.status, response.headers["X-Next-Position"]) == (200, "2")
        return response.body

    time = served.log.inspection.times("q").ticks[0]
    shown = text_of_tick(time)
    lines = b'{"position":0,"time":"%s","payload":"YQ=="}\n{"position":1,"time":"%s","payload":"/w=="}\n'
    lines %= shown.encode(), shown.encode()
    assert await read("*/*") == await read("text/html, application/x-ndjson;q=0.5") == lines
    assert await read("text/plain; q=0, */*") == await read("text/plain;q=0.000,application/*;q=0.1") == lines
    assert json.loads((await read("*/*", "?as=text")).splitlines()[1]) == {
        "position": 1,
        "time": shown,
        "payload": "\ufffd",
    }
    assert await read("text/plain") == b"a\n\xff\n"
    assert await read("application/octet-stream") == b"a\xff"
    (block,) = wire_decoder.decode(await read(wire.CONTENT_TYPE))
    assert (block.queue, block.queue_id) == ("q", served.log.queue_summary("q").id)
    assert block.run() == Run.of(0, [b"a", b"\xff"])
    assert block.times.time_at(1) == served.log.time_of("q", 1)


async def test_reads_start_at_a_time(served: Served) -> None:
    """`since` begins with the first record stored then or later; `position` says where that is."""
    clock = 16_000_000_000
    with patch.object(served.log._engine.opened.journal, "clock", Clock(lambda: clock * TICK_NS)):
        for payload in (b"a", b"b", b"c"):
            clock += 100
            await served.log.append("q", payload)
    for back, found in ((0, 2), (99, 2), (100, 1), (10**9, 0)):
        time = text_of_tick(clock - back)
        response = await served.call("GET", f"{RECORDS}?since={time}")
        lines = [json.loads(line) for line in response.body.splitlines()]
        assert [line["position"] for line in lines] == [*range(found, 3)]
        assert lines[-1]["time"] == text_of_tick(clock)
        shown = (await served.call("GET", f"/v1/queues/q/position?time={time}")).json()
        assert shown == {"queue": "q", "id": served.log.queue_summary("q").id, "position": found}
    assert (await served.call("GET", f"{RECORDS}?since={time_of_tick(clock).isoformat()}")).status == 200
    after = text_of_tick(clock + 1)
    assert (await served.call("GET", f"/v1/queues/q/position?time={after}")).json()["position"] == 3
    oldest = (await served.call("GET", "/v1/queues/q")).json()["oldest_time"]
    assert datetime.fromisoformat(oldest) == served.log.queue_summary("q").oldest_time


@pytest.mark.parametrize(
    "path",
    [
        f"{RECORDS}?since=2026-01-01T00:00:00",
        f"{RECORDS}?since=yesterday",
        f"{RECORDS}?since=9999-01-01T00:00:00Z",
        f"{RECORDS}?since=2026-01-01T00:00:00Z&start=1",
        "/v1/queues/q/position",
        "/v1/queues/q/position?time=",
        "/v1/queues/q/tail?since=1",
        "/v1/queues/q/tail?since=1&start=next",
        "/v1/queues/q/tail?since=2026-01-01T00:00:00Z&start=next",
    ],
)
async def test_times_that_cannot_be_are_400(served: Served, path: str) -> None:
    """A time needs a zone and must not be in the future, and excludes a position."""
    response = await served.call("GET", path)
    assert (response.status, response.json()["code"]) == (400, "parameter")
    assert "datetime" not in response.json()["detail"]  # no advice for Python


async def test_arrow_is_refused_in_a_sentence(served: Served) -> None:
    """As a body it is never stored as one record; the response says what to send, or to ask for, instead."""
    arrow = "application/vnd.apache.arrow.stream"
    for content_type in (arrow, f"{arrow.upper()}; charset=utf-8"):
        sent = await served.call("POST", RECORDS, b"ARROW1", headers={"Content-Type": content_type})
        assert (sent.status, sent.json()["code"]) == (415, "no_arrow")
        assert sent.json()["detail"] == (
            "Arrow is not accepted; send application/x-ndjson, application/vnd.mrecordlog.runs or "
            "application/octet-stream (one record)"
        )
    assert served.log.next_position("q") == 0
    asked = await served.call("GET", RECORDS, headers={"Accept": arrow})
    assert (asked.status, asked.json()["code"]) == (406, "not_acceptable")
    assert f"no supported type in Accept '{arrow}'; supported: application/x-ndjson, " in asked.json()["detail"]


async def test_an_unknown_format_is_406(served: Served) -> None:
    """No client gets a format that it did not ask for."""
    response = await served.call("GET", RECORDS, headers={"Accept": "application/xml"})
    assert (response.status, response.json()["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("query", "expected", "following"),
    [
        ("", "abcdef", 6),
        ("?start=2", "cdef", 6),
        ("?stop=2", "ab", 2),
        ("?start=1&stop=4", "bcd", 4),
        ("?limit=2", "ab", 2),
        ("?start=4&limit=9", "ef", 6),
        ("?max_bytes=3", "abc", 3),
        ("?start=3&max_bytes=1", "d", 4),
        ("?start=6", "", 6),
        ("?start=9", "", 9),
        ("?start=3&stop=2", "", 3),
    ],
)
async def test_reads_are_bounded_and_say_where_to_continue(
    served: Served, query: str, expected: str, following: int
) -> None:
    """start is included, stop is not; limit and max_bytes cut; X-Next-Position continues."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    await served.log.append_records("q", None, [b"d", b"e", b"f"])
    response = await served.call("GET", RECORDS + query, headers={"Accept": "application/octet-stream"})
    assert (response.body.decode(), int(response.headers["X-Next-Position"])) == (expected, following)


async def test_one_record_larger_than_max_bytes_is_still_handed_out(served: Served) -> None:
    """A reader always makes progress."""
    await served.log.append_record("q", None, b"x" * 1000)
    assert len((await served.call("GET", RECORDS + "?max_bytes=10", headers={"Accept": "text/plain"})).body) == 1001


async def test_reading_what_is_truncated_is_410_and_says_where_to_continue(served: Served) -> None:
    """A reader that fell behind gets an error, not a hole."""
    await served.log.append_records("q", None, [b"a", b"b"])
    await served.log.truncate("q", 0)
    response = await served.call("GET", RECORDS + "?start=0")
    assert (response.status, response.json()["first_position"]) == (410, 1)
    assert (await served.call("GET", RECORDS, headers={"Accept": "text/plain"})).body == b"b\n"


async def test_a_large_response_arrives_whole(served: Served) -> None:
    """Megabytes are sent in pieces, after their length."""
    records = [bytes([number]) * 300_000 for number in range(20)]
    await served.log.append_records("q", None, records)
    response = await served.call("GET", RECORDS, headers={"Accept": "application/octet-stream"})
    assert response.body == b"".join(records)
    assert response.headers["Content-Length"] == "6000000"


async def test_a_read_waits_for_a_part_of_a_second_too(served: Served) -> None:
    """All routes that wait take the same times, and a time above the longest wait is that one."""
    for wait in ("0.05", "0.000000001"):
        assert (await served.call("GET", RECORDS + f"?start=0&wait={wait}")).status == 200
    for wait in ("-1", "x", "1e3", "", ".5", "1."):
        assert (await served.call("GET", RECORDS + f"?start=0&wait={wait}")).status == 400
    await served.log.append("q", b"a")
    assert (await served.call("GET", RECORDS + "?start=0&wait=9223372036854775807")).status == 200


async def test_a_long_poll_ends_with_the_append(served: Served) -> None:
    """A reader at the end of the queue waits for the next record and gets it."""
    polling = asyncio.create_task(served.call("GET", RECORDS + "?start=0&wait=30", headers={"Accept": "text/plain"}))
    while not served.service.tails:
        await asyncio.sleep(0.001)
    await served.log.append_record("q", None, b"news")
    assert (await polling).body == b"news\n"
    assert served.service.tails == 0


async def test_a_long_poll_gets_no_record_of_a_queue_that_took_the_name_meanwhile(served: Served) -> None:
    """It waits for the queue that had the name when it came: its positions are not those of another one."""
    polling = asyncio.create_task(served.call("GET", RECORDS + "?start=0&wait=30"))
    while not served.service.tails:
        await asyncio.sleep(0.001)
    # One batch, so that the reader runs when the other queue has its record.
    await asyncio.gather(
        served.log.delete_queue("q"), served.log.create_queue("q"), served.log.append("q", b"of another queue")
    )
    assert (await polling).status == 404


async def test_a_long_poll_ends_when_the_queue_is_deleted_or_the_service_goes_down(served: Served) -> None:
    """No reader waits for a record that cannot come."""
    polling = asyncio.create_task(served.call("GET", RECORDS + "?wait=30"))
    while not served.service.tails:
        await asyncio.sleep(0.001)
    await served.log.delete_queue("q")
    assert (await polling).status == 404
    await served.log.create_queue("q")
    polling = asyncio.create_task(served.call("GET", RECORDS + "?wait=30"))
    while not served.service.tails:
        await asyncio.sleep(0.001)
    served.service.begin_shutdown()
    assert ((await polling).status, (await polling).body) == (200, b"")


async def test_a_full_log_responds_429_before_the_body_is_read(directory: Path) -> None:
    """The refusal has the numbers and a time to retry; truncating frees memory."""
    limits = Limits(memory_bytes=300_000, pending_bytes=200_000, record_bytes=200_000)
    async with serving(directory, limits=limits) as served:
        await served.log.create_queue("q")
        for _ in range(3):
            await served.call("POST", RECORDS, bytes(90_000))
        response = await served.call("POST", RECORDS, bytes(90_000))
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        problem = response.json()
        assert (problem["code"], problem["resource"], problem["limit"]) == ("log_full", "memory", 300_000)
        assert (await served.call("POST", "/v1/queues/q/truncate", {"position": 2})).status == 200
        assert (await served.call("POST", RECORDS, bytes(90_000))).status == 200


async def test_what_can_never_fit_is_413_with_the_numbers(directory: Path) -> None:
    """A refusal names the limit that is exceeded."""
    options = ServiceOptions(body_bytes=2_000, body_records=3)
    async with serving(directory, options, limits=Limits(record_bytes=1_000)) as served:
        await served.log.create_queue("q")
        body = await served.call("POST", RECORDS, bytes(2_001))
        assert (body.status, body.json()["size"], body.json()["limit"]) == (413, 2_001, 2_000)
        record = await served.call("POST", RECORDS, bytes(1_001))
        assert (record.status, record.json()["limit_name"]) == (413, "record_bytes")
        lines = await served.call("POST", RECORDS, b"\n" * 4, headers=NDJSON)
        assert (lines.status, lines.json()["limit"]) == (413, 3)


async def test_many_callers_share_syncs(served: Served) -> None:
    """Requests that wait at the same time are stored by one sync."""
    before, goes_on = served.log.stats().syncs, threading.Event()
    # However fast the disk is: its thread waits until all of them wait for it.
    served.log._engine.thread.hand_over(lambda *_: None, goes_on.wait)
    requests = [asyncio.create_task(served.call("POST", RECORDS, b"%d" % number)) for number in range(100)]
    while served.log.inspection.pending_records < 100:
        await asyncio.sleep(0.001)
    goes_on.set()
    responses = await asyncio.gather(*requests)
    assert sorted(response.json()["position"] for response in responses) == list(range(100))
    assert served.log.stats().syncs - before < 5


async def test_a_client_that_sends_and_never_reads_is_dropped(directory: Path) -> None:
    """Responses that the client does not read do not accumulate without end."""
    async with serving(directory, queues=["q"]) as served:
        await served.log.append_record("q", None, b"x" * 60_000)
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1)
        writer.write(b"GET %s?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n" % RECORDS.encode() * 1_000)
        connections = served.connections
        while not any(one.paused for one in connections.known.values()):
            await asyncio.sleep(0.001)
        (one,) = connections.known.values()
        connections.sweep(one.paused + 29.9)
        assert connections.counts.cut == 0
        connections.sweep(one.paused + 30)
        assert connections.counts.cut == 1
        writer.transport.abort()

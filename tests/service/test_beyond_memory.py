"""A service whose records are on the disk responds as one that has all of them in memory."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.format.gathered import PLACE_BYTES
from mrecordlog_async.model import TICK_NS, text_of_tick
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.reading.fetch import Fetcher
from mrecordlog_async.service.sending import HELD_BYTES
from mrecordlog_async.service.turns import Turns
from mrecordlog_async.support.clock import Clock
from tests import damage
from tests.clocks import opening
from tests.served import Response, Served, serving

MIB = 1 << 20
BLOB = random.Random(5).randbytes(MIB)
QUEUES = [f"q{number}" for number in range(6)]
GAPPED = ("q4", "q5")
FIRST_TICK = 17_000_000_000


class Twins(NamedTuple):
    """Two services with the same records: one keeps 1 MiB of them in memory, the other one all."""

    small: Served
    large: Served

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Response:
        """Send a request to both; return the response of the small one, after a comparison of status and positions."""
        one, other = [await served.call(method, path, body, **options) for served in self]
        assert one.status == other.status, (path, body, one.body[:300], other.body[:300])
        assert one.headers.get("X-Next-Position") == other.headers.get("X-Next-Position"), path
        positions = isinstance(body, dict) and body.get("payload") is False
        assert contents(one, positions) == contents(other, positions), (path, body, options)
        return one


def contents(response: Response, positions: bool = False) -> Any:
    """Return a body as it is; of runs the records, since their borders depend on what memory has joined."""
    kind = response.headers["Content-Type"]
    if kind == wire.CONTENT_TYPE:
        return list(records_of(response.body, positions))
    return response.body


def records_of(body: bytes, positions: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield queue, position, time and payload of each record of a stream of runs."""
    for block in wire_decoder.decode(body, positions=positions):
        ends = [0] * (block.record_count + 1) if positions else block.offsets.cast("i").tolist()
        for at in range(block.record_count):
            position, payload = block.first_position + at, bytes(block.payload[ends[at] : ends[at + 1]])
            yield block.queue, position, block.times.time_at(position), payload


class Histories:
    """Appends, truncates and deletions of several queues, the same ones in both logs."""

    def __init__(self, logs: tuple[MultiRecordLog, MultiRecordLog], seed: int) -> None:
        self.rng = random.Random(seed)
        self.logs = logs
        self.tick = FIRST_TICK

    async def run(self, steps: int) -> None:
        """Take *steps* steps."""
        for number in range(6):
            await self.both("create_queue", f"q{number}")
        for _ in range(steps):
            await self.step()
        small = self.logs[0]
        while small.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)

    async def both(self, name: str, *arguments: Any) -> None:
        """Call a method of both logs."""
        one, other = [await getattr(log, name)(*arguments) for log in self.logs]
        # Of a place on the disk that is cut, only a read knows how many records with gaps are left.
        assert one == other or (name == "truncate" and arguments[0] in GAPPED)

    async def step(self) -> None:
        """Append to a queue, mostly; some queues have gaps in their positions."""
        number, roll = self.rng.randrange(6), self.rng.random()
        queue, large = f"q{number}", self.logs[1]
        self.tick += self.rng.choice([0, 0, 0, 1, 7])
        if roll < 0.97:
            size, count = self.rng.choice([(0, 3), (10, 300), (100, 50), (1_000, 30), (20_000, 3), (90_000, 1)])
            gap = self.rng.choice([0, 1, 500]) if queue in GAPPED else 0
            at = self.rng.randrange(MIB - size)
            payloads = [BLOB[at + each % 97 : at + each % 97 + size] for each in range(count)]
            await self.both("append_records", queue, large.next_position(queue) + gap, payloads)
        elif roll < 0.99 or number < 5:
            first, end = large.first_position(queue), large.next_position(queue)
            if first < end:
                await self.both("truncate", queue, first + (end - first) // 5)
        else:
            await self.both("delete_queue", queue)
            await self.both("create_queue", queue)


@pytest.fixture(params=range(2))
async def twins(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Twins]:
    """Serve two logs after the same history."""
    async with AsyncExitStack() as stack:
        history: Histories | None = None
        clock = Clock(wall_ns=lambda: (history.tick if history is not None else FIRST_TICK) * TICK_NS)
        both = Twins(*[await stack.enter_async_context(serving(directory, recovered=False)) for _ in range(2)])
        for name, served, memory_bytes in zip(("small", "large"), both, (MIB, 1 << 30), strict=True):
            limits = Limits(memory_bytes=memory_bytes, beyond_memory="disk")
            path = directory.with_name(f"{directory.name}-{name}")
            served.service.attach(await opening(path, clock, limits=limits, segment_bytes=64 << 10))
        history = Histories((both.small.log, both.large.log), request.param)
        await history.run(250)
        assert both.small.log.memory_first("q0") > both.small.log.first_position("q0")
        yield both


FORMATS = ("application/x-ndjson", "text/plain", "application/octet-stream", wire.CONTENT_TYPE)


async def test_reads_are_those_of_a_log_in_memory(twins: Twins) -> None:
    """From any position on, within any limits, in every format: the same records, times and next position."""
    rng = random.Random(1)
    for queue in QUEUES:
        first, end = twins.large.log.first_position(queue), twins.large.log.next_position(queue)
        for accept in FORMATS:
            await twins.call("GET", f"/v1/queues/{queue}/records", headers={"Accept": accept})
            for _ in range(4):
                start = rng.randrange(first, end + 1)
                bounds = ["", "&limit=1", "&limit=700", "&max_bytes=1", "&max_bytes=300000", f"&stop={start + 40}"]
                path = f"/v1/queues/{queue}/records?start={start}{rng.choice(bounds)}"
                await twins.call("GET", path, headers={"Accept": accept})


async def test_fetches_are_those_of_a_log_in_memory(twins: Twins) -> None:
    """Ranges of many queues, in any order, with payloads and without; a response of several parts is whole, too."""
    rng = random.Random(2)
    await fetch_all(twins)
    for _ in range(10):
        ranges = []
        for queue in rng.sample(QUEUES, 4):
            first, end = twins.large.log.first_position(queue), twins.large.log.next_position(queue)
            cut = sorted(rng.randrange(first, end + 1) for _ in range(4))
            ranges += [{"queue": queue, "start": cut[at], "stop": cut[at + 1]} for at in (2, 0)]
        for payload in (True, False):
            await twins.call("POST", "/v1/fetch", {"ranges": ranges, "payload": payload})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrecordlog_async.service.reading.fetch.WINDOW_BYTES", 100_000)
        await fetch_all(twins)


async def fetch_all(twins: Twins) -> None:
    """Fetch everything."""
    log = twins.large.log
    ranges = [
        {"queue": queue, "start": log.first_position(queue), "stop": log.next_position(queue)} for queue in QUEUES
    ]
    for payload in (True, False):
        response = await twins.call("POST", "/v1/fetch", {"ranges": ranges, "payload": payload})
        assert len(contents(response, not payload)) > 10_000


async def test_plans_are_those_of_a_log_in_memory(twins: Twins) -> None:
    """Ranges and records are the same, and so are bytes, but where a range begins inside of what is read at once."""
    rng = random.Random(3)
    for _ in range(40):
        request: dict[str, Any] = {"times": True}
        request |= rng.choice([{}, {"piece_bytes": 50_000}, {"piece_records": 700, "piece_bytes": 300_000}])
        request |= rng.choice([{}, {"max_records": 5_000}, {"max_records": 50}])
        log = twins.large.log
        if rng.random() < 0.6:
            starts = {queue: rng.randrange(log.first_position(queue), log.next_position(queue) + 1) for queue in QUEUES}
            request["queues"] = [{"queue": queue, "start": start} for queue, start in starts.items()]
        one, other = [(await served.call("POST", "/v1/plan", request)).json() for served in twins]
        for found, wanted in zip(one["queues"], other["queues"], strict=True):
            if found["queue"] not in GAPPED or "max_records" not in request:  # shares are of what a cut place may hold
                for name in ("queue", "status", "start", "stop", "records", "first_position", "next_position"):
                    assert found[name] == wanted[name], (name, request)
                assert abs(found["bytes"] - wanted["bytes"]) < PLACE_BYTES
            pieces = found["pieces"]
            if "piece_bytes" in request:
                assert sum(piece["records"] for piece in pieces) == found["records"]
                cuts = [found["start"], *(piece["stop"] for piece in pieces)]
                assert [piece["start"] for piece in pieces] == cuts[:-1]
                assert cuts[-1] == found["stop"]
                await check_pieces(twins, found["queue"], pieces)


async def check_pieces(twins: Twins, queue: str, pieces: list[dict[str, int]]) -> None:
    """Each piece has the records that its plan says."""
    for piece in pieces[:3]:
        ranges = [{"queue": queue, "start": piece["start"], "stop": piece["stop"]}]
        fetched = contents(await twins.call("POST", "/v1/fetch", {"ranges": ranges}))
        assert len(fetched) == piece["records"]


async def test_a_byte_limit_is_kept_on_the_disk(twins: Twins) -> None:
    """A plan that begins with whole records of the disk is cut exactly where one of memory is."""
    for queue in set(QUEUES) - set(GAPPED):
        for size in (1, 3_000, 400_000, 2_000_000):
            if not twins.large.log.first_position(queue):
                request = {"queues": [{"queue": queue}], "max_bytes": size}
                one, other = [(await served.call("POST", "/v1/plan", request)).json()["queues"] for served in twins]
                assert [one[0][name] for name in ("stop", "bytes")] == [other[0][name] for name in ("stop", "bytes")]


async def test_positions_of_times_are_those_of_a_log_in_memory(twins: Twins) -> None:
    """A search by time reads the disk where it has to; so do reads since a time."""
    for tick in range(FIRST_TICK - 1, FIRST_TICK + 500, 13):
        time = text_of_tick(tick)
        one, other = [(await each.call("POST", "/v1/positions", {"time": time})).json()["queues"] for each in twins]
        for queue, found, wanted in zip(QUEUES, one, other, strict=True):
            response = await twins.small.call("GET", f"/v1/queues/{queue}/position", params={"time": time})
            assert response.json()["position"] == found["position"]
            assert queue in GAPPED or found["position"] == wanted["position"]
            await twins.call("GET", f"/v1/queues/{queue}/records", params={"since": time, "limit": "3"})


async def test_positions_of_times_are_looked_up_in_the_order_of_files(
    full: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues are visited by id, however a request lists them, and the response is in the order of the request."""
    inspection, visited = full.log.inspection, list[str]()
    find = inspection.position_at

    async def note(queue: str, time: datetime) -> int:
        visited.append(queue)
        return await find(queue, time)

    monkeypatch.setattr(inspection, "position_at", note)
    wanted = [{"queue": "r"}, {"queue": "missing"}, {"queue": "q"}]
    response = await full.call("POST", "/v1/positions", {"time": "2026-01-01T00:00:00Z", "queues": wanted})
    assert [each["queue"] for each in response.json()["queues"]] == ["r", "missing", "q"]
    assert visited == ["q", "r"]


async def test_tails_are_those_of_a_log_in_memory(twins: Twins) -> None:
    """Events begin at any record, and cross the border to what is in memory."""
    for queue in QUEUES:
        start = twins.large.log.next_position(queue) * 2 // 3
        await twins.small.log.seal_queue(queue)
        await twins.large.log.seal_queue(queue)
        one, other = [await events(served, queue, start) for served in twins]
        assert one == other
        assert one.endswith(b"event: end\ndata: sealed\n\n")


async def events(served: Served, queue: str, start: int) -> bytes:
    """Return the whole tail of a sealed queue, without the ids of queues."""
    response = await served.call("GET", f"/v1/queues/{queue}/tail?start={start}")
    return re.sub(rb"-\d+\ndata", b"\ndata", response.body)


LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")


@pytest.fixture
async def full(directory: Path) -> AsyncIterator[Served]:
    """Serve a log of two queues, of which most records are on the disk."""
    async with serving(directory, limits=LIMITS) as served:
        for queue in ("q", "r"):
            await served.log.create_queue(queue)
            await append(served.log, queue, 3_000)
        yield served


async def append(log: MultiRecordLog, queue: str, records: int) -> None:
    """Append records of 2,000 bytes, and wait until memory is below its limit."""
    for _ in range(0, records, 20):
        at = log.next_position(queue)
        await log.append_records(queue, at, [payload(each) for each in range(at, at + 20)])
    while log.resource_usage().memory_bytes > MIB:
        await asyncio.sleep(0.01)


def payload(position: int) -> bytes:
    """Return the payload of the record at *position*."""
    return position.to_bytes(4, "little") + BLOB[position : position + 2_000]


def damage_oldest(directory: Path) -> None:
    """Damage the oldest gathered file, and its segment."""
    file = min(directory.glob("*.runs"))
    damage.flip_byte(file, 5_000)
    damage.flip_byte(directory / file.name.removesuffix(".runs"), 30_000)


async def test_damage_on_the_disk_is_an_error_of_the_reader_alone(full: Served, directory: Path) -> None:
    """Each kind of read says which segment is damaged; what does not need it goes on, and so do appends."""
    damage_oldest(directory)
    whole = {"ranges": [{"queue": "q", "start": 0, "stop": 3_000}]}
    for method, path, body in (
        ("GET", "/v1/queues/q/records", None),
        ("GET", "/v1/queues/q/records?since=2020-01-01T00:00:00Z", None),
        ("POST", "/v1/fetch", whole),
        ("POST", "/v1/plan", {"queues": [{"queue": "q"}], "max_bytes": 3_000}),
    ):
        response = await full.call(method, path, body)
        assert (response.status, response.json()["code"]) == (500, "damaged"), path
        assert response.json()["segment"].startswith("wal-")
    tail = await full.call("GET", "/v1/queues/q/tail")
    assert tail.body.endswith(b"event: end\ndata: damaged\n\n")
    assert (await full.call("POST", "/v1/queues/q/records", b"more")).json()["position"] == 3_000
    assert (await full.call("GET", "/v1/queues/q/records?start=2000&limit=5")).status == 200
    assert (await full.call("GET", "/v1/queues/r/records?start=1000&limit=5")).status == 200
    await full.log.truncate("q", 1_500)
    assert (await full.call("GET", "/v1/queues/q/records")).status == 200


async def test_what_is_truncated_while_it_is_read_is_a_410(full: Served) -> None:
    """Reads and fetches never leave out records without saying so; a deleted queue is a 404."""
    reader: Any = full.log._engine.disk_reads.reader
    many, loop = reader.read_many, asyncio.get_running_loop()

    def during(change: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[Any], Any]:
        changes = iter([change])  # two threads may read at the same time: one of them makes the change

        def read_many(wanted: Any) -> Any:
            reader.read_many = many
            found = many(wanted)
            for each in changes:
                asyncio.run_coroutine_threadsafe(each(), loop).result()
            return found

        return read_many

    requests = (
        ("GET", "/v1/queues/q/records", None),
        ("POST", "/v1/fetch", {"ranges": [{"queue": "q", "start": 0, "stop": 2_900}]}),
    )
    for at, (method, path, body) in enumerate(requests):
        reader.read_many = during(partial(full.log.truncate, "q", 5 * at + 4))
        path += f"?start={5 * at}" if body is None else ""
        if body is not None:
            body["ranges"][0]["start"] = 5 * at
        response = await full.call(method, path, body)
        assert response.status == 410
        assert response.json()["code"] == "truncated"
    for method, path, body in (
        ("GET", "/v1/queues/q/records?start=10", None),
        ("POST", "/v1/fetch", {"ranges": [{"queue": "q", "start": 10, "stop": 2_900}]}),
    ):
        await full.log.create_queue("q", exist_ok=True)
        if full.log.next_position("q") == 0:
            await append(full.log, "q", 3_000)
        reader.read_many = during(partial(full.log.delete_queue, "q"))
        response = await full.call(method, path, body)
        assert response.status == 404


async def test_a_response_of_several_parts_breaks_off_at_what_is_no_longer_there(
    full: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that has begun cannot report an error, so it has no trailer: no reader takes it for complete."""
    monkeypatch.setattr("mrecordlog_async.service.reading.fetch.WINDOW_BYTES", 100_000)
    more = Fetcher.window

    async def more_and_truncate(self: Fetcher) -> Any:
        found = await more(self)
        await full.log.truncate("q", 2_500)
        return found

    monkeypatch.setattr(Fetcher, "window", more_and_truncate)
    body = {"ranges": [{"queue": "q", "start": 0, "stop": 3_000}]}
    async with full.session.post(full.url + "/v1/fetch", json=body) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()


async def test_a_response_that_is_read_at_once_has_a_length(full: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers then receive it without the framing of chunks. One of several parts has none."""
    body = {"ranges": [{"queue": "q", "start": 3, "stop": 900}, {"queue": "r", "start": 0, "stop": 7}]}
    whole = await full.call("POST", "/v1/fetch", body)
    assert int(whole.headers["Content-Length"]) == len(whole.body)
    monkeypatch.setattr("mrecordlog_async.service.reading.fetch.WINDOW_BYTES", 100_000)
    parts = await full.call("POST", "/v1/fetch", body)
    assert "Content-Length" not in parts.headers
    assert contents(parts) == contents(whole)


async def test_a_holder_that_is_fenced_during_a_read_gets_nothing(full: Served) -> None:
    """Between the request and the records, the disk is waited for: another one may attach meanwhile."""
    attached = (await full.call("POST", "/v1/queues/q/consumers/c/attach", {"create": True})).json()
    reader: Any = full.log._engine.disk_reads.reader
    many, loop = reader.read_many, asyncio.get_running_loop()

    def read_many(wanted: Any) -> Any:
        found = many(wanted)
        asyncio.run_coroutine_threadsafe(full.log.inspection.attach_consumer("q", "c"), loop).result()
        return found

    reader.read_many = read_many
    response = await full.call("GET", f"/v1/queues/q/consumers/c/records?epoch={attached['epoch']}")
    assert (response.status, response.json()["code"]) == (409, "consumer_fenced")


async def test_a_slow_reader_of_the_disk_holds_up_nobody(full: Served) -> None:
    """A client that reads nothing of its response; others read the same records from the disk."""
    reader, writer = await asyncio.open_connection("127.0.0.1", full.port, limit=1_024)
    writer.write(b"GET /v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readexactly(100)
    tails = [await asyncio.open_connection("127.0.0.1", full.port, limit=1_024) for _ in range(20)]
    for _, tail in tails:
        tail.write(b"GET /v1/queues/q/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for slow, _ in tails:
        await slow.readexactly(100)
    for queue in ("q", "r"):
        assert len((await full.call("GET", f"/v1/queues/{queue}/records?max_bytes=9000000")).body) > 4_000_000
    for _, stream in [(reader, writer), *tails]:
        stream.close()


async def test_a_tail_is_charged_for_what_it_reads_from_the_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it reads, and for the whole of a large record: nobody else holds the copy. A tail without room waits."""
    record = bytes(3 * MIB)
    limits = Limits(memory_bytes=8 * MIB, beyond_memory="disk")
    async with serving(directory, ServiceOptions(sending_bytes=MIB), limits=limits) as served:
        log, sending, charged = served.log, served.service.sending, list[int]()
        await log.create_queue("q")
        while log.memory_first("q") == 0:
            await log.append("q", record)
        load = log.inspection.load

        async def note_and_load(*arguments: Any, **options: Any) -> Any:
            charged.append(sending.used)
            return await load(*arguments, **options)

        monkeypatch.setattr(log.inspection, "load", note_and_load)
        tails = [await asyncio.open_connection("127.0.0.1", served.port, limit=1_024) for _ in range(3)]
        for _, tail in tails:
            tail.write(b"GET /v1/queues/q/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while sending.used < HELD_BYTES + len(record) or served.service.tails < len(tails):
            await asyncio.sleep(0.01)
        for _, tail in tails:
            tail.close()
        assert charged[0] == HELD_BYTES and len(charged) <= 1 + sending.dropped
    assert not sending.used


async def test_a_large_body_is_accepted_while_memory_is_full(full: Served) -> None:
    """Full memory is the normal state: records leave it for the body."""
    body = b"\n".join([b"x" * 1_000] * 200)
    for _ in range(20):
        response = await full.call("POST", "/v1/queues/q/records", body, headers={"Content-Type": "text/plain"})
        assert response.status == 200


@pytest.mark.parametrize("has_payloads", [True, False])
async def test_records_may_leave_memory_during_a_fetch(
    full: Served, monkeypatch: pytest.MonkeyPatch, has_payloads: bool
) -> None:
    """A fetch works in turns: what was in memory when it began is read from the disk if it has left since."""
    rest, log = Turns.rest, full.log

    async def leaving(turns: Turns) -> None:
        await rest(turns)
        while log.memory_first("r") < 3_000:
            await append(log, "q", 100)

    monkeypatch.setattr(Turns, "rest", leaving)
    assert log.memory_first("r") <= 2_960
    ranges = [{"queue": "r", "start": start, "stop": start + 10} for start in (2_960, 2_980)]
    response = await full.call("POST", "/v1/fetch", {"ranges": ranges, "payload": has_payloads})
    assert response.status == 200
    assert log.memory_first("r") >= 3_000
    wanted = [(at, payload(at) if has_payloads else b"") for start in (2_960, 2_980) for at in range(start, start + 10)]
    records = records_of(response.body, not has_payloads)
    assert [(position, payload) for _, position, _, payload in records] == wanted

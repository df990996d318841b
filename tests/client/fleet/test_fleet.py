"""A fleet stores each record at one server: at that of its key, or elsewhere if it is certainly not stored there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import LogClosedError, LogFullError, MultiRecordLog, QueueNameError, QueueOptions
from mrecordlog_async.client import (
    FleetError,
    OutcomeUnknownError,
    RecordLogClient,
    RecordLogFleet,
    ServiceError,
    ServiceUnreachableError,
)
from mrecordlog_async.client.fleet.membership import Resolver
from mrecordlog_async.servers.routing import STAY_SECONDS, Routing, slot_of
from tests.client.fleet.proxy import Proxy, proxied
from tests.client.fleet.running import Clock, running
from tests.served import Served, serving, stop_listening


async def test_keys_are_spread_and_each_stays_at_one_server(tmp_path: Path) -> None:
    """Records of one key are in one log, in order; the queue is created where it is needed."""
    async with running(tmp_path, 3) as here:
        assert [one.name for one in here.fleet.servers()] == ["wal-0", "wal-1", "wal-2"]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(here.fleet.append_record("q", b"%d" % n, key=f"user {n % 20}")) for n in range(200)
            ]
        stored = [task.result() for task in tasks]
        assert [here.payload(one) for one in stored] == [b"%d" % n for n in range(200)]
        homes = {n % 20: {here.index(one) for one in stored[n % 20 :: 20]} for n in range(20)}
        routing, logs = Routing(), [one.log.inspection.public_id for one in here.served]
        routing.use(logs)  # by their ids, which are random: all keys may fall to two of the three
        assert homes == {n: {logs.index(routing.order(slot_of(f"user {n}"), 0.0)[0])} for n in range(20)}
        together = {here.index(await here.fleet.append_record("r", b"")) for _ in range(5)}
        assert len(together) == 1  # without a key, a queue stays together


async def test_a_server_that_is_down_is_passed_over_and_its_keys_stay_away_for_a_while(tmp_path: Path) -> None:
    """Nothing waits for it; the key returns home 30 s after the fail-over, not when the server is back."""
    clock = Clock()
    async with running(tmp_path, clock=clock) as here:
        home = here.index(await here.fleet.append_record("q", b"a", key="k"))
        target, here.proxies[home].targets = here.proxies[home].targets, [1]  # nothing listens there
        await here.fleet._membership.look()
        stored = await here.fleet.append_record("q", b"b", key="k")
        assert here.index(stored) != home
        here.proxies[home].targets = target
        await here.fleet._membership.look()
        assert [one.writes for one in here.fleet.servers()] == [True, True]
        clock.now += STAY_SECONDS - 1.0
        assert here.index(await here.fleet.append_record("q", b"c", key="k")) != home
        clock.now += 1.0
        assert here.index(await here.fleet.append_record("q", b"d", key="k")) == home
        assert sorted(here.payloads("q")) == [[b"a", b"d"], [b"b", b"c"]]


async def test_why_a_server_does_not_respond_is_said_until_it_does(tmp_path: Path) -> None:
    """Even while it is being probed; `look` finds it again at once."""
    async with running(tmp_path) as here:
        here.proxies[1].targets, target = [1], here.proxies[1].targets  # nothing listens there
        await here.fleet.look()
        assert list(here.fleet.failures()) == [here.proxies[1].url]
        here.proxies[1].targets = target
        looking = asyncio.create_task(here.fleet.look())
        while not here.proxies[1].open:
            await asyncio.sleep(0)
        assert list(here.fleet.failures()) == [here.proxies[1].url]
        await looking
        assert not here.fleet.failures()


async def test_without_any_server_a_call_waits_and_then_says_that_nothing_is_stored(tmp_path: Path) -> None:
    """A server that comes back in time takes the record."""
    async with running(tmp_path, 1, retry_seconds=0.3) as here:
        here.proxies[0].targets = [1]
        await here.fleet._membership.look()
        with pytest.raises(ServiceUnreachableError) as unreachable:
            await here.fleet.append_record("q", b"a")
        assert not unreachable.value.sent
    async with running(tmp_path, 1) as here:
        (server,) = here.fleet._membership.servers.values()
        here.fleet._membership.suspect(server)  # what a refused connection does
        assert here.payload(await here.fleet.append_record("q", b"a")) == b"a"


async def test_servers_that_were_never_reached_are_named() -> None:
    """As the user wrote them, with what each attempt met."""
    urls = "http://127.0.0.1:1,http://127.0.0.1:2"
    async with RecordLogFleet(urls, retry_seconds=0.0) as fleet:
        with pytest.raises(ServiceUnreachableError) as raised:
            await fleet.append_record("q", b"")
    assert str(raised.value).startswith("http://127.0.0.1:1, http://127.0.0.1:2 cannot be reached: connection refused")


@pytest.mark.parametrize("call", ["create_queue", "seal_queue"])
async def test_a_server_that_was_never_reached_is_not_passed_over_in_silence(tmp_path: Path, call: str) -> None:
    """A call for every server fails while one was never reached: that one would keep a queue that never ends."""
    async with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
        target, nobody = second.port, 1
        async with proxied(nobody) as proxy, RecordLogFleet([first.url, proxy.url], retry_seconds=0.1) as fleet:
            with pytest.raises(ServiceUnreachableError, match=proxy.url):
                await getattr(fleet, call)("q")
            assert first.log.queue_exists("q")
            proxy.targets = [target]
            await getattr(fleet, call)("q")
            summaries = [served.log.queue_summary("q") for served in (first, second)]
            assert [one.sealed for one in summaries] == [call == "seal_queue"] * 2


async def test_a_full_server_is_waited_for(tmp_path: Path) -> None:
    """The record stays at its server, and is stored once something was truncated; or the call says that it is full."""
    async with running(tmp_path, retry_seconds=0.2) as here:
        await here.fleet.create_queue("q", options=QueueOptions(max_records=1))
        home = here.index(await here.fleet.append_record("q", b"a"))
        with pytest.raises(LogFullError):
            await here.fleet.append_record("q", b"b")
    async with running(tmp_path) as here:
        home = next(n for n, payloads in enumerate(here.payloads("q")) if payloads)
        appending = asyncio.create_task(here.fleet.append_record("q", b"b"))
        await asyncio.sleep(0)
        await here.served[home].log.truncate("q", 0)
        assert here.index(await appending) == home


async def test_a_full_server_is_passed_over_if_that_is_wanted(tmp_path: Path) -> None:
    """With spill, the next server takes the record; if all are full, the call says so."""
    async with running(tmp_path, spill=True, retry_seconds=0.2) as here:
        await here.fleet.create_queue("q", options=QueueOptions(max_records=1))
        stored = [await here.fleet.append_record("q", payload) for payload in (b"a", b"b")]
        assert {here.index(one) for one in stored} == {0, 1}
        with pytest.raises(LogFullError):
            await here.fleet.append_record("q", b"c")


@pytest.mark.parametrize("lose", ["request", "response"])
async def test_a_lost_response_is_unknown(tmp_path: Path, lose: Any) -> None:
    """The record is sent nowhere else: it may be stored."""
    async with running(tmp_path) as here:
        home = here.index(await here.fleet.append_record("q", b"a"))
        here.proxies[home].lose = lose
        with pytest.raises(OutcomeUnknownError):
            await here.fleet.append_record("q", b"b")
        kept = [b"a"] if lose == "request" else [b"a", b"b"]
        assert (here.payloads("q")[home], here.payloads("q")[1 - home]) == (kept, [])


@pytest.mark.parametrize("lose", ["request", "response"])
async def test_a_lost_response_is_settled_if_the_caller_waits(tmp_path: Path, lose: Any) -> None:
    """The server recognizes the repeat: the record is stored once, among those of other writers."""
    async with running(tmp_path, on_unknown="wait") as here:
        home = here.index(await here.fleet.append_record("q", b"a"))
        await here.served[home].log.append_record("q", None, b"another writer's")
        here.proxies[home].lose = lose
        stored = await here.fleet.append_record("q", b"b")
        assert here.proxies[home].lost.is_set()
        assert here.payload(stored) == b"b"
        assert here.payloads("q")[home] == [b"a", b"another writer's", b"b"]


async def test_a_server_that_hangs_holds_no_call_once_probes_miss_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and responds to nothing: the call does not wait for `timeout_seconds`."""
    monkeypatch.setattr("mrecordlog_async.client.fleet.server.PROBE_SECONDS", 0.1)
    async with running(tmp_path, timeout_seconds=10_000.0, response_seconds=10_000.0) as here:
        home = here.index(await here.fleet.append_record("q", b"a"))
        here.proxies[home].awake.clear()
        appending = asyncio.create_task(here.fleet.append_record("q", b"b"))
        await here.proxies[home].held.wait()
        for _ in range(2):
            await here.fleet.look()
        with pytest.raises(OutcomeUnknownError):
            await appending
        assert here.index(await here.fleet.append_record("q", b"c")) != home
        here.proxies[home].awake.set()


async def test_a_server_that_takes_no_new_connection_finishes_its_calls(tmp_path: Path) -> None:
    """It stops, or has as many connections as it may: probes are refused, and calls under way get their responses."""
    async with running(tmp_path) as here:
        home = here.index(await here.fleet.append_record("q", b"a"))
        proxy = here.proxies[home]
        proxy.awake.clear()
        appending = asyncio.create_task(here.fleet.append_record("q", b"b"))
        await proxy.held.wait()
        proxy.targets = [1]  # nothing listens there
        for _ in range(3):
            await here.fleet.look()
        assert here.index(await here.fleet.append_record("q", b"c")) != home
        proxy.awake.set()
        assert here.index(await appending) == home


async def test_a_lost_response_may_be_sent_elsewhere(tmp_path: Path) -> None:
    """Then the record may be stored twice, and the call returns one of its places."""
    async with running(tmp_path, on_unknown="send_elsewhere") as here:
        home = here.index(await here.fleet.append_record("q", b"a"))
        here.proxies[home].lose = "response"
        stored = await here.fleet.append_record("q", b"b")
        assert (here.index(stored), here.payload(stored)) == (1 - home, b"b")
        assert here.payloads("q")[home] == [b"a", b"b"]


@pytest.mark.parametrize("lose", ["request", "response"])
async def test_a_producer_settles_lost_responses_and_keeps_the_order(tmp_path: Path, lose: Any) -> None:
    """Every record is stored once, in the order of the calls, on each server."""
    async with running(tmp_path) as here, here.fleet.producer("q") as producer:
        home = here.index(await producer.append_record(b"0"))
        assert all(one.log.queue_exists("q") for one in here.served)
        here.proxies[home].lose = lose
        async with asyncio.TaskGroup() as group:
            for number in range(1, 50):
                group.create_task(producer.append_record(b"%d" % number))
        assert here.proxies[home].lost.is_set()
        assert here.payloads("q")[home] == [b"%d" % number for number in range(50)]


async def test_an_address_that_another_log_took_over_is_not_written_to(tmp_path: Path) -> None:
    """The next server takes the record; the log is known under its new address once it is found."""
    async with running(tmp_path, 3) as here:
        stored = await here.fleet.append_record("q", b"a")
        home, other = here.index(stored), (here.index(stored) + 1) % 3
        here.proxies[home].targets, here.proxies[other].targets = [here.served[other].port], [here.served[home].port]
        for number in (home, other):
            with pytest.raises(ServiceError, match="the request is for"):
                await here.fleet.client(here.served[number].log.inspection.public_id).queue_exists("q")
        await here.fleet._membership.look()
        assert here.index(await here.fleet.append_record("q", b"b")) == home
        assert here.payloads("q")[home] == [b"a", b"b"]


@pytest.mark.parametrize("on_unknown", ["raise", "wait"])
async def test_a_log_that_was_forgotten_and_comes_back_is_written_to(tmp_path: Path, on_unknown: Any) -> None:
    """By the fleet, and by producers that had written to it before."""
    async with running(tmp_path, 1, on_unknown=on_unknown) as here, here.fleet.producer("p") as producer:
        for position in range(2):
            assert (await here.fleet.append_record("q", b"a")).position == position
            assert (await producer.append_record(b"a")).position == position
            await here.fleet.forget(here.served[0].log.inspection.public_id)
            await here.fleet._membership.look()


async def test_two_addresses_of_one_server_count_once(served: Served) -> None:
    """And the key's log is found through either."""
    async with RecordLogFleet([served.url, served.url.replace("127.0.0.1", "localhost")]) as fleet:
        assert len(fleet.servers()) == 1


async def test_a_log_is_followed_to_a_socket_and_back(served: Served, tmp_path: Path) -> None:
    """Its clients leave the connections of the place that they left."""
    on_socket = Proxy([served.port])
    path = tmp_path / "socket"
    server = await asyncio.start_unix_server(on_socket.serve, path)
    async with proxied(served.port) as proxy, RecordLogFleet([proxy.url, f"unix:{path}"]) as fleet:
        for number, way in enumerate((proxy, on_socket, proxy)):
            assert (await fleet.append_record("q", b"")).position == number
            way.cut()
            other = on_socket if way is proxy else proxy
            other.targets = [served.port]
            await fleet._membership.look()
        on_socket.cut()
    await stop_listening(server)


async def test_two_copies_of_a_log_are_refused(tmp_path: Path) -> None:
    """Both would give the same positions to different records."""
    async with MultiRecordLog.open(tmp_path / "a") as log:
        await log.create_queue("q")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    async with serving(tmp_path / "a") as a, serving(tmp_path / "b") as b:
        with pytest.raises(FleetError, match="two copies of the log"):
            await RecordLogFleet([a.url, b.url]).start()


async def test_a_load_balancer_is_refused(tmp_path: Path) -> None:
    """Each connection leads to another log."""
    async with serving(tmp_path / "a") as a, serving(tmp_path / "b") as b, proxied(a.port, b.port) as both:
        with pytest.raises(FleetError, match="like a load balancer"):
            await RecordLogFleet(both.url).start()


async def test_a_resolver_that_fails_ends_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that no resolver should raise is logged, and the servers are looked at again."""

    class Failing(Resolver):
        async def addresses(self, host: str, port: int) -> list[str]:
            if fails:
                raise LookupError("a bug")
            return ["127.0.0.1"]

    monkeypatch.setattr("mrecordlog_async.client.fleet.membership.RETRY_SECONDS", 0.01)
    fails = False
    async with RecordLogFleet(
        f"dns+http://localhost:{served.port}", resolver=Failing(), clock=(clock := Clock())
    ) as fleet:
        fails, clock.now = True, clock.now + 60.0
        fleet._membership._suspicion.set()
        while "looking at the servers of a fleet failed" not in caplog.text:
            await asyncio.sleep(0.01)
        fails = False
        await fleet._membership.look_soon()
        assert (await fleet.append_record("q", b"a")).position == 0


async def test_what_a_fleet_cannot_be_given_is_refused_at_once() -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="on_unknown must be"):
        RecordLogFleet("http://h:1", on_unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a fleet needs servers"):
        RecordLogFleet([])


@pytest.mark.parametrize("name", ["", "a\ud800"])
async def test_what_cannot_be_a_queue_is_refused_without_a_server(name: str) -> None:
    """No server is waited for that would take it, and its name is not taken for a key."""
    async with RecordLogFleet("http://127.0.0.1:1") as fleet, asyncio.timeout(10):
        with pytest.raises(QueueNameError):
            await fleet.append_record(name, b"a")
        async with fleet.producer(name) as producer:
            with pytest.raises(QueueNameError):
                await producer.append_record(b"a", key="k")


async def test_a_name_that_no_resolver_takes_is_refused_at_once() -> None:
    """Not while the servers are looked at."""
    with pytest.raises(ValueError, match="not the URL of a service"):
        RecordLogFleet("dns+http://a..b:8080")


async def test_a_look_ends_with_the_fleet(served: Served) -> None:
    """Nobody looks at the servers of a fleet that is closed, or was not entered."""
    fleet = RecordLogFleet(served.url)
    with pytest.raises(LogClosedError, match="not entered"):
        await asyncio.wait_for(fleet.look(), 60)
    async with fleet:
        looking = asyncio.create_task(fleet.look())
        await asyncio.sleep(0)  # it waits now
    with pytest.raises(LogClosedError, match="fleet"):
        await asyncio.wait_for(looking, 60)
    with pytest.raises(LogClosedError, match="closed"):
        await asyncio.wait_for(fleet.look(), 60)


async def test_a_client_of_one_server_is_at_hand(served: Served) -> None:
    """For everything that a fleet has no method for."""
    async with RecordLogFleet(served.url) as fleet:
        (one,) = fleet.servers()
        client = fleet.client(one.log_id)
        assert isinstance(client, RecordLogClient)
        assert await client.list_queues() == ["q"]

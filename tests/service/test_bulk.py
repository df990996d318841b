from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async import ConsumerBehindError, MultiRecordLog
from mrecordlog_async.memory.cutting import take_head
from mrecordlog_async.model import TICK_NS, Run, text_of_tick
from mrecordlog_async.protocol import wire, wire_decoder
from mrecordlog_async.service.reading.plan import AvailableRange, Planner, split_limit
from mrecordlog_async.support.clock import Clock
from tests.served import Served, serving


async def plan(served: Served, **request: Any) -> Any:
    response = await served.call("POST", "/v1/plan", request)
    assert response.status == 200, response.body
    return response.json()


async def test_plan_of_everything_lists_every_queue(served: Served) -> None:
    """Without a request all queues are planned from their first record."""
    await served.log.append_records("q", None, [b"a", b"bb"])
    await served.log.create_queue("r")
    response = await plan(served)
    assert [(one["queue"], one["start"], one["stop"], one["records"], one["bytes"]) for one in response["queues"]] == [
        ("q", 0, 2, 2, 3),
        ("r", 0, 0, 0, 0),
    ]
    assert (response["records"], response["bytes"]) == (2, 3)


async def test_plan_counts_records_not_positions(served: Served) -> None:
    """A gap of a million positions is not a million records, and limits are still reached."""
    await served.log.append_record("q", 0, b"a")
    await served.log.append_record("q", 1_000_000, b"b")
    await served.log.append_record("q", 2_000_000, b"c")
    (one,) = (await plan(served, queues=[{"queue": "q", "start": 0}], max_records=2))["queues"]
    assert (one["stop"], one["records"]) == (1_000_001, 2)


async def test_plan_shares_a_limit_in_proportion(served: Served) -> None:
    """Every queue makes progress, large ones more of it."""
    await served.log.create_queue("big")
    await served.log.append_records("big", None, [b"x"] * 90)
    await served.log.append_records("q", None, [b"x"] * 10)
    response = await plan(served, max_records=50)
    assert {one["queue"]: one["records"] for one in response["queues"]} == {"big": 45, "q": 5}
    assert response["records"] == 50


async def test_plan_stops_at_a_byte_limit(served: Served) -> None:
    """A plan is bounded by bytes as well as records; the tighter limit wins."""
    await served.log.append_records("q", None, [b"x" * 100] * 10)
    (one,) = (await plan(served, max_bytes=350))["queues"]
    assert (one["records"], one["bytes"]) == (3, 300)
    (one,) = (await plan(served, max_bytes=350, max_records=2))["queues"]
    assert one["records"] == 2


async def test_pieces_are_the_range_cut(served: Served) -> None:
    """Cut points are between records; the pieces together are the range, and can be fetched one by one."""
    for _ in range(3):
        await served.log.append_records("q", None, [b"x" * 10] * 7)
    (one,) = (await plan(served, piece_records=5, piece_bytes=1_000))["queues"]
    pieces = one["pieces"]
    assert [piece["start"] for piece in pieces] == [0, *(piece["stop"] for piece in pieces[:-1])]
    assert pieces[-1]["stop"] == one["stop"] == 21
    assert sum(piece["records"] for piece in pieces) == 21
    assert max(piece["records"] for piece in pieces) == 5


async def test_plan_reports_what_is_wrong_with_each_queue(served: Served) -> None:
    """Missing, recreated, truncated and ahead are distinct."""
    await served.log.append_records("q", None, [b"a", b"b"])
    await served.log.truncate("q", 0)
    queue_id = served.log.queue_summary("q").id
    asked = [
        {"queue": "nope", "start": 3},
        {"queue": "q", "start": 1, "id": queue_id + 1},
        {"queue": "q", "start": 0, "id": queue_id},
        {"queue": "q", "start": 9, "id": queue_id},
        {"queue": "q", "start": 2, "id": queue_id},
    ]
    responses = [(await plan(served, queues=[one]))["queues"][0] for one in asked]
    assert [(one["status"], one["start"], one["stop"]) for one in responses] == [
        ("missing", 0, 0),
        ("recreated", 1, 2),
        ("truncated", 1, 2),
        ("ahead", 2, 2),
        ("ok", 2, 2),
    ]


async def test_fetch_returns_many_ranges_in_order(served: Served) -> None:
    """One request reads many queues; the trailer proves that the response is whole."""
    await served.log.create_queue("r")
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    await served.log.append_record("r", 7, b"z")
    ranges = [
        {"queue": "r", "start": 7, "stop": 8},
        {"queue": "q", "start": 1, "stop": 3, "id": served.log.queue_summary("q").id},
        {"queue": "q", "start": 3, "stop": 3},
    ]
    response = await served.call("POST", "/v1/fetch", {"ranges": ranges})
    assert response.headers["Content-Type"] == wire.CONTENT_TYPE
    blocks = [(block.queue, block.run()) for block in wire_decoder.decode(response.body)]
    assert blocks == [("r", Run.of(7, [b"z"])), ("q", Run.of(1, [b"b", b"c"]))]


async def test_fetch_without_payload_returns_positions(served: Served) -> None:
    """The positions that exist take a few bytes, gaps included; every range has its queue entry."""
    await served.log.create_queue("r")
    await served.log.append_records("q", None, [bytes(10_000)] * 10)
    await served.log.append_records("q", 90, [bytes(10_000)] * 5)
    ranges = [{"queue": "q", "start": 3, "stop": 93}, {"queue": "r", "start": 0, "stop": 0}]
    response = await served.call("POST", "/v1/fetch", {"ranges": ranges, "payload": False})
    blocks = list(wire_decoder.decode(response.body, positions=True))
    assert [(block.queue, block.first_position, block.record_count) for block in blocks] == [("q", 3, 7), ("q", 90, 3)]
    assert len(response.body) < 300


@pytest.mark.parametrize(
    ("change", "status", "code", "fact"),
    [
        ({"queue": "nope"}, 404, "queue_not_found", "nope"),
        ({"id": 1}, 404, "queue_recreated", None),
        ({"start": 0}, 410, "truncated", 1),
        ({"stop": 9}, 409, "ahead", 2),
    ],
)
async def test_fetch_checks_every_range_before_the_first_byte(
    served: Served, change: dict[str, Any], status: int, code: str, fact: Any
) -> None:
    """A range that cannot be returned whole fails the request, with what the reader needs to plan again."""
    await served.log.append_records("q", None, [b"a", b"b"])
    await served.log.truncate("q", 0)
    good = {"queue": "q", "start": 1, "stop": 2}
    response = await served.call("POST", "/v1/fetch", {"ranges": [good, {**good, **change}]})
    assert (response.status, response.json()["code"]) == (status, code)
    assert fact is None or fact in response.json().values()


async def test_create_many_creates_all_or_none(served: Served) -> None:
    """Existing queues are a 409 unless the request accepts them; a bad name, bad options and no names are a 400."""
    response = await served.call("POST", "/v1/create", {"queues": ["a", "b"], "options": {"max_records": 5}})
    assert (response.status, response.json()) == (200, {"created": 2})
    assert served.log.queue_options("b").max_records == 5
    for body, status in (
        ({"queues": ["c", "a"]}, 409),
        ({"queues": ["c", "a\0b"]}, 400),
        ({"queues": ["c"], "options": {"max_records": 5, "drop": 7}}, 400),
        ({}, 400),
    ):
        assert (await served.call("POST", "/v1/create", body)).status == status
    assert "c" not in served.log.list_queues()
    response = await served.call("POST", "/v1/create", {"queues": ["c", "a"], "exist_ok": True})
    assert response.json() == {"created": 1}


async def test_truncate_many_does_each_or_says_why_not(served: Served) -> None:
    """Positions that were never assigned, other incarnations and consumers that are behind are refused, each alone."""
    await served.log.create_queue("r")
    await served.log.create_queue("shared")
    for queue in ("q", "r", "shared"):
        await served.log.append_records(queue, None, [b"a", b"b"])
    await served.log.create_consumer("shared", "billing")
    queue_id = served.log.queue_summary("q").id
    asked = [
        {"queue": "shared", "position": 0},
        {"queue": "q", "position": 0, "id": queue_id},
        {"queue": "q", "position": 0, "id": queue_id},
        {"queue": "r", "position": 2},
        {"queue": "r", "position": 0, "id": queue_id},
        {"queue": "nope", "position": 0},
    ]
    responses = (await served.call("POST", "/v1/truncate", {"queues": asked})).json()["queues"]
    assert [(one["status"], one["first_position"]) for one in responses] == [
        ("consumer_behind", 0),
        ("ok", 1),
        ("ok", 1),
        ("ahead", 0),
        ("recreated", 0),
        ("missing", 0),
    ]
    assert "consumer 'billing'" in responses[0]["detail"]
    assert sum(one["dropped"] for one in responses) == 1
    assert (served.log.first_position("q"), served.log.first_position("r")) == (1, 0)


async def test_truncate_many_up_to_consumers_drops_what_all_have_acknowledged(served: Served) -> None:
    """Of a queue whose consumer is behind, the rest is kept, and the status says so; an old incarnation keeps all."""
    await served.log.append_records("q", None, [b"a", b"b", b"c", b"d", b"e"])
    for consumer, position in (("fast", 3), ("slow", 1)):
        await served.log.create_consumer("q", consumer)
        async with served.log.consumer("q", consumer) as held:
            await held.acknowledge(position)
    await served.log.create_queue("untouched")
    await served.log.append_records("untouched", None, [b"a", b"b"])
    await served.log.create_consumer("untouched", "slow")
    whole = {"queue": "q", "position": 4}
    recreated = {**whole, "id": served.log.queue_summary("q").id + 1}

    async def truncate(*asked: dict[str, Any]) -> Any:
        body = {"queues": asked, "up_to_consumers": True}
        return (await served.call("POST", "/v1/truncate", body)).json()["queues"]

    found = await truncate(recreated, whole, {"queue": "untouched", "position": 1})
    found += await truncate(whole) + await truncate({"queue": "q", "position": 1})
    assert [(one["status"], one["dropped"], one["first_position"]) for one in found] == [
        ("recreated", 0, 0),
        ("consumer_behind", 2, 2),
        ("consumer_behind", 0, 0),
        ("consumer_behind", 0, 2),
        ("ok", 0, 2),
    ]
    assert "consumer 'slow' is at 2" in found[1]["detail"]
    assert served.log.first_position("q") == 2


async def test_a_truncate_up_to_consumers_never_passes_one_that_is_new(served: Served) -> None:
    """A consumer that is created while the truncate looks for the slowest one keeps its records."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    await served.log.create_consumer("q", "billing")
    async with served.log.consumer("q", "billing") as held:
        await held.acknowledge(1)
    truncate, calls = MultiRecordLog.truncate, list[int]()

    async def overtaken(log: MultiRecordLog, queue: str, position: int, **named: Any) -> int:
        calls.append(position)
        try:
            return await truncate(log, queue, position, **named)
        except ConsumerBehindError:
            await log.create_consumer("q", "new", exist_ok=True)
            raise

    with patch.object(MultiRecordLog, "truncate", overtaken):
        body = {"queues": [{"queue": "q", "position": 2}], "up_to_consumers": True}
        (one,) = (await served.call("POST", "/v1/truncate", body)).json()["queues"]
    assert calls == [2, 1]
    assert (one["status"], one["dropped"], one["first_position"]) == ("consumer_behind", 0, 0)
    assert served.log.first_position("q") == 0


@pytest.mark.parametrize("path", ["/v1/plan", "/v1/fetch", "/v1/truncate", "/v1/positions"])
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"quues":[]}',
        b'{"queues":1,"ranges":1}',
        b"[" * 100_000,
        b'{"queues":[{"queue":"q"%s}]}' % (b',"start":1' * 80_000),
    ],
    ids=["cut", "misspelt", "numbers", "deep", "repeated"],
)
async def test_bodies_that_make_no_sense_are_400(served: Served, path: str, body: bytes) -> None:
    """Misspelt members and deep nesting are errors, not crashes."""
    response = await served.call("POST", path, body)
    assert (response.status, response.json()["code"]) == (400, "bad_body")


async def test_a_time_is_found_in_many_queues(served: Served) -> None:
    """One request finds where the records begin that were stored at a time or later, in some queues or in all."""
    clock = 16_000_000_000
    with patch.object(served.log._engine.opened.journal, "clock", Clock(lambda: clock * TICK_NS)):
        for queue in ("a", "b", "a"):
            clock += 10
            await served.log.append(queue, b"x", create=True)
    ids = {queue: served.log.queue_summary(queue).id for queue in "abq"}
    body: dict[str, Any] = {"time": text_of_tick(clock - 9)}
    found = (await served.call("POST", "/v1/positions", body)).json()["queues"]
    assert [(one["queue"], one["status"], one["id"], one["position"]) for one in found] == [
        ("a", "ok", ids["a"], 1),
        ("b", "ok", ids["b"], 1),
        ("q", "ok", ids["q"], 0),
    ]
    body = {"time": text_of_tick(clock - 20), "queues": [{"queue": "b", "id": 1}, {"queue": "no"}, {"queue": "a"}]}
    found = (await served.call("POST", "/v1/positions", body)).json()["queues"]
    assert [(one["status"], one["position"]) for one in found] == [("recreated", 0), ("missing", 0), ("ok", 0)]
    refused = await served.call("POST", "/v1/positions", {**body, "opening": "another"})
    assert (refused.status, refused.json()["code"]) == (409, "reopened")
    for time in ("yesterday", "2026-01-01T00:00:00", "9999-01-01T00:00:00Z"):
        refused = await served.call("POST", "/v1/positions", {"time": time})
        assert (refused.status, refused.json()["code"]) == (400, "parameter")


@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 2000))
def test_shares_keep_the_limit_up_to_one_each(wanted: list[int], limit: int) -> None:
    """No entry gets more than it wants, and none that wants something gets nothing."""
    shares = split_limit(wanted, limit)
    assert all(part <= want and (part > 0) == (want > 0) for part, want in zip(shares, wanted, strict=True))
    assert sum(shares) <= limit + len(wanted)


@given(
    st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=5), max_size=5),
    st.integers(1, 30),
    st.integers(1, 60),
)
def test_taking_keeps_both_limits_and_gets_on(groups: list[list[bytes]], records: int, size: int) -> None:
    """The first records are taken within both limits; a single record above a limit is still taken."""
    runs, position = [], 0
    for group in groups:
        runs.append(Run.of(position, group))
        position += len(group)
    everything = [record for run in runs for record in run.records()]
    taken = [record for run in take_head(runs, records, size) for record in run.records()]
    assert taken == everything[: len(taken)]
    assert len(taken) <= records
    assert sum(len(record.payload) for record in taken) <= size or len(taken) == 1
    assert bool(taken) == bool(everything)


async def test_a_request_for_another_opening_is_refused(served: Served) -> None:
    """A list from before the log was reopened says nothing about what the log holds now."""
    opening = (await served.call("GET", "/v1/queues")).json()["opening"]
    for path, items in (("/v1/plan", "queues"), ("/v1/truncate", "queues"), ("/v1/acknowledge", "consumers")):
        body: dict[str, Any] = {items: []}
        assert (await served.call("POST", path, {**body, "opening": opening})).status == 200
        refused = await served.call("POST", path, {**body, "opening": "another"})
        assert (refused.status, refused.json()["code"]) == (409, "reopened")


async def test_a_plan_has_the_time_of_its_first_record(served: Served) -> None:
    """Of the first record that the range holds, even after a gap; null if it holds none."""
    await served.log.append_record("q", None, b"a")
    await served.log.append_record("q", 9, b"b")
    stored = served.log.time_of("q", 9)
    assert stored is not None
    for start, time in ((3, stored.isoformat().replace("+00:00", "Z")), (10, None)):
        (found,) = (await plan(served, queues=[{"queue": "q", "start": start}], times=True))["queues"]
        assert found["time"] == time
    assert (await plan(served))["queues"][0]["time"] is None


@pytest.mark.parametrize("again", [False, True])
async def test_a_queue_that_is_deleted_during_a_plan_fails_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Its plan says what it held, without a time; the plans of the other queues are whole."""
    for queue in ("deleted", "kept"):
        await served.log.create_queue(queue)
        await served.log.append_record(queue, None, b"x")
    walk = Planner._walk

    async def delete_meanwhile(planner: Planner, available: AvailableRange, *more: Any) -> Any:
        taken = await walk(planner, available, *more)
        if available.requested.queue == "deleted":
            await served.log.delete_queue("deleted")
            if again:
                await served.log.create_queue("deleted")
                await served.log.append_record("deleted", None, b"y")
        return taken

    monkeypatch.setattr(Planner, "_walk", delete_meanwhile)
    queues = [{"queue": "deleted"}, {"queue": "kept"}]
    deleted, kept = (await plan(served, queues=queues, times=True, piece_records=1))["queues"]
    assert (deleted["records"], deleted["time"]) == (1, None)
    assert kept["records"] == 1 and kept["time"] is not None


async def test_digests_are_accepted_in_a_request_and_absent_in_the_response(served: Served) -> None:
    """A client of 0.2.0 may still request them; `tail` is null then, as if the range was empty."""
    await served.log.append_record("q", None, b"a")
    assert [one["tail"] for one in (await plan(served, tails=True))["queues"]] == [None]


async def test_a_plan_reports_where_a_deleted_queue_ended(directory: Path) -> None:
    """A reader that had read up to there lost nothing; the end is known even after the log was reopened."""
    async with serving(directory) as served:
        for queue in ("gone", "anew"):
            await served.log.create_queue(queue)
            await served.log.append_records(queue, None, [b"x"] * 7)
        ids = {queue: served.log.queue_summary(queue).id for queue in ("gone", "anew")}
        for queue in ids:
            await served.log.delete_queue(queue)
        await served.log.create_queue("anew")
        asked = [{"queue": queue, "id": queue_id, "start": 3} for queue, queue_id in ids.items()]
        unknown = {"queue": "never", "id": 1, "start": 0}
        found = (await plan(served, queues=[*asked, unknown]))["queues"]
        assert [(one["status"], one["ended"]) for one in found] == [("missing", 7), ("recreated", 7), ("missing", None)]
    async with serving(directory) as served:
        assert [one["ended"] for one in (await plan(served, queues=asked))["queues"]] == [7, 7]

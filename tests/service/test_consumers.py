"""Consumers over HTTP: what a worker in another process needs."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yarl

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.protocol.consumer_schemas import RuleResponse
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.routes.consumers import CONSUMERS_AT_ONCE, _list_all
from mrecordlog_async.service.sending import HELD_BYTES
from tests.served import Response, Served, serving

ONE = "/v1/queues/q/consumers/billing"


async def attach(served: Served, path: str = ONE, **body: Any) -> dict[str, Any]:
    response = await served.call("POST", f"{path}/attach", {"create": True, **body})
    assert response.status == 200, response.body
    found: dict[str, Any] = response.json()
    return found


async def read(served: Served, epoch: int, query: str = "", path: str = ONE) -> Response:
    return await served.call("GET", f"{path}/records?as=text&epoch={epoch}{query}")


def records_in(page: Response) -> list[tuple[int, str]]:
    lines = [msgspec.json.decode(line) for line in page.body.splitlines()]
    return [(line["position"], line["payload"]) for line in lines]


async def test_a_worker_attaches_reads_and_acknowledges(served: Served) -> None:
    """Records are handed out from the stored position on; what is acknowledged is not handed out again."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    held = await attach(served)
    assert held == {
        "queue": "q",
        "consumer": "billing",
        "id": served.log.queue_summary("q").id,
        "epoch": held["epoch"],
        "position": 0,
    }
    page = await read(served, held["epoch"], "&max_records=2")
    assert records_in(page) == [(0, "a"), (1, "b")]
    assert page.headers["X-Next-Position"] == "2"
    done = await served.call("POST", f"{ONE}/acknowledge", {"position": 1, "epoch": held["epoch"]})
    assert done.json() == {"queue": "q", "consumer": "billing", "position": 2}
    assert records_in(await read(served, held["epoch"])) == [(2, "c")]
    assert (await read(served, held["epoch"], "&start=3")).body == b""


async def test_a_fenced_holder_neither_reads_nor_moves(served: Served) -> None:
    """After another attach the older epoch is refused everywhere with 409, and nothing moves."""
    await served.log.append_record("q", None, b"a")
    old, new = await attach(served), await attach(served)
    refused = [
        await read(served, old["epoch"]),
        await served.call("POST", f"{ONE}/acknowledge", {"position": 0, "epoch": old["epoch"]}),
        await served.call("POST", f"{ONE}/seek", {"position": 1, "epoch": old["epoch"]}),
    ]
    assert [one.status for one in refused] == [409] * 3
    assert [one.json()["code"] for one in refused] == ["consumer_fenced"] * 3
    assert refused[0].json()["current_epoch"] == new["epoch"]
    assert (await served.call("GET", ONE)).json()["position"] == 0


async def test_a_waiting_holder_learns_that_it_was_fenced(served: Served) -> None:
    """A long poll that another attach overtakes ends with 409 once there is a record, not with the record."""
    old = await attach(served)
    waiting = asyncio.create_task(read(served, old["epoch"], "&wait=30"))
    while not served.service.tails:
        await asyncio.sleep(0)
    await attach(served)
    await served.log.append_record("q", None, b"a")
    fenced = await waiting
    assert fenced.status == 409
    assert fenced.json()["code"] == "consumer_fenced"


@pytest.mark.parametrize("how", ["attach", "delete", "seek", "delete queue"])
async def test_a_waiting_holder_learns_at_once_that_it_is_none_any_more(served: Served, how: str) -> None:
    """Its long poll of a minute ends without a record."""
    await served.log.create_consumer("q", "c")
    held = await served.log.inspection.attach_consumer("q", "c")
    path = f"/v1/queues/q/consumers/c/records?epoch={held.epoch}&wait=60"
    waiting = asyncio.create_task(served.call("GET", path))
    while not served.service.tails:
        await asyncio.sleep(0.001)
    match how:
        case "attach":
            await served.log.inspection.attach_consumer("q", "c")
        case "delete":
            await served.log.delete_consumer("q", "c")
        case "seek":
            await served.call("POST", "/v1/queues/q/consumers/c/seek", {"position": 0})
        case _:
            await served.log.delete_queue("q", past_consumers=True)
    async with asyncio.timeout(30):
        response = await waiting
    assert response.status in (404, 409)
    codes = {"delete": "consumer_not_found", "delete queue": "queue_not_found"}
    assert response.json()["code"] == codes.get(how, "consumer_fenced")


async def test_a_holder_past_the_end_is_refused(served: Served) -> None:
    """It has read what this log, a restored copy, does not have: waiting there would skip the next records."""
    await served.log.append_record("q", None, b"a")
    epoch = (await attach(served))["epoch"]
    assert (await read(served, epoch, "&start=1")).status == 200
    refused = await read(served, epoch, "&start=2")
    assert refused.status == 409
    assert (refused.json()["code"], refused.json()["next_position"]) == ("ahead", 1)


async def test_a_long_poll_returns_when_a_record_comes(served: Served) -> None:
    """The request waits for the next record and responds with it."""
    held = await attach(served)
    waiting = asyncio.create_task(read(served, held["epoch"], "&wait=30"))
    while not served.service.tails:
        await asyncio.sleep(0)
    await served.log.append_record("q", None, b"a")
    assert records_in(await waiting) == [(0, "a")]


async def test_a_sealed_queue_says_that_nothing_follows(served: Served) -> None:
    """Readers stop after the last record of a sealed queue: a header says so, and appends are refused."""
    await served.log.append_record("q", None, b"a")
    held = await attach(served)
    assert (await served.call("POST", "/v1/queues/q/seal")).json() == {"queue": "q", "next_position": 1}
    assert "X-Queue-Complete" not in (await read(served, held["epoch"])).headers
    assert (await read(served, held["epoch"], "&start=1&wait=30")).headers["X-Queue-Complete"] == "1"
    refused = await served.call("POST", "/v1/queues/q/records", b"b")
    assert (refused.status, refused.json()["code"]) == (409, "queue_sealed")
    again = await served.call("POST", "/v1/queues/q/seal")
    assert (again.status, again.json()["code"]) == (409, "queue_sealed")


async def test_a_holder_whose_records_were_truncated_waits_for_the_next_one(served: Served) -> None:
    """A response without records at once, again and again, would be no long poll."""
    await served.log.append_records("q", None, [b"a", b"b"])
    held = await attach(served)
    await served.log.truncate("q", 1, past_consumers=True)
    waiting = asyncio.create_task(read(served, held["epoch"], "&start=0&wait=30"))
    while not served.service.tails and not waiting.done():
        await asyncio.sleep(0)
    await served.log.append("q", b"c")
    assert records_in(await waiting) == [(2, "c")]


async def test_consumers_are_created_listed_shown_and_deleted(served: Served) -> None:
    """The list shows what waits for each; creating twice is 409, or 200 if `exist_ok` allows it."""
    await served.log.append_records("q", None, [b"a", b"bb"])
    assert (await served.call("PUT", ONE, {"start": 1})).status == 201
    assert (await served.call("PUT", ONE)).json()["code"] == "consumer_exists"
    assert (await served.call("PUT", ONE + "?exist_ok=1")).json()["created"] is False
    (listed,) = (await served.call("GET", "/v1/queues/q/consumers")).json()["consumers"]
    assert {name: listed[name] for name in ("consumer", "position", "records", "bytes", "owner", "skipped")} == {
        "consumer": "billing",
        "position": 1,
        "records": 1,
        "bytes": 2,
        "owner": None,
        "skipped": 0,
    }
    shown = (await served.call("GET", ONE)).json()
    assert shown.pop("oldest_seconds") >= listed.pop("oldest_seconds")
    assert shown == listed
    assert (await served.call("DELETE", ONE)).status == 204
    assert (await served.call("GET", ONE)).json()["code"] == "consumer_not_found"
    assert (await served.call("DELETE", ONE)).status == 404


async def test_a_pattern_gives_every_queue_a_consumer(served: Served) -> None:
    """A rule covers queues that exist and those that are created later; deleting it deletes their consumers."""
    path = "/v1/queues/*/consumers/lake"
    assert (await served.call("PUT", path)).status == 201
    await served.log.create_queue("later")
    page = (await served.call("GET", "/v1/consumers")).json()
    assert [(one["queue"], one["consumer"]) for one in page["consumers"]] == [("later", "lake"), ("q", "lake")]
    assert page["rules"] == [{"pattern": "*", "consumer": "lake"}]
    first = (await served.call("GET", "/v1/consumers?limit=1")).json()
    assert ([one["queue"] for one in first["consumers"]], first["next"]) == (["later"], "later")
    assert (await served.call("DELETE", path)).status == 204
    page = (await served.call("GET", "/v1/consumers")).json()
    assert (page["consumers"], page["rules"]) == ([], [])


async def test_records_past_a_consumer_are_removed_only_by_force(served: Served) -> None:
    """Truncating or deleting what a consumer has not acknowledged is 409 and names it, unless it is forced."""
    await served.log.append_records("q", None, [b"a", b"b"])
    await attach(served)
    refused = await served.call("POST", "/v1/queues/q/truncate", {"position": 0})
    assert (refused.status, refused.json()["code"], refused.json()["consumer"]) == (409, "consumer_behind", "billing")
    forced = await served.call("POST", "/v1/queues/q/truncate", {"position": 0, "past_consumers": True})
    assert forced.json()["dropped"] == 1
    assert (await served.call("GET", ONE)).json()["skipped"] == 1
    assert (await served.call("DELETE", "/v1/queues/q")).json()["code"] == "consumer_behind"
    assert (await served.call("DELETE", "/v1/queues/q?past_consumers=1")).status == 204


async def test_an_owner_keeps_others_out(served: Served) -> None:
    """A consumer with an owner is attached to by its owner alone, unless somebody takes it over."""
    owner = str(uuid.uuid4())
    await attach(served, owner=owner)
    refused = await served.call("POST", f"{ONE}/attach", {"owner": str(uuid.uuid4())})
    assert (refused.status, refused.json()["code"], refused.json()["owner"]) == (409, "consumer_owned", owner)
    await attach(served, take_over=True)


async def test_an_operator_moves_a_consumer_without_its_epoch(served: Served) -> None:
    """A seek without an epoch moves the consumer and fences off its holder."""
    await served.log.append_records("q", None, [b"a", b"b"])
    held = await attach(served)
    assert (await served.call("POST", f"{ONE}/seek", {"position": 2})).json()["position"] == 2
    assert (await read(served, held["epoch"])).json()["code"] == "consumer_fenced"


async def test_many_consumers_attach_and_acknowledge_in_one_request(served: Served) -> None:
    """Each queue is carried out or refused independently, with a status and a sentence."""
    await served.log.create_queue("r")
    for queue in ("q", "r"):
        await served.log.append_record(queue, None, b"a")
    body = {"consumer": "lake", "queues": ["q", "r", "none"], "create": True}
    attached = (await served.call("POST", "/v1/attach", body)).json()["queues"]
    assert [one["status"] for one in attached] == ["ok", "ok", "missing"]
    done = [
        {"queue": one["queue"], "consumer": "lake", "position": at, "epoch": one["epoch"], "id": one["id"]}
        for one, at in zip(attached[:2], (0, 5), strict=True)
    ]
    done += [{**done[0], "epoch": 1}, {**done[0], "consumer": "other"}, {**done[0], "id": 1}]
    results = (await served.call("POST", "/v1/acknowledge", {"consumers": done})).json()["consumers"]
    assert [one["status"] for one in results] == ["ok", "ahead", "fenced", "no_consumer", "recreated"]
    assert results[0]["position"] == 1
    assert "has not been assigned yet" in results[1]["detail"]


async def test_of_many_consumers_those_whose_holder_was_seen_are_left_alone(served: Served) -> None:
    """With `if_idle_for`, a holder that was seen goes on, and a sentence says when that was."""
    await served.log.create_queue("r")
    held = await attach(served)
    body = {"consumer": "billing", "queues": ["q", "r"], "create": True, "if_idle_for": 60}
    attached = (await served.call("POST", "/v1/attach", body)).json()["queues"]
    assert [(one["status"], one["epoch"] > 0) for one in attached] == [("held", False), ("ok", True)]
    assert "try again once that is 1 min" in attached[0]["detail"]
    assert (await read(served, held["epoch"])).status == 200
    assert (await served.call("POST", "/v1/attach", {**body, "if_idle_for": -1})).status == 400


async def test_a_name_that_no_queue_can_have_does_not_hide_which_others_were_attached(served: Served) -> None:
    """A holder must learn its epochs: each attach fences off the one before."""
    body = {"consumer": "lake", "queues": ["q", "", "of the Rust\ncrate, deleted since"], "create": True}
    attached = await served.call("POST", "/v1/attach", body)
    assert attached.status == 200
    assert [one["status"] for one in attached.json()["queues"]] == ["ok", "missing", "missing"]


async def test_a_thousand_queues_are_attached_to_and_acknowledged(served: Served) -> None:
    """Neither request is mistaken for one that repeats members; more entries than a request may have are 413."""
    names = [f"queue {number}" for number in range(1_000)]
    await asyncio.gather(*(served.log.create_queue(name) for name in names))
    await asyncio.gather(*(served.log.append_record(name, None, b"a") for name in names))
    body = {"consumer": "lake", "queues": names, "create": True, "owner": str(uuid.uuid4()), "take_over": False}
    attached = (await served.call("POST", "/v1/attach", body)).json()["queues"]
    done = [{"queue": each["queue"], "consumer": "lake", "id": each["id"], "epoch": each["epoch"]} for each in attached]
    wanted = {"consumers": [{**each, "position": 0} for each in done]}
    results = (await served.call("POST", "/v1/acknowledge", wanted)).json()["consumers"]
    assert {one["position"] for one in results} == {1} and len(results) == 1_000
    many = {**body, "queues": ["q"] * (served.service.options.entries + 1)}
    assert (await served.call("POST", "/v1/attach", many)).status == 413


async def test_options_are_set_at_creation_and_replaced(served: Served) -> None:
    """A queue shows its options; what contradicts, or is below what it holds, is refused with a reason."""
    created = await served.call("PUT", "/v1/queues/small", {"max_records": 2, "when_full": "drop_oldest"})
    assert created.status == 201
    path = "/v1/queues/small/options"
    known = {
        "queue": "small",
        "keep": "until_truncated",
        "max_bytes": None,
        "max_records": 2,
        "max_age": None,
        "when_full": "drop_oldest",
        "sealed": False,
    }
    assert known.items() <= (await served.call("GET", path)).json().items()
    assert (await served.call("PUT", path, {"max_bytes": 10})).json()["max_records"] is None
    await served.call("POST", "/v1/queues/small/records", b"12345678")
    full = await served.call("POST", "/v1/queues/small/records", b"12345678")
    assert (full.status, full.json()["resource"], full.json()["queue"]) == (429, "queue", "small")
    below = await served.call("PUT", path, {"max_bytes": 4})
    assert (below.status, below.json()["code"]) == (409, "queue_options")
    both = await served.call("PUT", path, {"keep": "until_acknowledged", "when_full": "drop_oldest", "max_records": 1})
    assert (both.status, both.json()["code"]) == (400, "queue_options")


async def test_names_are_taken_from_the_path_as_they_were_sent(served: Served) -> None:
    """Both names are percent-decoded once; a slash in a name is part of the name."""
    await served.log.create_queue("a/b")
    path = "/v1/queues/a%2Fb/consumers/w%2F1%20%C3%BC"
    url = served.url + path

    async with served.session.put(yarl.URL(url, encoded=True)) as response:
        assert response.status == 201
    assert list(served.log.consumers("a/b")) == ["w/1 ü"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", f"{ONE}/attach", {}, 404, "consumer_not_found"),
        ("GET", f"{ONE}/records", None, 400, "parameter"),
        ("GET", f"{ONE}/records?epoch=1", None, 404, "consumer_not_found"),
        ("POST", f"{ONE}/attach", {"owner": "me"}, 400, "bad_body"),
        ("POST", f"{ONE}/acknowledge", {"position": 0}, 400, "bad_body"),
        ("PUT", "/v1/queues/q/consumers/" + "x" * 256, None, 400, "consumer_name"),
        ("PUT", "/v1/queues/none/consumers/c", None, 404, "queue_not_found"),
        ("GET", "/v1/queues/none/consumers", None, 404, "queue_not_found"),
        ("GET", f"{ONE}/none", None, 404, "no_route"),
        ("PATCH", ONE, None, 405, "method"),
    ],
)
async def test_bad_requests_say_what_is_wrong(
    served: Served, method: str, path: str, body: Any, status: int, code: str
) -> None:
    """Each wrong request has its status and code."""
    response = await served.call(method, path, body)
    assert (response.status, response.json()["code"]) == (status, code)


async def test_positions_outside_the_queue_are_refused(served: Served) -> None:
    """Neither an acknowledgement nor a seek goes past the end, and no seek goes where records were truncated."""
    await served.log.append_records("q", None, [b"a", b"b"])
    await served.log.truncate("q", 0)
    epoch = (await attach(served))["epoch"]
    ahead = await served.call("POST", f"{ONE}/acknowledge", {"position": 2, "epoch": epoch})
    assert (ahead.status, ahead.json()["code"], ahead.json()["next_position"]) == (409, "ahead", 2)
    before = await served.call("POST", f"{ONE}/seek", {"position": 0, "epoch": epoch})
    assert (before.status, before.json()["code"], before.json()["first_position"]) == (410, "truncated", 1)


async def test_consumers_of_one_queue_are_listed_in_pages(served: Served) -> None:
    """By name in order; `next` is the `after` of the next page, and null on the last one."""
    names = [f"c{number:04}" for number in range(700)]
    await asyncio.gather(*(served.log.create_consumer("q", name) for name in names))
    path, listed, after = "/v1/queues/q/consumers", list[str](), ""
    while True:
        page = (await served.call("GET", f"{path}?limit=300{after}")).json()
        listed += [one["consumer"] for one in page["consumers"]]
        if page["next"] is None:
            break
        assert page["next"] == listed[-1] and len(page["consumers"]) == 300
        after = f"&after={page['next']}"
    assert listed == names
    whole = (await served.call("GET", path)).json()
    assert [one["consumer"] for one in whole["consumers"]] == names
    assert (whole["rules"], whole["next"]) == ([], None)
    assert (await served.call("GET", f"{path}?limit=1&after=c0699")).json()["consumers"] == []
    assert (await served.call("GET", f"{path}?limit=0")).status == 400
    everything = (await served.call("GET", "/v1/consumers")).json()
    assert [one["consumer"] for one in everything["consumers"]] == names
    assert (await served.call("GET", "/v1/queues/none/consumers?limit=1")).status == 404


async def test_rules_stand_on_the_first_page_of_all_consumers(served: Served) -> None:
    """Each further page would repeat thousands of them."""
    await served.log.create_consumer("*", "lake")
    for number in range(600):
        await served.log.create_consumer(f"r{number}-*", "lake")
    await served.log.create_queue("r1-x")
    first = (await served.call("GET", "/v1/consumers?limit=1")).json()
    assert (first["next"], len(first["rules"])) == ("q", 601)
    assert first["rules"] == sorted(first["rules"], key=lambda rule: rule["pattern"])
    second = (await served.call("GET", "/v1/consumers?limit=1&after=q")).json()
    assert ([one["queue"] for one in second["consumers"]], second["rules"], second["next"]) == (["r1-x"], [], None)


async def test_a_long_list_of_rules_is_made_in_pieces(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other requests have their turn between two pieces: a log may have a million rules."""
    made = [0]

    def counted(*rule: str) -> RuleResponse:
        made[-1] += 1
        return RuleResponse(*rule)

    monkeypatch.setattr("mrecordlog_async.service.routes.consumers.RuleResponse", counted)
    rules = [(f"{number:04}-*", "c") for number in range(3 * CONSUMERS_AT_ONCE + 1)]
    pieces = []
    async with MultiRecordLog.open(directory) as log:
        async for piece in _list_all(log, [], rules, None):
            pieces.append(piece)
            made.append(0)
    found = msgspec.json.decode(b"".join(pieces))["rules"]
    assert [(one["pattern"], one["consumer"]) for one in found] == rules
    assert max(made) == CONSUMERS_AT_ONCE


async def test_lists_of_consumers_are_charged_like_other_long_responses(directory: Path) -> None:
    """One that waits for its reader holds a piece, not the list; above the budget the next one is refused."""
    options = ServiceOptions(sending_bytes=HELD_BYTES)
    async with serving(directory, options=options) as served:
        await served.log.create_queue("q")
        for number in range(CONSUMERS_AT_ONCE + 1):
            await served.log.create_consumer("q", f"c{number}")
        with served.service.sending.enter():
            for path in ("/v1/consumers", "/v1/queues/q/consumers"):
                assert (await served.call("GET", path)).status == 429
            assert (await served.call("GET", "/v1/queues/q/consumers/c1")).status == 200
        for path in ("/v1/consumers", "/v1/queues/q/consumers"):
            assert len((await served.call("GET", path)).json()["consumers"]) == CONSUMERS_AT_ONCE + 1
        assert served.service.sending.used == 0


# Waiting for an acknowledgement.


async def acknowledge(served: Served, position: int) -> None:
    """Acknowledge up to *position* as a new holder of the consumer `c` of `q`."""
    async with served.log.consumer("q", "c") as consumer:
        await consumer.acknowledge(position)


async def until_waiting(served: Served) -> None:
    while not served.service.tails:
        await asyncio.sleep(0)


async def test_an_append_waits_for_its_reader(served: Served) -> None:
    """`wait_consumer` responds once the consumer has the records: with a drain, once they are in the table."""
    await served.log.create_consumer("q", "c")
    path = "/v1/queues/q/records?wait_consumer=c&wait=60"
    appending = asyncio.create_task(
        served.call("POST", path, b"a\nb\n", headers={"Content-Type": "application/x-ndjson"})
    )
    await until_waiting(served)
    assert served.service.bodies.budget.used == 0  # it is in the log now
    await acknowledge(served, 1)
    response = await appending
    assert (response.status, response.json()["position"], response.json()["acknowledged"]) == (200, 1, True)


@pytest.mark.parametrize("what", ["time", "truncate", "consumer", "queue"])
async def test_a_stored_record_whose_reader_does_not_come_is_no_error(served: Served, what: str) -> None:
    """An error would make clients send the record again: it is stored, and `acknowledged` is false."""
    await served.log.create_consumer("q", "c")
    wait = "0.01" if what == "time" else "60"
    appending = asyncio.create_task(served.call("POST", f"/v1/queues/q/records?wait_consumer=c&wait={wait}", b"a"))
    if what != "time":
        await until_waiting(served)
    if what == "truncate":
        await served.log.truncate("q", 0, past_consumers=True)
    elif what == "consumer":
        await served.log.delete_consumer("q", "c")
    elif what == "queue":
        await served.log.delete_queue("q", past_consumers=True)
    response = await appending
    assert (response.status, response.json()["acknowledged"]) == (200, False)


async def test_nothing_is_stored_for_a_reader_that_does_not_exist(served: Served) -> None:
    """A misspelt consumer is found before the record is stored; so is a wait without one."""
    for query, status in (("wait_consumer=x&wait=1", 404), ("wait=1", 400), ("wait_consumer=c&wait=x", 400)):
        assert (await served.call("POST", f"/v1/queues/q/records?{query}", b"a")).status == status
    assert served.log.next_position("q") == 0


async def test_a_wait_for_a_record_that_is_stored(served: Served) -> None:
    """`acknowledged` says whether the consumer has it, at once or within `wait`; a record that was passed is 410."""
    await served.log.create_consumer("q", "c")
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    path = "/v1/queues/q/consumers/c/acknowledged?position="
    assert (await served.call("GET", path + "0")).json()["acknowledged"] is False
    waiting = asyncio.create_task(served.call("GET", path + "0&wait=60"))
    await until_waiting(served)
    await acknowledge(served, 0)
    assert (await waiting).json() == {"queue": "q", "consumer": "c", "position": 0, "acknowledged": True}
    assert (await served.call("GET", path + "0")).json()["acknowledged"] is True
    await served.log.truncate("q", 1, past_consumers=True)
    passed = await served.call("GET", path + "1&wait=60")
    assert (passed.status, passed.json()["code"]) == (410, "record_truncated")
    assert (await served.call("GET", "/v1/queues/q/consumers/c/acknowledged")).status == 400
    assert (await served.call("GET", "/v1/queues/q/consumers/x/acknowledged?position=0")).status == 404

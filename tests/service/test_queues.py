from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from mrecordlog_async.service.reading import queue_names
from tests.served import Served, serving


async def test_create_responds_201_once(served: Served) -> None:
    """A queue is created once; the second request is 409, or 200 if `exist_ok` allows it."""
    assert (await served.call("PUT", "/v1/queues/a")).status == 201
    again = await served.call("PUT", "/v1/queues/a")
    assert (again.status, again.json()["code"]) == (409, "queue_exists")
    assert (await served.call("PUT", "/v1/queues/a?exist_ok=1")).json() == {"queue": "a", "created": False}


async def test_delete_forgets_the_queue(served: Served) -> None:
    """A deleted queue is 404 from then on."""
    assert (await served.call("DELETE", "/v1/queues/q")).status == 204
    assert (await served.call("GET", "/v1/queues/q")).status == 404
    assert (await served.call("DELETE", "/v1/queues/q")).status == 404


async def test_listing_shows_positions_and_ids(served: Served) -> None:
    """One response has everything that a bulk reader needs to plan, and matches the log."""
    await served.log.append_records("q", 5, [b"a", b"bb"])
    await served.log.create_queue("other")
    (other, q) = (await served.call("GET", "/v1/queues")).json()["queues"]
    assert other["queue"] == "other"
    known = {
        "queue": "q",
        "id": served.log.queue_summary("q").id,
        "first_position": 5,
        "next_position": 7,
        "records": 2,
        "bytes": 3,
        "first_segment": 0,
        "began": 5,
        "opened_next": 0,
        "sealed": False,
        "oldest_time": q["oldest_time"],
    }
    assert known.items() <= q.items()  # later versions may add members
    assert datetime.fromisoformat(q["oldest_time"]) == served.log.queue_summary("q").oldest_time
    assert (await served.call("GET", "/v1/queues/q")).json() == q
    assert [one["queue"] for one in (await served.call("GET", "/v1/queues?prefix=o")).json()["queues"]] == ["other"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_path_without_the_name_of_its_queue_is_404(served: Served, method: str) -> None:
    """A script with an empty variable must not read that the path supports GET."""
    for path in ("/v1/queues/", "/v1/queues//options", "/v1/queues/q/consumers/"):
        refused = await served.call(method, path)
        assert (refused.status, refused.json()["code"]) == (404, "no_route")


async def test_an_unchanged_listing_is_304(served: Served) -> None:
    """A client that sends the current ETag gets no body; any change makes a new ETag."""
    etag = (await served.call("GET", "/v1/queues")).headers["ETag"]
    same = await served.call("GET", "/v1/queues", headers={"If-None-Match": etag})
    assert (same.status, same.body) == (304, b"")
    await served.log.append_record("q", None, b"x")
    assert (await served.call("GET", "/v1/queues", headers={"If-None-Match": etag})).status == 200


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/q", "/v1/queues?order=bytes&limit=1"])
async def test_an_etag_is_recognized_as_proxies_and_caches_send_it(served: Served, path: str) -> None:
    """Weak, because a proxy compressed the response, or in a list (RFC 9110 §13.1.2); nonsense is another ETag."""
    etag = (await served.call("GET", path)).headers["ETag"]
    for known, status in (
        (f"W/{etag}", 304),
        (f'"other", {etag}', 304),
        ("*", 304),
        ('"other"', 200),
        (etag.strip('"'), 200),
        (f'"{etag}', 200),
    ):
        assert (await served.call("GET", path, headers={"If-None-Match": known})).status == status, known


async def test_an_order_that_is_found_again_has_a_new_etag(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be older than the last change, so nothing else has to change before it does."""
    await served.log.create_queue("small")
    await served.log.append_record("q", None, b"x")
    path = "/v1/queues?order=bytes&limit=1"
    await served.call("GET", path)
    await served.log.append_record("small", None, b"not small any more")
    old = await served.call("GET", path)
    monkeypatch.setattr(queue_names, "RANKED_SECONDS", 0.0)
    new = await served.call("GET", path, headers={"If-None-Match": old.headers["ETag"]})
    assert new.status == 200
    assert [page.json()["queues"][0]["queue"] for page in (old, new)] == ["q", "small"]


async def test_a_listing_names_its_log_and_what_it_held_when_it_was_opened(directory: Path) -> None:
    """The log keeps its id when it is reopened; each opening has a new id, and reports where queues ended then."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        await served.log.append_records("q", None, [b"a", b"b"])
        before = (await served.call("GET", "/v1/queues")).json()
    async with serving(directory) as served:
        await served.log.append_records("q", None, [b"c"])
        after = (await served.call("GET", "/v1/queues")).json()
    assert before["log"] == after["log"] != ""
    assert before["opening"] != after["opening"]
    assert [before["queues"][0]["opened_next"], after["queues"][0]["opened_next"]] == [0, 2]


async def test_a_first_position_that_was_chosen_took_nothing_away(served: Served) -> None:
    """A reader at 0 lost nothing if the first record has position 1000, but it did if records were truncated."""
    await served.log.append_records("q", 1_000, [b"a", b"b"])
    assert (await served.call("GET", "/v1/queues/q")).json()["began"] == 1_000
    await served.log.truncate("q", 1_000)
    shown = (await served.call("GET", "/v1/queues/q")).json()
    assert (shown["began"], shown["first_position"]) == (1_000, 1_001)


async def test_truncate_drops_up_to_and_including(served: Served) -> None:
    """The position itself is dropped too."""
    await served.log.append_records("q", None, [b"a", b"b", b"c"])
    response = await served.call("POST", "/v1/queues/q/truncate", {"position": 1})
    assert response.json() == {"queue": "q", "dropped": 2, "first_position": 2, "next_position": 3}
    assert served.log.first_position("q") == 2


async def test_truncate_beyond_the_end_is_refused(served: Served) -> None:
    """A typing error must not move the next position forward."""
    await served.log.append_record("q", None, b"a")
    response = await served.call("POST", "/v1/queues/q/truncate", {"position": 1})
    assert (response.status, response.json()["code"], response.json()["next_position"]) == (409, "ahead", 1)
    assert served.log.next_position("q") == 1


async def test_truncate_of_another_incarnation_is_refused(served: Served) -> None:
    """A request for a deleted queue does not change the new queue of that name."""
    await served.log.append_record("q", None, b"a")
    wrong = served.log.queue_summary("q").id + 1
    response = await served.call("POST", "/v1/queues/q/truncate", {"position": 0, "id": wrong})
    assert (response.status, response.json()["code"]) == (404, "queue_recreated")
    assert served.log.first_position("q") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"position":-1}',
        b'{"position":9223372036854775808}',
        b'{"position":"1"}',
        b"\xff",
        b'{"position":0,"position":1}',
    ],
)
async def test_truncate_with_a_body_that_makes_no_sense_is_400(served: Served, body: bytes) -> None:
    """A body is checked against its type, and the response says what is wrong with it."""
    response = await served.call("POST", "/v1/queues/q/truncate", body)
    assert (response.status, response.json()["code"]) == (400, "bad_body")
    assert response.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/queues?prefx=a", "/v1/queues?prefix=a&prefix=b", "/v1/queues/q?x=1"])
async def test_unknown_parameters_are_refused(served: Served, path: str) -> None:
    """A misspelt parameter is an error, which names the nearest, and is not ignored."""
    response = await served.call("GET", path)
    assert (response.status, response.json()["code"]) == (400, "parameter")
    assert response.json()["detail"].endswith("did you mean prefix?") == ("prefx" in path)


async def test_a_wrong_method_is_405_and_a_wrong_path_404(served: Served) -> None:
    """Wrong requests get a problem document that says what exists."""
    wrong_method = await served.call("POST", "/v1/queues/q")
    assert (wrong_method.status, wrong_method.headers["Allow"]) == (405, "DELETE, GET, HEAD, PUT")
    wrong_path = await served.call("GET", "/v2/queues")
    assert (wrong_path.status, wrong_path.headers["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/stats", "/v1/queues", "/v1/queues/q"])
async def test_head_responds_as_get_without_a_body(served: Served, path: str) -> None:
    """Probes that send HEAD work, and the connection stays usable."""
    get, head = await served.call("GET", path), await served.call("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert (await served.call("GET", path)).status == 200

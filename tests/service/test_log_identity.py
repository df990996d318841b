"""The log behind an address is identified: responses name it, and requests for another log are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mrecordlog_async.client import RecordLogClient, ServiceError
from mrecordlog_async.engine.commit import upkeep
from mrecordlog_async.protocol.log_schemas import LOG_ID, LogResponse
from mrecordlog_async.service.options import ServiceOptions
from tests.served import Served, serving

RECORD = b"12345678" * 10_000
"""A read of it is streamed, not sent at once."""


async def log_of(served: Served) -> LogResponse:
    return msgspec.json.decode((await served.call("GET", "/v1/log")).body, type=LogResponse)


async def test_the_log_names_its_openings_and_keeps_its_id(tmp_path: Path) -> None:
    """An opening that stored something is remembered; the id stays, the opening of the service does not."""
    async with serving(tmp_path, ServiceOptions(name="wal-0")) as served:
        new = await log_of(served)
        assert (new.name, new.openings, new.at) == ("wal-0", [], None)
        await served.log.append_record("q", None, b"a", create=True)
        first = await log_of(served)
        assert first.at is not None
        assert (first.at.nonce, first.at.batch) == (first.openings[0].nonce, first.durable_batch)
    async with serving(tmp_path) as served:
        await served.log.append_record("q", None, b"b")
        second = await log_of(served)
    assert (second.id, second.openings[:1]) == (first.id, first.openings)
    assert second.opening != first.opening and len(second.openings) == 2
    assert second.openings[1].first_batch > first.at.batch


async def test_the_state_changes_only_when_something_does(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark that an idle log writes does not count: a reader that compares states would wake up for nothing."""
    await served.log.append_record("q", None, b"a")
    before = (await served.call("GET", "/v1/queues")).json()["at"]
    monkeypatch.setattr(upkeep, "MARK_SECONDS", 0.0)
    served.log._engine.writer._upkeep._on_mark()
    while served.log.inspection.durable_batch == before["batch"]:  # until the log has marked its end
        await served.log.sync()
        await served.service.wait_for_shutdown(0.01)
    assert (await served.call("GET", "/v1/queues")).json()["at"] == before
    await served.log.truncate("q", 0)
    assert (await served.call("GET", "/v1/queues")).json()["at"]["batch"] > before["batch"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/queues/q/records", b"x"),
        ("GET", "/v1/queues", None),
        ("GET", "/v1/queues/q", None),
        ("GET", "/v1/queues/q/records?limit=1", None),
        ("GET", "/v1/queues/large/records", None),
        ("POST", "/v1/plan", {}),
        ("POST", "/v1/fetch", {"ranges": []}),
        ("POST", "/v1/queues/q/truncate", {"position": 77}),
        ("POST", "/v1/queues/q/consumers/c/attach", {"create": True}),
    ],
)
async def test_responses_with_positions_name_their_log(
    served: Served, method: str, path: str, body: bytes | dict[str, object] | None
) -> None:
    """A request that sends the name back is served; with the name of another log it is refused, and changes nothing."""
    await served.log.append_record("q", None, b"a", create=True)
    await served.log.append_record("large", None, RECORD, create=True)
    before = served.log.inspection.at
    refused = await served.call(method, path, body, headers={LOG_ID: "00" * 16})
    assert (refused.status, refused.json()["code"], refused.json()["log"]) == (
        412,
        "other_log",
        served.log.inspection.public_id,
    )
    assert served.log.inspection.at == before
    response = await served.call(method, path, body, headers={LOG_ID: served.log.inspection.public_id})
    assert response.status in (200, 409)
    assert response.headers[LOG_ID] == served.log.inspection.public_id


async def test_a_client_that_means_one_log_is_refused_by_another(served: Served) -> None:
    """Nothing is stored in a log that took over an address."""
    async with RecordLogClient(served.url) as client:
        info = await client.log_info()
    assert (info.id, info.opening) == (served.log.inspection.public_id, served.service.opening)
    async with RecordLogClient(served.url, log_id="00" * 16) as client:
        with pytest.raises(ServiceError) as refused:
            await client.append("q", b"a")
    assert (refused.value.status, refused.value.code) == (412, "other_log")
    async with RecordLogClient(served.url, log_id=info.id) as client:
        await client.append("q", b"a", create=True)

"""Names that a log holds but would not create: they work everywhere, and only creating is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from mrecordlog_async import ConsumerNameError, MultiRecordLog, PersistPolicy, QueueNameError, ReadOnlyLog
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.engine.running import EngineOptions
from mrecordlog_async.maintenance.changing import open_to_change
from mrecordlog_async.maintenance.transfer import BUILD_LIMITS
from mrecordlog_async.names import has_control_characters
from tests import damage
from tests.cli.running import mrecordlog
from tests.served import serving

OLD = "a/b\n\x1b[31m\x85"
"""A queue and a consumer have this name."""
NEW = "c\r\nd"
LONG = "x" * 300
FOLDED = ["..", "."]
PATTERNS = ["*\n", "*" * 256, "é*" * 100]
"""No rule has such a pattern in this version."""
DAMAGED = b"the record that is damaged"
ANY_NAME = EngineOptions(PersistPolicy.always(), BUILD_LIMITS, any_name=True)
"""Of a log that is built as a copy of another one."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with the names that Quickwit's crate, a higher limit or an older version allowed."""

    async def build() -> None:
        async with (await open_to_change(tmp_path / "wal", ANY_NAME, create=True)).log as changing:
            for queue, last in ((OLD, b"2"), (LONG, DAMAGED)):
                await changing.create_queue(queue)
                await changing.append_records(queue, None, [b"0", b"1", last])
            await changing.create_consumer(OLD, OLD)
            await changing.create_consumer("a*", OLD)
            await changing.create_consumer(PATTERNS[0], "c")

    asyncio.run(build())
    return tmp_path / "wal"


def test_control_characters_are_those_of_unicode() -> None:
    """Letters of any script, spaces and emoji are not among them."""
    assert all(map(has_control_characters, ("\x00", "a\n", "\x1f", "\x7f", "\x80", "\x9f")))
    assert not any(map(has_control_characters, (" ", "~", "\xa0", "é", "日本", "🦀", "\u200d")))


@pytest.mark.parametrize("declared", [True, False])
async def test_a_log_opens_and_works_with_names_that_it_would_not_create(directory: Path, declared: bool) -> None:
    """Reads, appends, consumers, truncates and deletes; the name is refused once nothing has it."""
    async with MultiRecordLog.open(directory, queues=[OLD] if declared else []) as log:
        assert not await log.create_queue(OLD, exist_ok=True)
        assert await log.append(OLD, b"3", create=True) == 3
        async with log.consumer(OLD, OLD) as consumer:
            await consumer.acknowledge(0)
        assert not await log.create_consumer(OLD, OLD, exist_ok=True)
        assert not await log.create_consumer("a*", OLD, exist_ok=True)
        assert (await log.truncate(OLD, 1, past_consumers=True), next(log.range(LONG)).payload) == (2, b"0")
        await log.delete_consumer(OLD, OLD)
        for create in (
            log.create_consumer(OLD, OLD),
            log.create_consumer(OLD, NEW),
            log.inspection.attach_consumer(OLD, NEW),
        ):
            with pytest.raises(ConsumerNameError, match="contains control characters"):
                await create
        await log.delete_queue(OLD)
        for queue in (OLD, NEW):
            for change in (log.create_queue(queue), log.append(queue, b"x", create=True), log.delete_queue(queue)):
                with pytest.raises(QueueNameError, match="contains control characters; remove them"):
                    await change
    with pytest.raises(QueueNameError):
        await MultiRecordLog.open(directory, queues=[NEW])
    async with MultiRecordLog.open(directory) as log:
        assert list(log.summary()) == [LONG]


async def test_a_service_serves_them_and_creates_none(directory: Path) -> None:
    """The service and its client have the rule of the log."""
    async with serving(directory) as served, RecordLogClient(served.url) as client:
        assert [record.payload async for record in client.range(OLD)] == [b"0", b"1", b"2"]
        assert await client.append(OLD, b"3") == 3
        assert (await served.call("GET", "/metrics")).status == 200
        assert await client.truncate(OLD, 2, past_consumers=True) == 3
        await client.delete_consumer(OLD, OLD)
        await client.delete_queue(OLD)
        for queue in (OLD, NEW):
            path = f"/v1/queues/{quote(queue, safe='')}"
            for method, change in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", "/records?create=1")):
                response = await served.call(method, path + change, b"x" if method == "POST" else None)
                assert (response.status, response.json()["code"]) == (400, "queue_name"), (method, change)


def test_the_shell_prints_them_quoted_and_repair_keeps_them(directory: Path, tmp_path: Path) -> None:
    """No control character reaches a terminal. `load` creates queues, so it refuses the name and says which line."""
    listed = mrecordlog("ls", directory).out
    assert "a/b\\n\\x1b[31m\\x85" in listed and "\x1b" not in listed
    assert mrecordlog("cat", directory, OLD).out == "0\n1\n2\n"
    dumped = mrecordlog("dump", directory).out
    loaded = mrecordlog("load", tmp_path / "other", stdin=dumped)
    assert loaded.code == 1 and "contains control characters; remove them" in loaded.err
    segment = damage.segments(directory)[0]
    damage.flip_byte(segment, segment.read_bytes().index(DAMAGED))
    assert mrecordlog("repair", directory, "--apply").code == 0
    with ReadOnlyLog.open(f"{directory}.repaired") as log:
        assert {OLD, LONG} == set(log.summary()) and list(log.consumers(OLD)) == [OLD]
        assert log.consumer_rules() == [(PATTERNS[0], "c"), ("a*", OLD)]


async def test_names_that_clients_fold_are_not_created_and_still_served(tmp_path: Path) -> None:
    """`GET /v1/queues/..` would be `GET /v1/`, say. A queue that has such a name already works as all others do."""
    async with (await open_to_change(tmp_path / "wal", ANY_NAME, create=True)).log as changing:
        for name in FOLDED:
            await changing.create_queue(name)
            await changing.create_consumer(name, name)
    async with serving(tmp_path / "wal") as served, RecordLogClient(served.url) as client:
        for name in FOLDED:
            assert await client.append(name, b"a") == 0
            assert [record.payload async for record in client.range(name)] == [b"a"]
            assert list(await client.consumers(name)) == [name]
            async with client.consumer(name, name) as consumer:
                assert await consumer.acknowledge(0) == 1
            await client.delete_consumer(name, name)
            with pytest.raises(ConsumerNameError, match="HTTP clients remove it from paths"):
                await client.create_consumer(name, name)
            await client.delete_queue(name)
            with pytest.raises(QueueNameError, match="HTTP clients remove it from paths; choose another one"):
                await client.create_queue(name)
        assert served.log.list_queues() == []


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_pattern_follows_the_rule_of_new_names(directory: Path, tmp_path: Path, pattern: str) -> None:
    """In the log, over HTTP and in `load`; a rule of an older version works and can be removed."""
    async with serving(tmp_path / "new") as served, RecordLogClient(served.url) as client:
        for log in (served.log, client):
            with pytest.raises(QueueNameError, match=r"contains control characters|the limit is 255"):
                await log.create_consumer(pattern, "c")
        assert served.log.inspection.consumer_rules() == []
    rule = json.dumps({"pattern": pattern, "consumer": "c"})
    loaded = await asyncio.to_thread(mrecordlog, "load", tmp_path / "new", stdin=rule)
    assert loaded.code == (pattern == PATTERNS[0])  # `load` takes long names as well: its log has the highest limits
    async with MultiRecordLog.open(directory) as old:
        assert not await old.create_consumer(PATTERNS[0], "c", exist_ok=True)
        await old.create_queue("a")
        await old.delete_consumer(PATTERNS[0], "c")
        assert old.inspection.consumer_rules() == [("a*", OLD)]

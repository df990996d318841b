"""Every kind of log record through whatever reads a log by itself: a kind that one of them ignores is found here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.maintenance.headers import read_headers
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.maintenance.repair import repair
from mrecordlog_async.maintenance.salvage import salvage
from mrecordlog_async.model import Record
from mrecordlog_async.options import SEGMENT_BYTES_MIN
from mrecordlog_async.storage.directory import LogDirectory
from tests import damage
from tests.cli.carried import OWNER, settings_seen
from tests.cli.running import mrecordlog

VICTIM = b"a record that a test damages"
QUEUES = [f"q{number}" for number in range(10)]


class Seen(NamedTuple):
    """What a log holds: bounds, records and settings by queue, and rules."""

    bounds: dict[str, tuple[int, int]]
    records: dict[str, list[Record]]
    settings: dict[str, QueueSettings]
    rules: list[tuple[str, str]]


def seen(directory: Path) -> Seen:
    """Return what a reader of the log sees."""
    with ReadOnlyLog.open(directory) as log:
        bounds = {name: (one.first_position, one.next_position) for name, one in log.summary().items()}
        records = {name: list(log.range(name)) for name in bounds}
    return Seen(bounds, records, *settings_seen(directory))


async def fill(directory: Path) -> None:
    """Write every kind of log record, each with an effect that can be seen."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_consumer("q*", "rule")
        await log.create_consumer("q*", "removed rule")
        await log.delete_consumer("q*", "removed rule")
        for queue in (*QUEUES, "deleted"):
            await log.create_queue(queue)
        await log.delete_queue("deleted")
        await asyncio.gather(*(log.append(queue, queue.encode()) for queue in QUEUES))  # one record for all of them
        await log.append_records("q1", None, [b"a", b"b", b"c"])
        await log.truncate("q1", 1, past_consumers=True)
        await log.append_records("q2", 30, [bytes(40_000)] * 2)
        async with log.consumer("q2", "holder", create=True, owner=OWNER) as holder:
            await holder.acknowledge(30)
        await log.create_consumer("q3", "deleted")  # one of a rule would come back in a copy
        await log.delete_consumer("q3", "deleted")
        await log.configure_queue("q4", QueueOptions(max_records=77))
        await log.seal_queue("q5")
    async with MultiRecordLog.open(directory) as log:
        await log.append("q6", b"after an opening")


async def leave_the_table(directory: Path) -> None:
    """Have the segment in which everything was written go, so that only a table of queues has the settings."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES_MIN) as log:
        for queue, one in log.summary().items():
            if one.first_position < one.next_position:
                await log.truncate(queue, one.next_position - 1, past_consumers=True)
        while 0 in log.segments:
            last = await log.append("filler", bytes(SEGMENT_BYTES_MIN // 4), create=True)
            await log.truncate("filler", last, past_consumers=True)
        await log.append_records("q1", None, [b"d", b"e"])


@pytest.fixture(params=["records", "table"])
def filled(directory: Path, request: pytest.FixtureRequest) -> Path:
    asyncio.run(fill(directory))
    if request.param == "table":
        asyncio.run(leave_the_table(directory))
    return directory


def test_the_log_has_every_kind(directory: Path) -> None:
    """Otherwise the tests below pass without having tried it: write a new kind in `fill`."""
    asyncio.run(fill(directory))
    items = list(read_headers(LogDirectory.at(directory), [0]).scan(0).items())
    kinds = {type(record) for item in items if isinstance(item, ParsedBatch) for record in item.records}
    assert kinds == set(get_args(LogRecord))


def test_a_salvage_reads_every_kind(filled: Path) -> None:
    """Of a log without damage, it finds what a reader sees."""
    expected, found = seen(filled), salvage(filled)
    queues = {one.name: one for one in found.queues}
    assert {name: one.settings for name, one in queues.items()} == expected.settings
    records = {name: [record for run in one.live_runs() for record in run.records()] for name, one in queues.items()}
    assert (records, found.rules) == (expected.records, expected.rules)
    assert {name: (one.first_position, one.next_position) for name, one in queues.items()} == expected.bounds


def test_a_repair_keeps_every_kind(filled: Path, tmp_path: Path) -> None:
    """Whatever happens to another queue, the new log has all of these."""

    async def add_victim() -> None:
        async with MultiRecordLog.open(filled) as log:
            await log.append("victim", VICTIM, create=True)
            await log.append("victim", b"next")

    expected = seen(filled)
    asyncio.run(add_victim())
    path = damage.last_segment(filled)
    damage.flip_byte(path, path.read_bytes().index(VICTIM))
    repaired = repair(filled, tmp_path / "repaired")
    found = seen(tmp_path / "repaired")
    assert repaired.written
    for table in (found.bounds, found.records, found.settings):
        del table["victim"]
    assert found == expected


def test_a_dump_has_every_kind(filled: Path, tmp_path: Path) -> None:
    """A log that was loaded from it is the same."""
    lines = mrecordlog("dump", filled).out
    assert mrecordlog("load", tmp_path / "loaded", stdin=lines).code == 0
    assert seen(tmp_path / "loaded") == seen(filled)

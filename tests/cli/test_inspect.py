"""What segments hold and which queues keep them, on the screen and as JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.maintenance.usage import usage
from tests import damage
from tests.cli.running import build, mrecordlog, three_queues


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build(tmp_path / "wal", three_queues)


def test_live_and_dead_bytes_of_each_segment_add_up(directory: Path) -> None:
    """inspect counts as live what a reader sees; all other appended bytes are dead."""
    found = usage(str(directory))
    with ReadOnlyLog.open(directory) as log:
        summaries = log.summary()
        report = log.recovery_report
    assert {queue.name: (queue.records, queue.bytes) for queue in found.queues} == {
        name: (summary.records, summary.bytes) for name, summary in summaries.items()
    }
    assert sum(segment.records for segment in found.segments) == report.records
    assert sum(segment.bytes for segment in found.segments) == report.bytes
    assert sum(segment.batches for segment in found.segments) == report.batches
    assert [segment.written_bytes for segment in found.segments] == [
        damage.batch_ends(path)[-1] for path in damage.segments(directory)
    ]


def test_pins_names_the_queue_that_keeps_segments(directory: Path) -> None:
    """One record of a quiet queue keeps every segment up to the next live record."""
    (pin,) = usage(str(directory)).pins()
    assert (pin.queue, pin.first_position, pin.first, pin.last) == ("audit", 0, 0, 1)
    lines = mrecordlog("inspect", directory, "--pins").out.splitlines()
    assert lines[3].startswith("0 |A.....") and lines[3].endswith("| audit")
    assert lines[5].startswith("2 |BBBB") and lines[5].endswith("| orders")
    assert lines[-1].startswith("segments 0-1 are kept only by audit (first position 0): ")


def test_the_table_has_a_line_for_each_segment(directory: Path) -> None:
    """Without a terminal it is plain text without colours."""
    ran = mrecordlog("inspect", directory)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    rows = [line.split() for line in ran.out.splitlines()[4:]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert [row[4:6] for row in rows] == [["13", "1"], ["12", "0"], ["12", "6"], ["4", "4"]]


def test_json_holds_everything(directory: Path) -> None:
    """Scripts get one JSON object."""
    facts = json.loads(mrecordlog("inspect", directory, "--json").out)
    assert facts["closed"] is True
    assert facts["pins"][0]["queue"] == "audit"
    assert facts["segments"][2]["live"] == {"orders": {"records": 6, "bytes": 60_000}}


def test_a_damaged_log_is_shown_all_the_same(directory: Path) -> None:
    """inspect only reports; the damaged segment is marked."""
    path = damage.segments(directory)[1]
    damage.flip_byte(path, 20_000)
    ran = mrecordlog("inspect", directory)
    assert ran.code == 0
    marked = [line for line in ran.out.splitlines() if "DAMAGED" in line]
    assert [line.split()[0] for line in marked] == ["1"]


async def test_a_log_in_use_can_be_inspected(log: MultiRecordLog, directory: Path) -> None:
    """No lock is taken and nothing is written."""
    await log.append_record("q", None, b"hello")
    found = await asyncio.to_thread(usage, directory)
    assert (found.closed, found.queues[0].records) == (False, 1)


def test_a_queue_that_was_deleted_keeps_nothing(tmp_path: Path) -> None:
    """A deleted queue's records are dead; a recreated queue keeps only its own records."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("q")
        await log.append_record("q", None, b"old")
        await log.delete_queue("q")
        await log.create_queue("q")
        await log.append_record("q", None, b"n")

    found = usage(str(build(tmp_path / "wal", fill)))
    assert [(queue.records, queue.bytes) for queue in found.queues] == [(1, 1)]
    assert sum(segment.records for segment in found.segments) == 2


async def settings_of_all_kinds(log: MultiRecordLog) -> None:
    """Queue "orders" keeps the first segment for its consumer "audit"; "plain" has a consumer that keeps nothing."""
    await log.create_queue("orders")
    await log.configure_queue("orders", QueueOptions(keep="until_acknowledged", max_bytes=1 << 30))
    await log.create_queue("plain")
    for queue in ("orders", "orders", "plain", "orders"):
        await log.append_records(queue, None, [bytes(20_000)] * 4)
    await log.create_consumer("orders", "billing", start=9)
    await log.create_consumer("orders", "audit", start=2)
    await log.create_consumer("plain", "reader", start=1)
    await log.truncate("plain", 2, past_consumers=True)
    await log.seal_queue("plain")


def test_pins_names_the_consumer_that_a_queue_waits_for(tmp_path: Path) -> None:
    """Consumers keep segments only where the queue keeps records until they are acknowledged; others are shown."""
    directory = build(tmp_path / "wal", settings_of_all_kinds)
    found = usage(directory)
    assert [queue.settings.consumers for queue in found.queues] == [{"audit": 2, "billing": 9}, {"reader": 3}]
    (pin,) = found.pins()
    assert (pin.queue, pin.settings.keeping_consumer()) == ("orders", ("audit", 2))
    lines = mrecordlog("inspect", directory, "--pins").out.splitlines()
    assert any("kept only by orders, whose consumer audit is at 2:" in line for line in lines)
    assert lines[-2:] == [
        "orders: keeps until acknowledged, at most 1.0 GiB, consumer audit at 2, consumer billing at 9",
        "plain: sealed, consumer reader at 3",
    ]
    listed = mrecordlog("ls", directory).out.splitlines()
    assert listed[0].endswith("settings") and listed[2].endswith("  sealed, consumer reader at 3")
    facts = [json.loads(line) for line in mrecordlog("ls", directory, "--json").out.splitlines()]
    assert facts[0]["settings"]["consumers"] == {"audit": 2, "billing": 9}
    assert facts[1]["settings"]["sealed"] is True

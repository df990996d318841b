"""Commands on a directory whose records are mostly on the disk: as on one whose records fit in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.maintenance.load import load
from tests.cli.running import mrecordlog

MIB = 1 << 20
LIMITS = Limits(memory_bytes=MIB, beyond_memory="disk")
RECORDS = 2_000


def text(number: int) -> str:
    """Return the payload of a record."""
    return f"{number:04} " + "x" * 2_000


async def fill(directory: Path) -> int:
    """Write four times what memory holds, and an idle queue; return where memory begins."""
    async with MultiRecordLog.open(directory, limits=LIMITS, queues=["orders", "idle"]) as log:
        await log.append_record("idle", None, b"one")
        for at in range(0, RECORDS, 20):
            await log.append_records("orders", None, [text(number).encode() for number in range(at, at + 20)])
        while log.resource_usage().memory_bytes > MIB:
            await asyncio.sleep(0.01)
        return log.memory_first("orders")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    assert asyncio.run(fill(tmp_path / "wal")) > RECORDS // 2
    return tmp_path / "wal"


def printed(*arguments: object) -> list[str]:
    """Run a command that succeeds; return its lines."""
    ran = mrecordlog(*arguments)
    assert (ran.code, ran.err) == (0, "")
    return ran.out.splitlines()


def test_cat_prints_every_record(directory: Path) -> None:
    """From the first one, from a position, and with the times."""
    assert printed("cat", directory, "orders") == list(map(text, range(RECORDS)))
    assert printed("cat", directory, "orders", "--start", "7", "--limit", "2") == [text(7), text(8)]
    lines = list(map(json.loads, printed("cat", directory, "orders", "--json", "--stop", "3")))
    assert [(line["position"], b64decode(line["payload"]).decode()) for line in lines] == [
        (number, text(number)) for number in range(3)
    ]
    assert all(line["time"] for line in lines)


def test_cat_follows_a_log_while_its_records_leave_memory(tmp_path: Path) -> None:
    """Nothing is missed or printed twice, while a writer fills several times what memory holds."""
    directory = tmp_path / "wal"

    async def create() -> None:
        async with MultiRecordLog.open(directory, queues=["orders"]):
            pass

    async def seal() -> None:
        async with MultiRecordLog.open(directory, limits=LIMITS) as log:
            await log.seal_queue("orders")

    def write() -> None:
        asyncio.run(fill(directory))
        asyncio.run(seal())

    asyncio.run(create())
    command = [sys.executable, "-m", "mrecordlog_async", "cat", str(directory), "orders", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        writer = threading.Thread(target=write)
        writer.start()
        out, _ = following.communicate(timeout=120)
        writer.join()
    assert following.returncode == 0
    assert out.splitlines() == list(map(text, range(RECORDS)))


def test_a_dump_is_whole_and_can_be_loaded_again(directory: Path, tmp_path: Path) -> None:
    """Dump, load into a new directory and into the same one; nothing is stored twice."""
    lines = tmp_path / "lines"
    lines.write_text("\n".join(printed("dump", directory)) + "\n")
    assert printed("load", tmp_path / "copy", lines) == [f"2 queues created, {RECORDS + 1:,} records stored"]
    assert printed("dump", tmp_path / "copy", "orders") == printed("dump", directory, "orders")
    (said,) = printed("load", directory, lines)
    assert said == f"0 queues created, 0 records stored, {RECORDS + 1:,} records already there"


async def test_a_load_compares_with_records_on_the_disk(directory: Path, tmp_path: Path) -> None:
    """A log that holds half of them in memory loads the same lines again, and refuses others."""
    lines = await asyncio.to_thread(printed, "dump", directory)
    async with MultiRecordLog.open(directory, limits=replace(LIMITS, memory_bytes=2 * MIB)) as log:
        assert log.memory_first("orders") > 0
        assert (await load(log, lines)).records == 0
        other = json.dumps(json.loads(lines[10]) | {"payload": "b3RoZXI="})
        with pytest.raises(Exception, match="already taken by another record"):
            await load(log, [lines[0], other])


def test_commands_that_change_a_log_need_no_memory_for_all_of_it(directory: Path) -> None:
    """append, consumers and truncate: by whatever limits a service has, and the files stay as they are."""
    gathered = sorted(directory.glob("*.runs"))
    assert len(gathered) > 5
    assert mrecordlog("append", directory, "orders", stdin="more").code == 0
    assert printed("cat", directory, "orders", "--start", RECORDS - 1) == [text(RECORDS - 1), "more"]
    assert mrecordlog("truncate", directory, "idle", "0").code == 0
    assert mrecordlog("truncate", directory, "orders", "1000").code == 0
    assert printed("cat", directory, "orders", "--limit", "1") == [text(1_001)]
    assert len(sorted(directory.glob("*.runs"))) < len(gathered)  # they went with their segments
    assert mrecordlog("verify", directory).code == 0

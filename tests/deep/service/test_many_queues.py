"""A hundred thousand queues, and the largest and the smallest payload, in the library, the service and its client."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.client import BlockingRecordLogClient
from mrecordlog_async.options import MIB
from tests.serving import Process

QUEUES = 100_000
AT_ONCE = 5_000
SERVED_BYTES_MAX = 500 * MIB


def name(number: int) -> str:
    return f"tenant-{number:06d}/events"


async def test_a_log_of_a_hundred_thousand_queues_is_served(tmp_path: Path) -> None:
    """Each has its record, a listing has pages of a thousand, and a process of ordinary size holds all of them."""
    async with MultiRecordLog.open(tmp_path / "wal") as log:
        await log.create_queues(map(name, range(QUEUES)))
        for begin in range(0, QUEUES, AT_ONCE):
            await asyncio.gather(*(log.append(name(each), b"%d" % each) for each in range(begin, begin + AT_ONCE)))
    await asyncio.to_thread(check_served, tmp_path / "wal")


def check_served(directory: Path) -> None:
    with Process(directory) as service, BlockingRecordLogClient(service.address) as client:
        assert service.process is not None
        next_positions = {queue: summary.next_position for queue, summary in client.summary().items()}
        assert next_positions == dict.fromkeys(map(name, range(QUEUES)), 1)
        for number in (0, 1, QUEUES // 2, QUEUES - 1):
            assert [bytes(payload) for _, payload in client.range(name(number))] == [b"%d" % number]
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        assert found is not None and int(found[1]) * 1024 < SERVED_BYTES_MAX


async def test_the_largest_payload_and_an_empty_one_are_stored(tmp_path: Path) -> None:
    """64 MiB and nothing, by the library and by the client; both read both."""
    largest = os.urandom(64 * MIB)
    async with MultiRecordLog.open(tmp_path / "wal", queues=["q"]) as log:
        for payload in (largest, b""):
            await log.append("q", payload)
        assert [bytes(payload) for _, payload in log.range("q")] == [largest, b""]
    await asyncio.to_thread(check_payloads, tmp_path / "wal", largest)


def check_payloads(directory: Path, largest: bytes) -> None:
    with Process(directory) as service, BlockingRecordLogClient(service.address) as client:
        for payload in (b"", largest):
            client.append("q", payload)
        assert [bytes(payload) for _, payload in client.range("q")] == [largest, b"", b"", largest]

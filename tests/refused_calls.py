"""Uses a log while the kernel refuses a system call: opens, appends, rolls, truncates, reads, copies, closes, reopens.

`python -m tests.refused_calls CALL,CALL ERROR DIRECTORY` is one such run; `MARK` on standard output ends a right one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mrecordlog_async import Limits, MultiRecordLog
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.maintenance.verify import verify
from tests.sandbox import refuse

KIB, MIB = 1 << 10, 1 << 20
MARK = "everything is there"
SEGMENT_BYTES = 1 * MIB


def records() -> Iterator[bytes]:
    """Yield payloads: small ones that are prepared writes, one that is written in pieces, and some that roll."""
    yield from (b"%d" % number * 20 for number in range(20))
    yield os.urandom(3 * MIB)
    yield from (os.urandom(300 * KIB) for _ in range(9))
    yield from (b"%d" % number for number in range(5))


async def use(directory: Path) -> None:
    """Write a log and read it, with little memory, so that records are gathered and read from the disk."""
    limits = Limits(memory_bytes=4 * MIB, beyond_memory="disk")
    kept: list[bytes] = []
    log = await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, limits=limits, queues=["kept", "cut"])
    async with log:
        for payload in records():
            kept.append(payload)
            await log.append("kept", payload)
            await log.append("cut", payload)
            await log.truncate("cut", max(log.next_position("cut") - 2, 0))
        await read(log, kept)
    async with await MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, limits=limits) as log:
        await read(log, kept)
        await log.append("kept", b"again")
        await log.truncate("kept", len(kept) - 3)
        assert log.stats().io_errors == 0
        await asyncio.to_thread(snapshot, directory, directory.with_name(directory.name + "-copy"))
    for place in (directory, directory.with_name(directory.name + "-copy")):
        assert (await asyncio.to_thread(verify, place)).ok
    async with await MultiRecordLog.open(directory, create=False) as log:
        assert [record.payload for record in log.range("kept")] == [*kept[-2:], b"again"]


async def read(log: MultiRecordLog, kept: list[bytes]) -> None:
    """Check that the queue has exactly these records."""
    found: list[bytes] = []
    while len(found) < len(kept):
        fetched = await log.fetch("kept", len(found))
        assert fetched is not None
        found += [record.payload for record in fetched]
    assert found == kept


def run() -> int:
    """Do what the module says."""
    calls, error, directory = sys.argv[1:]
    refuse(*calls.split(","), error=int(error))
    asyncio.run(use(Path(directory)))
    print(MARK)
    return 0


if __name__ == "__main__":
    sys.exit(run())

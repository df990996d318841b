"""The command line as a script sees it: exit code, standard output, standard error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.cli.output.text import open_log
from tests import warm
from tests.said import at_any_speed

BLOCK_BYTES = 32_768


class Ran(NamedTuple):
    """What a command returned and printed."""

    code: int
    out: str
    err: str


def mrecordlog(*arguments: object, stdin: str = "", cold: bool = False) -> Ran:
    """Run the command line in its own process; see `tests.warm` for *cold*."""
    done = warm.run([*map(str, arguments)], stdin, cold=cold)
    return Ran(done.returncode, done.stdout, at_any_speed(done.stderr))


def build(directory: Path, fill: Callable[[MultiRecordLog], Awaitable[None]], blocks: int = 4) -> Path:
    """Create a log of small segments, fill it with *fill* and close it."""

    async def make() -> None:
        async with MultiRecordLog.open(directory, segment_bytes=blocks * BLOCK_BYTES) as log:
            await fill(log)

    asyncio.run(make())
    return directory


async def over_several_segments(log: MultiRecordLog) -> None:
    """Two queues, "q" and "later", of 20 records each."""
    await log.create_queue("q")
    await log.create_queue("later")
    for queue in ("q", "later"):
        for number in range(20):
            await log.append(queue, bytes([number]) * 10_000)


def open_then_truncate(directory: str) -> ReadOnlyLog:
    """Open a log that is `over_several_segments` for reading; then of "q" nothing is left, of "later" one record."""

    async def truncate(log: MultiRecordLog) -> None:
        await log.truncate("q", 19)
        await log.truncate("later", 18)  # no segment with records of the other queue is left

    opened = open_log(directory)
    build(Path(directory), truncate)
    return opened


async def three_queues(log: MultiRecordLog) -> None:
    """Three queues over several segments: "audit" pins them, "orders" is truncated, "idle" is empty at position 42."""
    for queue in ("audit", "orders", "idle"):
        await log.create_queue(queue)
    await log.append_record("audit", None, b"first")
    await log.truncate("idle", 41)
    for number in range(40):
        await log.append_record("orders", None, bytes([number]) * 10_000)
    await log.truncate("orders", 29)

"""Calls whose batch is being stored, and those that wait behind it."""

from __future__ import annotations

import asyncio

from mrecordlog_async import LogFailedError, MultiRecordLog


async def begun(log: MultiRecordLog) -> None:
    """Wait until a batch is in flight."""
    while not log._engine.writer._in_flight:
        await asyncio.sleep(0)


async def failed(log: MultiRecordLog, first: bytes, second: bytes) -> LogFailedError:
    """Append to "q" twice, the second time while the first is in flight and fails the log; return the first error.

    Whether the first record was stored is unknown, and the second one was not.
    """
    in_flight = asyncio.create_task(log.append_record("q", None, first))
    await begun(log)
    waiting = asyncio.create_task(log.append_record("q", None, second))
    unknown, never = await asyncio.gather(in_flight, waiting, return_exceptions=True)
    assert isinstance(unknown, LogFailedError)
    assert isinstance(never, LogFailedError)
    assert (unknown.written, never.written) == ("unknown", "no")
    return unknown

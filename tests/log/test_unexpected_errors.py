"""Errors that no disk reports, such as a lack of memory, in the job that stores a batch: before its write and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import LogFailedError, MultiRecordLog
from tests.cached_files import CachedFiles
from tests.reopened import reopened


class Unexpected:
    """A disk whose next call of the name `fails` raises MemoryError, before or after it is made."""

    def __init__(self, *, after: bool) -> None:
        self._disk = CachedFiles()
        self._after = after
        self.fails = ""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._disk, name)

        def call(*arguments: Any, **options: Any) -> Any:
            fails, self.fails = self.fails == name, "" if self.fails == name else self.fails
            if fails and not self._after:
                raise MemoryError(name)
            result = method(*arguments, **options)
            if fails:
                raise MemoryError(name)
            return result

        return call


async def outcome(call: asyncio.Future[Any]) -> int | BaseException | None:
    """Return the result of *call*, or its error."""
    _, waiting = await asyncio.wait([call], timeout=10)
    assert not waiting, "it waits for ever"
    return call.exception() or call.result()


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["links", "write", "sync"])
async def test_a_batch_with_an_unexpected_error_is_there_or_not(
    directory: Path, step: str, after: bool, queues: int
) -> None:
    """Its calls end, no position is given twice, and a log that acknowledges nothing more says so."""
    disk = Unexpected(after=after)
    log = await MultiRecordLog.open(directory, filesystem=disk, queues=["q", "other"])
    stored = {await log.append("q", b"before"): b"before"}
    disk.fails = step
    payloads = [b"first", b"second", b"later", b"later"]
    others = [log.append_records("other", None, [b"1", b"2"])] if queues == 2 else []
    calls = map(asyncio.ensure_future, [*others, *(log.append("q", payload) for payload in payloads[:2])])
    found = [await outcome(call) for call in list(calls)][-2:]
    found += [await outcome(asyncio.ensure_future(log.append("q", b"later"))) for _ in range(2)]
    assert any(isinstance(each, Exception) for each in found[:2])
    for position, payload in zip(found, payloads, strict=True):
        if isinstance(position, int):
            assert position not in stored
            stored[position] = payload
    if log.inspection.failure is not None:
        assert {type(each) for each in found} == {LogFailedError}
    await log.close()
    records = dict((await reopened(directory))["q"])
    assert stored.items() <= records.items()
    assert len(records) <= len(payloads) + 1

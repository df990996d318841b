"""The policies of persistence, and options that are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import (
    Limits,
    MultiRecordLog,
    PersistAction,
    PersistPolicy,
)
from tests.conftest import contents


@pytest.mark.parametrize(
    "policy",
    [
        PersistPolicy.always(),
        PersistPolicy.always(action=PersistAction.FLUSH),
        PersistPolicy.interval(0.01),
        PersistPolicy.interval(60, action=PersistAction.FLUSH),
        PersistPolicy.never(),
    ],
)
async def test_every_policy_stores_and_reopens(directory: Path, policy: PersistPolicy) -> None:
    """Under each policy what was written is there after a clean close."""
    async with MultiRecordLog.open(directory, persist_policy=policy) as log:
        await log.create_queue("q")
        for n in range(20):
            await log.append_record("q", None, b"%d" % n)
        await log.sync()
        before = contents(log)
    async with MultiRecordLog.open(directory) as log:
        assert contents(log) == before


def test_an_action_may_be_given_as_text() -> None:
    """It equals the member of the enumeration, so it must mean the same: what is acknowledged is synced."""
    fsync: Any = "fsync"
    flush: Any = "flush"
    assert PersistPolicy.always(action=fsync).syncs_each_batch
    assert PersistPolicy.interval(1, action=fsync).sync_interval_seconds == 1
    assert not PersistPolicy.always(action=flush).syncs_each_batch
    assert PersistPolicy.interval(1, action=flush).sync_interval_seconds is None


async def test_weaker_policies_sync_less(directory: Path) -> None:
    """`never` acknowledges without fsync, and `sync` does it on request."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never()) as log:
        await log.create_queue("q")
        before = log.stats().syncs
        for _ in range(10):
            await log.append_record("q", None, b"x")
        assert log.stats().syncs == before
        await log.sync()
        assert log.stats().syncs == before + 1
        await log.sync()
        assert log.stats().syncs == before + 1


async def test_interval_syncs_by_its_own_timer(directory: Path) -> None:
    """An idle log under `interval` becomes durable without another call."""
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.interval(0.001)) as log:
        await log.create_queue("q")
        before = log.stats().syncs
        await log.append_record("q", None, b"x")
        while log.stats().syncs == before:
            await asyncio.sleep(0.001)
        assert log.stats().syncs > before


@pytest.mark.parametrize(
    "make",
    [
        lambda: PersistPolicy.interval(0),
        lambda: PersistPolicy.interval(-1),
        lambda: PersistPolicy("sometimes"),  # type: ignore[arg-type]  # the mistake under test
        lambda: Limits(memory_bytes=0),
        lambda: Limits(record_bytes=2**31),
        lambda: Limits(record_bytes=1000, pending_bytes=999),
        lambda: Limits(on_full="explode"),  # type: ignore[arg-type]  # the mistake under test
        lambda: Limits(name_bytes=70_000),
        lambda: MultiRecordLog.open("x", segment_bytes=100),
    ],
)
def test_bad_options(make: Any) -> None:
    """Options that make no sense are refused where they are made."""
    with pytest.raises(ValueError, match=r"."):
        make()

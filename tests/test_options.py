"""Every option of a queue arrives wherever options go. A new option is tried here without a line being written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog, QueueOptions, ReadOnlyLog
from mrecordlog_async.client import RecordLogClient
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.options import QUEUE_CHOICES, QUEUE_OPTIONS
from tests.cli.running import BLOCK_BYTES, mrecordlog
from tests.served import serving

SIZES: dict[str, float] = {"bytes": 3_000_017, "records": 40_011, "seconds": 90.25}


def values() -> dict[str, Any]:
    """Return a value of every option that is not its default."""
    return {name: SIZES[facts.unit] if facts.unit else QUEUE_CHOICES[name][1] for name, facts in QUEUE_OPTIONS.items()}


def _without(*names: str) -> QueueOptions:
    return QueueOptions(**{name: value for name, value in values().items() if name not in names})


DROPPING, KEEPING = _without("keep", "keep_at_least"), _without("when_full", "max_age")
"""Two queues that have all options between them: some contradict each other."""

BOTH = pytest.mark.parametrize("options", [DROPPING, KEEPING], ids=["dropping", "keeping"])


def flags(options: QueueOptions) -> Iterator[str]:
    """Yield *options* as the command line takes them."""
    for name, value in asdict(options).items():
        if value != getattr(QueueOptions(), name):
            yield from (f"--{name.replace('_', '-')}", str(value))


def read(directory: Path) -> QueueOptions:
    """Return the options of the queue in a log that is not open."""
    with ReadOnlyLog.open(directory) as log:
        return log.queue_options("q")


def test_no_option_is_left_out() -> None:
    """Otherwise the tests below pass without having tried it."""
    differing = {
        one.name
        for one in fields(QueueOptions)
        for options in (DROPPING, KEEPING)
        if getattr(options, one.name) != one.default
    }
    assert differing == {one.name for one in fields(QueueOptions)} == set(values())


@BOTH
async def test_options_arrive_over_http(directory: Path, options: QueueOptions) -> None:
    """As the client sends and reads them, and in JSON."""
    async with serving(directory) as served, RecordLogClient(served.url) as client:
        await client.create_queue("created", options=options)
        await client.create_queue("q")
        await client.configure_queue("q", options)
        assert await client.queue_options("q") == await client.queue_options("created") == options
        shown = (await served.call("GET", "/v1/queues/q/options")).json()
        assert shown == {"queue": "q", **asdict(options), "sealed": False}


@BOTH
def test_options_arrive_from_the_command_line(directory: Path, options: QueueOptions) -> None:
    """Each option is a flag of its name; `ls` shows every one that is set."""
    done = mrecordlog("configure", directory, "q", "--create", *flags(options))
    assert done.out == "q: created\n"
    assert read(directory) == options
    listed = json.loads(mrecordlog("ls", directory, "--json").out)
    assert listed["settings"]["options"] == asdict(options)
    shown = mrecordlog("ls", directory).out
    for name, facts in QUEUE_OPTIONS.items():
        if getattr(options, name) != getattr(QueueOptions(), name):
            assert all(words in shown for words in facts.shown.split("{}")), name


@BOTH
async def test_options_survive_a_restart_and_a_roll(directory: Path, options: QueueOptions) -> None:
    """From a log record, and from the table of a later segment once the record is no longer there."""
    async with MultiRecordLog.open(directory, segment_bytes=4 * BLOCK_BYTES) as log:
        await log.create_queue("q", options=options)
        await log.create_queue("other")
    assert await asyncio.to_thread(read, directory) == options
    async with MultiRecordLog.open(directory, segment_bytes=4 * BLOCK_BYTES) as log:
        for _ in range(20):
            await log.truncate("other", await log.append("other", bytes(20_000)))
        assert log.segments.start > 0
    assert await asyncio.to_thread(read, directory) == options


@BOTH
async def test_options_are_dumped_and_copied(directory: Path, tmp_path: Path, options: QueueOptions) -> None:
    """A dump and a snapshot have them, and a load sets them."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q", options=options)
        await asyncio.to_thread(snapshot, str(directory), str(tmp_path / "snapshot"))
    assert await asyncio.to_thread(read, tmp_path / "snapshot") == options
    lines = (await asyncio.to_thread(mrecordlog, "dump", directory)).out
    await asyncio.to_thread(mrecordlog, "load", tmp_path / "loaded", stdin=lines)
    assert await asyncio.to_thread(read, tmp_path / "loaded") == options

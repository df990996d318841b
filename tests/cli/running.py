"""The command line as a script sees it: exit code, standard output, standard error."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import pytest

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.cli.errors import UsageError
from mrecordlog_async.cli.main import cli, what_is_wrong
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


def given(*words: str) -> dict[str, Any]:
    """Return the arguments of a command line by name, as its command gets them. Raises click.UsageError."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None, "it is one of the commands"
    return command.make_context(words[0], list(words[1:]), obj={}).params


def settings_of(*words: str, environment: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the settings of `serve`, of these options and variables. Raises UsageError."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("MRECORDLOG_")]:
            patch.delenv(name)
        for name, text in environment.items():
            patch.setenv(name, text)
        try:
            return given("serve", "./wal", *words)
        except click.UsageError as error:
            raise UsageError(what_is_wrong(error)) from None


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

    opened = ReadOnlyLog.open(directory, keep_records=False)
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

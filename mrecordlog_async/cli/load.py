"""Read lines of JSON, as `dump` writes them, into a log.

Queues are made where they are missing. Records go to the positions that the lines name, so loading the same lines again
stores nothing twice; a line without a position is appended at the end. Lines of one queue that follow each other are
stored together, and everything is synced before the command ends. A line that is wrong stops it, with its number.

  mrecordlog dump ./wal | mrecordlog load ./copy
  echo '{"queue": "orders", "text": "hello"}' | mrecordlog load ./wal
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from mrecordlog_async.cli.exits import FINE, UsageError
from mrecordlog_async.cli.moves import BUILD_LIMITS
from mrecordlog_async.cli.show import plural
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.options import GIB, PersistPolicy

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 10_000
"""Records are stored together up to about this much."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "load",
        help="read lines of JSON into a log",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", help="the log's directory, made if missing; it must not be in use")
    parser.add_argument("file", nargs="?", help="file with the lines (default: standard input)")
    parser.add_argument("--segment-bytes", type=int, default=GIB, help="size of a segment (default: 1 GiB)")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Load."""
    if arguments.file is None:
        loaded = asyncio.run(_load(arguments, sys.stdin))
    else:
        with open(arguments.file, encoding="utf-8") as lines:
            loaded = asyncio.run(_load(arguments, lines))
    if arguments.json:
        print(json.dumps({"queues": loaded.queues, "records": loaded.records, "repeats": loaded.repeats}))
    else:
        print(f"{plural(loaded.queues, 'queue')} made, {plural(loaded.records, 'record')} stored", end="")
        print(f", {plural(loaded.repeats, 'record')} already there" if loaded.repeats else "")
    return FINE


async def _load(arguments: argparse.Namespace, lines: Iterable[str]) -> Loader:
    async with MultiRecordLog.open(
        arguments.directory,
        persist_policy=PersistPolicy.never(),
        limits=BUILD_LIMITS,
        segment_bytes=arguments.segment_bytes,
    ) as log:
        loader = Loader(log)
        try:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    await loader.take(number, line)
        finally:
            await loader.flush()
        await log.sync()
    return loader


@dataclass(slots=True)
class Loader:
    """Gathers lines to appends."""

    log: MultiRecordLog
    queues: int = 0
    records: int = 0
    repeats: int = 0
    _queue: str = ""
    _position: int | None = None
    _payloads: list[bytes] = field(default_factory=list)
    _bytes: int = 0

    async def take(self, number: int, line: str) -> None:
        """Take a line; UsageError with its number if it is none."""
        try:
            facts = json.loads(line)
            queue = facts["queue"]
            payload = _payload(facts)
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise UsageError(f"line {number} is no line of a dump: {error!r}") from None
        if payload is None:
            await self.flush()
            await self._make(queue, facts.get("first_position", 0), facts.get("next_position", 0))
        else:
            await self._add(queue, facts.get("position"), payload)

    async def flush(self) -> None:
        """Store what was gathered."""
        payloads, self._payloads, self._bytes = self._payloads, [], 0
        if not payloads:
            return
        if not self.log.queue_exists(self._queue):
            await self._make(self._queue, 0, 0)
        last = await self.log.append_records(self._queue, self._position, payloads)
        if last is None:
            self.repeats += len(payloads)
        else:
            self.records += len(payloads)

    async def _make(self, queue: str, first_position: int, next_position: int) -> None:
        """Make a queue that is missing, and bring a new one to its first position."""
        if await self.log.create_queue(queue, exist_ok=True):
            self.queues += 1
            if first_position:
                await self.log.truncate(queue, first_position - 1)
        elif first_position == next_position > self.log.next_position(queue):
            await self.log.truncate(queue, next_position - 1)

    async def _add(self, queue: str, position: int | None, payload: bytes) -> None:
        follows = queue == self._queue and (
            position is None if self._position is None else position == self._position + len(self._payloads)
        )
        if self._payloads and (not follows or self._bytes >= BATCH_BYTES or len(self._payloads) >= BATCH_RECORDS):
            await self.flush()
        if not self._payloads:
            self._queue, self._position = queue, position
        self._payloads.append(payload)
        self._bytes += len(payload)


def _payload(facts: dict[str, Any]) -> bytes | None:
    """Return the payload of a record's line, None for a queue's line."""
    if "text" in facts:
        return str(facts["text"]).encode()
    if "payload" in facts:
        return base64.b64decode(facts["payload"], validate=True)
    return None

"""Read lines of JSON, as `dump` writes them, into a log.

Into a directory, made if missing and not in use, or through a service (--url). Queues are made where they are missing.
Records go to the positions that the lines name, so loading the same lines again stores nothing twice; a line without a
position is appended at the end. Lines of one queue that follow each other are stored together, and everything is
durable when the command ends. A line that is wrong stops it, with its number.

  mrecordlog dump ./wal | mrecordlog load ./copy
  echo '{"queue": "orders", "text": "hello"}' | mrecordlog load ./wal
  mrecordlog load --url http://127.0.0.1:8080 < wal.ndjson
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.exit_codes import FINE, UsageError
from mrecordlog_async.cli.output import plural
from mrecordlog_async.cli.target import APPEND_RETRY_SECONDS, add_target, connect, run_async
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.rebuild import BUILD_LIMITS
from mrecordlog_async.options import GIB, PersistPolicy

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

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
    parser.add_argument("directory", nargs="?", help="the same as --dir")
    parser.add_argument("file", nargs="?", help="file with the lines (default: standard input)")
    add_target(parser)
    parser.add_argument("--segment-bytes", type=int, default=GIB, help="size of a segment (default: 1 GiB)")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Load."""
    if arguments.directory and (arguments.url or arguments.dir):
        # With --url or --dir there is only one name left to give, and it is the file's.
        arguments.directory, arguments.file = None, arguments.directory
    if arguments.file is None:
        return run_async(_run(arguments, sys.stdin))
    with open(arguments.file, encoding="utf-8") as lines:
        return run_async(_run(arguments, lines))


async def _run(arguments: argparse.Namespace, lines: Iterable[str]) -> int:
    directory = arguments.dir or arguments.directory
    if directory:
        loaded = await _load_directory(directory, arguments.segment_bytes, lines)
    else:
        async with connect(arguments, APPEND_RETRY_SECONDS) as client:
            loaded = await load(client, lines)
    if arguments.json:
        print(json.dumps({"queues": loaded.queues, "records": loaded.records, "repeats": loaded.repeats}))
    else:
        print(f"{plural(loaded.queues, 'queue')} made, {plural(loaded.records, 'record')} stored", end="")
        print(f", {plural(loaded.repeats, 'record')} already there" if loaded.repeats else "")
    return FINE


async def _load_directory(directory: str, segment_bytes: int, lines: Iterable[str]) -> Loader:
    async with MultiRecordLog.open(
        directory, persist_policy=PersistPolicy.never(), limits=BUILD_LIMITS, segment_bytes=segment_bytes
    ) as log:
        loaded = await load(log, lines)
        await log.sync()
    return loaded


async def load(target: MultiRecordLog | RecordLogClient, lines: Iterable[str]) -> Loader:
    """Store *lines* in *target*; what came before a wrong line is stored."""
    loader = Loader(target)
    try:
        for number, line in enumerate(lines, 1):
            if line.strip():
                await loader.take(number, line)
    finally:
        await loader.flush()
    return loader


@dataclass(slots=True)
class Loader:
    """Gathers lines to appends."""

    target: MultiRecordLog | RecordLogClient
    queues: int = 0
    records: int = 0
    repeats: int = 0
    _known: set[str] = field(default_factory=set)
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
            await self._make(queue, facts.get("first_position", 0))
        else:
            await self._add(queue, facts.get("position"), payload)

    async def flush(self) -> None:
        """Store what was gathered."""
        payloads, self._payloads, self._bytes = self._payloads, [], 0
        if not payloads:
            return
        if self._queue not in self._known:
            await self._make(self._queue, 0)
        last = await self.target.append_records(self._queue, self._position, payloads)
        if last is None:
            self.repeats += len(payloads)
        else:
            self.records += len(payloads)

    async def _make(self, queue: str, first_position: int) -> None:
        """Make a queue that is missing, and bring a new one to its first position."""
        self._known.add(queue)
        if not await self.target.create_queue(queue, exist_ok=True):
            return
        self.queues += 1
        if first_position:
            # A service truncates only what was given away: so the position before the first one is, and goes again.
            await self.target.append_record(queue, first_position - 1, b"")
            await self.target.truncate(queue, first_position - 1)

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

"""Stores the lines of a dump. Consecutive records of a queue are appended together, at the positions in their lines."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.exit_codes import UsageError
from mrecordlog_async.errors import PositionInPastError, RecordLogError, RecordTooLargeError
from mrecordlog_async.log import MultiRecordLog

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 10_000
"""One append has about this many bytes, or this many records."""


class LineError(RecordLogError):
    """A log refuses the records of lines *first* … *last*. Nothing of them was stored; the lines before them were."""

    def __init__(self, first: int, last: int, error: RecordLogError) -> None:
        super().__init__(first, last, error)

    def message(self) -> str:
        """Return which lines were refused, and why."""
        first, last, error = self.facts
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        return f"{lines}: {error}; everything before line {first} is stored"


async def load(target: MultiRecordLog | RecordLogClient, lines: Iterable[str]) -> Loader:
    """Store *lines* in *target*. Raises UsageError for an invalid line; the lines before it are stored."""
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
    """Collects lines into appends, and counts queues created, records stored, and repeats of records already stored."""

    target: MultiRecordLog | RecordLogClient
    queues: int = 0
    records: int = 0
    repeats: int = 0
    _known: set[str] = field(default_factory=set)
    _queue: str = ""
    _position: int | None = None
    _payloads: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _first_line: int = 0
    _last_line: int = 0

    async def take(self, number: int, line: str) -> None:
        """Take one line. Raises UsageError with its number if it is invalid."""
        try:
            facts = json.loads(line)
            queue = facts["queue"]
            payload = _payload(facts)
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise UsageError(f"line {number} is not a valid dump line: {error!r}") from None
        if payload is None:
            await self.flush()
            await self._create(queue, facts.get("first_position", 0))
        else:
            await self._add(number, queue, facts.get("position"), payload)

    async def flush(self) -> None:
        """Store what was collected."""
        payloads, self._payloads, self._bytes = self._payloads, [], 0
        if not payloads:
            return
        if self._queue not in self._known:
            await self._create(self._queue, 0)
        try:
            last = await self.target.append_records(self._queue, self._position, payloads)
        except (PositionInPastError, RecordTooLargeError) as error:
            raise LineError(self._first_line, self._last_line, error) from error
        if last is None:
            self.repeats += len(payloads)
        else:
            self.records += len(payloads)

    async def _create(self, queue: str, first_position: int) -> None:
        """Create the queue if it is missing, and advance a new one to its first position."""
        self._known.add(queue)
        if not await self.target.create_queue(queue, exist_ok=True):
            return
        self.queues += 1
        if first_position:
            # A service truncates only assigned positions, so the one before the first is stored and removed again.
            await self.target.append_record(queue, first_position - 1, b"")
            await self.target.truncate(queue, first_position - 1)

    async def _add(self, number: int, queue: str, position: int | None, payload: bytes) -> None:
        follows = queue == self._queue and (
            position is None if self._position is None else position == self._position + len(self._payloads)
        )
        if self._payloads and (not follows or self._bytes >= BATCH_BYTES or len(self._payloads) >= BATCH_RECORDS):
            await self.flush()
        if not self._payloads:
            self._queue, self._position, self._first_line = queue, position, number
        self._last_line = number
        self._payloads.append(payload)
        self._bytes += len(payload)


def _payload(facts: dict[str, Any]) -> bytes | None:
    """Return the payload of a record's line, None for a queue's line."""
    if "text" in facts:
        return str(facts["text"]).encode()
    if "payload" in facts:
        return base64.b64decode(facts["payload"], validate=True)
    return None

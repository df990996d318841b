"""Stores the lines of a dump. Consecutive records of a queue are appended together, at the positions in their lines.

Options, seals, consumers and rules are set once all records are stored: see `maintenance.carry`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.dumped_settings import settings_of
from mrecordlog_async.cli.exit_codes import UsageError
from mrecordlog_async.errors import PositionInPastError, RecordLogError, RecordTooLargeError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.carry import Carried, carry_all
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.memory.settings import is_pattern

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
    """Store *lines* in *target*.

    Raises:
        UsageError: A line is invalid. The records before it are stored; options, seals and consumers are not set.
    """
    loader = Loader(target)
    try:
        for number, line in enumerate(lines, 1):
            if line.strip():
                await loader.take(number, line)
    finally:
        await loader.flush()
    await loader.set_all()
    return loader


@dataclass(slots=True)
class Loader:
    """Collects lines into appends, and counts queues created, records stored, and repeats of records already stored."""

    target: MultiRecordLog | RecordLogClient
    queues: int = 0
    records: int = 0
    repeats: int = 0
    _known: dict[str, bool] = field(default_factory=dict)
    _settings: dict[str, QueueSettings] = field(default_factory=dict)
    _rules: list[tuple[str, str]] = field(default_factory=list)
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
            if "pattern" in facts:
                self._rules.append(_rule(facts))
                return
            queue = facts["queue"]
            payload = _payload(facts)
            settings = settings_of(facts) if payload is None else None
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise UsageError(f"line {number} is not a valid dump line: {error!r}") from None
        if payload is None:
            if settings:
                self._settings[queue] = settings
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

    async def set_all(self) -> None:
        """Set options, consumers and seals of the queues, and the rules."""
        carried = (Carried(queue, settings, self._known[queue]) for queue, settings in self._settings.items())
        await carry_all(self.target, carried, self._rules)

    async def _create(self, queue: str, first_position: int) -> None:
        """Create the queue if it is missing, and advance a new one to its first position."""
        created = await self.target.create_queue(queue, exist_ok=True)
        self._known[queue] = self._known.get(queue, created)
        if not created:
            return
        self.queues += 1
        if first_position:
            # A service truncates only assigned positions, so the one before the first is stored and removed again.
            await self.target.append_record(queue, first_position - 1, b"")
            # A rule of the target may have given the new queue a consumer, which misses nothing here.
            await self.target.truncate(queue, first_position - 1, past_consumers=True)

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


def _rule(facts: dict[str, Any]) -> tuple[str, str]:
    """Return the pattern and the consumer of a rule's line."""
    pattern, consumer = facts["pattern"], facts["consumer"]
    if type(pattern) is not str or type(consumer) is not str or not is_pattern(pattern):
        raise ValueError(f"a rule needs a pattern with * and a consumer, not {facts!r}")
    return pattern, consumer


def _payload(facts: dict[str, Any]) -> bytes | None:
    """Return the payload of a record's line, None for a queue's line."""
    if "text" in facts:
        return str(facts["text"]).encode()
    if "payload" in facts:
        return base64.b64decode(facts["payload"], validate=True)
    return None

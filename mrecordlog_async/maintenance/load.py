"""Stores the lines of a dump. Consecutive records of a queue are appended together, at the positions in their lines.

The same lines, or a longer dump of the same log, complete what an attempt that ended early has stored:

1. A queue without records is advanced to the first position of its line, even if an earlier attempt has created it.
2. Records that are stored already are compared, and the others appended.
3. Options, seals, consumers and rules are set once all records are stored: see `transfer`. Before that, each queue must
   reach the next position of its line: otherwise the end of the dump is missing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mrecordlog_async.errors import PositionInPastError, QueueNameError, RecordLogError, RecordTooLargeError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.dumped_lines import EMPTY_LOG, QueueLine, RecordLine, RuleLine, parse_line
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.maintenance.transfer import Carried, carry_all
from mrecordlog_async.model import QueueSummary
from mrecordlog_async.names import STORED_BYTES_MAX, check_new_name

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

    Target: TypeAlias = MultiRecordLog | RecordLogClient

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


class OtherRecordError(PositionInPastError):
    """The position is taken by a record with another payload."""

    def message(self) -> str:
        """Return which position it is."""
        return (
            f"queue {self.queue!r}: position {self.position} is already taken by another record, the next one is "
            f"{self.next_position}"
        )


class NoLinesError(RecordLogError):
    """The input is empty."""

    def message(self) -> str:
        """Return what that means."""
        return (
            "there are no lines to load: the file is empty, or the command that should have written them failed; the "
            f"dump of a log without queues is {json.dumps(EMPTY_LOG)}"
        )


class IncompleteDumpError(RecordLogError):
    """The end of a dump is missing. Its lines are stored."""

    def message(self) -> str:
        """Return what is missing, and what was not done."""
        return (
            f"{self.facts[0]}: the dump is incomplete; its lines are stored, but options, seals, consumers and rules "
            "are not set; load a complete dump to continue"
        )


async def load(target: Target, lines: Iterable[str] | AsyncIterable[str]) -> Loader:
    """Store *lines* in *target*.

    Raises:
        InvalidLineError: A line is none of a dump. The records before it are stored; options, seals and consumers are
            not set.
        LineError: The log refuses records; the same is true.
        IncompleteDumpError: The end of the dump is missing; the same is true.
        NoLinesError: There are no lines.
    """
    loader, number = Loader(target), 0
    try:
        async for line in lines if isinstance(lines, AsyncIterable) else _each(lines):
            number += 1
            if line.strip():
                await loader.take(number, line)
    finally:
        # Even after an invalid line: what is before it is stored, as the error says.
        await loader.flush()
    await loader.check_end()
    await loader.advance_truncated()
    await loader.set_all()
    return loader


async def begun(lines: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    """Return *lines* once the first one is read and can be loaded into a new log, which need not exist before.

    Raises:
        InvalidLineError: The line is none of a dump.
        QueueNameError: No new queue may have the name in the line.
        NoLinesError: There are no lines.
    """
    source, read = aiter(lines if isinstance(lines, AsyncIterable) else _each(lines)), list[str]()
    async for line in source:
        read.append(line)
        if line.strip():
            match parse_line(len(read), line):
                case QueueLine(name) | RecordLine(name):
                    check_new_name(name, STORED_BYTES_MAX)
            return _chained(read, source)
    raise NoLinesError


async def _chained(read: list[str], rest: AsyncIterator[str]) -> AsyncIterator[str]:
    for line in read:
        yield line
    async for line in rest:
        yield line


async def _each(lines: Iterable[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


@dataclass(slots=True)
class _Queue:
    """A queue during the load."""

    created: bool  # it did not exist before
    records: int = 0  # how many records its lines have had so far
    first_position: int = 0  # as its line has it
    end: int = 0  # the position after the last one of them, or the first one of the queue
    due: int = 0  # the next position that its line has, if the queue is not empty there


@dataclass(slots=True)
class Loader:
    """Collects lines into appends, and counts queues created, records stored, and repeats of records already stored."""

    target: Target
    queues: int = 0
    records: int = 0
    repeats: int = 0
    _known: dict[str, _Queue] = field(default_factory=dict)
    _settings: dict[str, QueueSettings] = field(default_factory=dict)
    _rules: list[tuple[str, str]] = field(default_factory=list)
    _has_lines: bool = False
    _remaining: int = 0
    _queue: str = ""
    _position: int | None = None
    _payloads: list[bytes] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    """Of the lines that the payloads are from."""
    _bytes: int = 0

    async def take(self, number: int, line: str) -> None:
        """Take one line. Raises InvalidLineError with its number if it is none of a dump."""
        self._has_lines = True
        match parse_line(number, line):
            case QueueLine() as queue:
                if queue.settings:
                    self._settings[queue.queue] = queue.settings
                self._remaining = queue.remaining
                await self.flush()
                await self._create(number, queue)
            case RecordLine() as record:
                await self._add(number, record)
            case RuleLine(pattern, consumer, remaining):
                self._rules.append((pattern, consumer))
                self._remaining = remaining

    async def flush(self) -> None:
        """Store what was collected."""
        payloads, numbers = self._payloads, self._numbers
        self._payloads, self._numbers, self._bytes = [], [], 0
        if not payloads:
            return
        if self._queue not in self._known:
            await self._create(numbers[0], QueueLine(self._queue))
        await self._store(self._position, payloads, numbers)

    async def check_end(self) -> None:
        """Raise NoLinesError if there were none, and IncompleteDumpError if lines are missing at the end.

        What is stored already does not count as missing. Nor does what was truncated while the dump was made: the dump
        says so in another line of the queue.
        """
        if not self._has_lines:
            raise NoLinesError
        for name, queue in self._known.items():
            if queue.end < queue.due and (await summary_of(self.target, name)).next_position < queue.due:
                raise IncompleteDumpError(
                    f"the lines of queue {name!r} end before position {queue.end}, but its next position is {queue.due}"
                )
        if self._remaining:
            raise IncompleteDumpError(
                f'queues or rules are missing after the last one ("remaining": {self._remaining})'
            )

    async def advance_truncated(self) -> None:
        """Advance the queues that were truncated while they were dumped, and remove those of their records that were.

        Not before the end: the same lines could not complete an attempt that was killed after this.
        """
        for name, queue in self._known.items():
            if queue.records and queue.first_position and not queue.due:
                await begin_at(self.target, name, queue.first_position, queue.records)

    async def set_all(self) -> None:
        """Set options, consumers and seals of the queues, and the rules."""
        carried = (Carried(queue, settings, self._known[queue].created) for queue, settings in self._settings.items())
        await carry_all(self.target, carried, self._rules)

    async def _create(self, number: int, line: QueueLine) -> None:
        """Create the queue if it is missing, and advance it to its first position if it has no records."""
        try:
            created = await self.target.create_queue(line.queue, exist_ok=True)
        except QueueNameError as error:
            raise LineError(number, number, error) from error
        self.queues += created
        queue = self._known.setdefault(line.queue, _Queue(created))
        queue.first_position, queue.end = line.first_position, max(queue.end, line.first_position)
        queue.due = 0 if line.first_position == line.next_position else line.next_position
        if line.first_position:
            await begin_at(self.target, line.queue, line.first_position)

    async def _add(self, number: int, record: RecordLine) -> None:
        queue, position, payload = record
        follows = queue == self._queue and (
            position is None if self._position is None else position == self._position + len(self._payloads)
        )
        if self._payloads and (not follows or self._bytes >= BATCH_BYTES or len(self._payloads) >= BATCH_RECORDS):
            await self.flush()
        if not self._payloads:
            self._queue, self._position = queue, position
        self._numbers.append(number)
        self._payloads.append(payload)
        self._bytes += len(payload)

    async def _store(self, position: int | None, payloads: list[bytes], numbers: list[int]) -> None:
        """Append records. If the first ones are stored already, these are compared and the others appended."""
        try:
            last = await self.target.append_records(self._queue, position, payloads)
        except RecordTooLargeError as error:
            raise LineError(numbers[0], numbers[-1], error) from error
        except PositionInPastError as error:
            assert position is not None, "a position that is chosen by the log is never taken"
            known = error.next_position - position
            if not 0 < known < len(payloads):
                raise await self._refusal(error, position, payloads, numbers) from error
            await self._store(position, payloads[:known], numbers[:known])
            await self._store(error.next_position, payloads[known:], numbers[known:])
            return
        queue = self._known[self._queue]
        queue.records += len(payloads)
        if last is None:
            self.repeats += len(payloads)
        else:
            self.records += len(payloads)
            queue.end = last + 1
        if position is not None:
            queue.end = position + len(payloads)

    async def _refusal(
        self, error: PositionInPastError, position: int, payloads: list[bytes], numbers: list[int]
    ) -> LineError:
        """Return why records were refused whose positions are all taken: the first one that differs."""
        if not error.outcome_unknown:
            first = (await summary_of(self.target, self._queue)).first_position
            held = await records_of(self.target, self._queue, position, position + len(payloads))
            for at, payload, number in zip(range(position, error.next_position), payloads, numbers, strict=False):
                if at >= first and held.get(at) != payload:
                    kind = OtherRecordError if at in held else PositionInPastError
                    return LineError(number, number, kind(self._queue, at, error.next_position))
        return LineError(numbers[0], numbers[-1], error)


PLACEHOLDER = b""
"""The record that has a service assign the positions before those of a new queue. It is removed again."""


async def summary_of(target: Target, queue: str) -> QueueSummary:
    """Return the positions and the number of records of *queue*."""
    if isinstance(target, MultiRecordLog):
        return target.queue_summary(queue)
    return await target.queue_summary(queue)


async def records_of(target: Target, queue: str, start: int, stop: int) -> dict[int, bytes]:
    """Return the records of *queue* at positions *start* … *stop* - 1, by position."""
    read = target.read if isinstance(target, MultiRecordLog) else target.range
    return {position: payload async for position, payload in read(queue, start, stop)}


async def begin_at(target: Target, queue: str, first_position: int, own_records: int = 0) -> None:
    """Advance *queue* to *first_position*, unless it holds other records than *own_records* ones, which are removed.

    If it is there already, only what an attempt that was killed has left of these steps is removed.
    """
    found = await summary_of(target, queue)
    if found.next_position < first_position:
        if found.records == own_records:
            await _advance(target, queue, first_position)
    elif await _has_placeholder(target, found, first_position - 1, own_records):
        await target.truncate(queue, first_position - 1, past_consumers=True)


async def _advance(target: Target, queue: str, next_position: int) -> None:
    if not isinstance(target, MultiRecordLog):
        # A service truncates only assigned positions.
        await target.append_record(queue, next_position - 1, PLACEHOLDER)
    # A rule of the target may have given the new queue a consumer, which misses nothing here.
    await target.truncate(queue, next_position - 1, past_consumers=True)


async def _has_placeholder(target: Target, found: QueueSummary, position: int, own_records: int) -> bool:
    """Return whether *position* holds the placeholder of a load that was killed before it removed it."""
    is_first = position == found.first_position == found.began
    is_last = position == found.next_position - 1 and found.records == own_records + 1
    if not found.records or not (is_first or is_last):
        return False
    return await records_of(target, found.queue, position, position + 1) == {position: PLACEHOLDER}

"""The commands that callers send to the writer, and those that append. `controls` has all others.

A command holds its callers' futures and finishes each of them once.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress, count

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import Run

CALL_OVERHEAD_BYTES = 200
RECORD_OVERHEAD_BYTES = 60
"""Bytes charged for a waiting call and each of its records besides payloads, so that empty records have a bound."""

SINGLE_OVERHEAD_BYTES = CALL_OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES
"""The same for a call with one record."""


ELSEWHERE = (
    "the log belongs to another event loop; from a thread, such as that of a `def` endpoint, call it with "
    "asyncio.run_coroutine_threadsafe or anyio.from_thread.run"
)
"""Message of the error for a call that was not made on the log's event loop."""


class Reserve(IntEnum):
    """The part of the current segment's reserve that a command may use on a full disk; a batch uses the least of these.

    The reserve is for what frees space. Attaching and sealing free none, but must succeed on a full disk, too: they may
    fill a half, so that a truncate always finds the other one.
    """

    NOTHING = 0
    HALF = 1
    ALL = 2


@dataclass(slots=True, eq=False)
class Command:
    """One call: its future, what it is charged while it waits, and what it may use on a full disk.

    reserve: unless it is NOTHING, the command is tried on a full disk, and not dropped because an append was refused.
    """

    future: asyncio.Future[object]
    bytes: int = field(default=CALL_OVERHEAD_BYTES, init=False)
    reserve: Reserve = field(default=Reserve.NOTHING, init=False)

    def charged_bytes(self) -> int:
        """Return what the call is charged."""
        return self.bytes

    def withdrawn(self) -> bool:
        """Return whether no caller waits any more, so that the command can be skipped."""
        return self.future.done()

    def waiting_appends(self) -> int:
        """Return the number of appending callers that still wait. Visits all of them."""
        return 0

    def acknowledge(self, value: object) -> None:
        """Return *value* to the caller."""
        if not self.future.done():
            self.future.set_result(value)

    def refuse(self, error: Exception) -> None:
        """Fail the call."""
        if not self.future.done():
            self.future.set_exception(copy_for_waiter(error))


class AppendGroup(Command):
    """Single records, each from its own caller and for any queue, stored by column in arrival order.

    One group serves all queues: with one group per queue, a batch for a thousand queues would need another object,
    three lists and an outcome for every record.
    """

    __slots__ = ("futures", "payloads", "queues")

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.payloads: list[bytes] = []
        self.futures: list[asyncio.Future[object]] = []
        self.bytes = 0
        self.reserve = Reserve.NOTHING

    def charged_bytes(self) -> int:
        """Return what the records are charged. Computed when the writer takes them, not per append."""
        if not len(self.queues) == len(self.payloads) == len(self.futures):
            raise MemoryError("there was none for a part of a record")  # others would get each other's positions
        return self.bytes or sum(map(len, self.payloads)) + SINGLE_OVERHEAD_BYTES * len(self.payloads)

    def withdrawn(self) -> bool:
        """Drop the records whose callers were cancelled; return whether none is left."""
        if len(self.futures) == 1:
            return self.futures[0].done()
        if any(map(asyncio.Future.done, self.futures)):
            waits = [not future.done() for future in self.futures]
            self.queues = list(compress(self.queues, waits))
            self.payloads = list(compress(self.payloads, waits))
            self.futures = list(compress(self.futures, waits))
        return not self.futures

    def waiting_appends(self) -> int:
        """Return the number of callers that still wait."""
        return sum(not future.done() for future in self.futures)

    def each(self) -> Iterator[AppendGroup]:
        """Return the records as groups of one, each with its own charge."""
        return map(self.one, range(len(self.futures)))

    def one(self, index: int) -> AppendGroup:
        """Return one record as a group, with its own charge."""
        one, payload = AppendGroup(), self.payloads[index]
        one.queues, one.payloads, one.futures = [self.queues[index]], [payload], [self.futures[index]]
        one.bytes = len(payload) + SINGLE_OVERHEAD_BYTES
        return one

    def add(self, other: AppendGroup) -> None:
        """Append the records of *other*, with their charge."""
        self.queues += other.queues
        self.payloads += other.payloads
        self.futures += other.futures
        self.bytes += other.bytes

    def one_queue(self) -> str | None:
        """Return the queue that all records are for, or None if they are for several."""
        first = self.queues[0]
        return first if self.queues.count(first) == len(self.queues) else None

    def acknowledge(self, value: object) -> None:
        """Return a position to each caller: counted up from *value*, or the items of *value* in order."""
        if len(self.futures) == 1 and type(value) is int:
            if not self.futures[0].done():
                self.futures[0].set_result(value)
            return
        for _ in self.acknowledge_in_parts(value, len(self.futures) or 1):
            pass

    def acknowledge_in_parts(self, value: object, callers: int) -> Iterator[None]:
        """Acknowledge *callers* calls per step of the returned iterator."""
        positions: Iterator[int] = count(value) if isinstance(value, int) else iter(value)  # type: ignore[call-overload]
        for at in range(0, len(self.futures), callers):
            for future, position in zip(self.futures[at : at + callers], positions, strict=False):  # count has no end
                try:  # noqa: SIM105  # a with statement per record costs more than set_result
                    future.set_result(position)
                except asyncio.InvalidStateError:  # the caller was cancelled
                    pass
            yield

    def refuse(self, error: Exception) -> None:
        """Fail all the calls."""
        for future in self.futures:
            if not future.done():
                future.set_exception(copy_for_waiter(error))


@dataclass(slots=True, eq=False)
class AppendRecords(Command):
    """Records of one call, stored together at *position*, or at the next one if it is None.

    stored: the runs that the log has on the disk alone at these positions, and the position before which they are all;
    once they were read, to compare the call with them.
    """

    queue: str
    position: int | None
    payloads: Sequence[bytes]
    stored: tuple[Sequence[Run], int] = field(default=((), 0), init=False)

    def __post_init__(self) -> None:
        """Charge the call for its payloads and records."""
        records = len(self.payloads)
        self.bytes = sum(map(len, self.payloads)) + records * RECORD_OVERHEAD_BYTES + CALL_OVERHEAD_BYTES

    def waiting_appends(self) -> int:
        """Return 1 while the caller waits."""
        return int(not self.future.done())


def count_appends(commands: Iterable[Command]) -> int:
    """Return the number of calls among *commands* that append."""
    return sum(len(one.futures) if type(one) is AppendGroup else type(one) is AppendRecords for one in commands)


def count_records(commands: Iterable[Command]) -> int:
    """Return the number of records that *commands* append."""
    return sum(len(command.payloads) for command in commands if isinstance(command, AppendRecords | AppendGroup))


def copy_for_waiter(error: Exception) -> Exception:
    """Return a copy of *error* for one waiter: a shared one would collect the tracebacks of all waiters."""
    if isinstance(error, RecordLogError):
        return error.copy()
    if isinstance(error, OSError):
        fresh = copy.copy(error)  # with its file names, which `args` lacks
        fresh.__cause__ = error.__cause__
        return fresh
    return error

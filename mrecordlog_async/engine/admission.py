"""Admission: which calls may wait for the writer, and in what order.

1. A call that can never fit is refused at once.
2. As long as there is room, calls join `pending`; single records share a group, whatever their queues, so a
   thousand callers are one command to the writer.
3. Above `pending_bytes`, appends wait in line and move up in order. Above `memory_bytes` they are refused, or wait;
   the same holds for calls in line once memory has run out. Truncate and delete never wait in that line.

`_fast_budget` is what appends may be charged without asking: the common call (`append_single`) compares and subtracts,
and nothing else is counted until `update`. It is never more than a batch, so that groups stay that small. It is
negative while any call waits in line or the log accepts no appends, which sends every caller to `add_append`.
Everything here runs on the log's event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

from mrecordlog_async.engine.commands import (
    SINGLE_OVERHEAD_BYTES,
    Append,
    AppendGroup,
    Command,
    count_records,
)
from mrecordlog_async.errors import LogClosedError, LogFullError, RecordTooLargeError
from mrecordlog_async.format.frame import frames_bytes_max
from mrecordlog_async.memory.queue import QUEUE_OVERHEAD_BYTES
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.reads import check_name
from mrecordlog_async.options import MIB, Limits

DiskBytes = Callable[[], tuple[int, str]]

BATCH_BYTES = 4 * MIB
"""A batch takes commands up to about this, or one larger call."""

ELSEWHERE = (
    "the log belongs to another event loop; from a thread, such as that of a `def` endpoint, call it with "
    "asyncio.run_coroutine_threadsafe or anyio.from_thread.run"
)
"""The error message for a call that was not made on the log's event loop."""


class Admission:
    """Calls that wait for the writer. Owned by the log; the writer takes from it."""

    def __init__(self, limits: Limits, queues: Queues, disk_bytes_at_best: DiskBytes | None = None) -> None:
        """disk_bytes_at_best: how large a batch may be on the disk while the log holds nothing else, and by what."""
        self.limits = limits
        self._disk_bytes_at_best = disk_bytes_at_best or (lambda: (limits.disk_bytes, "disk_bytes"))
        self._single_charge_max = limits.record_bytes + SINGLE_OVERHEAD_BYTES
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._line_bytes = 0  # charge of everything in `_line`
        # Charge of admitted calls = _charged_bytes + (_granted - _fast_budget). `append_single` spends only the last
        # term, so the other two stay as they are until `update` moves what was spent into `_charged_bytes`.
        self._charged_bytes = 0
        self._granted = 0  # what `_fast_budget` was after the last update
        self._fast_budget = 0  # what is left of it
        self.waiting_since = 0.0
        self.closed: Callable[[], Exception] | None = None
        self.waiting_for_space = False  # appends were refused for space and wait for some: nobody passes
        self._queues = queues
        self._pending: deque[Command] = deque()
        self._group: AppendGroup | None = None  # the open one, that single records may join
        self._parked: list[Command] = []
        self._line: OrderedDict[Append, None] = OrderedDict()
        self._sleeper: asyncio.Future[None] | None = None
        self.update()

    @property
    def pending_bytes(self) -> int:
        """What the calls that wait for the writer are charged."""
        return self._charged_bytes + self._granted - self._fast_budget

    async def append_single(self, queue: str, payload: bytes) -> int | None:
        """Append one record at the next position of *queue* and return that position once it is stored.

        The hot path, for the common call: two comparisons, one future and no command of its own.
        """
        charge = len(payload) + SINGLE_OVERHEAD_BYTES
        if charge > self._fast_budget or charge > self._single_charge_max or type(queue) is not str:
            return await self.append(queue, None, [payload])
        if asyncio.get_running_loop() is not self._loop:
            raise LogClosedError(ELSEWHERE)
        group = self._group or self._open_group()
        # No await since the comparison, so two callers cannot spend the same budget.
        self._fast_budget -= charge
        future: asyncio.Future[Any] = self._loop.create_future()
        group.queues.append(queue)
        group.payloads.append(payload)
        group.futures.append(future)
        try:
            position: int | None = await future
        finally:
            # An exception references this frame: with the future in it that would be a cycle that keeps the payload.
            del future, group
        return position

    async def append(self, queue: str, position: int | None, payloads: list[bytes]) -> int | None:
        """Append *payloads* at *position*, None for the next; return the last position, None for a repeat."""
        check_name(queue)
        call = Append(self.new_future(), queue, position, payloads, sum(map(len, payloads)))
        try:
            self.add_append(call)
            answer = await call.future
        except asyncio.CancelledError:
            self.withdraw(call)
            raise
        finally:
            del call, payloads  # an error's traceback holds this frame, and the call's future holds the error
        assert answer is None or isinstance(answer, int)
        return answer

    def new_future(self) -> asyncio.Future[object]:
        """Make a future for a call; LogClosedError where the caller runs on another event loop."""
        if asyncio.get_running_loop() is not self._loop:
            raise LogClosedError(ELSEWHERE)
        return self._loop.create_future()

    def add_append(self, call: Append) -> None:
        """Take *call*, now or when it has moved up in line; an exception says why it is refused."""
        if self.closed is not None:
            raise self.closed()
        self._check_ever_fits(call)
        if self._fast_budget < call.bytes:
            self._group = None
        if self._line or self._budget() < call.bytes:
            self._check_memory(call)
            self._line[call] = None
            self._line_bytes += call.bytes
        else:
            self._admit(call)
        self.update()

    def add_control(self, command: Command) -> None:
        """Take a command that passes every limit."""
        if self.closed is not None:
            raise self.closed()
        self._group = None  # appends that come later must not overtake it
        self._charged_bytes += command.bytes
        self._put(command)
        self.update()

    def withdraw(self, call: Append) -> None:
        """Forget *call* if it is still in line: its caller gave up."""
        if self._line.pop(call, self) is None:
            self._line_bytes -= call.bytes
            self.update()

    def take(self) -> list[Command]:
        """Hand the next batch's commands to the writer, in order; withdrawn ones are dropped."""
        taken: list[Command] = []
        size = 0
        # The charges stay counted: the writer refunds them once the calls are done, or when it parks them.
        while self._pending:
            command = self._pending[0]
            charged = command.charged_bytes()
            size += charged
            if size > BATCH_BYTES and taken:
                break
            self._pending.popleft()
            command.bytes = charged  # as it was charged, whatever is withdrawn from it
            if command is self._group:
                self._group = None
            if command.withdrawn():
                self.refund(command.bytes)
            else:
                taken.append(command)
        return taken

    def park(self, commands: list[Command]) -> None:
        """Keep commands that wait for disk space at the head of the line until `unpark`; nothing overtakes them."""
        # The writer refunds only what it does not park: parked calls keep their charge and their order.
        self.waiting_for_space = True
        self._parked += commands
        self.update()

    def unpark(self) -> None:
        """Let the held commands try again, first in line."""
        self.waiting_for_space = False
        self._group = None  # the open group comes after the parked calls; later records must not join it
        self._pending.extendleft(reversed(self._parked))
        self._parked = []
        self.update()
        self.wake()

    def refund(self, size: int) -> None:
        """Refund the charge of finished commands, and let callers move up."""
        self._charged_bytes -= size
        self.update()

    def update(self) -> None:
        """Recompute `_fast_budget` after memory, waiting calls or the log's state changed."""
        self._charged_bytes += self._granted - self._fast_budget
        self._granted = self._fast_budget
        line = self._line
        while line:
            call = next(iter(line))
            if self.closed is not None:
                break
            fits = self._budget() >= call.bytes
            refusal = None if fits else self._refusal(call)
            if not fits and refusal is None:
                break
            del line[call]
            self._line_bytes -= call.bytes
            if call.withdrawn():
                continue
            if refusal is None:
                self._admit(call)
            else:
                call.refuse(refusal)
        blocked = line or self.closed is not None
        self._fast_budget = self._granted = -1 if blocked else min(self._budget(), BATCH_BYTES)

    def has_pending(self) -> bool:
        """Whether there is something for the writer to take."""
        return bool(self._pending)

    def take_all(self) -> Iterator[Command]:
        """Give up everything that waits, in order: the log closes or has failed."""
        yield from self._parked
        self._parked = []
        while self._pending:
            yield self._pending.popleft()
        self._group = None
        while self._line:
            yield self._line.popitem(last=False)[0]
        self._line_bytes = 0
        self._charged_bytes = 0
        self._granted = self._fast_budget

    async def wait(self) -> None:
        """Sleep until `wake`."""
        self._sleeper = asyncio.get_running_loop().create_future()
        try:
            await self._sleeper
        finally:
            self._sleeper = None

    def close(self) -> None:
        """Refuse every call from now on with LogClosedError, unless the log has failed; what waits stays."""
        if self.closed is None:
            self.stop(LogClosedError)

    def stop(self, error: Callable[[], Exception]) -> None:
        """Refuse every call from now on with a new *error*; what waits stays."""
        self.closed = error
        self.update()

    def pending_records(self) -> int:
        """Count the records of the calls that wait; walks through all of them."""
        return count_records(self._parked) + count_records(self._pending) + count_records(self._line)

    def wake(self) -> None:
        """Wake the writer if it sleeps."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _put(self, command: Command) -> None:
        if not self._pending:
            self.waiting_since = self._clock()
            self.wake()
        self._pending.append(command)

    def _open_group(self) -> AppendGroup:
        """Begin a group for single records; the caller adds the first one at once."""
        group = self._group = AppendGroup()
        self._put(group)
        return group

    def _admit(self, call: Append) -> None:
        self._charged_bytes += call.bytes
        if call.position is None and len(call.payloads) == 1:
            group = self._group or self._open_group()
            group.queues.append(call.queue)
            group.payloads.append(call.payloads[0])
            group.futures.append(call.future)
        else:
            self._group = None
            self._put(call)

    def _budget(self) -> int:
        if self.waiting_for_space:
            return -1
        pending = self.pending_bytes
        memory = self.limits.memory_bytes - self._queues.memory_bytes - pending
        return min(self.limits.pending_bytes + SINGLE_OVERHEAD_BYTES - pending, memory)

    def never_fits(self, call: Append | AppendGroup) -> RecordTooLargeError | None:
        """Return why *call* could not be stored even in a log without records, or None if it could."""
        limits = self.limits
        memory = limits.memory_bytes - len(self._queues) * QUEUE_OVERHEAD_BYTES
        if call.bytes > memory:
            return RecordTooLargeError(call.bytes, max(memory, 0), "memory_bytes")
        (disk, name), size = self._disk_bytes_at_best(), frames_bytes_max(call.bytes)
        return RecordTooLargeError(size, disk, name) if size > disk else None

    def _check_ever_fits(self, call: Append) -> None:
        limits = self.limits
        if call.bytes > limits.record_bytes:  # otherwise none of its records is
            largest = max(map(len, call.payloads), default=0)
            if largest > limits.record_bytes:
                raise RecordTooLargeError(largest, limits.record_bytes)
        if call.bytes <= self._fast_budget:
            return  # it does not wait; whether it ever fits the disk is checked when the disk refuses it
        if call.bytes > limits.pending_bytes + SINGLE_OVERHEAD_BYTES:
            raise RecordTooLargeError(call.bytes, limits.pending_bytes, "pending_bytes")
        if (error := self.never_fits(call)) is not None:
            raise error

    def _refusal(self, call: Append) -> Exception | None:
        """Return why *call*, the first in line, must stop waiting, or None if it may wait."""
        return self.never_fits(call) if self.limits.on_full == "wait" else self._lack_of_memory(call, 0)

    def _check_memory(self, call: Append) -> None:
        """Refuse *call* if memory has no room for it after everything that waits ahead of it."""
        if self.limits.on_full != "wait" and (error := self._lack_of_memory(call, self._line_bytes)) is not None:
            raise error

    def _lack_of_memory(self, call: Append, bytes_ahead: int) -> LogFullError | None:
        """Return why *call* has no room in memory after *bytes_ahead* more than was admitted, None if it has."""
        used = self._queues.memory_bytes + self.pending_bytes + bytes_ahead
        if used + call.bytes > self.limits.memory_bytes:
            return LogFullError("memory", self._queues.memory_bytes, self.limits.memory_bytes)
        return None

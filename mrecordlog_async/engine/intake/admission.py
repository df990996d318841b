"""Admission: which calls may wait for the writer, and in what order. Everything here runs on the log's event loop.

| a call | goes to |
|---|---|
| that can never fit | its caller: RecordTooLargeError |
| within the budget | `_pending`; single records share a group whatever their queues, so 1,000 callers are one command |
| above `pending_bytes` | `_line`, and moves up to `_pending` in order |
| above `memory_bytes` | its caller: LogFullError, or `_line` if `on_full="wait"`; even once it is the first in line |
| that the full disk refused, if `on_full="wait"` | `_parked`, which goes before `_pending` and `_line` |
| of `append_soon` above any of these limits | its caller: LogFullError |
| truncate, delete, create, sync | `_pending`, past every limit |

`SingleAppends.budget` is what single records may be charged without a further check: it compares and subtracts, and
everything else is counted in `update`. It is at most one batch, so that groups stay that small. It is negative while
any call waits in line or the log accepts no appends, which sends every caller to `append`.

Order of calls. It is decided in these places, and in no other:

1. On arrival: `_pending` has the calls in the order in which they were made. A single record joins the last group only
   while nothing came after that group; `_line` and `_parked` keep the order of those that wait, and go first.
2. `take` cuts a batch from the front of `_pending`, and never reorders. Who wants another order within a batch gives it
   here: everything below follows it.
3. `planning.plan` decides the calls of a batch one after another. Each sees what those before it changed.
4. `Parts`, if the disk refuses the batch, tries its calls in the same order. An append that is given up takes with it
   the later ones at fixed positions of its queue.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from threading import get_ident
from time import perf_counter
from typing import Any, TypeVarTuple

from mrecordlog_async.compiled import LOOPS
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import (
    ELSEWHERE,
    SINGLE_OVERHEAD_BYTES,
    AppendGroup,
    AppendRecords,
    Command,
    count_records,
)
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.errors import LogClosedError, LogFullError, RecordLogError
from mrecordlog_async.metrics import Counters
from mrecordlog_async.names import check_name
from mrecordlog_async.options import MIB, Limits

Arguments = TypeVarTuple("Arguments")

BATCH_BYTES = 4 * MIB
"""A batch holds commands up to about this size, or one larger call."""

BATCH_CONTROLS = 1_000
"""A batch holds at most this many calls that are not appends: planning and applying them takes the loop 10 ms."""


class Admission:
    """Calls that wait for the writer. The log owns it; the writer takes from it."""

    def __init__(self, limits: Limits, capacity: Capacity, refusals: Refusals | None = None) -> None:
        self.limits = limits
        self.refusals = refusals or Refusals(Counters())
        self.capacity = capacity
        self._loop = asyncio.get_running_loop()
        self.wake: Callable[[], object] = _nothing  # the writer's
        self._singles = single_appends(self, self._loop, limits.record_bytes, SINGLE_OVERHEAD_BYTES)
        # Bound once: the common appends look up one name less.
        self.append_single = self._singles.append_single
        self.append_soon = self._singles.append_soon
        # Not the loop's clock: uvloop's stands still within an iteration, and ticks in milliseconds.
        self._clock = perf_counter
        self._line_bytes = 0  # charge of everything in `_line`
        # Charge of admitted calls = _charged_bytes + (_granted - _singles.budget). `SingleAppends` spends only the last
        # term, so the other two stay as they are until `update` moves what was spent into `_charged_bytes`.
        self._charged_bytes = 0
        self._granted = 0  # what `_singles.budget` was after the last update
        self.waiting_since = 0.0  # of the oldest call in `_pending`
        self._parked_since = 0.0
        self.closed: Callable[[], Exception] | None = None  # makes the error for each call from now on
        self.ended: Callable[[], Exception] | None = None  # the same for each append: the log is being drained
        self._ended_queues: dict[str, Callable[[], Exception]] = {}  # or these queues alone are
        self.waiting_for_space = False  # appends wait for disk space: no append may overtake them
        self._pending: deque[Command] = deque()  # its last one is `_singles.group`, while that is not None
        self._parked: list[Command] = []
        self._line: OrderedDict[AppendRecords, float] = OrderedDict()  # since when each call waits
        self._is_over = False  # nothing takes calls any more
        self.update()

    @property
    def pending_bytes(self) -> int:
        """Charge of the calls that were admitted and are not finished."""
        return self._charged_bytes + self._granted - self._singles.budget

    def new_future(self) -> asyncio.Future[object]:
        """Make a future for a call; raise LogClosedError if the caller runs on another event loop."""
        self.check_loop()
        return self._loop.create_future()

    async def append(self, queue: str, position: int | None, payloads: list[bytes]) -> int | None:
        """Append *payloads* at *position*, None for the next; return the last position, None for a repeat."""
        call = AppendRecords(self.new_future(), queue, position, payloads)
        try:
            self.add_append(call)
            last = await call.future
        except asyncio.CancelledError:
            self.withdraw(call)
            raise
        finally:
            del call, payloads  # an error's traceback references this frame, and the call's future the error
        assert last is None or isinstance(last, int)
        return last

    def append_now_or_never(self, queue: str, payload: bytes) -> asyncio.Future[Any]:
        """Admit one record that the budget does not cover, or raise why it cannot be admitted now."""
        call = AppendRecords(self.new_future(), queue, None, [payload])
        self._check_open(call)
        self._check_storable(call)
        if self.waiting_for_space:
            raise self.refusals.counted(LogFullError("space"), call)
        if self._line or self._budget() < call.bytes:
            memory = self.capacity.lack_of_memory(call.bytes, self.pending_bytes + self._line_bytes)
            pending = LogFullError("pending", self.pending_bytes, self.limits.pending_bytes)
            raise self.refusals.counted(memory or pending, call)
        self.add_append(call)
        return call.future

    def check(self, queue: str, payloads: list[bytes]) -> None:
        """Raise, and count, why an append of *payloads* could not be admitted even if nothing else waited."""
        call = AppendRecords(self.new_future(), queue, None, payloads)
        self._check_open(call)
        self._check_storable(call)

    def add_append(self, call: AppendRecords) -> None:
        """Admit *call* now, or once it has moved up in line. Raises the reason if it is refused."""
        self._check_open(call)
        self._check_storable(call)
        if self._singles.budget < call.bytes:
            self._singles.group = None  # it is as large as a batch may be: the next record starts another one
        if self._line or self._budget() < call.bytes:
            self._check_memory(call)
            self._line[call] = self._clock()
            self._line_bytes += call.bytes
        else:
            self._admit(call)
        self.update()

    def add_control(self, command: Command) -> None:
        """Admit a command that is exempt from every limit."""
        if self.closed is not None:
            raise self.closed()
        self._singles.group = None  # appends that come later must not overtake it
        self._put(command)
        if command.bytes <= self._singles.budget:
            self._singles.budget -= command.bytes  # as appends do
        else:
            self._charged_bytes += command.bytes
            self.update()

    def submit(
        self, kind: Callable[[asyncio.Future[object], *Arguments], Command], *arguments: *Arguments
    ) -> asyncio.Future[object]:
        """Pass a change that is not an append to the writer; return its future, to be awaited without a name.

        An error references the frame that awaits it: with the future in that frame, that would be a cycle.
        """
        command = kind(self.new_future(), *arguments)
        self.add_control(command)
        return command.future

    def withdraw(self, call: AppendRecords) -> None:
        """Remove *call* from the line if it is still there: its caller was cancelled."""
        if self._line.pop(call, None) is not None:
            self._line_bytes -= call.bytes
            self.update()

    def take(self) -> list[Command]:
        """Return the commands of the next batch in order, without those whose callers were cancelled."""
        taken: list[Command] = []
        try:
            self._take_into(taken)
        except BaseException:  # no memory: the log fails, and refuses them with all that wait
            self._pending.extendleft(reversed(taken))
            raise
        return taken

    def _take_into(self, taken: list[Command]) -> None:
        size = controls = 0
        # The charges stay counted: the writer refunds them once the calls are done, or when it parks them.
        while self._pending:
            command = self._pending[0]
            charged = command.charged_bytes()
            size += charged
            controls += type(command) is not AppendGroup and type(command) is not AppendRecords
            if (size > BATCH_BYTES and taken) or controls > BATCH_CONTROLS:
                break
            command.bytes = charged  # what `refund` gives back, even if records are withdrawn from it later
            if command is self._singles.group:
                self._singles.group = None  # it belongs to the writer now; no record may join it
            is_withdrawn = command.withdrawn()
            self._pending.popleft()
            if is_withdrawn:
                self.refund(command.bytes)
            else:
                taken.append(command)

    def take_back(self, commands: list[Command], since: float) -> None:
        """Have *commands*, the last that were taken, wait again before all others. They keep their charge.

        since: since when the oldest call of the batch waits.
        """
        self._pending.extendleft(reversed(commands))
        self.waiting_since = since

    def take_again(self, call: AppendRecords) -> None:
        """Have a call that was taken, and finished without a result, wait for the writer again. It is charged again.

        After `take_all`, no writer is left that would take it: it is refused as every later call is.
        """
        if self._is_over and self.closed is not None:
            self.refusals.refuse([call], self.closed())
            return
        self._singles.group = None
        self._charged_bytes += call.bytes
        self._put(call)
        self.update()
        self.wake()

    def take_behind(self, queues: Set[str]) -> list[Command]:
        """Take the appends at positions of their callers' choice in *queues*: an earlier one was refused.

        Those in line are charged for it, as if they had moved up.
        """

        def is_behind(command: Command) -> bool:
            return isinstance(command, AppendRecords) and command.position is not None and command.queue in queues

        in_line = [call for call in self._line if is_behind(call)]
        for call in in_line:
            del self._line[call]
            self._line_bytes -= call.bytes
            self._charged_bytes += call.bytes
        return self._take_pending(is_behind) + in_line

    def _take_pending(self, is_taken: Callable[[Command], bool]) -> list[Command]:
        """Take what *is_taken* from what waits for the next batch, in order. It keeps its charge."""
        taken = [command for command in self._pending if is_taken(command)]
        if taken:
            self._singles.group = None
            for command in taken:
                command.bytes = command.charged_bytes()  # as `take` does
            self._pending = deque(command for command in self._pending if not is_taken(command))
        return taken

    def park(self, commands: list[Command], since: float | None = None) -> None:
        """Keep commands that wait for disk space until `unpark`. No append overtakes them. *since*: of the oldest.

        A log that is being drained waits for nothing: it refuses them.
        """
        if self.ended is not None:
            self._refuse_charged(commands, self.ended())
            return
        # The writer refunds only what it does not park: parked calls keep their charge and their order.
        self.waiting_for_space = True
        self._parked_since = self._clock() if since is None else since
        self._parked += commands
        self._parked += self._take_pending(lambda command: isinstance(command, AppendRecords | AppendGroup))
        self._parked = [*self._without_ended(self._parked)]
        self.update()

    def unpark(self) -> None:
        """Have the parked commands tried again, before all others."""
        self.waiting_for_space = False
        self._singles.group = None  # the open group comes after the parked calls; later records must not join it
        self.waiting_since = min(self._parked_since, self.waiting_since) if self._pending else self._parked_since
        self._pending.extendleft(reversed(self._parked))
        self._parked = []
        self.update()
        self.wake()

    def refund(self, size: int) -> None:
        """Give back the charge of finished commands, and admit calls in line that now fit."""
        self._charged_bytes -= size
        self.update()

    def update(self) -> None:
        """Recompute the budget of single records after memory, waiting calls or the log's state changed."""
        self._charged_bytes += self._granted - self._singles.budget
        self._granted = self._singles.budget
        if self._line and self.closed is None:
            self._move_up()
        blocked = self._line or self.closed is not None or self.ended is not None or self._ended_queues
        self._singles.budget = self._granted = -1 if blocked else min(self._budget(), BATCH_BYTES)

    def _move_up(self) -> None:
        """Admit calls from the front of the line as long as they fit; refuse those that must not wait any longer."""
        line = self._line
        while line:
            call = next(iter(line))
            fits = self._budget() >= call.bytes
            refusal = None if fits else self.capacity.reason_to_leave_line(call, self.pending_bytes)
            if not fits and refusal is None:
                return  # the first in line waits, and so do all after it: the order of calls is kept
            since = line.pop(call)
            self._line_bytes -= call.bytes
            if call.withdrawn():
                continue
            if refusal is None:
                self._admit(call)
                self.waiting_since = min(self.waiting_since, since)
            else:
                self.refusals.refuse([call], refusal)

    def oldest_since(self) -> float | None:
        """Return since when the oldest call waits for the writer, on `perf_counter`; None if none does."""
        waits = [self.waiting_since] if self._pending else []
        if self._parked:
            waits.append(self._parked_since)
        if self._line:
            waits.append(next(iter(self._line.values())))
        return min(waits, default=None)

    def has_pending(self) -> bool:
        """Return whether the writer has something to take."""
        return bool(self._pending)

    def take_all(self) -> Iterator[Command]:
        """Remove and yield every waiting command in order: the log closes or has failed."""
        self._is_over = True
        yield from self._parked
        self._parked = []
        while self._pending:
            yield self._pending.popleft()
        self._singles.group = None
        while self._line:
            yield self._line.popitem(last=False)[0]
        self._line_bytes = 0
        self._charged_bytes = 0
        self._granted = self._singles.budget

    def end(self, error: Callable[[], Exception]) -> None:
        """Refuse every later append with a new *error*, and those that wait for space. Accepted ones are stored."""
        self.ended = error
        waiting: list[Command] = list(self._line)
        self._line.clear()
        self._line_bytes = 0
        parked, self._parked = self._parked, []
        self.waiting_for_space = False
        self.refusals.refuse(waiting, error())
        self._refuse_charged(parked, error())

    def end_queues(self, errors: Mapping[str, Callable[[], Exception]]) -> None:
        """Refuse every later append to these queues with a new error, and those that wait for space."""
        self._ended_queues.update(errors)
        for call in [call for call in self._line if call.queue in errors]:
            self.withdraw(call)
            self.refusals.refuse([call], errors[call.queue]())
        self._parked = [*self._without_ended(self._parked)]
        self.update()

    def _without_ended(self, commands: Sequence[Command]) -> Iterator[Command]:
        """Refuse the appends to queues that are being drained; yield the other commands, in order."""
        for command in commands:
            queues: list[str] = []
            if isinstance(command, AppendGroup):
                queues = command.queues
            elif isinstance(command, AppendRecords):
                queues = [command.queue]
            if self._ended_queues.keys().isdisjoint(queues):
                yield command
            elif isinstance(command, AppendGroup) and len(queues) > 1:
                parts = [*command.each()]
                self._charged_bytes -= command.bytes - sum(part.bytes for part in parts)  # of those that were withdrawn
                yield from self._without_ended(parts)
            else:
                self._refuse_charged([command], self._ended_queues[queues[0]]())

    def close(self) -> None:
        """Refuse every later call with LogClosedError, or as before if the log has failed. Waiting calls stay."""
        if self.closed is None:
            self.stop(LogClosedError)

    def stop(self, error: Callable[[], Exception]) -> None:
        """Refuse every later call with a new *error*. Waiting calls stay."""
        self.closed = error
        self.update()

    def pending_records(self) -> int:
        """Return the number of records in waiting calls. Visits all of them."""
        return count_records(self._parked) + count_records(self._pending) + count_records(self._line)

    def check_loop(self) -> None:
        """Raise unless the caller runs on the log's event loop: LogClosedError, or why the log takes no more calls."""
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:  # the caller's thread runs no loop
            running = None
        if running is not self._loop:
            # In a forked child, or once the log is closed, no loop would help.
            raise self.closed() if self.closed is not None else LogClosedError(ELSEWHERE)
        self._singles.thread_id = get_ident()  # a loop that was stopped may go on in another thread

    def _refuse_charged(self, commands: Sequence[Command], error: Exception) -> None:
        """Refuse commands that were admitted, and give back what they were charged."""
        self.refusals.refuse(commands, error)
        self.refund(sum(command.bytes for command in commands))

    def _put(self, command: Command) -> None:
        if not self._pending:
            self.waiting_since = self._clock()
            self.wake()
        self._pending.append(command)

    def open_group(self) -> AppendGroup:
        """Start a group for single records. The caller adds the first record at once."""
        self.check_loop()
        group = AppendGroup()
        self._put(group)
        self._singles.group = group  # last: without memory for one of these steps, none may join it
        return group

    def _admit(self, call: AppendRecords) -> None:
        self._charged_bytes += call.bytes
        if call.position is None and len(call.payloads) == 1:
            group = self._singles.group or self.open_group()
            group.queues.append(call.queue)
            group.payloads.append(call.payloads[0])
            group.futures.append(call.future)
        else:
            self._singles.group = None
            self._put(call)

    def _budget(self) -> int:
        """Return how much more may be admitted; -1 while calls wait for disk space, so that none overtakes them."""
        return -1 if self.waiting_for_space else self.capacity.budget(self.pending_bytes)

    def check_memory(self, size: int) -> None:
        """Raise LogFullError, and count it, if memory has no space for an append of *size* bytes that is to come.

        One that is too large for memory is left to the append, whose records may be smaller than what they come in.
        """
        if size > self.capacity.memory_at_best():
            return
        error = self.capacity.lack_of_memory(size, self.pending_bytes + self._line_bytes)
        if error is not None:
            raise self.refusals.counted(error, None)

    def _check_open(self, call: AppendRecords) -> None:
        """Raise the error for an append to a log that takes no more."""
        error = self.closed or self.ended
        if error is not None:
            raise self.refusals.counted(error(), call)

    def _check_storable(self, call: AppendRecords) -> None:
        """Raise why *call* could never be stored, whatever the log holds."""
        try:
            if type(call.queue) is not str:  # the planner says what is wrong with a string, if no queue has that name
                check_name(call.queue)
            if call.queue in self._ended_queues:
                raise self._ended_queues[call.queue]()
            # A call within the budget does not wait; whether it ever fits the disk is checked when the disk refuses it.
            self.capacity.check(call, waits=call.bytes > self._singles.budget)
        except RecordLogError as error:
            self.refusals.counted(error, call)
            raise

    def _check_memory(self, call: AppendRecords) -> None:
        """Raise LogFullError if memory has no space for *call* after every call that waits before it."""
        if self.limits.on_full == "wait":
            return
        error = self.capacity.lack_of_memory(call.bytes, self.pending_bytes + self._line_bytes)
        if error is not None:
            raise self.refusals.counted(error, call)


class SingleAppends:
    """The ways to append one record: with a wait, or with a future. This is the hot path; an append begins here.

    Each compares a charge with the budget, spends it, and joins the open group: no await stands between the comparison
    and the group, so two callers cannot spend the same budget. Both contain the same lines, because a shared method
    would be one more call per record. What does not fit goes through `Admission`, as does a call with several records.

    budget: what `Admission` granted at its last look, less what was spent since; negative while no record may enter.
    group: the last of the commands that wait, while records may join it. thread_id: of the thread that runs the loop.
    """

    def __init__(self, admission: Admission, loop: asyncio.AbstractEventLoop, record_bytes: int, overhead: int) -> None:
        """Charge each record *overhead* bytes besides its payload, which has *record_bytes* at most."""
        self.budget = 0
        self.group: AppendGroup | None = None
        self.thread_id = get_ident()
        self._admission = admission
        self._loop = loop
        self._overhead = overhead
        self._charge_max = record_bytes + overhead

    async def append_single(self, queue: str, payload: bytes) -> int | None:
        """Append one record at the next position of *queue* and return that position once it is stored.

        The hot path: two comparisons, one future, and no command object per call.
        """
        charge = len(payload) + self._overhead
        if charge > self.budget or charge > self._charge_max or type(queue) is not str:
            return await self._admission.append(queue, None, [payload])
        # Compares threads: on CPython 3.11 get_running_loop is a system call. `open_group` compares loops, per group.
        if get_ident() != self.thread_id:
            self._admission.check_loop()
        group = self.group or self._admission.open_group()
        self.budget -= charge
        future: asyncio.Future[Any] = self._loop.create_future()
        group.queues.append(queue)
        group.payloads.append(payload)
        group.futures.append(future)
        try:
            position: int | None = await future
        except RuntimeError:
            if not future.done():  # asyncio raised it: the caller runs on a second loop of this thread
                future.cancel()
                raise LogClosedError(ELSEWHERE) from None
            raise
        finally:
            # An exception references this frame. With the future in it, that would be a cycle that keeps the payload.
            del future, group
        return position

    def append_soon(self, queue: str, payload: bytes) -> asyncio.Future[Any]:
        """Append one record at the next position of *queue*; return a future of that position. Never waits in line.

        The same steps as `append_single`, without a coroutine per record.
        """
        charge = len(payload) + self._overhead
        if charge > self.budget or charge > self._charge_max or type(queue) is not str:
            return self._admission.append_now_or_never(queue, payload)
        if get_ident() != self.thread_id:
            self._admission.check_loop()
        group = self.group or self._admission.open_group()
        self.budget -= charge
        future: asyncio.Future[Any] = self._loop.create_future()
        group.queues.append(queue)
        group.payloads.append(payload)
        group.futures.append(future)
        return future


def _nothing() -> None:
    pass


def joining(base: type[Any]) -> type[SingleAppends]:
    """Return `SingleAppends` over its compiled part: *base* joins the group, and only a Python function can wait."""

    class JoinedAppends(base):  # type: ignore[misc]  # mypy knows no class that is an argument
        __slots__ = ()

        async def append_single(self, queue: str, payload: bytes) -> int | None:
            future = self.join(queue, payload)
            if future is None:
                slowly: int | None = await self.append_slowly(queue, payload)
                return slowly
            try:
                position: int | None = await future
            except RuntimeError:
                if not future.done():
                    future.cancel()
                    raise LogClosedError(ELSEWHERE) from None
                raise
            finally:
                del future
            return position

    return JoinedAppends


single_appends: type[SingleAppends] = SingleAppends if LOOPS is None else joining(LOOPS.JoinedAppends)
"""The class that runs."""

"""The ways to append: one record and a wait, one record and a future, or any records at a position.

The first two are the hot path. Each compares a charge with the fast budget, spends it, and joins the open group: no
await stands between the comparison and the group, so two callers cannot spend the same budget. Both contain the same
lines, because a shared method would be one more call per record. What does not fit goes through `add_append`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Any

from mrecordlog_async.engine.intake.admission import ELSEWHERE, Admission
from mrecordlog_async.engine.intake.capacity import Capacity
from mrecordlog_async.engine.intake.commands import SINGLE_OVERHEAD_BYTES, AppendRecords, Command
from mrecordlog_async.engine.intake.refusals import Refusals
from mrecordlog_async.errors import LogClosedError, LogFullError
from mrecordlog_async.options import Limits


class Appends(Admission):
    """Admission with the calls that append."""

    def __init__(self, limits: Limits, capacity: Capacity, refusals: Refusals | None = None) -> None:
        super().__init__(limits, capacity, refusals)
        self._single_charge_max = limits.record_bytes + SINGLE_OVERHEAD_BYTES

    async def append_single(self, queue: str, payload: bytes) -> int | None:
        """Append one record at the next position of *queue* and return that position once it is stored.

        The hot path: two comparisons, one future, and no command object per call.
        """
        charge = len(payload) + SINGLE_OVERHEAD_BYTES
        if charge > self._fast_budget or charge > self._single_charge_max or type(queue) is not str:
            return await self.append(queue, None, [payload])
        # Compares threads: on CPython 3.11 get_running_loop is a system call. `_open_group` compares loops, per group.
        if get_ident() != self._thread_id:
            self._check_loop()
        group = self._group or self._open_group()
        self._fast_budget -= charge
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
        charge = len(payload) + SINGLE_OVERHEAD_BYTES
        if charge > self._fast_budget or charge > self._single_charge_max or type(queue) is not str:
            return self._append_now_or_never(queue, payload)
        if get_ident() != self._thread_id:
            self._check_loop()
        group = self._group or self._open_group()
        self._fast_budget -= charge
        future: asyncio.Future[Any] = self._loop.create_future()
        group.queues.append(queue)
        group.payloads.append(payload)
        group.futures.append(future)
        return future

    def _append_now_or_never(self, queue: str, payload: bytes) -> asyncio.Future[Any]:
        """Admit one record that the fast budget does not cover, or raise why it cannot be admitted now."""
        call = AppendRecords(self.new_future(), queue, None, [payload])
        self._check_open()
        self._check_storable(call)
        if self.waiting_for_space:
            raise self.refusals.counted(LogFullError("space"))
        if self._line or self._budget() < call.bytes:
            memory = self.capacity.lack_of_memory(call, self.pending_bytes + self._line_bytes)
            raise self.refusals.counted(
                memory or LogFullError("pending", self.pending_bytes, self.limits.pending_bytes)
            )
        self.add_append(call)
        return call.future

    def check(self, queue: str, payloads: list[bytes]) -> None:
        """Raise, and count, why an append of *payloads* could not be admitted even if nothing else waited."""
        self._check_open()
        self._check_storable(AppendRecords(self.new_future(), queue, None, payloads))

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

    # The end of a log that is drained.

    def end(self, error: Callable[[], Exception]) -> None:
        """Refuse every later append with a new *error*, and those that wait for space. Accepted ones are stored."""
        self.ended = error
        waiting: list[Command] = list(self._line)
        self._line.clear()
        self._line_bytes = 0
        parked, self._parked = self._parked, []
        self.waiting_for_space = False
        self._refuse_ended(waiting + parked)
        self.refund(sum(command.bytes for command in parked))

    def park(self, commands: list[Command], since: float | None = None) -> None:
        """Keep commands that wait for disk space; refuse them if the log is being drained, which waits for nothing."""
        if self.ended is None:
            super().park(commands, since)
        else:
            self._refuse_ended(commands)
            self.refund(sum(command.bytes for command in commands))

    def _refuse_ended(self, commands: list[Command]) -> None:
        assert self.ended is not None
        self.refusals.refuse(commands, self.ended())

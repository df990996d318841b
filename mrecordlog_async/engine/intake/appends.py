"""The ways to append one record, and what becomes of them where a part is compiled: an append begins here.

`SingleAppends` has the ways to append one record: with a wait, or with a future. This is the hot path. Each compares a
charge with the budget, spends it, and joins the open group: no await stands between the comparison and the group, so
two callers cannot spend the same budget. Both contain the same lines, because a shared method would be one more call
per record. What does not fit goes through `Admission`, as does a call with several records.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import Any, Protocol

from mrecordlog_async.compiled import LOOPS
from mrecordlog_async.engine.intake.commands import AppendGroup
from mrecordlog_async.errors import LogClosedError

ELSEWHERE = (
    "the log belongs to another event loop; from a thread, such as that of a `def` endpoint, call it with "
    "asyncio.run_coroutine_threadsafe or anyio.from_thread.run"
)
"""Message of the error for a call that was not made on the log's event loop."""


class SlowerAppends(Protocol):
    """Calls for single records that may not join a group at once. `Admission` has them."""

    def open_group(self) -> AppendGroup:
        """Start a group for single records. The caller adds the first record at once."""

    def check_loop(self) -> None:
        """Raise unless the caller runs on the log's event loop."""

    async def append(self, queue: str, position: int | None, payloads: list[bytes]) -> int | None:
        """Append *payloads*, and wait in line if they must."""

    def append_now_or_never(self, queue: str, payload: bytes) -> asyncio.Future[Any]:
        """Append a record, or raise why it cannot be admitted now."""


class SingleAppends:
    """Single records: what they may be charged without a further check, and the group that they join.

    budget: what `Admission` granted at its last look, less what was spent since; negative while no record may enter.
    group: the last of the commands that wait, while records may join it. thread_id: of the thread that runs the loop.
    """

    def __init__(
        self, admission: SlowerAppends, loop: asyncio.AbstractEventLoop, record_bytes: int, overhead: int
    ) -> None:
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

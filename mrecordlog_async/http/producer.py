"""`Producer`: one writer of one queue through a service, storing each record once whatever happens on the way.

1. It asks for the queue's next position once, and from then on gives every batch its position.
2. One batch is under way; what is appended meanwhile gathers and is the next batch, as in the log itself. So many tasks
   may append at once, and share requests as they share syncs.
3. A lost answer, a full log or a restart of the service: the same batch is sent again with the same position, and the
   service tells a repeat from a new record.
4. If that does not help within the client's retry_seconds, the producer has failed: whether the last batch was stored
   is not known, and nothing later was sent. A new producer goes on behind what was stored.

A queue has one producer. Records of somebody else in between are found by their position: PositionInPastError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from mrecordlog_async.errors import LogClosedError

if TYPE_CHECKING:
    from mrecordlog_async.http.client import RecordLogClient

Payload = bytes | bytearray | memoryview

BATCH_BYTES = 4 * 1024 * 1024
BATCH_RECORDS = 50_000


class Producer:
    """See the module. Made by `RecordLogClient.producer`."""

    def __init__(self, client: RecordLogClient, queue: str, *, create: bool = False) -> None:
        self.queue = queue
        self.next_position: int | None = None
        self._client = client
        self._create = create
        self._waiting: deque[tuple[list[bytes], asyncio.Future[int | None]]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    async def __aenter__(self) -> Producer:
        if self._create:
            await self._client.create_queue(self.queue, exist_ok=True)
        self.next_position = await self._client.next_position(self.queue)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def append_record(self, payload: Payload) -> int:
        """Append *payload*; return its position once it is stored."""
        position = await self._put([bytes(payload)])
        assert position is not None, "one record has a position"
        return position

    async def append_records(self, payloads: Iterable[Payload]) -> int | None:
        """Append *payloads*, all or none; return the position of the last, None where there are none.

        Cancelling stops the waiting, not the sending.
        """
        return await self._put([bytes(payload) for payload in payloads])

    async def close(self) -> None:
        """Wait until everything that was appended is stored, or has failed."""
        self._closed = True
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    async def _put(self, payloads: list[bytes]) -> int | None:
        if self._failure is not None:
            raise self._failure
        if self._closed or self.next_position is None:
            raise LogClosedError("the producer is closed, or was not entered with `async with`")
        if not payloads:
            return None
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((payloads, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name=f"producer of {self.queue}")
        return await asyncio.shield(future)

    async def _send_all(self) -> None:
        """Send batches until nothing waits."""
        while self._waiting:
            calls = self._take()
            try:
                await self._send(calls)
            except BaseException as error:
                self._fail(error, calls)
                if not isinstance(error, Exception):
                    raise
                break
        self._sending = None

    async def _send(self, calls: list[tuple[list[bytes], asyncio.Future[int | None]]]) -> None:
        position = self.next_position
        assert position is not None, "checked when the call was taken"
        payloads = [payload for call, _ in calls for payload in call]
        if len(payloads) == 1:
            await self._client.append_record(self.queue, position, payloads[0])
        else:
            await self._client.append_records(self.queue, position, payloads)
        for call, future in calls:
            position += len(call)
            if not future.done():
                future.set_result(position - 1)
        self.next_position = position

    def _take(self) -> list[tuple[list[bytes], asyncio.Future[int | None]]]:
        """Take calls for one batch; a call is never split, so it stays all or none."""
        calls = [self._waiting.popleft()]
        records, size = len(calls[0][0]), sum(map(len, calls[0][0]))
        while self._waiting:
            payloads = self._waiting[0][0]
            records += len(payloads)
            size += sum(map(len, payloads))
            if records > BATCH_RECORDS or size > BATCH_BYTES:
                break
            calls.append(self._waiting.popleft())
        return calls

    def _fail(self, error: BaseException, calls: list[tuple[list[bytes], asyncio.Future[int | None]]]) -> None:
        self._failure = error
        for _, future in (*calls, *self._waiting):
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that was cancelled does not ask
        self._waiting.clear()

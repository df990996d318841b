"""`FleetConsumer`: one consumer on every server of a fleet, read as one stream of batches.

1. On every server the consumer of one name is attached, on one queue, or by a rule on every queue that matches a
   pattern. Servers and queues that come later are found when the servers are looked at, every 10 s.
2. A `Reader` for each queue offers one batch at a time; `batch` hands them out in the order in which they came.
3. A server that is away holds up nothing but its own records.
4. The end is reached when the queue is sealed and read on every server that is known, even on those that are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from mrecordlog_async.batches import BATCH_BYTES, BATCH_RECORDS, BATCH_SECONDS, Batches, BatchLimits
from mrecordlog_async.client.consumer import ClientConsumer
from mrecordlog_async.client.fleet.decisions import passes
from mrecordlog_async.client.fleet.membership import Membership
from mrecordlog_async.client.fleet.reader import End, FleetBatch, Reader
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.patterns import is_pattern, matches

_NOT_ATTACHED = "the consumer is not attached: use it inside `async with fleet.consumer(…) as c`"


class FleetConsumer:
    """A consumer on all servers of a fleet. Created by `RecordLogFleet.consumer`; use it as `async with`.

        async with fleet.consumer("clicks", "lake") as consumer:
            async for batch in consumer.batches():
                deliver(batch)
                await consumer.acknowledge(batch)

    Delivery is at least once: what was not acknowledged is handed out again after the consumer is entered the next
    time. (batch.queue_id, position) identifies a record on all servers. The records of each queue of each server come
    in their order; batches of several servers come as they arrive. One holder at a time, on each server.

    Attributes:
        queue: Name of the queue, or the pattern.
        consumer: Its name.
    """

    def __init__(
        self,
        membership: Membership,
        queue: str,
        consumer: str,
        *,
        create: bool,
        owner: UUID | str | None,
        take_over: bool,
    ) -> None:
        """Use `RecordLogFleet.consumer`."""
        self.queue = queue
        self.consumer = consumer
        self._membership = membership
        self._create = create
        self._owner = owner
        self._take_over = take_over
        self._begin()

    def _begin(self) -> None:
        """Know nothing yet of the servers: they are attached to each time the consumer is entered."""
        self._limits = BatchLimits(BATCH_RECORDS, BATCH_BYTES, BATCH_SECONDS)
        self._asked = asyncio.Event()
        # The last item stays: None if all is read, or the error of every later call.
        self._offered: asyncio.Queue[tuple[FleetBatch, asyncio.Future[None]] | BaseException | None] = asyncio.Queue()
        self._readers: dict[tuple[str, str], Reader] = {}
        self._ruled: set[str] = set()  # logs that have the rule
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        self._entered = False

    async def __aenter__(self) -> Self:
        self._begin()
        try:
            await self._discover()
        except BaseException:  # one server refused it, or the caller was cancelled: the readers of the others end
            await self.__aexit__(None, None, None)
            raise
        self._run(self._watch())
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        self._end(RuntimeError(_NOT_ATTACHED))  # for calls that wait in other tasks
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # What could not be acknowledged now is handed out again.
        await asyncio.gather(*(reader.flush() for reader in self._readers.values()), return_exceptions=True)

    async def batch(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> FleetBatch | None:
        """Return the next records of one queue of one server. Cancelling the call loses nothing.

        Args:
            max_records: At most this many records. A batch that was read ahead has the limits of the call before.
            max_bytes: At most this many payload bytes, but at least one record.
            max_wait: Seconds to wait for more records of the same queue after the first one; 0 returns what is there,
                None waits until another limit is reached.

        Returns:
            At least one record; None once the queue is sealed and read on every known server. With a pattern, never.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            ConsumerOwnedError: On a server that was found later it belongs to another owner.
            RuntimeError: The `async with` block was left, or not entered yet.
            ValueError: A limit is below 1, or the time is negative.
        """
        if not self._entered:
            raise RuntimeError(_NOT_ATTACHED)
        self._limits = BatchLimits.checked(max_records, max_bytes, max_wait)
        self._asked.set()
        offered = self._offered  # of this entry: the consumer may be left and entered again meanwhile
        found = await offered.get()
        if found is None or isinstance(found, BaseException):
            offered.put_nowait(found)  # for the next call
            if found is not None:
                raise found
            return None
        batch, taken = found
        if not taken.done():
            taken.set_result(None)
        return batch

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[FleetBatch]:
        """Iterate over batches until there are no more; the arguments and errors are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    async def acknowledge(self, batch: FleetBatch) -> bool:
        """Acknowledge everything up to and including *batch* on its server: it is not handed out again.

        Args:
            batch: A batch that this consumer handed out.

        Returns:
            True if that is durable. False if the server is away: the acknowledgement is sent as soon as it responds,
            and the records are handed out again only if this consumer ends before, or if the service must be attached
            to again, as after a kill under the policies `interval` and `never`.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            ValueError: The batch is not of this consumer.
        """
        reader = self._readers.get((batch.log_id, batch.queue))
        if reader is None:
            raise ValueError(f"the batch is of queue {batch.queue!r} at {batch.server}, not of this consumer")
        return await reader.acknowledge(batch)

    async def _watch(self) -> None:
        while True:
            await self._membership.changed()
            await self._discover()

    async def _discover(self) -> None:
        """Attach to queues that are not read yet, on every server that can be read."""
        servers = [server for server in self._membership.servers.values() if server.reads]
        for result in await asyncio.gather(*map(self._discover_at, servers), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        self._check_end()

    async def _discover_at(self, server: Server) -> None:
        for queue in await self._queues_of(server):
            known = self._readers.get((server.log_id, queue))
            if known is not None and known.end is not End.MISSING:
                await known.flush()
                continue
            reader = self._reader(server, queue)
            if await reader.attach():
                self._readers[server.log_id, queue] = reader
                self._run(self._read(reader))

    async def _queues_of(self, server: Server) -> Sequence[str]:
        """Return the queues to read at *server*; nothing if it does not respond."""
        if not is_pattern(self.queue):
            return [self.queue]
        try:
            if self._create and server.log_id not in self._ruled:
                # The rule comes before the first listing: no queue is truncated before this consumer has met it.
                await server.client.create_consumer(self.queue, self.consumer, exist_ok=True)
                self._ruled.add(server.log_id)
            found = await server.client.all_consumers()
        except RecordLogError as error:
            if not passes(error) and self._membership.knows(server):
                raise
            self._membership.suspect(server)
            return []
        return [one.queue for one in found if one.consumer == self.consumer and matches(self.queue, one.queue)]

    def _reader(self, server: Server, queue: str) -> Reader:
        def holder() -> ClientConsumer:
            return server.client.consumer(
                queue, self.consumer, create=self._create, owner=self._owner, take_over=self._take_over
            )

        return Reader(server, self._membership, holder)

    async def _read(self, reader: Reader) -> None:
        await self._asked.wait()
        await reader.run(lambda: self._limits, self._offer)
        self._check_end()

    def _offer(self, batch: FleetBatch) -> asyncio.Future[None]:
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offered.put_nowait((batch, taken))
        return taken

    def _check_end(self) -> None:
        """End the stream if the queue is sealed and read on every server that is known."""
        logs = self._membership.servers
        complete = {log_id for (log_id, _), reader in self._readers.items() if reader.end is End.COMPLETE}
        if logs and complete >= logs.keys() and not is_pattern(self.queue):
            self._end(None)

    def _end(self, failure: BaseException | None) -> None:
        """End the stream, unless it has ended: every call of `batch` returns None from now on, or raises *failure*."""
        if not self._ended:
            self._ended = True
            self._offered.put_nowait(failure)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"consumer {self.consumer} of a fleet")
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

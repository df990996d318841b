"""`FleetConsumer`: one consumer on every server of a fleet, read as one stream of batches.

1. On every server the consumer of one name is attached, on one queue, or by a rule on every queue that matches a
   pattern. Servers and queues that come later are found when the servers are looked at, every 10 s.
2. A `Reader` for each queue offers one batch at a time; `batch` hands them out in the order in which they came.
3. A server that is away holds up nothing but its own records.
4. The end is reached when the queue is sealed and read on every server that is known, even on those that are away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic
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

LOOK_SECONDS = 1.0
"""Seconds between looks whether the records that are waited for still exist: an age limit removes them."""

AWAY_SECONDS = 30.0
"""Seconds for which a server that stopped responding is waited for: a restart takes less."""

Place = tuple[str, str]
"""The log, and the queue."""

Extents = Mapping[Place, tuple[int, int] | None]
"""Of each place: the next position to hand out, and the one after its last record; None while its server is away."""


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
        self._discovering = asyncio.Lock()
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

    async def __aexit__(self, *_: object) -> None:
        self._entered = False
        self._end(RuntimeError(_NOT_ATTACHED))  # for calls that wait in other tasks
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # What could not be acknowledged now is handed out again.
        await asyncio.gather(*(reader.flush() for reader in self._readers.values()), return_exceptions=True)

    async def batch(
        self,
        *,
        max_records: int = BATCH_RECORDS,
        max_bytes: int = BATCH_BYTES,
        max_wait: float | None = BATCH_SECONDS,
        timeout: float | None = None,
    ) -> FleetBatch | None:
        """Return the next records of one queue of one server. Cancelling the call loses nothing.

        Args:
            max_records: At most this many records. A batch that was read ahead has the limits of the call before.
            max_bytes: At most this many payload bytes, but at least one record.
            max_wait: Seconds to wait for more records of the same queue after the first one; 0 returns what is there,
                None waits until another limit is reached.
            timeout: Seconds after which the call returns an empty batch; None waits for the first record without limit.
                One that is shorter than a request may be over before the servers were asked: see `available`.

        Returns:
            At least one record, or after *timeout* an empty batch, which is of no server; None once the queue is sealed
            and read on every known server. With a pattern, never None.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            ConsumerOwnedError: On a server that was found later it belongs to another owner.
            RuntimeError: The `async with` block was left, or not entered yet.
            ValueError: A limit is below 1, or a time is negative.
        """
        if not self._entered:
            raise RuntimeError(_NOT_ATTACHED)
        self._limits = BatchLimits.checked(max_records, max_bytes, max_wait, timeout)
        self._asked.set()
        offered = self._offered  # of this entry: the consumer may be left and entered again meanwhile
        try:
            async with asyncio.timeout(timeout):
                found = await offered.get()
        except TimeoutError:
            return FleetBatch.of_none(self.queue)
        if found is None or isinstance(found, BaseException):
            offered.put_nowait(found)  # for the next call
            if found is not None:
                raise found
            return None
        batch, taken = found
        if not taken.done():
            taken.set_result(None)
        self._readers[batch.log_id, batch.queue].note_taken(batch)
        return batch

    def batches(
        self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES, max_wait: float | None = BATCH_SECONDS
    ) -> AsyncIterator[FleetBatch]:
        """Iterate over batches until there are no more; the arguments and errors are those of `batch`."""
        return Batches(self.batch, BatchLimits.checked(max_records, max_bytes, max_wait))

    def available(self, *, max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES) -> AvailableOfFleet:
        """Iterate over batches of the records that are there when the first is asked for, and wait for no others.

            async for batch in consumer.available(): ...

        Servers that are away are left out; one that goes away meanwhile is waited for up to 30 s. Batches may have
        newer records too. Afterwards the consumer can be used as before.

        Args:
            max_records: At most this many records in a batch.
            max_bytes: At most this many payload bytes in a batch, but at least one record.

        Returns:
            An iterator over batches. Its `left_out` has the ids of the logs of which not all was handed out.
        """
        return AvailableOfFleet(self.batch, BatchLimits.checked(max_records, max_bytes, 0), self._extents)

    async def _extents(self) -> Extents:
        if not self._entered:
            raise RuntimeError(_NOT_ATTACHED)
        await self._discover()  # queues that were created since the servers were looked at
        readers = dict(self._readers)
        found = zip(readers, await asyncio.gather(*(one.extent() for one in readers.values())), strict=True)
        away = [server for server in self._membership.servers.values() if not server.reads]
        return {(server.log_id, self.queue): None for server in away} | dict(found)

    async def acknowledge(self, batch: FleetBatch) -> bool:
        """Acknowledge everything up to and including *batch* on its server: it is not handed out again.

        Args:
            batch: A batch that this consumer handed out. An empty one acknowledges nothing.

        Returns:
            True if that is durable. False if the server is away: the acknowledgement is sent as soon as it responds,
            and the records are handed out again only if this consumer ends before, or if the service must be attached
            to again, as after a kill under the policies `interval` and `never`.

        Raises:
            ConsumerFencedError: Another holder has attached.
            ConsumerNotFoundError: The consumer was deleted.
            ValueError: The batch is not of this consumer.
        """
        if not batch:
            return True
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
        async with self._discovering:  # two that attach to one queue would fence each other off
            servers = [server for server in self._membership.servers.values() if server.reads]
            results = await asyncio.gather(*map(self._discover_at, servers), return_exceptions=True)
        for result in results:
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


class AvailableOfFleet(AsyncIterator[FleetBatch]):
    """Batches of what the servers have when the first one is asked for.

    Attributes:
        left_out: The logs of which not all was handed out: their servers did not respond then, or stopped responding
            for 30 s.
    """

    def __init__(
        self,
        batch: Callable[..., Awaitable[FleetBatch | None]],
        limits: BatchLimits,
        find_extents: Callable[[], Awaitable[Extents]],
    ) -> None:
        """Use `FleetConsumer.available`."""
        self.left_out: set[str] = set()
        self._batch = batch
        self._limits = limits
        self._find_extents = find_extents
        self._ends: dict[Place, int] | None = None  # the positions to reach
        self._away_since: dict[Place, float] = {}
        self._looked_at = 0.0

    async def __anext__(self) -> FleetBatch:
        if self._ends is None:
            await self._begin()
        records, size, _, _ = self._limits
        while self._ends:
            # Even if other servers have records: what is waited for may have been removed.
            if monotonic() - self._looked_at >= LOOK_SECONDS:
                self._ends = await self._still_there(self._ends)
                continue
            batch = await self._batch(max_records=records, max_bytes=size, max_wait=0, timeout=LOOK_SECONDS)
            if batch is None:  # the queue is sealed and read on every server
                break
            if batch:
                place = batch.log_id, batch.queue
                if batch.next_position >= self._ends.get(place, batch.next_position):
                    self._ends.pop(place, None)
                return batch
        self._ends = {}
        raise StopAsyncIteration

    async def _begin(self) -> None:
        extents, self._looked_at = await self._find_extents(), monotonic()
        self.left_out = {log_id for (log_id, _), extent in extents.items() if extent is None}
        self._ends = {place: extent[1] for place, extent in extents.items() if extent and extent[0] < extent[1]}

    async def _still_there(self, ends: Mapping[Place, int]) -> dict[Place, int]:
        """Return *ends* without those that cannot be reached any more: truncated, restored, deleted, or away."""
        extents, self._looked_at = await self._find_extents(), monotonic()
        found = {}
        for place, end in ends.items():
            extent = extents.get(place, (0, 0))
            if extent is not None:
                self._away_since.pop(place, None)
                if extent[0] < (last := min(end, extent[1])):
                    found[place] = last
            elif self._looked_at - self._away_since.setdefault(place, self._looked_at) < AWAY_SECONDS:
                found[place] = end
            else:
                self.left_out.add(place[0])
        return found

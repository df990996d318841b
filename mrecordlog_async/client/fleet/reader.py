"""`Reader`: the holder of a consumer on one queue of one server, as long as the fleet's consumer lives.

It reads one batch ahead and offers it. While its server cannot be read it waits, and then goes on where it was: the
position is in the log, and so are the acknowledgements, which are sent later if the server was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.client.consumer import Consumer
from mrecordlog_async.client.fleet.decisions import passes, takes_no_records
from mrecordlog_async.client.fleet.membership import RETRY_SECONDS, Membership
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.errors import ConsumerFencedError, QueueNotFoundError, RecordLogError
from mrecordlog_async.model import Batch

LOOKS = 2
"""Looks at the servers that show for certain whether a log was opened again: the first may have begun before that."""


class FleetBatch(Batch):
    """Records of one queue of one server that were handed out together: a `Batch` that knows where it is from.

    (queue_id, position) identifies a record on all servers.

    Attributes:
        log_id: The log.
        server: Name of the service.
    """

    __slots__ = ("log_id", "server")

    def __init__(self, batch: Batch, log_id: str, server: str) -> None:
        """Hold the records of *batch*."""
        super().__init__(batch.queue, batch.queue_id, batch.runs)
        self.log_id = log_id
        self.server = server


class End(Enum):
    """Why a reader has ended."""

    MISSING = auto()
    """The queue does not exist, or was deleted."""
    COMPLETE = auto()
    """The queue is sealed, and read to its end."""


Offer = Callable[[FleetBatch], asyncio.Future[None]]
"""Offers a batch; the future is done once somebody has taken it."""


class Reader:
    """One queue of one server. Owned by the consumer of the fleet, which runs it in a task."""

    def __init__(self, server: Server, membership: Membership, make_holder: Callable[[], Consumer]) -> None:
        self.server = server
        self.end: End | None = None
        self._membership = membership
        self._make_holder = make_holder
        self._holder: Consumer | None = None
        self._opening = ""  # of the log, when the holder attached
        # What is still to be acknowledged: the queue's incarnation, and the highest position.
        self._acknowledged: tuple[int, int] | None = None
        self._sending = asyncio.Lock()

    async def attach(self) -> bool:
        """Become the holder; return whether there is a queue to read and the server responds.

        Raises:
            RecordLogError: The consumer does not exist, or belongs to another owner.
        """
        try:
            holder = self._make_holder()
            opening = self.server.opening
            self._holder, self._opening = await holder.__aenter__(), opening
        except QueueNotFoundError:
            self.end = End.MISSING
        except RecordLogError as error:
            if not self._is_temporary(error):
                raise
        return self._holder is not None

    async def run(self, limits: Callable[[], BatchLimits], offer: Offer) -> None:
        """Offer batch after batch until the queue ends.

        Raises:
            RecordLogError: Another holder has attached, or the consumer was deleted.
        """
        while self.end is None:
            batch = await self._next(limits())
            if batch is not None:
                await offer(batch)

    async def acknowledge(self, batch: FleetBatch) -> bool:
        """Acknowledge up to the end of *batch*; return False if the server is away and has to be sent it later."""
        self._acknowledged = max((batch.queue_id, batch.last_position), self._acknowledged or (0, 0))
        return await self.flush()

    async def flush(self) -> bool:
        """Send what is still to be acknowledged; return whether nothing is."""
        async with self._sending:
            wanted, holder = self._acknowledged, self._holder
            if wanted is None or holder is None:
                return wanted is None
            try:
                # Positions of another incarnation say nothing about this one: its records were not handed out.
                if wanted[0] == holder.queue_id:
                    await holder.acknowledge(wanted[1])
            except QueueNotFoundError:
                pass  # its records were deleted
            except ConsumerFencedError:
                if not await self._attach_again():
                    raise
                return False
            except RecordLogError as error:
                if not self._is_temporary(error):
                    raise
                return False
            if self._acknowledged == wanted:
                self._acknowledged = None
            return self._acknowledged is None

    async def _next(self, limits: BatchLimits) -> FleetBatch | None:
        """Return the next batch; None if there is none, or after a failure that passes."""
        assert self._holder is not None, "it is attached before it runs"
        if not self.server.reads:
            await self._membership.changed()
            return None
        try:
            await self.flush()
            records, size, seconds = limits
            batch = await self._holder.batch(max_records=records, max_bytes=size, max_wait=seconds)
            if batch is None:
                self.end = await self._why_ended()
                return None
            return FleetBatch(batch, self.server.log_id, self.server.name)
        except ConsumerFencedError:
            if not await self._attach_again():
                raise
        except RecordLogError as error:
            if not self._is_temporary(error):
                raise
            await self._pause()
        return None

    async def _why_ended(self) -> End:
        assert self._holder is not None
        try:
            summary = await self.server.client.queue_summary(self._holder.queue)
        except QueueNotFoundError:
            return End.MISSING
        return End.COMPLETE if summary.id == self._holder.queue_id and summary.sealed else End.MISSING

    async def _attach_again(self) -> bool:
        """Attach once more if the log was opened again since; return whether it was.

        Under a weaker policy a log that was killed knows no holder from before. In the same opening, somebody else has
        attached, and keeps the consumer.
        """
        for _ in range(LOOKS):
            if self.server.opening == self._opening:
                await self._membership.look_soon()
        if self.server.opening == self._opening:
            return False
        self._holder = None
        while not await self.attach() and self.end is None:
            await self._pause()
        return True

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await self._membership.changed()
        except TimeoutError:
            pass

    def _is_temporary(self, error: RecordLogError) -> bool:
        """Return whether *error* passes; if so, have the server probed."""
        if takes_no_records(error):
            self._membership.suspect(self.server)
        return passes(error)

"""`Reader`: the holder of a consumer on one queue of one server, as long as the fleet's consumer lives.

It reads one batch ahead and offers it. While its server cannot be read it waits, and then continues where it was: the
position is in the log, and so are the acknowledgements, which are sent later if the server was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from mrecordlog_async.batches import BatchLimits
from mrecordlog_async.client.consumer import ClientConsumer
from mrecordlog_async.client.fleet.decisions import passes, takes_no_records
from mrecordlog_async.client.fleet.membership import Membership
from mrecordlog_async.client.fleet.server import Server
from mrecordlog_async.errors import ConsumerFencedError, PositionAheadError, QueueNotFoundError, RecordLogError
from mrecordlog_async.model import Batch
from mrecordlog_async.servers.outages import RETRY_SECONDS

LOOKS = 2
"""Looks at the servers that show for certain whether a log was opened again: the first may have begun before that."""


class FleetBatch(Batch):
    """Records of one queue of one server that were handed out together: a `Batch` that knows where it is from.

    (queue_id, position) identifies a record on all servers.

    Attributes:
        log_id: The log.
        server: Name of the service.
        epoch: Number of the holder that read it.
    """

    __slots__ = ("epoch", "log_id", "server")

    @classmethod
    def of_none(cls, queue: str) -> FleetBatch:
        """Return a batch without a record, of no server."""
        return cls(Batch.empty(queue, 0, 0), "", "", 0)

    def __init__(self, batch: Batch, log_id: str, server: str, epoch: int) -> None:
        """Hold the records of *batch*."""
        first, end = batch.first_position, batch.next_position
        super().__init__(batch.queue, batch.queue_id, batch.runs, first, end, times=batch.times_between)
        self.log_id = log_id
        self.server = server
        self.epoch = epoch


class End(Enum):
    """Reason why a reader has ended."""

    MISSING = auto()
    """The queue does not exist, or was deleted."""
    COMPLETE = auto()
    """The queue is sealed, and read to its end."""


Offer = Callable[[FleetBatch], asyncio.Future[None]]
"""Offers a batch; the future is done once somebody has taken it."""


class Reader:
    """One queue of one server. Owned by the consumer of the fleet, which runs it in a task."""

    def __init__(self, server: Server, membership: Membership, make_holder: Callable[[], ClientConsumer]) -> None:
        self.server = server
        self.end: End | None = None
        self._membership = membership
        self._make_holder = make_holder
        self._holder: ClientConsumer | None = None
        self._opening = ""  # of the log, when the holder attached
        self._position = 0  # after the last record of the holder that was taken
        self._offered: FleetBatch | None = None  # nobody has taken it yet
        # What is still to be acknowledged: the epoch in which it was read, and the highest position.
        self._acknowledged: tuple[int, int] | None = None
        self._sending = asyncio.Lock()
        self._attaching = asyncio.Lock()

    async def attach(self) -> bool:
        """Become the holder; return whether there is a queue to read and the server responds.

        Raises:
            RecordLogError: The consumer does not exist, or belongs to another owner.
        """
        holder, opening = self._make_holder(), self.server.opening
        try:
            await holder.__aenter__()
        except QueueNotFoundError:
            self.end = End.MISSING
        except RecordLogError as error:
            if not self._is_temporary(error):
                raise
        else:
            self._holder, self._opening, self._position = holder, opening, holder.position
            return True
        return False

    async def run(self, limits: Callable[[], BatchLimits], offer: Offer) -> None:
        """Offer batch after batch until the queue ends.

        Raises:
            RecordLogError: Another holder has attached, or the consumer was deleted.
        """
        while self.end is None:
            batch = await self._next(limits())
            if batch is not None:
                self._offered = batch
                await offer(batch)

    def note_taken(self, batch: FleetBatch) -> None:
        """Note that somebody has taken *batch*; if it is of an earlier holder, its records are handed out again."""
        if self._holder is not None and self._holder.epoch == batch.epoch:
            self._position = batch.next_position
        self._offered = None

    async def extent(self) -> tuple[int, int] | None:
        """Return the next position to hand out, and the next one of the queue; None while the server is away."""
        first = end = 0
        if self.end is None:
            if self._holder is None or not self.server.reads:
                return None
            try:
                summary = await self.server.client.queue_summary(self._holder.queue)
                first, end = summary.first_position, summary.next_position
            except QueueNotFoundError:
                pass
            except RecordLogError as error:
                if not self._is_temporary(error):
                    raise
                return None
        if self._offered is not None:  # it is handed out, whatever becomes of its records
            return self._position, max(end, self._offered.next_position)
        return max(first, self._position), end

    async def acknowledge(self, batch: FleetBatch) -> bool:
        """Acknowledge up to the end of *batch*; return False if the server is away and has to be sent it later.

        So it is if the records are handed out again, because another holder of this consumer has replaced theirs.
        """
        self._acknowledged = max((batch.epoch, batch.last_position), self._acknowledged or (0, 0))
        done, holder = await self.flush(), self._holder
        again = holder is not None and holder.queue_id == batch.queue_id and holder.epoch != batch.epoch
        return done and not again

    async def flush(self) -> bool:
        """Send what is still to be acknowledged; return whether nothing is."""
        async with self._sending:
            wanted, holder = self._acknowledged, self._holder
            if wanted is None or holder is None:
                return wanted is None
            try:
                # Of what another holder read, positions may have gone to other records: in a recreated queue, or in a
                # log that lost records in a power cut. What it still has is handed out again.
                if wanted[0] == holder.epoch:
                    await holder.acknowledge(wanted[1])
            except QueueNotFoundError:
                pass  # its records were deleted
            except (ConsumerFencedError, PositionAheadError):
                if not await self._attach_again(holder):
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
        if not self._membership.knows(self.server):
            self.end = End.MISSING
            return None
        if not self.server.reads:
            await self._membership.changed()
            return None
        await self.flush()
        holder = self._holder
        assert holder is not None, "it is attached before it runs"
        try:
            records, size, seconds, _ = limits
            batch = await holder.batch(max_records=records, max_bytes=size, max_wait=seconds)
            if self._holder is not holder:
                return None  # an acknowledgement was fenced meanwhile; the new holder reads these records again
            if batch is None:
                self.end = await self._why_ended(holder)
                return None
            return FleetBatch(batch, self.server.log_id, self.server.name, holder.epoch)
        except (ConsumerFencedError, PositionAheadError):
            if not await self._attach_again(holder):
                raise
        except RecordLogError as error:
            if not self._is_temporary(error):
                raise
            await self._membership.changed_within(RETRY_SECONDS)
        return None

    async def _why_ended(self, holder: ClientConsumer) -> End:
        try:
            summary = await self.server.client.queue_summary(holder.queue)
        except QueueNotFoundError:
            return End.MISSING
        return End.COMPLETE if summary.id == holder.queue_id and summary.sealed else End.MISSING

    async def _attach_again(self, fenced: ClientConsumer) -> bool:
        """Attach once more if the log was opened again since; return whether it was.

        Under a weaker policy a log that was killed knows no holder from before, and a restored one is at older
        positions. In the same opening, somebody else has attached, and keeps the consumer.
        """
        async with self._attaching:  # a read and an acknowledgement may be fenced at the same time
            if self._holder is not fenced:
                return True
            for _ in range(LOOKS):
                if self.server.opening == self._opening:
                    await self._membership.look_soon()
            if self.server.opening == self._opening:
                return False
            while not await self.attach() and self.end is None:
                await self._membership.changed_within(RETRY_SECONDS)
            return True

    def _is_temporary(self, error: RecordLogError) -> bool:
        """Return whether *error* passes; if so, have the server probed. A server that was forgotten ends the reader."""
        if not self._membership.knows(self.server):
            self.end = End.MISSING
            return True
        if takes_no_records(error):
            self._membership.suspect(self.server)
        return passes(error)

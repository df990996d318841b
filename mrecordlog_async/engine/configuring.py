"""The options of an open log's queues, their seal, and the opening that the log is in."""

from __future__ import annotations

from mrecordlog_async.engine.consuming import ConsumingLog
from mrecordlog_async.engine.intake.commands import ConfigureQueue, SealQueue
from mrecordlog_async.format.table import TableOpening
from mrecordlog_async.memory.settings import values_of
from mrecordlog_async.names import check_name
from mrecordlog_async.options import QueueOptions


class ConfiguringLog(ConsumingLog):
    """A log whose queues have options."""

    async def configure_queue(self, queue: str, options: QueueOptions) -> None:
        """Replace the options of *queue*. Durable under every policy; a sealed queue stays sealed.

        Args:
            queue: The queue.
            options: All its options: those that are not passed have their defaults.

        Raises:
            QueueNotFoundError: No queue has this name.
            QueueOptionsError: A limit is below what the queue holds, and it does not drop its oldest records.
            LogFullError: There is no space.
        """
        check_name(queue)
        await self._begin(ConfigureQueue(self._new_future(), queue, values_of(options)))

    async def seal_queue(self, queue: str, *, queue_id: int | None = None) -> int:
        """Seal *queue*: it accepts no more records, for good. Durable under every policy.

        Appends that were not stored before the seal raise QueueSealedError, also those that waited for space. A repeat
        of a stored record still returns None. Tails and consumers end after the last record; the queue stays until it
        is deleted.

        Args:
            queue: The queue.
            queue_id: Seal it only if it is still this incarnation (see `summary`).

        Returns:
            The queue's next position, which no record will have.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            QueueSealedError: The queue is sealed already.
            LogFullError: There is no space.
        """
        check_name(queue)
        position = await self._begin(SealQueue(self._new_future(), queue, queue_id))
        assert isinstance(position, int)
        return position

    @property
    def openings(self) -> tuple[TableOpening, ...]:
        """The last openings of the log that stored a batch: a random number, and the first batch of each.

        At most 1,024, oldest first. The mark of an idle log is a batch too. A log that is
        missing an opening it once had was rolled back to an older state.
        """
        return tuple(self._queues.openings)

    @property
    def at(self) -> tuple[int, int]:
        """The state that the log's positions show: the newest opening, and the last batch that changed something.

        It stays the same while nothing changes, but the first batch after an opening always changes it, even if it is
        the mark of an idle log. The log went back to an older state if it lacks the opening, or if the next opening
        begins at this batch or before it.
        """
        return self.opening, self._queues.last_batch

    @property
    def durable_batch(self) -> int:
        """Number of the last batch that is on the medium for certain; 0 before the first one."""
        return self._opened.journal.end.durable_batch

    @property
    def opening(self) -> int:
        """The random number of the newest of `openings`; 0 if nothing was ever stored."""
        openings = self._queues.openings
        return openings[-1].nonce if openings else 0

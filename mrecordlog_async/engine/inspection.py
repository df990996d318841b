"""Facts and calls of an open log for services and tools, not for users: `log.inspection`.

No promise of compatibility covers it. Nothing here waits but what reads the disk, or the holders of consumers call.
What names a queue or a consumer raises QueueNotFoundError or ConsumerNotFoundError if there is none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from time import perf_counter
from uuid import UUID

from mrecordlog_async.engine.consuming import Attaching, ConsumerChanges
from mrecordlog_async.engine.intake.controls import Attached
from mrecordlog_async.engine.running import Engine
from mrecordlog_async.engine.spilling.disk_reads import DiskPlace, LoadedRuns, LoadLimits, Located
from mrecordlog_async.errors import ConsumerNotFoundError, QueueNotFoundError
from mrecordlog_async.format.controls import Opened
from mrecordlog_async.format.header import public_log_id
from mrecordlog_async.memory.cutting import UNLIMITED
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.reads import fingerprint, position_of, times_between
from mrecordlog_async.memory.searches import QUEUES_PER_STEP, OldestPin, first_in_steps
from mrecordlog_async.metrics import SegmentPin
from mrecordlog_async.model import ConsumerSummary, Start, Times, tick_of_time

Extent = tuple[int, int, int, int]
"""Id, `began`, first position and next position of a queue, as `QueueSummary` describes them."""


class Inspection:
    """An open log as services and tools see it."""

    def __init__(self, engine: Engine, consumers: ConsumerChanges) -> None:
        self._engine = engine
        self._lookup = engine.lookup
        self._queues = engine.queues
        self._consumers = consumers
        self._oldest_pin = OldestPin(engine.queues)

    # The application that holds the log.

    def end_readers(self) -> None:
        """Have every tail and consumer of the log end after what it was handed already; nothing else ends.

        Appends, acknowledgements and truncates continue, for readers that still work on their records. It cannot be
        undone.
        """
        self._engine.changes.end_readers()

    # The log: which one it is, which state its positions show, and how it is.

    @property
    def public_id(self) -> str:
        """A stable name of this log, derived from its id. Moving the log keeps it, and snapshots share it."""
        return public_log_id(self._engine.opened.log_id)

    @property
    def openings(self) -> tuple[Opened, ...]:
        """The last openings of the log that stored a batch: a random number, and the first batch of each.

        At most 1,024, oldest first. The mark of an idle log is a batch too. A log that is missing an opening it once
        had was rolled back to an older state.
        """
        return tuple(self._queues.openings)

    @property
    def opening(self) -> int:
        """The random number of the newest of `openings`; 0 if nothing was ever stored."""
        return self._queues.opening

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
        return self._engine.opened.journal.end.durable_batch

    @property
    def version(self) -> int:
        """A number that is different after every change that a reader can see."""
        return self._queues.version

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the log, or None."""
        return self._engine.failure()

    @property
    def under_way_seconds(self) -> float:
        """Seconds that the work of the log's thread now, such as a commit, has taken in system calls; 0 without any.

        A disk that hangs shows here, and not in the histograms, which count what has come back.
        """
        return self._engine.disk_watch.under_way_seconds()

    @property
    def waiting_seconds(self) -> float:
        """Seconds that the oldest unfinished call has waited; 0 without one."""
        since = self._engine.writer.oldest_since()
        return 0.0 if since is None else max(perf_counter() - since, 0.0)

    @property
    def pending_records(self) -> int:
        """Number of records that wait to be stored. Counted when read, so that appends pay nothing for it."""
        return self._engine.pending_records()

    def keep_unclosed(self) -> None:
        """Leave a log that was not closed when it was opened unclosed, for tools that open the log of a service.

        Under a weak policy the service's next open must fence off the holders of consumers, as after any crash; which
        policy it has, only the service knows.
        """
        self._engine.keep_unclosed()

    # Refusals that a service makes for the log.

    def check_memory(self, size: int) -> None:
        """Raise LogFullError, and count the refusal, if memory has no space for an append of *size* bytes to come.

        Where records may leave memory, that is only if none can.
        """
        self._engine.admission.check_memory(size)

    def refuse_unknown_queue(self, queue: str) -> QueueNotFoundError:
        """Count an append that was refused, before the log saw its records, for lack of *queue*; return its error."""
        return self._engine.admission.refusals.counted(QueueNotFoundError(queue), None)

    # Queues, where a summary costs too much, or a list is too long for one turn of the event loop.

    def extent(self, queue: str) -> Extent | None:
        """Return the id and the positions of one queue, in a tenth of the time of a summary; None if it is missing."""
        found = self._lookup.get(queue)
        return None if found is None else (found.id, found.began, found.first_position, found.next_position)

    def is_there(self, queue: str, queue_id: int) -> bool:
        """Return whether *queue* exists and is still the incarnation *queue_id*."""
        found = self._lookup.get(queue)
        return found is not None and found.id == queue_id

    def held(
        self,
        queue: str,
        start: Start | None = None,
        stop: int | None = None,
        *,
        most: int | None = None,
        records_max: int | None = None,
    ) -> list[HeldRun]:
        """Return what `MultiRecordLog.runs` returns in the form it is kept: records with gaps in one piece.

        Args:
            most: Return at most this many pieces, the first ones. A caller that must not block an event loop calls
                again from the next position of the last piece, until nothing is returned.
            records_max: No more records than this are wanted. Pieces are returned as they are kept, so there may be
                more in them, but nothing is joined beyond it.
        """
        found = self._lookup.find(queue)
        return found.held(position_of(found, start), stop, most, records_max)

    async def load(
        self,
        queue: str,
        start: int,
        stop: int | None = None,
        *,
        runs_max: int,
        records_max: int = UNLIMITED,
        bytes_max: int = UNLIMITED,
    ) -> LoadedRuns:
        """Return what `held` and `times` do, from memory without waiting, or from the disk.

        Until there are this many pieces, records or payload bytes, or one piece more. What was truncated while they
        were read may be among them, or missing.

        Raises:
            QueueNotFoundError: No queue has this name, or it was deleted meanwhile.
            CorruptionError: Records on the disk are damaged.
            OSError: The disk refuses a read.
        """
        found, disk = self._lookup.find(queue), self._engine.disk_reads
        stop = found.next_position if stop is None else min(stop, found.next_position)
        loaded = await disk.load(found, start, stop, LoadLimits(runs_max, records_max, bytes_max))
        if not disk.is_there(found):
            raise QueueNotFoundError(queue)
        return loaded

    def read_ahead(self, queue: str, start: int, stop: int | None, size: int) -> None:
        """Begin to read what a reader wants next that has read *size* bytes of the disk; see `DiskReads.read_ahead`."""
        found = self._lookup.find(queue)
        self._engine.disk_reads.read_ahead(found, start, found.next_position if stop is None else stop, size)

    def locate(self, queue: str, start: int, stop: int, *, runs_max: int, bytes_max: int) -> Located:
        """Return where records are, for `read_located`: what is in memory is held, and stays as it is.

        runs_max: pieces of memory. bytes_max: of pieces of memory, or of places on the disk, of which one is returned.
        """
        found = self._lookup.find(queue)
        return self._engine.disk_reads.locate(found, start, stop, LoadLimits(runs_max, bytes=bytes_max))

    async def read_located(self, located: Sequence[Located]) -> list[LoadedRuns]:
        """Read what was located, in the order of the files in which it is; see `DiskReads.read_located`."""
        return await self._engine.disk_reads.read_located(located)

    def places(self, queue: str, start: int, stop: int, most: int) -> list[DiskPlace]:
        """Return what is known of records on the disk without reading them; see `DiskReads.places`."""
        return self._engine.disk_reads.places(self._lookup.find(queue), start, stop, most)

    def amount_on_disk(self, queue: str, start: int, stop: int) -> tuple[int, int, list[DiskPlace]]:
        """Return the sums of what `places` returns; see `DiskReads.amount`."""
        return self._engine.disk_reads.amount(self._lookup.find(queue), start, stop)

    async def position_at(self, queue: str, time: datetime) -> int:
        """Do what `MultiRecordLog.position_at` does, reading the disk if that is needed.

        Raises:
            QueueNotFoundError: No queue has this name, or it was deleted meanwhile.
            CorruptionError: Records on the disk are damaged.
            OSError: The disk refuses a read.
        """
        found, disk = self._lookup.find(queue), self._engine.disk_reads
        position = await disk.position_at(found, tick_of_time(time))
        if not disk.is_there(found):
            raise QueueNotFoundError(queue)
        return position

    def times(self, queue: str, start: int | None = None, stop: int | None = None) -> Times:
        """Return where the time of storing changes along *start* … *stop* - 1, by default all retained positions."""
        return times_between(self._lookup.find(queue), start, stop)

    def names(self) -> tuple[tuple[int, int], Iterable[str]]:
        """Return the names of all queues, unsorted.

        Returns:
            A value that is different once the set of names has changed, and the names. Copy them before anything else
            runs: they are a view.
        """
        self._lookup.check_readable()
        return (self._queues.next_queue_id, len(self._queues)), self._queues.unsorted_names()

    def fingerprints(self, queues: Sequence[str]) -> dict[str, int]:
        """Return a number for each of *queues* that exists, in this order; it is another one once its summary is.

        It takes a tenth of the time of the summaries.
        """
        self._lookup.check_readable()
        found = zip(queues, map(self._queues.get, queues), strict=True)
        return {name: fingerprint(queue) for name, queue in found if queue is not None}

    def next_positions(self) -> dict[int, int]:
        """Return the next position of every queue, by id."""
        self._lookup.check_readable()
        return {queue.id: queue.next_position for queue in self._queues}

    def deleted_end(self, queue_id: int) -> int | None:
        """Return the next position that a deleted queue had; None if unknown: of 10,000 deletions since the open."""
        return self._queues.deleted.get(queue_id)

    def ranked_in_steps(self, order: str, most: int, prefix: str = "") -> Iterator[list[str]]:
        """Find the *most* queues that come first in an order, a thousand at a time, so that other work can run.

        Args:
            order: "bytes" or "records" for the queues that hold most, "segment" for those that keep the oldest one,
                "age" for those with the oldest records.

        Yields:
            The names found so far, after each step. The last list is the result.
        """
        self._lookup.check_readable()
        queues = (queue for queue in self._queues if queue.name.startswith(prefix)) if prefix else self._queues
        for found in first_in_steps(queues, order, most):
            yield [queue.name for queue in found]

    # Segments, and what keeps them.

    def pin(self) -> SegmentPin | None:
        """Return the queue that keeps the oldest segment on the disk.

        Scans every queue if another one keeps it than at the last call: 100,000 queues take 14 ms.

        Returns:
            The queue and the segments it keeps, or None if no queue needs a segment older than the current one.
        """
        found = None
        for found in self.pin_in_steps():  # noqa: B007  # the last one counts
            pass
        return found

    def pin_in_steps(self) -> Iterator[SegmentPin | None]:
        """Do what `pin` does, a thousand queues at a time: yield None after each step, and its result at the end."""
        yield from self._oldest_pin.find_in_steps(self._engine.segments())

    def pinned_segments(self) -> list[tuple[int, int]]:
        """Return the segments that hold retained records, each with the number of queues that have some in it.

        Others between the first of them and the current one stay only because segments are deleted in order.
        """
        return self._queues.pins.by_segment()

    # Consumers and rules.

    def consumer_summaries(self, queue: str, consumers: Iterable[str]) -> list[ConsumerSummary]:
        """Return where *consumers* of *queue* are, in this order; those that do not exist are left out."""
        return self._consumers.summaries(self._lookup.find(queue), consumers)

    def consumer_position(self, queue: str, consumer: str) -> int:
        """Return the first position that a consumer of *queue* has not acknowledged."""
        state = self._lookup.find(queue).consumer(consumer)
        if state is None:
            raise ConsumerNotFoundError(queue, consumer)
        return state.position

    def consumer_names(self, queue: str) -> Collection[str]:
        """Return the names of the consumers of *queue*, unsorted. Copy them before others run: they are a view."""
        return self._lookup.find(queue).consumers

    @property
    def consumer_count(self) -> int:
        """The number of consumers of all queues."""
        return self._queues.consumer_count

    def queues_with_consumers(self) -> Iterator[list[str]]:
        """Find the queues that have consumers, a thousand queues at a time, so that other work can run in between.

        Yields:
            The names found in each step, unsorted; nothing if no queue has a consumer.
        """
        self._lookup.check_readable()
        listed = list(self._queues) if self._queues.consumer_count else []
        for at in range(0, len(listed), QUEUES_PER_STEP):
            yield [queue.name for queue in listed[at : at + QUEUES_PER_STEP] if queue.consumers]

    def consumer_rules(self) -> list[tuple[str, str]]:
        """Return the rules that give new queues a consumer, as (pattern, consumer), in order."""
        return sorted((pattern, consumer) for pattern, consumer in self.unsorted_rules())

    def unsorted_rules(self) -> Collection[tuple[str, str]]:
        """Return the rules unsorted."""
        self._lookup.check_readable()
        return self._queues.rules.of_patterns()

    # The holders of consumers, where they are the clients of a service: what `MultiRecordLog.consumer` does in here.

    async def attach_consumer(
        self,
        queue: str,
        consumer: str,
        *,
        create: bool = False,
        start: Start | None = None,
        owner: UUID | str | None = None,
        take_over: bool = False,
        if_idle_for: float | None = None,
    ) -> Attached:
        """Become the holder of *consumer*: every earlier one is fenced off. Durable under every policy.

        The arguments and errors are those of `MultiRecordLog.consumer`. Returns the queue's id and the epoch, which the
        later calls of this holder carry, and the consumer's position.
        """
        return await self._consumers.attach(queue, consumer, Attaching(create, start, owner, take_over, if_idle_for))

    def check_holder(self, queue: str, consumer: str, *, queue_id: int, epoch: int) -> None:
        """Raise unless *epoch* is that of the present holder of *consumer*: before and after a read.

        Raises:
            QueueNotFoundError: No queue has this name, or it is another incarnation.
            ConsumerNotFoundError: The queue has no such consumer.
            ConsumerFencedError: Another holder has attached since.
        """
        self._consumers.check_holder(queue, consumer, queue_id=queue_id, epoch=epoch)

    async def wait_as_holder(self, consumer: str, position: int, *, queue_id: int, epoch: int) -> bool:
        """Wait as `MultiRecordLog.wait_for` does, as the holder of *consumer*; raise as `check_holder`, too."""
        return await self._consumers.watch(consumer, Attached(queue_id, epoch, position)).reach(position)

    async def acknowledge(self, queue: str, consumer: str, position: int, *, queue_id: int, epoch: int) -> int:
        """Do what `Consumer.acknowledge` does, for the holder to which `attach_consumer` gave this id and epoch."""
        return await self._consumers.acknowledge(queue, consumer, position, queue_id, epoch)

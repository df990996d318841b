"""The reading half of a log, over the queues it holds: shared by the log that writes and the one that only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from mrecordlog_async.errors import QueueNameError, QueueNotFoundError
from mrecordlog_async.memory.gapped import HeldRun
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.model import QueueSummary, Record, Run


class QueueReader:
    """Reads from memory. Nothing here waits; returned values never change."""

    _queues: Queues

    def range(self, queue: str, start: int | None = None, stop: int | None = None) -> Iterator[Record]:
        """Yield the records of *queue* with positions *start* … *stop* - 1; None means from the first, to the last.

        What is yielded is fixed at the call: later appends and truncates do not change it.
        """
        return chain.from_iterable(run.records() for run in self._queue(queue).held(start, stop))

    def iter_from(self, queue: str, position: int) -> Iterator[Record]:
        """Yield the records of *queue* from *position* on, as `range` does."""
        return self.range(queue, position)

    def runs(self, queue: str, start: int | None = None, stop: int | None = None) -> Sequence[Run]:
        """Return the same as `range`, as whole runs: only the first and the last one are cut. Fixed at the call.

        Where there are gaps between positions, the runs are made as they are iterated.
        """
        return self._queue(queue).runs(start, stop)

    def held(
        self, queue: str, start: int | None = None, stop: int | None = None, *, most: int | None = None
    ) -> list[HeldRun]:
        """Return the same as `runs`, as it is kept: records with gaps between them in one piece.

        most: return only this many pieces, the first ones. A caller that must not block an event loop calls again from
        the next position of the last one, until nothing is returned.
        """
        return self._queue(queue).held(start, stop, most)

    def queue_exists(self, queue: str) -> bool:
        """Return whether a queue of this name exists."""
        self._check_readable()
        return isinstance(queue, str) and self._queues.get(queue) is not None

    @property
    def version(self) -> int:
        """A number that differs after every change that a reader can see."""
        return self._queues.version

    def names(self) -> tuple[tuple[int, int], Iterable[str]]:
        """Return a value that differs once the set of names has changed, and the names, unsorted.

        For lists too long to be sorted in one turn. The names must be copied before anything else runs.
        """
        self._check_readable()
        return (self._queues.next_queue_id, len(self._queues)), self._queues.unsorted_names()

    def list_queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        self._check_readable()
        return self._queues.names()

    def first_position(self, queue: str) -> int:
        """Return the lowest position of *queue* that is not truncated; `next_position` if it is empty."""
        return self._queue(queue).first_position

    def last_position(self, queue: str) -> int | None:
        """Return the position before the next one, even if it is truncated; None if nothing was ever appended."""
        return self._queue(queue).next_position - 1 if self._queue(queue).next_position else None

    def next_position(self, queue: str) -> int:
        """Return the position that the next record of *queue* will have."""
        return self._queue(queue).next_position

    def last_record(self, queue: str) -> Record | None:
        """Return the newest retained record of *queue*."""
        return self._queue(queue).last_record()

    def queue_summary(self, queue: str) -> QueueSummary:
        """Return positions and sizes of one queue."""
        return summarize(self._queue(queue))

    def summary(self) -> dict[str, QueueSummary]:
        """Return positions and sizes of every queue, by name."""
        self._check_readable()
        return {queue.name: summarize(queue) for queue in sorted(self._queues, key=lambda queue: queue.name)}

    def next_positions(self) -> dict[int, int]:
        """Return the next position of every queue, by id."""
        self._check_readable()
        return {queue.id: queue.next_position for queue in self._queues}

    def deleted_end(self, queue_id: int) -> int | None:
        """Return the next position that a deleted queue had, None if it is not known, or no longer."""
        return self._queues.deleted.get(queue_id)

    def _check_readable(self) -> None:
        """Raise LogClosedError if the log may no longer be read."""

    def _check_name(self, queue: object) -> None:
        check_name(queue)

    def _queue(self, name: str) -> Queue:
        self._check_readable()
        queue = self._queues.get(name) if isinstance(name, str) else None
        if queue is None:
            self._check_name(name)
            raise QueueNotFoundError(name)
        return queue


def check_name(queue: object, bytes_max: int = 65_535) -> None:
    """Raise QueueNameError unless *queue* is a str of 1 to *bytes_max* bytes in UTF-8."""
    if not isinstance(queue, str):
        raise QueueNameError(queue, f"must be a str, not {type(queue).__name__}")
    if not queue:
        raise QueueNameError(queue, "is empty")
    try:
        size = len(queue.encode())
    except UnicodeEncodeError:
        raise QueueNameError(queue, "cannot be encoded as UTF-8") from None
    if size > bytes_max:
        raise QueueNameError(queue, f"is {size} bytes long in UTF-8; the limit is {bytes_max}")


def summarize(queue: Queue) -> QueueSummary:
    """Sum up a queue."""
    return QueueSummary(
        queue=queue.name,
        id=queue.id,
        first_position=queue.first_position,
        next_position=queue.next_position,
        records=queue.records,
        bytes=queue.live_bytes(),
        first_segment=queue.first_segment(),
        began=queue.began,
    )

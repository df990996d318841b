"""Decides whether a call fits, now, later or never: compares sizes with the limits, memory and the disk.

The error of a call that does not fit names the queue that holds most of what is missing (`LargestHolder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter

from mrecordlog_async.engine.intake.commands import SINGLE_OVERHEAD_BYTES, AppendGroup, AppendRecords
from mrecordlog_async.errors import LogFullError, RecordTooLargeError
from mrecordlog_async.format.frame import frames_bytes_max
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.searches import RANKS
from mrecordlog_async.options import MIB, Limits, memory_limit

SLACK_BYTES = 64 * MIB
"""Appends may wait up to this much above the limit of memory, while older records are about to leave it."""

SECONDS_MIN = 1.0
COST_FACTOR = 50
"""The queues are searched again after a second, or after this many times what the last search took: 2 % of the time."""

LIVE_PART = 4
"""With less than this part of a full disk for live records, the queue with the oldest ones holds most of it."""

DiskBytes = Callable[[], tuple[int, str]]
"""Returns the size of the largest batch that a log without records could store, and the name of what limits it."""


class Capacity:
    """The limits of one log, next to what its queues hold. *pending_bytes* is the charge of all admitted calls."""

    def __init__(self, limits: Limits, queues: Queues, disk_bytes_at_best: DiskBytes | None = None) -> None:
        # Begins to have records leave memory until a call of this size fits next to the bytes of those before it;
        # returns False if nothing that leaves would help.
        self.make_room: Callable[[int, int], bool] | None = None
        self._limits = limits
        self._memory_bytes = memory_limit(limits)
        self._queues = queues
        self._in_memory = LargestHolder(queues, largest_in_memory)
        self._on_disk = LargestHolder(queues, partial(largest_on_disk, disk_bytes=limits.disk_bytes))
        self._disk_bytes_at_best = disk_bytes_at_best or (lambda: (limits.disk_bytes, "disk_bytes"))

    def budget(self, pending_bytes: int) -> int:
        """Return how much more may be admitted."""
        wanted = self._limits.pending_bytes + SINGLE_OVERHEAD_BYTES - pending_bytes
        return min(wanted, self._memory_bytes - pending_bytes - self._queues.memory_bytes)

    def lack_of_memory(self, size: int, pending_bytes: int) -> LogFullError | None:
        """Return why memory has no space for *size* bytes after *pending_bytes*, or None if it has, or soon will."""
        left = self._memory_bytes - pending_bytes - self._queues.memory_bytes
        if left >= size:
            return None
        leaves = self.make_room is not None and self.make_room(size, pending_bytes)
        if leaves and left + SLACK_BYTES >= size:
            return None
        used = self._queues.memory_bytes + pending_bytes
        queue, consumer = self._in_memory.find()
        return LogFullError("memory", used, self._memory_bytes, queue, consumer=consumer)

    def disk_full(self, error: LogFullError) -> LogFullError:
        """Return *error*, of a call that the disk has no space for, with what holds most of it."""
        queue, consumer = self._on_disk.find()
        named = LogFullError(error.resource, error.used, error.limit, queue, error.unit, consumer)
        named.__cause__ = error.__cause__
        return named

    def memory_at_best(self) -> int:
        """Return what records may take of the memory: no truncate frees what queues, consumers and rules cost."""
        return max(self._memory_bytes - self._queues.overhead_bytes, 0)

    def never_fits(self, call: AppendRecords | AppendGroup) -> RecordTooLargeError | None:
        """Return why *call* could not be stored even in a log without records, or None if it could."""
        if call.bytes > (memory := self.memory_at_best()):
            return RecordTooLargeError(call.bytes, memory, "memory_bytes")
        (disk, name), size = self._disk_bytes_at_best(), frames_bytes_max(call.bytes)
        return RecordTooLargeError(size, disk, name) if size > disk else None

    def reason_to_leave_line(
        self, call: AppendRecords, pending_bytes: int
    ) -> LogFullError | RecordTooLargeError | None:
        """Return why *call*, the first in line after *pending_bytes*, must stop waiting, or None if it may wait."""
        if self._limits.on_full == "wait":
            if self.make_room is not None:
                self.make_room(call.bytes, pending_bytes)
            return self.never_fits(call)
        return self.never_fits(call) or self.lack_of_memory(call.bytes, pending_bytes)

    def check(self, call: AppendRecords, *, waits: bool) -> None:
        """Raise RecordTooLargeError if a record of *call* exceeds `record_bytes`, or if *call* would wait forever."""
        limit = self._limits.record_bytes
        if call.bytes > limit:  # otherwise none of its records is
            largest = max(map(len, call.payloads), default=0)
            if largest > limit:
                raise RecordTooLargeError(largest, limit)
        if not waits:
            return
        limit = self._limits.pending_bytes
        if call.bytes > limit + SINGLE_OVERHEAD_BYTES:
            raise RecordTooLargeError(call.bytes, limit, "pending_bytes")
        if (error := self.never_fits(call)) is not None:
            raise error


class LargestHolder:
    """Finds what holds the most memory or disk space, for the error of a call that has no space.

    Searched rarely: while memory is full, every append would ask.
    """

    def __init__(self, queues: Queues, search: Callable[[Queues], Queue | None]) -> None:
        self._queues = queues
        self._search = search
        self._found = ("", "")
        self._search_after = 0.0

    def find(self) -> tuple[str, str]:
        """Return the queue that holds the most, and its consumer that is furthest behind, as of a short while ago.

        "" for neither.
        """
        begun = perf_counter()
        if begun >= self._search_after:
            found = self._search(self._queues)
            self._found = ("", "") if found is None else (found.name, found.slowest_consumer())
            ended = perf_counter()
            self._search_after = ended + max(SECONDS_MIN, COST_FACTOR * (ended - begun))
        return self._found


def largest_in_memory(queues: Iterable[Queue]) -> Queue | None:
    """Return the queue that takes the most memory."""
    return max(queues, key=lambda queue: queue.memory_bytes, default=None)


def largest_on_disk(queues: Iterable[Queue], disk_bytes: int) -> Queue | None:
    """Return the queue that takes most of *disk_bytes*: by its records, or by the segments that they keep.

    Where less than a quarter of the disk is live records, most of it is kept by the queue that has the oldest ones.
    (Half of the disk may be their copies in gathered files.)
    """
    held = [(queue.live_bytes(), queue) for queue in queues]
    if LIVE_PART * sum(size for size, _ in held) < disk_bytes:
        return min((queue for _, queue in held), key=RANKS["segment"], default=None)
    return max(held, key=lambda each: each[0], default=(0, None))[1]

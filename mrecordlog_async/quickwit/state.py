"""The memory of the crate: the queues, and how each record changes them. The reader and the writer share it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from mrecordlog_async.model import OFFSET_STOP, Run
from mrecordlog_async.quickwit.record import APPEND, DELETE, TOUCH, TRUNCATE, LogRecord

CALL_BYTES = 1 << 20
"""Runs have about this many bytes, so that a call that appends one stays small."""


class PositionError(ValueError):
    """The position of an item was assigned before. The crate refuses the whole directory."""


def runs_of(records: Iterable[tuple[int, bytes]]) -> Iterator[Run]:
    """Yield *records*, each a position and a payload, as runs of about `CALL_BYTES`, with a new run after every gap.

    Raises ValueError for a payload that is too large for a log.
    """
    payloads: list[bytes] = []
    first = size = 0
    for position, payload in records:
        if len(payload) >= OFFSET_STOP:
            raise ValueError(
                f"position {position}: {len(payload)} bytes are too much for a log, whose records are below 2 GiB"
            )
        if payloads and (position != first + len(payloads) or size + len(payload) > CALL_BYTES):
            yield Run.of(first, payloads)
            payloads = []
        if not payloads:
            first, size = position, 0
        payloads.append(payload)
        size += len(payload)
    if payloads:
        yield Run.of(first, payloads)


class CrateQueue:
    """One queue: its positions, and the retained records, each with the file that it keeps."""

    __slots__ = ("first_position", "next_position", "records")

    def __init__(self, next_position: int = 0) -> None:
        self.first_position = next_position
        self.next_position = next_position
        self.records: deque[tuple[int, bytes, int]] = deque()

    @property
    def record_count(self) -> int:
        """Return how many records it retains."""
        return len(self.records)

    def holds_records(self) -> bool:
        """Return whether any record is retained."""
        return bool(self.records)

    def append(self, position: int, payload: bytes, file: int) -> None:
        """Add a record at *position*, which may leave a gap."""
        self._check(position)
        if self.first_position == 0 and not self.records:
            self.first_position = position
        self.records.append((position, payload, file))
        self.next_position = position + 1

    def truncate(self, position: int) -> int:
        """Delete records up to and including *position*; return how many. Past the end, next_position moves forward."""
        if position < self.first_position:
            return 0
        before = len(self.records)
        if position + 1 >= self.next_position:
            self.records.clear()
            self.next_position = position + 1
        else:
            while self.records and self.records[0][0] <= position:
                self.records.popleft()
        self.first_position = position + 1
        return before - len(self.records)

    def _check(self, position: int) -> None:
        if position < self.next_position:
            raise PositionError(f"position {position} comes after {self.next_position - 1}")

    def first_file(self) -> int | None:
        """Return the file that the oldest retained record keeps."""
        return self.records[0][2] if self.records else None

    def runs(self) -> Iterator[Run]:
        """Yield the retained records as runs of about `CALL_BYTES`, with a new run after every gap."""
        return runs_of((position, payload) for position, payload, _ in self.records)


class CountedQueue(CrateQueue):
    """A queue that keeps no payloads: of each file only the last position, which is all that writing needs."""

    __slots__ = ()

    def append(self, position: int, payload: bytes, file: int) -> None:
        """Add a record at *position*; see `CrateQueue.append`."""
        super().append(position, b"", file)
        if len(self.records) > 1 and self.records[-2][2] == file:
            del self.records[-2]


class PositionRanges:
    """Positions of records, ascending, as ranges without gaps: 16 bytes each, however many records they hold."""

    def __init__(self) -> None:
        self._bounds = array("Q")  # first and last position of each range

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def __len__(self) -> int:
        """Return the number of positions."""
        return sum(self._bounds[1::2]) - sum(self._bounds[::2]) + len(self._bounds) // 2

    def add(self, position: int) -> None:
        """Add a position after all others."""
        bounds = self._bounds
        if bounds and bounds[-1] == position - 1:
            bounds[-1] = position
        else:
            bounds.extend((position, position))

    def drop(self, position: int) -> None:
        """Drop the positions up to and including *position*."""
        bounds, dead = self._bounds, 0
        while dead < len(bounds) and bounds[dead + 1] <= position:
            dead += 2
        del bounds[:dead]
        if bounds:
            bounds[0] = max(bounds[0], position + 1)


class PlacedQueue(CrateQueue):
    """A queue read without payloads: the positions of its records. number: how many queues were made before it.

    A queue that is deleted and made again is a new one, so only the number shows which one a record belongs to.
    """

    __slots__ = ("number", "positions")

    def __init__(self, next_position: int, number: int) -> None:
        super().__init__(next_position)
        self.number = number
        self.positions = PositionRanges()

    @property
    def record_count(self) -> int:
        """Return how many records it retains."""
        return len(self.positions)

    def holds_records(self) -> bool:
        """Return whether any record is retained."""
        return bool(self.positions)

    def append(self, position: int, payload: bytes, file: int) -> None:
        """Note a record at *position*; see `CrateQueue.append`."""
        self._check(position)
        if self.first_position == 0 and not self.positions:
            self.first_position = position
        self.positions.add(position)
        self.next_position = position + 1

    def truncate(self, position: int) -> int:
        """Drop records; see `CrateQueue.truncate`."""
        if position < self.first_position:
            return 0
        before = len(self.positions)
        self.positions.drop(position)
        self.next_position = max(self.next_position, position + 1)
        self.first_position = position + 1
        return before - len(self.positions)


class CrateState:
    """All queues by name."""

    def __init__(self, new_queue: Callable[[int], CrateQueue] = CrateQueue) -> None:
        """*new_queue* makes a queue whose next position it is given, and so decides what is kept of the records."""
        self.queues: dict[str, CrateQueue] = {}
        self.new_queue = new_queue

    def apply(self, record: LogRecord, file: int) -> None:
        """Apply a record read from *file*. Raises PositionError if the crate would refuse to continue."""
        queue = self.queues.get(record.queue)
        if record.kind == APPEND:
            if queue is None:
                queue = self.queues[record.queue] = self.new_queue(record.position)
            for position, payload in record.items:
                queue.append(position, payload, file)
        elif record.kind == TRUNCATE:
            if queue is not None:
                queue.truncate(record.position)
        elif record.kind == TOUCH:
            if queue is None or queue.holds_records() or queue.next_position != record.position:
                self.queues[record.queue] = self.new_queue(record.position)
        elif record.kind == DELETE:
            self.queues.pop(record.queue, None)

    def first_file(self) -> int | None:
        """Return the lowest file that a retained record keeps."""
        files = (queue.first_file() for queue in self.queues.values())
        return min((file for file in files if file is not None), default=None)

    def empty_queues(self) -> list[str]:
        """Return the names of the queues without records, sorted (the crate's own order is a hash map's)."""
        return sorted(name for name, queue in self.queues.items() if not queue.records)


def placed_state() -> CrateState:
    """Return a state that keeps no payloads, whose queues are numbered."""
    numbers = count(1)
    return CrateState(lambda position: PlacedQueue(position, next(numbers)))

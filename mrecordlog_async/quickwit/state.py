"""The memory of the crate: the queues, and how each record changes them. The reader and the writer share it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
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


class CrateQueue:
    """One queue: its positions, those of the records that it retains, and the files that these keep; no payloads.

    number: how many queues were made before it. A queue that is deleted and made again is a new one, so only the number
    shows which one a record belongs to.
    """

    __slots__ = ("_files", "first_position", "next_position", "number", "positions")

    def __init__(self, next_position: int, number: int) -> None:
        self.first_position = next_position
        self.next_position = next_position
        self.number = number
        self.positions = PositionRanges()
        self._files: deque[tuple[int, int]] = deque()  # the last position in each file, and the file

    def append(self, position: int, file: int) -> None:
        """Add a record at *position*, which may leave a gap."""
        if position < self.next_position:
            raise PositionError(f"position {position} comes after {self.next_position - 1}")
        if self.first_position == 0 and not self.positions:
            self.first_position = position
        self.positions.add(position)
        if self._files and self._files[-1][1] == file:
            self._files.pop()
        self._files.append((position, file))
        self.next_position = position + 1

    def truncate(self, position: int) -> int:
        """Delete records up to and including *position*; return how many. Past the end, next_position moves forward."""
        if position < self.first_position:
            return 0
        before = len(self.positions)
        self.positions.drop(position)
        while self._files and self._files[0][0] <= position:
            self._files.popleft()
        self.next_position = max(self.next_position, position + 1)
        self.first_position = position + 1
        return before - len(self.positions)

    def first_file(self) -> int | None:
        """Return the file that the oldest retained record keeps."""
        return self._files[0][1] if self._files else None


class CrateState:
    """All queues by name."""

    def __init__(self) -> None:
        self.queues: dict[str, CrateQueue] = {}
        self._numbers = count(1)

    def make_queue(self, name: str, next_position: int) -> CrateQueue:
        """Make an empty queue, in the place of one with this name."""
        queue = self.queues[name] = CrateQueue(next_position, next(self._numbers))
        return queue

    def apply(self, record: LogRecord, file: int) -> None:
        """Apply a record read from *file*. Raises PositionError if the crate would refuse to continue."""
        queue = self.queues.get(record.queue)
        if record.kind == APPEND:
            if queue is None:
                queue = self.make_queue(record.queue, record.position)
            for position, _ in record.items:
                queue.append(position, file)
        elif record.kind == TRUNCATE:
            if queue is not None:
                queue.truncate(record.position)
        elif record.kind == TOUCH:
            if queue is None or queue.positions or queue.next_position != record.position:
                self.make_queue(record.queue, record.position)
        elif record.kind == DELETE:
            self.queues.pop(record.queue, None)

    def first_file(self) -> int | None:
        """Return the lowest file that a retained record keeps."""
        files = (queue.first_file() for queue in self.queues.values())
        return min((file for file in files if file is not None), default=None)

    def empty_queues(self) -> list[str]:
        """Return the names of the queues without records, sorted (the crate's own order is a hash map's)."""
        return sorted(name for name, queue in self.queues.items() if not queue.positions)

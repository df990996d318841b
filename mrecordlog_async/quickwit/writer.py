"""Write the crate's files by making its calls. The bytes are those that the crate would write for the same calls.

Each call writes its record, then changes the state, then removes files as the crate does: only the lowest ones, and
only after truncate and delete. Before that, it writes the next position of every empty queue. The crate writes these in
the random order of a hash map, so two runs of the crate differ only there; here they are sorted by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mrecordlog_async.quickwit.files import NUMBER_MAX, Target
from mrecordlog_async.quickwit.frame import FILE_BYTES, encode_frames
from mrecordlog_async.quickwit.record import APPEND, DELETE, NAME_BYTES_MAX, TOUCH, TRUNCATE, LogRecord, encode_record
from mrecordlog_async.quickwit.state import CountedQueue, CrateQueue, CrateState

PAYLOAD_BYTES_MAX = 2**32 - 1


class ResumedLog(NamedTuple):
    """A log that was read: its state, the numbers of its files, and where it ends."""

    state: CrateState
    files: Sequence[int]
    file: int
    offset: int


class CrateWriter:
    """A log in the crate's format, open for writing. It blocks, and has one owner."""

    def __init__(
        self,
        target: Target,
        *,
        file_bytes: int = FILE_BYTES,
        keeps_records: bool = True,
        resumed: ResumedLog | None = None,
    ) -> None:
        """Begin a new log in an empty *target*, or continue the one that is *resumed*.

        Without *keeps_records*, the state of a new log has positions but no records.
        """
        self._target = target
        self._file_bytes = file_bytes
        if resumed is None:
            resumed = ResumedLog(CrateState(CrateQueue if keeps_records else CountedQueue), [0], 0, 0)
            target.create(0, file_bytes)
        self.state, self._file, self._offset = resumed.state, resumed.file, resumed.offset
        self._files = list(resumed.files)
        self._collect()

    @classmethod
    def resume(cls, target: Target, state: CrateState, files: Sequence[int], file: int, offset: int) -> CrateWriter:
        """Continue a log that was read: its state, its files, and where it ends."""
        return cls(target, resumed=ResumedLog(state, files, file, offset))

    def create_queue(self, queue: str) -> None:
        """Create *queue*. Raises KeyError if it exists, ValueError if the name is too long."""
        if queue in self.state.queues:
            raise KeyError(queue)
        if len(queue.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"the crate takes queue names of at most {NAME_BYTES_MAX} bytes")
        self._write(LogRecord(TOUCH, queue, 0))
        self.sync()
        self.state.queues[queue] = self.state.new_queue(0)

    def append(self, queue: str, position: int | None, payloads: Sequence[bytes]) -> int | None:
        """Append *payloads* as one record; return the last position, None for nothing or a repeat of the last one."""
        found = self.state.queues[queue]
        first = found.next_position if position is None else position
        if first + 1 == found.next_position or not payloads:
            return None
        if first < found.next_position:
            raise ValueError(f"position {first} is already taken, the next one is {found.next_position}")
        if any(len(payload) > PAYLOAD_BYTES_MAX for payload in payloads):
            raise ValueError("the crate takes payloads below 4 GiB")
        file = self._file
        items = tuple(enumerate(payloads, first))
        self._write(LogRecord(APPEND, queue, first, items))
        for at, payload in items:
            found.append(at, payload, file)
        return items[-1][0]

    def truncate(self, queue: str, position: int) -> int:
        """Delete records up to and including *position*; return how many."""
        found = self.state.queues[queue]
        self._write(LogRecord(TRUNCATE, queue, position))
        dropped = found.truncate(position)
        self._collect()
        return dropped

    def delete_queue(self, queue: str) -> None:
        """Delete *queue*."""
        found = self.state.queues[queue]
        self._write(LogRecord(DELETE, queue, found.next_position))
        del self.state.queues[queue]
        self._collect()
        self.sync()

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        self._target.sync(self._file)

    def _write(self, record: LogRecord) -> int:
        """Write a record; return the number of bytes, including paddings and frame headers."""
        written = 0
        for piece in encode_frames(encode_record(record), self._offset):
            if self._offset + len(piece) > self._file_bytes:
                self._roll()
            self._target.write(self._file, self._offset, piece)
            self._offset += len(piece)
            written += len(piece)
        return written

    def _roll(self) -> None:
        self._target.sync(self._file)
        later = [number for number in self._files if number > self._file]
        self._file = later[0] if later else self._next_number()
        self._offset = 0

    def _next_number(self) -> int:
        number = self._file + 1
        if number > NUMBER_MAX:
            raise OverflowError("the crate has no file number left")
        self._target.create(number, self._file_bytes)
        self._files.append(number)
        return number

    def _collect(self) -> None:
        """Write the positions of empty queues, then remove the lowest files that no record keeps."""
        if not self._may_remove():
            return
        for queue in self.state.empty_queues():
            self._write(LogRecord(TOUCH, queue, self.state.queues[queue].next_position))
        self.sync()
        while self._may_remove():
            self._target.unlink(self._files.pop(0))

    def _may_remove(self) -> bool:
        lowest, needed = self._files[0], self.state.first_file()
        return lowest < self._file and (needed is None or lowest < needed)

"""Write the crate's files by making its calls. The bytes are those that the crate would write for the same calls.

Each call writes its record, then changes the state, then removes files as the crate does: only the lowest ones, and
only after a truncate. Before that, it writes the next position of every empty queue. The crate writes these in
the random order of a hash map, so two runs of the crate differ only there; here they are sorted by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.frame import FILE_BYTES, encode_frames
from mrecordlog_async.quickwit.record import APPEND, NAME_BYTES_MAX, TOUCH, TRUNCATE, LogRecord, encode_record
from mrecordlog_async.quickwit.state import CrateState

PAYLOAD_BYTES_MAX = 2**32 - 1


class CrateWriter:
    """A log in the crate's format, open for writing. It blocks, and has one owner."""

    def __init__(self, target: Directory, file_bytes: int = FILE_BYTES) -> None:
        """Begin a new log in an empty *target*."""
        self.state = CrateState()
        self._target = target
        self._file_bytes = file_bytes
        self._files = [0]
        self._file = self._offset = 0
        target.create(0, file_bytes)

    def create_queue(self, queue: str) -> None:
        """Create *queue*. Raises KeyError if it exists, ValueError if the name is too long."""
        if queue in self.state.queues:
            raise KeyError(queue)
        if len(queue.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"the crate takes queue names of at most {NAME_BYTES_MAX} bytes")
        self._write(LogRecord(TOUCH, queue, 0))
        self.sync()
        self.state.make_queue(queue, 0)

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
        for at, _ in items:
            found.append(at, file)
        return items[-1][0]

    def truncate(self, queue: str, position: int) -> int:
        """Delete records up to and including *position*; return how many."""
        found = self.state.queues[queue]
        self._write(LogRecord(TRUNCATE, queue, position))
        dropped = found.truncate(position)
        self._collect()
        return dropped

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        self._target.sync(self._file)

    def _write(self, record: LogRecord) -> None:
        for piece in encode_frames(encode_record(record), self._offset):
            if self._offset + len(piece) > self._file_bytes:
                self._roll()
            self._target.write(self._file, self._offset, piece)
            self._offset += len(piece)

    def _roll(self) -> None:
        self._target.sync(self._file)
        self._file += 1
        self._offset = 0
        self._target.create(self._file, self._file_bytes)
        self._files.append(self._file)

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

"""The crate's files in memory, what is in them, and the call that the package does not make."""

from __future__ import annotations

from mrecordlog_async.quickwit.files import Directory
from mrecordlog_async.quickwit.frame import BLOCK_BYTES
from mrecordlog_async.quickwit.reader import read, read_appends
from mrecordlog_async.quickwit.record import DELETE, LogRecord
from mrecordlog_async.quickwit.writer import CrateWriter


class Memory(Directory):
    """A directory in memory, to read from and to write to."""

    def __init__(self, contents: dict[int, bytes] | None = None) -> None:
        self.contents = {number: bytearray(data) for number, data in (contents or {}).items()}
        self.numbers = sorted(self.contents)

    def block(self, number: int, offset: int) -> bytes:
        return bytes(self.contents[number][offset : offset + BLOCK_BYTES])

    def create(self, number: int, size: int) -> None:
        self.contents[number] = bytearray(size)
        self.numbers = sorted(self.contents)

    def write(self, number: int, offset: int, data: bytes) -> None:
        content = self.contents[number]
        content.extend(bytes(max(offset + len(data) - len(content), 0)))
        content[offset : offset + len(data)] = data

    def sync(self, number: int) -> None:
        """Do nothing."""

    def unlink(self, number: int) -> None:
        del self.contents[number]
        self.numbers = sorted(self.contents)


def retained(source: Directory) -> dict[str, list[tuple[int, bytes]]]:
    """Return the records of each queue: of all that were appended to it, those at its positions."""
    queues = read(source).state.queues
    found: dict[str, list[tuple[int, bytes]]] = {name: [] for name in queues}
    for queue, record in read_appends(source):
        last = queues.get(record.queue)
        if last is not None and last.number == queue.number:
            found[record.queue] += [item for item in record.items if item[0] >= last.first_position]
    assert {name: len(records) for name, records in found.items()} == {
        name: len(queue.positions) for name, queue in queues.items()
    }
    return found


def delete_queue(writer: CrateWriter, queue: str) -> None:
    """Delete *queue* as the crate does."""
    writer._write(LogRecord(DELETE, queue, writer.state.queues[queue].next_position))
    del writer.state.queues[queue]
    writer._collect()
    writer.sync()

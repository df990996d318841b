"""A check of salvage that knows what was acknowledged and which bytes still exist.

It does not scan or replay: it takes the frames of the whole log, finds those that the damage left intact, and checks
what salvage returns against them. To try many seeds, run `python -m tests.maintenance.salvage_judge 0 1000`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mrecordlog_async import CorruptionError, ReadOnlyLog
from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.header import HEADER_BYTES, HeaderError, decode_header
from mrecordlog_async.format.record import Append, Commit, LogRecord
from mrecordlog_async.format.table import Table
from mrecordlog_async.maintenance.lenient_replay import SalvagedQueue
from mrecordlog_async.maintenance.salvage import Salvage, salvage
from mrecordlog_async.storage.segment import CLOSED_NAME
from tests import damage
from tests.maintenance.salvage_histories import HARMS, History, Piece, make_history


class Judge:
    """Checks what was salvaged from a damaged log against its history."""

    def __init__(self, history: History, directory: Path, found: Salvage) -> None:
        self._history = history
        self._directory = directory
        self._found = found
        self._files = {path.name: path.read_bytes() for path in directory.iterdir()}
        self.left = [piece for piece in self._promised() if self._is_whole(piece)]

    def complaints(self) -> Iterator[str]:
        """Yield what is wrong."""
        queues = self._found.queues
        if len({queue.name for queue in queues}) != len(queues) or len({queue.id for queue in queues}) != len(queues):
            yield "two queues have one name or id"
        for queue in queues:
            if queue.id in self._history.names:
                yield from self._queue(queue)
            else:
                yield f"queue {queue.id} was never there"
        for queue_id in self._history.alive.keys() - {queue.id for queue in queues}:
            if any(queue_id in _named(piece.record) for piece in self.left if piece.segment >= self._history.oldest):
                yield f"queue {queue_id} is there but was not found"
        yield from self._against_opening()

    def _queue(self, queue: SalvagedQueue) -> Iterator[str]:
        read = [record for run in queue.live_runs() for record in run.records()]
        positions = [position for position, _ in read]
        if positions != sorted(set(positions)):
            yield f"{queue.name}: positions do not ascend"
        acknowledged = self._history.acknowledged[queue.id]
        for position, payload in read:
            if acknowledged.get(position) != payload:
                yield f"{queue.name}: the record at {position} was not acknowledged for this queue"
        name_is_left = any(queue.id in _namings(piece.record) for piece in self.left)
        if queue.name_lost and name_is_left:
            yield f"{queue.name}: its name is there"
        if not queue.name_lost and queue.name != self._history.names[queue.id]:
            yield f"{queue.name}: was called {self._history.names[queue.id]}"
        if any(_ends(piece.record, queue) for piece in self.left):
            yield f"{queue.name}: {queue.id} is known to be deleted"
        start = max((_start(piece.record, queue.id) for piece in self.left), default=0)
        if positions and positions[0] < start:
            yield f"{queue.name}: position {positions[0]} is known to be truncated, it begins at {start}"
        if queue.id not in self._history.alive and not queue.maybe_gone and not self._end_is_unknown():
            yield f"{queue.name}: {queue.id} was deleted, and that is not said to be possible"
        if queue.id in self._history.alive:
            yield from self._losses(queue, set(positions))

    def _end_is_unknown(self) -> bool:
        """Return whether the log may look shorter than it was: its end is lost, and nothing shows where it was."""
        return CLOSED_NAME not in self._files and self._history.pieces[-1] not in self.left

    def _losses(self, queue: SalvagedQueue, read: set[int]) -> Iterator[str]:
        named = {position for first, last in queue.missing for position in range(first, min(last, 1_000) + 1)}
        if named & read:
            yield f"{queue.name}: {named & read} are said to be missing and are there"
        records = self._history.alive[queue.id]
        for piece in self.left:
            if isinstance(piece.record, Append) and piece.record.id == queue.id:
                run = piece.record.run
                here = set(range(run.first_position, run.next_position)) & records.keys()
                if not here <= read:
                    yield f"{queue.name}: {here - read} can be read and was not found"
        next_position = max((_next(piece.record, queue.id) for piece in self.left), default=0)
        unnamed = {position for position in records.keys() - read - named if position < next_position}
        if unnamed:
            yield f"{queue.name}: {unnamed} are lost before {next_position} and not named"

    def _against_opening(self) -> Iterator[str]:
        try:
            with ReadOnlyLog.open(self._directory) as log:
                opened = {summary.id: dict(log.range(name)) for name, summary in log.summary().items()}
        except CorruptionError as error:
            if not self._found.damage:
                yield f"opening refuses it, no damage was found: {error}"
            return
        if self._found.damage:
            yield f"opening takes it, damage was found: {self._found.damage}"
        salvaged = {
            queue.id: {position: payload for run in queue.live_runs() for position, payload in run.records()}
            for queue in self._found.queues
        }
        if salvaged != opened:
            yield "opening shows other records"

    def _promised(self) -> list[Piece]:
        """Return the pieces before the apparent torn tail: the first damaged batch that no COMMIT proves durable."""
        last = damage.segments(self._directory)[-1].name
        if CLOSED_NAME in self._files:
            return self._history.pieces
        mine = [piece for piece in self._history.pieces if piece.segment == last]
        commits = [piece for piece in mine if isinstance(piece.record, Commit)]
        durable = max((_commit(piece).durable_batch for piece in commits if self._is_whole(piece)), default=0)
        torn = [
            _commit(piece).batch
            for piece in commits
            if _commit(piece).batch > durable and not self._is_same(piece, _commit(piece).batch_offset)
        ]
        first = min(torn, default=sys.maxsize)
        return [
            piece
            for piece in self._history.pieces
            if piece.segment != last or piece.batch is None or piece.batch < first
        ]

    def _is_whole(self, piece: Piece) -> bool:
        was, now = self._history.files[piece.segment], self._files.get(piece.segment, b"")
        return all(was[offset:end] == now[offset:end] for offset, end in piece.frames)

    def _is_same(self, commit: Piece, offset: int) -> bool:
        was, now = self._history.files[commit.segment], self._files.get(commit.segment, b"")
        end = commit.frames[-1][1]
        return was[offset:end] == now[offset:end]


def _commit(piece: Piece) -> Commit:
    assert isinstance(piece.record, Commit)
    return piece.record


def _named(record: LogRecord | Commit | Table) -> set[int]:
    """Return the ids of the queues that exist according to a log record."""
    if isinstance(record, Table):
        return {entry.id for entry in record.entries}
    return {record.id} if isinstance(record, Create | Append | Truncate) else set()


def _namings(record: LogRecord | Commit | Table) -> set[int]:
    """Return the ids of the queues whose names a log record contains."""
    return _named(record) if isinstance(record, Table | Create) else set()


def _ends(record: LogRecord | Commit | Table, queue: SalvagedQueue) -> bool:
    """Return whether a log record proves that *queue* was deleted."""
    if isinstance(record, Table):
        return queue.id < record.next_queue_id and queue.id not in _named(record)
    if isinstance(record, Create):
        return record.name == queue.name and record.id > queue.id
    return isinstance(record, Delete) and record.id == queue.id


def _start(record: LogRecord | Commit | Table, queue_id: int) -> int:
    """Return the position below which a log record says that a queue is truncated."""
    if isinstance(record, Table):
        return next((entry.first_position for entry in record.entries if entry.id == queue_id), 0)
    return record.position + 1 if isinstance(record, Truncate) and record.id == queue_id else 0


def _next(record: LogRecord | Commit | Table, queue_id: int) -> int:
    """Return the position below which a log record says that all of a queue's positions were assigned."""
    if isinstance(record, Table):
        return next((entry.next_position for entry in record.entries if entry.id == queue_id), 0)
    return record.run.next_position if isinstance(record, Append) and record.id == queue_id else 0


def complaints(seed: int, harms: int) -> Iterator[str]:
    """Create one history and damage it *harms* times; yield what is wrong with what is salvaged."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "wal"
        history = make_history(directory, rng)
        for number in range(harms):
            history.restore(directory)
            chosen = rng.choices(HARMS, k=rng.randint(1, 4))
            for harm in chosen:
                harm(directory, rng, history)
            try:
                found = salvage(str(directory))
            except CorruptionError:
                if any(map(_has_header, damage.segments(directory))):
                    yield f"seed {seed}, damage {number}: not salvaged"
                continue
            for complaint in Judge(history, directory, found).complaints():
                yield f"seed {seed}, damage {number} ({', '.join(harm.__name__ for harm in chosen)}): {complaint}"


def _has_header(segment: Path) -> bool:
    with suppress(HeaderError):
        return bool(decode_header(segment.read_bytes()[:HEADER_BYTES]))
    return False


if __name__ == "__main__":
    for each in range(int(sys.argv[1]), int(sys.argv[2])):
        for line in complaints(each, 30):
            print(line)

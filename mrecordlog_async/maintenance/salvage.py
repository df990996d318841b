"""Read a damaged log for what is still there: every record that can be read, and which positions cannot.

Strategy: segments are walked around damage (`walk`) and folded leniently. Each segment's table puts right what damage
before it hid: queues that came or went, starts, next positions. A position counts as missing where

* a queue's records jump over it and damage lies between them in the log (a gap that a producer left on purpose, with
  no damage between, is none; one across damage cannot be told from a loss and is named),
* a later table says it was given away, or
* the head of a lost append, itself readable, names it.

A queue is its id: ids come from one counter and never come back, so a record never goes to another queue that has, or
had, the same name. A queue ends with its DELETE, with a later CREATE of its name, or with a table that does not list
it. One whose name is lost, because its CREATE is and no table behind it is there, gets `LOST_NAME`.

What cannot be known is said too: batches that are lost may have held truncates or deletes, and, where nothing behind
them tells, appends. A record truncated by a lost batch is there again in what is salvaged. A queue that nothing behind
the last damage names may have been deleted, and its name given to another one (`maybe_gone`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mrecordlog_async.format.parse import Batch
from mrecordlog_async.format.record import Append, Create, Delete, LogRecord, Table, TableEntry, Truncate
from mrecordlog_async.maintenance.damage import Gap, LostRun
from mrecordlog_async.maintenance.layout import Damage, Meter, read_layout
from mrecordlog_async.model import RecoveryProgress, Run
from mrecordlog_async.storage.filesystem import FileSystem
from mrecordlog_async.storage.segment import list_segments, segment_name

LOST_NAME = "lost-and-found-{id}"
"""What a queue is called whose records are there, but whose name is lost; longer if another queue is called so."""

NEVER = -1

ATTEMPTS_MAX = 20
"""How often the segments are listed again when a writer removed one before it was read."""


@dataclass(slots=True)
class SalvagedQueue:
    """A queue as far as it can be read. next is the highest one known of; missing: (first, last) of what is lost.

    name_lost: nothing that can be read tells its name. maybe_gone: what damage took behind the last log record that
    names it may have deleted it. counted: the last epoch in which next was known for sure; named: the last that names
    the queue at all.
    """

    id: int
    name: str
    start: int = 0
    next: int = 0
    runs: list[Run] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    name_lost: bool = False
    maybe_gone: bool = False
    counted: int = NEVER
    named: int = NEVER

    @property
    def records(self) -> int:
        """Return how many live records were read."""
        return sum(run.records for run in self.live_runs())

    @property
    def readable_next(self) -> int:
        """Return the position behind the last record that was read; `next` if there is none."""
        return self.runs[-1].next_position if self.runs else self.next

    def live_runs(self) -> list[Run]:
        """Return the runs from start on."""
        return [run.cut(self.start, run.next_position) for run in self.runs if run.next_position > self.start]


@dataclass(slots=True)
class Salvage:
    """What a log still holds. torn_bytes: of a batch that nobody was promised."""

    queues: list[SalvagedQueue]
    damage: list[Damage]
    segments: int
    torn_bytes: int


def salvage(
    files: FileSystem, directory: str, on_progress: Callable[[RecoveryProgress], None] | None = None
) -> Salvage:
    """Read the log in *directory* around all damage; changes nothing.

    Raises FileNotFoundError if there is no segment, CorruptionError if none of them tells the log's id.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        numbers = list_segments(files.names(directory))
        if not numbers:
            break
        try:
            found = _salvage(files, directory, numbers, on_progress)
        except FileNotFoundError:  # a writer is at work, and removed it: it is no damage
            if attempt == ATTEMPTS_MAX:
                raise
            continue
        if not found.damage or attempt == ATTEMPTS_MAX or list_segments(files.names(directory)) == numbers:
            return found
        # What looks like damage may be a log that went on behind the listing, and was closed there.
    raise FileNotFoundError(2, "there is no segment in this directory", directory)


def _salvage(
    files: FileSystem, directory: str, numbers: list[int], on_progress: Callable[[RecoveryProgress], None] | None
) -> Salvage:
    layout = read_layout(files, directory, numbers)
    if layout.numbers != numbers:
        raise FileNotFoundError(2, "a segment was removed while the log was read", directory)
    fold = _Fold()
    torn_bytes = 0
    meter = Meter(layout.total_bytes, on_progress)
    for number in range(layout.oldest, layout.end):
        name = segment_name(number)
        if number not in numbers:
            fold.lose(Damage(name, 0, 0, "the segment is missing"))
            continue
        walk = layout.walk(number)
        for item in meter.watch(walk):
            fold.add(name, item)
        torn_bytes += walk.tail
    for damage in layout.damage:  # of what says where the log ends
        fold.lose(damage)
    return Salvage(fold.finish(), fold.damage, len(numbers), torn_bytes)


class _Fold:
    """Folds what was read, expecting anything; an epoch ends wherever something is lost."""

    def __init__(self) -> None:
        self.damage: list[Damage] = []
        self._epoch = 0
        self._queues: dict[int, SalvagedQueue] = {}
        self._owed: dict[int, int] = {}

    def add(self, segment: str, item: Table | Batch | Gap) -> None:
        """Take what a walk yields."""
        if type(item) is Batch:
            for record in item.records:
                self._apply(record)
        elif type(item) is Table:
            self._correct(item)
        elif type(item) is Gap:
            for table in item.tables:
                self._correct(table)
            rescued = sum(record.run.records for record in item.records if type(record) is Append)
            place = item.offset, item.bytes, item.reason, item.first_batch, item.last_batch
            self.lose(Damage(segment, *place, rescued))
            for found in item.found:
                self._epoch += 1  # something may be lost between any two of them
                if isinstance(found, LostRun):
                    self._note_lost(found)
                else:
                    self._apply(found)
            self._epoch += 1

    def lose(self, damage: Damage) -> None:
        """Note damage."""
        self.damage.append(damage)
        self._epoch += 1

    def finish(self) -> list[SalvagedQueue]:
        """Return the queues, sorted by name, cut to what is live."""
        self._name_the_lost()
        for queue_id, next_position in self._owed.items():
            queue = self._queues.get(queue_id)
            if queue is not None and queue.start < next_position:
                first = queue.runs[0].first_position if queue.runs else next_position
                self._miss(queue, queue.start, min(next_position, first))
        for queue in self._queues.values():
            queue.missing = _merge(_outside(queue.missing, queue))
            queue.maybe_gone = queue.named < self._epoch
            if not queue.records:
                queue.start = queue.next  # empty, and its positions do not go back
        return sorted(self._queues.values(), key=lambda queue: queue.name)

    def _apply(self, record: LogRecord) -> None:
        if type(record) is Create:
            self._replace_name(record.name, record.id)
            created = SalvagedQueue(record.id, record.name, counted=self._epoch, named=self._epoch)
            self._queues.setdefault(record.id, created)
        elif type(record) is Delete:
            self._queues.pop(record.id, None)
        elif type(record) is Append:
            self._append(self._known(record.id), record.run)
        elif type(record) is Truncate:
            self._truncate(self._known(record.id), record.position)

    def _known(self, queue_id: int) -> SalvagedQueue:
        """Return a queue that the log names here."""
        found = self._queues.get(queue_id)
        if found is None:
            found = self._queues[queue_id] = SalvagedQueue(queue_id, "", name_lost=True)
        found.named = self._epoch
        return found

    def _append(self, queue: SalvagedQueue, run: Run) -> None:
        if queue.start == 0 == queue.next and queue.counted == self._epoch:
            queue.start = run.first_position
        self._count(queue, run.first_position, run.next_position)
        queue.runs.append(run)

    def _count(self, queue: SalvagedQueue, first: int, stop: int) -> None:
        """Know that positions *first* … *stop* - 1 were given away, and none behind them yet."""
        if queue.counted != self._epoch:
            self._miss(queue, queue.next, first)
        while queue.missing and queue.missing[-1][1] >= first:  # a damaged head claimed too much
            lost_first, _ = queue.missing.pop()
            self._miss(queue, lost_first, first)
            if lost_first < first:
                break
        queue.next = stop
        queue.counted = self._epoch

    def _truncate(self, queue: SalvagedQueue, position: int) -> None:
        if position >= queue.start:
            self._raise_start(queue, position + 1)
            queue.next = max(queue.next, queue.start)

    def _raise_start(self, queue: SalvagedQueue, start: int) -> None:
        queue.start = max(queue.start, start)
        dead = 0
        for run in queue.runs:
            if run.next_position > queue.start:
                break
            dead += 1
        del queue.runs[:dead]

    def _correct(self, table: Table) -> None:
        """Believe a segment's table: it knows what became of everything before it."""
        known = {entry.id for entry in table.entries}
        for queue_id in [queue_id for queue_id in self._queues if queue_id not in known]:
            del self._queues[queue_id]
        for entry in table.entries:
            self._correct_queue(entry)

    def _correct_queue(self, entry: TableEntry) -> None:
        queue = self._queues.get(entry.id)
        if queue is None:
            queue = self._queues[entry.id] = SalvagedQueue(entry.id, entry.name, entry.start, entry.next)
            if entry.start < entry.next:
                self._owed[entry.id] = entry.next
            queue.counted = self._epoch
        else:
            queue.counted = NEVER  # what is missing up to here is lost, not left out by a producer
            self._count(queue, entry.next, entry.next)
        queue.name, queue.name_lost, queue.named = entry.name, False, self._epoch
        self._raise_start(queue, entry.start)
        queue.next = entry.next

    def _replace_name(self, name: str, queue_id: int) -> None:
        """Let go of an older queue of this name: its delete was lost."""
        for old in [old for old in self._queues.values() if old.name == name and old.id != queue_id]:
            del self._queues[old.id]

    def _name_the_lost(self) -> None:
        taken = {queue.name for queue in self._queues.values()}
        for queue in self._queues.values():
            if queue.name_lost:
                queue.name = LOST_NAME.format(id=queue.id)
                while queue.name in taken:
                    queue.name += "-again"
                taken.add(queue.name)

    def _note_lost(self, lost: LostRun) -> None:
        """Note an append of which only the head can be read; one that no checksum vouches for must fit exactly."""
        stop = lost.first_position + lost.records
        if lost.certain:
            queue = self._known(lost.id)
            self._count(queue, lost.first_position, lost.first_position)
        elif lost.id in self._queues and self._queues[lost.id].next == lost.first_position:
            queue = self._queues[lost.id]
        else:
            return
        self._miss(queue, lost.first_position, stop)
        queue.next = max(queue.next, stop)

    def _miss(self, queue: SalvagedQueue, first: int, stop: int) -> None:
        if first < stop:
            queue.missing.append((first, stop - 1))


def _outside(ranges: Sequence[tuple[int, int]], queue: SalvagedQueue) -> Iterator[tuple[int, int]]:
    """Cut ranges to live positions of which no record was read."""
    for first, last in sorted(ranges):
        at = max(first, queue.start)
        for run in queue.runs:
            if run.first_position > last:
                break
            if run.next_position > at:
                if run.first_position > at:
                    yield at, run.first_position - 1
                at = run.next_position
        if at <= last:
            yield at, last


def _merge(ranges: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges that touch."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged

"""Replays a damaged log: accepts whatever is missing, and determines which positions are lost.

Each segment's table corrects what damage before it hid: queues that were created or deleted, their first and next
positions. A position counts as missing if

* a queue's records jump over it and damage lies between them in the log. Without damage between them, a producer made
  the jump on purpose. With damage, the two cases cannot be distinguished, and the positions are reported as missing.
* a later table says that it was assigned, or
* the header of a lost append, itself readable, names it.

A queue is identified by its id. Ids come from one counter and are never used again, so a record never goes to another
queue that has, or had, the same name. A queue ends with its DELETE, with a later CREATE of its name, or with a table
that does not list it. If a queue's name is lost, because its CREATE is and no later table exists, it gets `LOST_NAME`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from mrecordlog_async.format.controls import ConsumerRule, Create, Delete, Opened, TableRule, Truncate
from mrecordlog_async.format.parse import ParsedBatch
from mrecordlog_async.format.record import Append, LogRecord, Many, appends_of
from mrecordlog_async.format.table import Table, TableEntry
from mrecordlog_async.maintenance.damage import Damage, DamagedRange, LostRun
from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.model import OFFSET_BYTES, Run

LOST_NAME = "lost-and-found-{id}"
"""The name of a queue whose records can be read but whose name is lost; longer if another queue has it."""

NEVER = -1

COUNTED_RECORDS = 512
"""Runs without payloads are joined up to this many records."""


@dataclass(slots=True)
class SalvagedQueue:
    """The readable part of a queue.

    Attributes:
        id: identifies the queue for as long as the log exists.
        name: its name, or one made from its id.
        first_position: the first position that was not truncated.
        next_position: the position after the highest one known to be assigned.
        runs: the records that could be read, ascending.
        missing: (first, last) positions of records that are lost.
        settings: its options, its seal and its consumers, as the last that can be read of each says.
        name_lost: nothing that can be read shows its name.
        maybe_gone: a batch lost after the last log record that names the queue may have deleted it.
        counted: the last epoch in which next_position was certain.
        named: the last epoch that names the queue.
    """

    id: int
    name: str
    first_position: int = 0
    next_position: int = 0
    runs: list[Run] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    settings: QueueSettings = field(default_factory=QueueSettings)
    name_lost: bool = False
    maybe_gone: bool = False
    counted: int = NEVER
    named: int = NEVER

    @property
    def record_count(self) -> int:
        """Return how many live records were read."""
        return sum(run.record_count for run in self.live_runs())

    @property
    def readable_next_position(self) -> int:
        """Return the position after the last record that was read; `next_position` if none was."""
        return self.runs[-1].next_position if self.runs else self.next_position

    def live_runs(self) -> list[Run]:
        """Return the runs from first_position on."""
        return [
            run.cut(self.first_position, run.next_position)
            for run in self.runs
            if run.next_position > self.first_position
        ]


class LenientReplay:
    """Replays log records in order. An epoch ends wherever something is lost.

    keeps_payloads: False to count records only. The runs then have positions, and payloads that are all empty.
    """

    def __init__(self, *, keeps_payloads: bool = True) -> None:
        self._keeps_payloads = keeps_payloads
        self.damage: list[Damage] = []
        self.rules: set[TableRule] = set()
        self._epoch = 0
        self._queues: dict[int, SalvagedQueue] = {}
        self._expected_next: dict[int, int] = {}

    def add(self, segment: str, item: Table | ParsedBatch | DamagedRange) -> None:
        """Replay one item that a scan yields."""
        if type(item) is ParsedBatch:
            for record in item.records:
                self._apply(record)
        elif type(item) is Table:
            self._correct(item)
        elif type(item) is DamagedRange:
            for table in item.tables:
                self._correct(table)
            rescued = sum(append.run.record_count for record in item.records for append in appends_of(record))
            place = item.offset, item.bytes, item.reason, item.first_batch, item.last_batch
            self.lose(Damage(segment, *place, rescued))
            for found in item.found:
                self._epoch += 1  # something may be lost between any two of them
                if not isinstance(found, LostRun):
                    self._apply(found)
                elif found.certain or found.records * OFFSET_BYTES < item.bytes:
                    self._note_lost(found)
                else:  # its offsets have no room: the count is damaged, and at least one record is lost
                    self._note_lost(found._replace(records=1))
            self._epoch += 1

    def lose(self, damage: Damage) -> None:
        """Record damage."""
        self.damage.append(damage)
        self._epoch += 1

    def finish(self) -> list[SalvagedQueue]:
        """Return the queues, sorted by name, cut to what is live."""
        self._name_the_lost()
        for queue_id, next_position in self._expected_next.items():
            queue = self._queues.get(queue_id)
            if queue is not None and queue.first_position < next_position:
                first = queue.runs[0].first_position if queue.runs else next_position
                self._miss(queue, queue.first_position, min(next_position, first))
        for queue in self._queues.values():
            queue.missing = _merge(_outside(queue.missing, queue))
            queue.maybe_gone = queue.named < self._epoch
            if not queue.record_count:
                queue.first_position = queue.next_position  # empty; its positions must not be used again
        return sorted(self._queues.values(), key=lambda queue: queue.name)

    def _apply(self, record: LogRecord) -> None:
        match record:
            case Create(queue_id, name):
                self._replace_name(name, queue_id)
                self._queues.setdefault(queue_id, SalvagedQueue(queue_id, name, counted=self._epoch, named=self._epoch))
            case Delete(queue_id):
                self._queues.pop(queue_id, None)
            case Append() | Many():
                for queue_id, run, _ in appends_of(record):
                    self._append(self._known(queue_id), run)
            case Truncate(queue_id, position):
                queue = self._known(queue_id)
                queue.settings.apply(record)
                self._truncate(queue, position)
            case ConsumerRule(pattern, name, removes):
                change = self.rules.discard if removes else self.rules.add
                change(TableRule(pattern, name))
            case Opened():
                pass  # a restored log has its own openings
            case _:  # the settings of a queue
                self._known(record.id).settings.apply(record)

    def _known(self, queue_id: int) -> SalvagedQueue:
        """Return the queue with this id, which the log names here; create it without a name if it is unknown."""
        found = self._queues.get(queue_id)
        if found is None:
            found = self._queues[queue_id] = SalvagedQueue(queue_id, "", name_lost=True)
        found.named = self._epoch
        return found

    def _append(self, queue: SalvagedQueue, run: Run) -> None:
        if queue.first_position == 0 == queue.next_position and queue.counted == self._epoch:
            queue.first_position = run.first_position
        self._count(queue, run.first_position, run.next_position)
        if self._keeps_payloads:
            queue.runs.append(run)
        else:
            _add_counted(queue.runs, run.first_position, run.record_count)

    def _count(self, queue: SalvagedQueue, first: int, stop: int) -> None:
        """Record that positions *first* … *stop* - 1 were assigned, and no later ones yet."""
        if queue.counted != self._epoch:
            self._miss(queue, queue.next_position, first)
        while queue.missing and queue.missing[-1][1] >= first:  # a damaged header claimed too much
            lost_first, _ = queue.missing.pop()
            self._miss(queue, lost_first, first)
            if lost_first < first:
                break
        queue.next_position = stop
        queue.counted = self._epoch

    def _truncate(self, queue: SalvagedQueue, position: int) -> None:
        if position >= queue.first_position:
            self._raise_start(queue, position + 1)
            queue.next_position = max(queue.next_position, queue.first_position)

    def _raise_start(self, queue: SalvagedQueue, start: int) -> None:
        queue.first_position = max(queue.first_position, start)
        dead = 0
        for run in queue.runs:
            if run.next_position > queue.first_position:
                break
            dead += 1
        del queue.runs[:dead]

    def _correct(self, table: Table) -> None:
        """Apply a segment's table, which states the result of everything before it."""
        known = {entry.id for entry in table.entries}
        for queue_id in [queue_id for queue_id in self._queues if queue_id not in known]:
            del self._queues[queue_id]
        for entry in table.entries:
            self._correct_queue(entry)
        self.rules = set(table.rules)

    def _correct_queue(self, entry: TableEntry) -> None:
        queue = self._queues.get(entry.id)
        if queue is None:
            queue = self._queues[entry.id] = SalvagedQueue(
                entry.id, entry.name, entry.first_position, entry.next_position
            )
            if entry.first_position < entry.next_position:
                self._expected_next[entry.id] = entry.next_position
            queue.counted = self._epoch
        else:
            queue.counted = NEVER  # positions missing before the table are lost; no producer skipped them
            self._count(queue, entry.next_position, entry.next_position)
        queue.name, queue.name_lost, queue.named = entry.name, False, self._epoch
        self._raise_start(queue, entry.first_position)
        queue.next_position = entry.next_position
        queue.settings = QueueSettings.stored(entry.options, entry.consumers)

    def _replace_name(self, name: str, queue_id: int) -> None:
        """Forget an older queue of this name: its delete was lost."""
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
        """Record an append of which only the header is readable. Without a valid checksum it must fit exactly."""
        stop = lost.first_position + lost.records
        if lost.certain:
            queue = self._known(lost.id)
            self._count(queue, lost.first_position, lost.first_position)
        elif lost.id in self._queues and self._queues[lost.id].next_position == lost.first_position:
            queue = self._queues[lost.id]
        else:
            return
        self._miss(queue, lost.first_position, stop)
        queue.next_position = max(queue.next_position, stop)

    def _miss(self, queue: SalvagedQueue, first: int, stop: int) -> None:
        if first < stop:
            queue.missing.append((first, stop - 1))


def _add_counted(runs: list[Run], first_position: int, records: int) -> None:
    """Add a run without payloads: joined to the one before it if it follows that, in pieces if it is long."""
    last = runs[-1] if runs else None
    if last is not None and last.next_position == first_position and last.record_count + records <= COUNTED_RECORDS:
        runs[-1] = Run(last.first_position, _empty_offsets(last.record_count + records), b"")
        return
    runs.extend(
        Run(first_position + done, _empty_offsets(min(records - done, COUNTED_RECORDS)), b"")
        for done in range(0, records, COUNTED_RECORDS)
    )


@lru_cache(maxsize=COUNTED_RECORDS)
def _empty_offsets(records: int) -> bytes:
    """Return the offsets of empty records; runs of the same length share them."""
    return bytes(OFFSET_BYTES * (records + 1))


def _outside(ranges: Sequence[tuple[int, int]], queue: SalvagedQueue) -> Iterator[tuple[int, int]]:
    """Cut ranges to the live positions whose records were not read."""
    for first, last in sorted(ranges):
        at = max(first, queue.first_position)
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

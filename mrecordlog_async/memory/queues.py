"""All queues of a log, and how log records change them: the same for a batch just synced and for one read at open.

`Queues` applies log records and keeps the sums that limits need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from threading import Lock

from mrecordlog_async.format.controls import (
    ConsumerDelete,
    ConsumerRule,
    Create,
    Delete,
    Opened,
    SetConsumer,
    Setting,
    TableRule,
    Truncate,
    consumer_bytes,
    rule_bytes,
)
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.format.stored_options import PLAIN, SetOptions, StoredOptions, shared
from mrecordlog_async.format.table import (
    ENTRIES_PER_PIECE,
    OPENING_BYTES,
    OPENINGS_MAX,
    TABLE_HEADER_BYTES,
    Table,
    encode_entry,
    entry_bytes,
    join_table,
)
from mrecordlog_async.memory.consumers import Rules
from mrecordlog_async.memory.queue import ALONE, QUEUE_OVERHEAD_BYTES, Queue, ReplayError, SegmentPins
from mrecordlog_async.memory.store import NEWEST_BYTES_MAX, NEWEST_MAX, NEWEST_OVERHEAD_BYTES, RetainedStores
from mrecordlog_async.memory.stores import Stores
from mrecordlog_async.memory.times import ENTRY_BYTES, NO_TICK, pack_time
from mrecordlog_async.model import OFFSET_BYTES, Run

DELETED_REMEMBERED = 10_000
"""This many deleted queues are remembered, each with its next position."""

CONSUMER_OVERHEAD_BYTES = 600
"""Memory of a consumer, or of a rule, without its names."""


class Queues:
    """The queues by name and id, the id of the next one, and the sums that limits need. The log's writer owns it."""

    def __init__(self, next_queue_id: int, stores: Stores | None = None) -> None:
        self.next_queue_id = next_queue_id
        self.stores: Stores = stores or RetainedStores()
        self.version = 0  # incremented with every batch
        self.pins = SegmentPins()
        self._queue_bytes = 0  # of the queues, consumers and rules
        self.overhead_bytes = 0  # of these, what no truncate frees
        self.lock = Lock()  # held while the log's thread reads the queues for a table; nothing may leave meanwhile
        self._segment = -1  # that of the last batch
        self.table_bytes = TABLE_HEADER_BYTES
        self.deleted: dict[int, int] = {}  # id of a deleted queue → its next position; only the latest deletions
        self.rules = Rules()
        self.openings: list[Opened] = []  # oldest first
        self.last_batch = 0  # the last batch that was applied by an open log
        self.limited: set[str] = set()  # names of the queues whose options limit appends
        self.last_tick = NO_TICK  # of the last batch that was replayed
        self.newly_aging: set[int] = set()  # queues that were given a `max_age` since retention last looked
        self.stopped_aging: deque[int] | None = None  # queues that lost it since, or were deleted; if retention is on
        self.consumer_count = 0
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}

    @classmethod
    def from_table(cls, table: Table, stores: Stores | None = None) -> Queues:
        """Return the queues of a segment's table: positions without records."""
        queues = cls(table.next_queue_id, stores)
        queues.load(table)
        return queues

    @property
    def opening(self) -> int:
        """The random number of the newest opening; 0 if nothing was ever stored."""
        return self.openings[-1].nonce if self.openings else 0

    @property
    def memory_bytes(self) -> int:
        """Memory of the queues and their records."""
        return self._queue_bytes + self.pins.gathered_bytes

    def load(self, table: Table) -> None:
        """Take over the queues, rules and openings of a segment's table; there are none yet."""
        for entry in table.entries:
            queue = self._new_queue(entry.id, entry.name)
            queue.load(entry)
            self._add(queue)
            self._charge_consumers([consumer.name for consumer in entry.consumers], 1)
            if entry.options is not PLAIN:
                self._count_options(queue, PLAIN, entry.options)
        for rule in table.rules:
            self._add_rule(rule)
        for opening in table.openings:
            self._add_opening(opening)

    def table(self) -> Table:
        """Return the state of the queues as a segment's table has it."""
        with self.lock:
            entries = tuple(queue.table_entry() for queue in self)
        return Table(self.next_queue_id, entries, tuple(sorted(self.rules.all)), tuple(self.openings))

    def encoded_table(self, pause: Callable[[], object] | None = None) -> tuple[Buffer, ...]:
        """Return the TABLE record that the next segment starts with; call *pause* after every thousand queues.

        No more entries than these exist at a time: those of all queues would make the cycle collector run again and
        again, on the thread that makes them.
        """
        with self.lock:  # the log's thread is here, while the event loop may want to free memory
            entries = self._encoded_entries(pause)
            return join_table(self.next_queue_id, len(self), entries, sorted(self.rules.all), self.openings)

    def _encoded_entries(self, pause: Callable[[], object] | None) -> Iterator[bytes]:
        """Yield the entries of all queues, a thousand at a time. The lock is held."""
        queues = iter(self._by_id.values())
        while piece := list(islice(queues, ENTRIES_PER_PIECE)):
            yield b"".join(map(_encode_queue, piece))
            if pause is not None:
                pause()

    def get(self, name: str) -> Queue | None:
        """Return the queue called *name*, or None if it does not exist."""
        return self._by_name.get(name)

    def get_all(self, names: Sequence[str]) -> list[Queue] | None:
        """Return the queues called *names*, in this order, or None if one of them does not exist."""
        found = list(map(self._by_name.get, names))
        return found if all(found) else None  # type: ignore[return-value]  # no None here; mypy does not follow

    def by_id(self, queue_id: int) -> Queue | None:
        """Return the queue with this incarnation id, or None."""
        return self._by_id.get(queue_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_id.values())

    def unsorted_names(self) -> Iterable[str]:
        """Return a view of all names."""
        return self._by_name

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._by_name)

    def aging_from(self) -> dict[int, int]:
        """Return the next position of each queue that was given a `max_age` since retention last looked, by its id."""
        return {queue_id: self._by_id[queue_id].next_position for queue_id in self.newly_aging}

    def forget_skipped(self) -> None:
        """Count what consumers skip from now on."""
        for queue in self:
            if queue.consumers:
                queue.consumers.forget_skipped()

    def apply_all(self, segment: int, records: Iterable[LogRecord], tick: int = NO_TICK) -> tuple[int, int, list[int]]:
        """Apply the records of one batch, which was stored in *segment* at *tick*, in order.

        Returns:
            Records and payload bytes that it added, and the number of records that each truncate and delete dropped.
        """
        self.version += 1
        if segment != self._segment:
            self._segment = segment
            self.stores.enter_segment(segment)
        by_id, dropped = self._by_id, []
        appended = size = 0
        for record in records:
            if type(record) is Append:  # most are appends, so the queue is called directly
                queue_id, run, continues = record
                self._queue_bytes += (by_id.get(queue_id) or self._known(queue_id)).append(
                    segment, run, continues, tick
                )
                _, offsets, payload = run
                appended += len(offsets) // OFFSET_BYTES - 1
                size += len(payload)
                continue
            if type(record) is Create:
                self._create(record)
                continue
            if type(record) is Truncate:
                dropped.append(self._truncate(record))
                continue
            dropped_here = self.apply(segment, record, tick)
            if type(record) is Many:
                appended += len(record.ids)
                size += len(record.payload)
            elif type(record) is Delete:
                dropped.append(dropped_here)
        return appended, size, dropped

    def apply(self, segment: int, record: LogRecord, tick: int = NO_TICK) -> int:
        """Apply *record*, which was stored in *segment* at *tick*; return the number of records it dropped.

        Raises ReplayError if it does not fit: the queue is unknown or exists already, or the position is taken.
        """
        match record:
            case Append():
                self._queue_bytes += self._known(record.id).append(segment, record.run, record.continues, tick)
            case Many():
                self._append_many(segment, record, tick)
            case Truncate():
                return self._truncate(record)
            case Create():
                self._create(record)
            case Delete():
                return self._delete(record)
            case _:
                self._apply_setting(record)
        return 0

    def _known(self, queue_id: int) -> Queue:
        queue = self._by_id.get(queue_id)
        if queue is None:
            raise ReplayError(f"a log record names queue id {queue_id}, which does not exist")
        return queue

    def _truncate(self, record: Truncate) -> int:
        queue = self._known(record.id)
        before = queue.memory_bytes
        dropped = queue.truncate(record.position)
        self._queue_bytes += queue.memory_bytes - before
        return dropped

    def _append_many(self, segment: int, record: Many, tick: int) -> None:
        """Add single records, each to the end of its queue."""
        by_id, grown = self._by_id, 0
        for queue_id, position, payload in zip(record.ids, record.positions, record.payloads(), strict=True):
            queue = by_id.get(queue_id) or self._known(queue_id)
            if position != queue.next_position or segment != queue.newest_segment:
                grown += queue.append(segment, Run.of(position, (payload,)), False, tick)
                continue
            # Written here, and not by the queue and its store: two calls per record would double the time of this loop.
            newest, size = queue.store.newest, len(payload)
            if newest and len(newest) < NEWEST_MAX and size <= NEWEST_BYTES_MAX:
                newest.append(payload)
                grown += size + NEWEST_OVERHEAD_BYTES
            else:
                grown += queue.store.append_one(position, payload)
            if (before := queue.tick) != tick:
                ticks = queue.ticks
                if ticks is not None and before < tick and ticks[-1] < 128:  # it ascends, as time does
                    ticks += pack_time(position, tick)
                    queue.tick = tick
                    grown += ENTRY_BYTES
                else:
                    grown += queue.note_tick(position, tick)
            queue.last_first = ALONE
            queue.next_position = position + 1
        self._queue_bytes += grown

    def _apply_setting(self, record: Setting) -> None:
        """Apply a record that concerns no payloads: consumers, options, rules, openings."""
        match record:
            case SetConsumer():
                self._set_consumer(record)
            case ConsumerDelete(queue_id, name):
                self._known(queue_id).delete_consumer(name)
                self._charge_consumers([name], -1)
            case ConsumerRule(pattern, name, removes):
                change = self._remove_rule if removes else self._add_rule
                change(TableRule(pattern, name))
            case Opened():
                self._add_opening(record)
            case _:
                self._set_options(record)

    def _set_consumer(self, record: SetConsumer) -> None:
        queue = self._known(record.id)
        is_new = record.name not in queue.consumers
        queue.set_consumer(record.name, record.state)
        if is_new:
            self._charge_consumers([record.name], 1)
        # Epochs come from the counter of queue ids, so that none is used twice.
        self.next_queue_id = max(self.next_queue_id, record.state.epoch + 1)

    def _set_options(self, record: SetOptions) -> None:
        queue = self._known(record.id)
        before, queue.options = queue.options, shared(record.options)
        self._count_options(queue, before, queue.options)

    def _count_options(self, queue: Queue, before: StoredOptions, after: StoredOptions) -> None:
        """Have the sets of queues say *after* of a queue of which they say *before*."""
        if after.limits_appends():
            self.limited.add(queue.name)
        else:
            self.limited.discard(queue.name)
        if after == before:
            return
        if after.removed_from_ns():
            self.newly_aging.add(queue.id)
        elif before.removed_from_ns():
            self.newly_aging.discard(queue.id)
            if self.stopped_aging is not None:
                self.stopped_aging.append(queue.id)

    def _charge_consumers(self, names: Collection[str], sign: int) -> None:
        """Add consumers to the sums, or with *sign* -1 take them off."""
        self.consumer_count += sign * len(names)
        self._charge(sign * (CONSUMER_OVERHEAD_BYTES * len(names) + sum(map(memory_of_name, names))))
        self.table_bytes += sign * sum(map(consumer_bytes, names))

    def grow(self, size: int) -> None:
        """Count memory that the records take, or less than 0 if they leave it."""
        self._queue_bytes += size

    def _charge(self, size: int) -> None:
        """Add memory that no truncate frees."""
        self._queue_bytes += size
        self.overhead_bytes += size

    def _create(self, record: Create) -> None:
        if record.id < self.next_queue_id or record.name in self._by_name:
            raise ReplayError(f"queue {record.name!r} with id {record.id} is created a second time")
        self.next_queue_id = record.id + 1
        self._add(self._new_queue(record.id, record.name))

    def _new_queue(self, queue_id: int, name: str) -> Queue:
        return Queue(queue_id, name, self.pins, self.stores.new_store(queue_id))

    def _delete(self, record: Delete) -> int:
        queue = self._known(record.id)
        dropped = queue.records
        self._queue_bytes -= queue.memory_bytes - QUEUE_OVERHEAD_BYTES
        self._charge(-QUEUE_OVERHEAD_BYTES - memory_of_name(queue.name))
        self.table_bytes -= entry_bytes(queue.name)
        self._charge_consumers(queue.consumers, -1)
        if queue.options is not PLAIN:
            self._count_options(queue, queue.options, PLAIN)
        del self._by_id[queue.id]
        del self._by_name[queue.name]
        self.deleted[queue.id] = queue.next_position
        if len(self.deleted) > DELETED_REMEMBERED:
            del self.deleted[next(iter(self.deleted))]
        queue.clear()
        return dropped

    def _add(self, queue: Queue) -> None:
        self._by_id[queue.id] = queue
        self._by_name[queue.name] = queue
        self._queue_bytes += queue.memory_bytes - QUEUE_OVERHEAD_BYTES
        self._charge(QUEUE_OVERHEAD_BYTES + memory_of_name(queue.name))
        self.table_bytes += entry_bytes(queue.name)

    def _add_rule(self, rule: TableRule) -> None:
        if rule in self.rules.all:
            raise ReplayError(f"rule {rule.pattern!r} for consumer {rule.name!r} is added a second time")
        self.rules.add(rule)
        self._charge(memory_of_rule(rule))
        self.table_bytes += rule_bytes(rule)

    def _remove_rule(self, rule: TableRule) -> None:
        if rule not in self.rules.all:
            raise ReplayError(f"rule {rule.pattern!r} for consumer {rule.name!r} is removed, but it does not exist")
        self.rules.remove(rule)
        self._charge(-memory_of_rule(rule))
        self.table_bytes -= rule_bytes(rule)

    def _add_opening(self, opening: Opened) -> None:
        if self.openings and opening.first_batch <= self.openings[-1].first_batch:
            raise ReplayError(f"the log was opened before batch {opening.first_batch} twice")
        if len(self.openings) == OPENINGS_MAX:
            del self.openings[0]
        else:
            self.table_bytes += OPENING_BYTES
        self.openings.append(opening)


def _encode_queue(queue: Queue) -> bytes:
    return encode_entry(queue.table_entry())


def memory_of_name(name: str) -> int:
    """Return the memory of a name's characters, with the UTF-8 that Python keeps of one that is not ASCII."""
    return len(name) if name.isascii() else 4 * len(name)


def memory_of_rule(rule: TableRule) -> int:
    """Return the memory of *rule*."""
    return CONSUMER_OVERHEAD_BYTES + memory_of_name(rule.pattern) + memory_of_name(rule.name)

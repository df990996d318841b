"""The sums of an open log: what its memory holds, pins and counts must be what its queues have.

`check_sums` is the one function of this kind that a store of records brings along. It belongs to the store: whoever
rebuilds the store writes it anew, and every history is then judged by it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mrecordlog_async import MultiRecordLog, ReadOnlyLog
from mrecordlog_async.format.controls import consumer_bytes, rule_bytes
from mrecordlog_async.format.table import OPENING_BYTES, TABLE_HEADER_BYTES, entry_bytes
from mrecordlog_async.memory.queue import Queue as LogQueue
from mrecordlog_async.memory.queues import CONSUMER_OVERHEAD_BYTES, Queues, memory_of_name, memory_of_rule
from tests.faults.settings_model import limits_appends
from tests.faults.violation import Violation

if TYPE_CHECKING:
    from tests.faults.judge import State


def check_sums(log: MultiRecordLog | ReadOnlyLog, state: State) -> None:
    """Raise Violation unless the log's counts of memory, records, bytes, pins and table size match its queues."""
    check_queues(log._engine.queues if isinstance(log, MultiRecordLog) else log._lookup.queues, state)


def check_queues(queues: Queues, state: State) -> None:
    """Raise Violation unless the log's counts of memory, records, bytes, pins and table size match its queues."""
    pins: Counter[int] = Counter()
    table_bytes = TABLE_HEADER_BYTES + sum(map(rule_bytes, queues.rules.all)) + OPENING_BYTES * len(queues.openings)
    memory_bytes = 0
    for seen in state.queues:
        queue = queues.get(seen.name)
        assert queue is not None
        pins.update(queue.segments())
        table_bytes += entry_bytes(seen.name) + sum(map(consumer_bytes, queue.consumers))
        memory_bytes += queue.memory_bytes + CONSUMER_OVERHEAD_BYTES * len(queue.consumers)
        memory_bytes += sum(map(memory_of_name, (seen.name, *queue.consumers)))
        live_bytes = sum(len(payload) for _, payload in seen.records)
        found = (queue.records, queue.live_bytes())
        # Of a place on the disk that a truncate has cut, all bytes count, unless its positions have gaps.
        if found[0] != len(seen.records) or (found[1] != live_bytes and (found[1] < live_bytes or not is_cut(queue))):
            raise Violation(
                f"{seen.name}: {found} records and bytes counted, {len(seen.records), live_bytes} are there"
            )
        # Those on the disk are charged with their segment.
        held = [each for each in seen.records if each[0] >= queue.memory_first]
        least = sum(len(payload) for _, payload in held) + 4 * len(held)
        most = queue.store.held_bytes * 9 // 8 + MOST_BYTES * (len(seen.records) + 4)  # a tail takes some in advance
        if not least <= queue.memory_bytes <= most:
            raise Violation(f"{seen.name}: {queue.memory_bytes} bytes of memory counted for {least} of records")
        if queue.first_segment() != min(queue.segments(), default=None):
            raise Violation(f"{seen.name}: the first of its segments is not {queue.first_segment()}")
    memory_bytes += queues.pins.gathered_bytes + sum(map(memory_of_rule, queues.rules.all))
    consumers = sum(len(queue.consumers) for queue in queues)
    limited = {seen.name for seen in state.queues if limits_appends(seen.settings)}
    if (queues.consumer_count, queues.limited) != (consumers, limited):
        raise Violation(f"{queues.consumer_count} consumers, limits of {queues.limited} counted: not as they are")
    counted = (queues.memory_bytes, queues.table_bytes, queues.pins.oldest())
    if counted != (memory_bytes, table_bytes, min(pins, default=None)):
        raise Violation(f"memory, table and oldest pin are {counted}, due were {memory_bytes, table_bytes, pins}")


def is_cut(queue: LogQueue) -> bool:
    """Return whether a truncate has left a part of a place on the disk that has no gaps."""
    index, place = next(queue.places(queue.first_position, queue.memory_first), (None, 0))
    return index is not None and index.first_positions[place] < queue.first_position and not index.has_gaps(place)


MOST_BYTES = 400
"""More than a single record in its own run costs in addition to its payload."""

"""Records that leave memory: the queue counts, truncates and finds them as one whose records are all in memory does."""

from __future__ import annotations

import random

import pytest

from mrecordlog_async.errors import RecordsOnDiskError
from mrecordlog_async.format.controls import Create, Delete, Truncate
from mrecordlog_async.format.gathered import GatheredHead, GatheredIndex, Gathering
from mrecordlog_async.format.record import Append, LogRecord, Many
from mrecordlog_async.memory.collected import CollectedRuns, held_run
from mrecordlog_async.memory.queue import Queue
from mrecordlog_async.memory.queues import Queues
from mrecordlog_async.memory.spilling import collect, leave
from mrecordlog_async.memory.stored_times import oldest_tick, position_at, tick_spans
from mrecordlog_async.model import Record, Run


class Spilled:
    """Queues, and the gathered files of their segments, which are bytes here."""

    def __init__(self) -> None:
        self.queues = Queues(0)
        self.files: dict[int, bytes] = {}

    def gather(self, segment: int) -> None:
        """Write the file of a complete segment."""
        found = CollectedRuns()
        for _ in collect(self.queues, segment, found):
            pass
        gathering = Gathering(GatheredHead(bytes(16), segment, 0, 0, 0, 0, 0))
        data = gathering.index.head.encode()
        for queue_id, runs, times in found.queues():
            data += b"".join(map(b"".join, gathering.add_queue(queue_id, runs, times)))
        self.files[segment] = data + b"".join(gathering.end())
        if self.queues.pins.is_needed(segment):
            self.queues.pins.add_gathered(gathering.index)

    def leave(self, segment: int, steps: int = 1 << 30) -> None:
        """Have a gathered segment leave memory, or a part of it."""
        for at, _ in enumerate(leave(self.queues, self.queues.pins.gathered[segment])):
            if at >= steps:
                return

    def read(self, index: GatheredIndex, place: int, first: int, stop: int) -> list[Record]:
        """Return the records of a place at positions *first* … *stop* - 1."""
        start = index.offsets[place]
        body = self.files[index.head.segment][start : start + index.lengths[place]]
        runs, _ = index.decode(memoryview(body), range(place, place + 1), first, stop)
        records = (record for run in runs for record in held_run(run).records())
        return [record for record in records if first <= record.position < stop]

    def count_cuts(self, batch: list[LogRecord]) -> None:
        """Count what the truncates of a batch will leave of places with gaps."""
        for record in batch:
            queue = self.queues.by_id(record.id) if isinstance(record, Truncate) else None
            if queue is None or not isinstance(record, Truncate) or record.position + 1 < queue.first_position:
                continue
            if (cut := queue.cut_place(record.position + 1)) is not None:
                left = self.read(*cut, record.position + 1, cut[0].next_positions[cut[1]])
                queue.note_cut(record.position + 1, len(left), sum(len(each.payload) for each in left))

    def records(self, queue: Queue) -> list[Record]:
        """Return everything that is retained, read from the files and from memory."""
        found: list[Record] = []
        first = queue.first_position
        for index, place in queue.places(first, queue.memory_first):
            found += self.read(index, place, first, queue.memory_first)
        for run in queue.held(max(first, queue.memory_first), None):
            found += run.records()
        return found


def history(rng: random.Random, queues: Queues, gaps: bool) -> list[LogRecord]:
    """Return the records of a batch: runs, single records, truncates, now and then a queue that ends or begins."""
    ids = [queue.id for queue in queues]
    roll = rng.random()
    if len(ids) < 5 or roll < 0.02:
        return [Create(queues.next_queue_id, f"q{queues.next_queue_id}")]
    if roll < 0.03:
        return [Delete(rng.choice(ids))]
    queue = queues.by_id(rng.choice(ids))
    assert queue is not None
    if roll < 0.2:
        reach = queue.next_position - queue.first_position + 3
        return [Truncate(queue.id, queue.first_position + rng.randrange(reach))]
    if roll < 0.6:
        position = queue.next_position + (rng.choice([0, 0, 1, 50]) if gaps else 0)
        sizes = rng.choice([[5] * 3, [100] * 30, [20_000], [9_000] * 4])
        return [Append(queue.id, Run.of(position, [rng.randbytes(size) for size in sizes]))]
    many = rng.sample(ids, 5)
    positions = [queues.by_id(each).next_position for each in many]  # type: ignore[union-attr]  # it exists
    return [Many.of(many, positions, [rng.randbytes(rng.randrange(30)) for _ in many])]


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_queue_on_the_disk_is_as_one_in_memory(seed: int, gaps: bool) -> None:
    """Whatever happens, and whenever segments are gathered and leave: same records, and same counts.

    All bytes of a place that is cut count until it is dropped. With gaps, what is left of it is read.
    """
    rng = random.Random(seed)
    twin, spilled = Queues(0), Spilled()
    segment = gathered = 0
    for step in range(600):
        batch = history(rng, twin, gaps)
        expected = twin.apply_all(segment, batch, step)
        spilled.count_cuts(batch)
        assert spilled.queues.apply_all(segment, batch, step) == expected
        if rng.random() < 0.02:
            segment += 1
        if gathered < segment and rng.random() < 0.02:
            spilled.gather(gathered)
            gathered += 1
        known = sorted(spilled.queues.pins.gathered)
        if known and rng.random() < 0.05:
            spilled.leave(rng.choice(known[:2]) if len(known) == 1 else known[0], rng.choice([2, 10, 1 << 30]))
            for each in known[1 : rng.randrange(4)]:
                spilled.leave(known[0])
                spilled.leave(each)
        if step % 10 == 0:
            compare(twin, spilled, gaps)
    compare(twin, spilled, gaps)
    assert gathered > 1
    for queue in [*twin]:
        twin.apply(segment, Truncate(queue.id, queue.next_position))
        spilled.queues.apply(segment, Truncate(queue.id, queue.next_position))
    assert [queue.records for queue in spilled.queues] == [0] * len(twin)
    assert [queue.live_bytes() for queue in spilled.queues] == [0] * len(twin)
    assert spilled.queues.memory_bytes == twin.memory_bytes
    assert spilled.queues.pins.by_segment() == twin.pins.by_segment()
    assert spilled.queues.pins.disk_only_bytes == 0


def compare(twin: Queues, spilled: Spilled, gaps: bool) -> None:
    """Compare every queue with the one that has all its records in memory."""
    assert spilled.queues.table() == twin.table()
    on_disk = [queue.amount(queue.first_position, queue.memory_first)[1] for queue in spilled.queues]
    assert spilled.queues.pins.disk_only_bytes == sum(on_disk)
    for queue in twin:
        other = spilled.queues.by_id(queue.id)
        assert other is not None
        records = [record for run in queue.held(None, None) for record in run.records()]
        assert spilled.records(other) == records
        assert other.held_end() == queue.held_end()
        assert other.segments() == queue.segments()
        middle = (queue.first_position + queue.next_position) // 2
        at_least = queue.count(middle, queue.next_position)
        assert other.records == queue.records
        if gaps:
            assert other.count(middle, queue.next_position) >= at_least
            assert (other.first_record() or 0) <= (queue.first_record() or 0)
        else:
            assert other.count(middle, queue.next_position) == at_least
            assert other.first_record() == queue.first_record()
        assert other.live_bytes() >= queue.live_bytes()
        if other.memory_first:
            with pytest.raises(RecordsOnDiskError):
                other.held(None, None)
        else:
            assert other.live_bytes() == queue.live_bytes()
        check_times(queue, other)


def check_times(queue: Queue, other: Queue) -> None:
    """Compare what is known of times without a read."""
    tick = oldest_tick(queue)
    assert oldest_tick(other) <= tick
    try:
        assert position_at(other, tick) == position_at(queue, tick)
    except RecordsOnDiskError:
        assert other.memory_first
    spans = [*tick_spans(other)]
    assert [start for start, _, _ in spans] == sorted({start for start, _, _ in spans})
    exact = {start: at for start, _, at in tick_spans(queue)}
    assert all(at >= exact.get(start, at) for start, _, at in spans)
    assert all(at == exact.get(start, at) for start, _, at in spans if start >= other.memory_first)

"""The place of one queue's records. `RetainedStore`: in memory, as runs that never change and a tail that grows.

1. A large run is kept as it arrives. A small one is copied to the **tail**: two byte arrays, no object per record.
2. Single records are kept as they arrive until there are `NEWEST_MAX`: they are copied to the tail together.
3. At 32 to 64 KiB, or 500 to 1,000 records, the tail is **sealed**: it becomes a run.
4. A read copies what it wants of the tail. Nothing keeps a `memoryview` of it: an append would raise BufferError.

So a retained record costs its payload and four bytes, plus four or eight where positions have gaps, and the oldest and
the newest ones what is truncated of a run, or what a tail takes in advance. One that is still to be copied costs
`NEWEST_OVERHEAD_BYTES` more. Truncating drops whole runs from the left.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from struct import Struct

from crc32c import crc32c

from mrecordlog_async.memory.gapped import SPAN_MAX, GappedRun, HeldRun
from mrecordlog_async.memory.runs import checksum_of, cut_to, runs_of
from mrecordlog_async.memory.stores import Left, Store
from mrecordlog_async.model import OFFSET_BYTES, POSITION_MAX, Run, offsets_of_one, shifted

SEAL_BYTES = 65_536
SEAL_RECORDS = 1_000
SEAL_SPREAD = 512
SPREAD_BYTES = 64
"""The tail is sealed at this size, or as little as half of it, depending on the queue's id.

With one limit for all, a thousand queues that get one record each in turn would fill at the same moment: sealing all
of them would stop the event loop.
"""

KEPT_BYTES = SEAL_BYTES // 4
KEPT_RECORDS = SEAL_RECORDS // 4
"""A run this large is kept as it arrived: copying it would save less than two bytes per record."""

RUN_OVERHEAD_BYTES = 150
"""Memory of a run in addition to its bytes: a tuple, two bytes objects, and its places in the list and in `_firsts`."""

TAIL_OVERHEAD_BYTES = 220
"""Memory of a tail in addition to what it holds: two byte arrays, and the list of the newest records."""

NEWEST_MAX = 16
"""This many single records are copied to the tail together.

Where thousands of queues get a record each in turn, the byte arrays of none of them are in the processor's cache.
"""

NEWEST_BYTES_MAX = 1_024
"""A single record that is larger is copied to the tail at once."""

NEWEST_OVERHEAD_BYTES = 60
"""Memory of such a record in addition to its payload: a bytes object, and its place in the list."""

ADVANCE_SHIFT = 3
"""A tail is charged for an eighth more than it holds, which byte arrays may take in advance."""

GAPLESS_MAX = 16
"""A tail of more records without a gap is sealed before one. Otherwise all of them would get a distance at once."""

COMPACT_BYTES = 512
"""Less than this of truncated records stays in the tail until it is sealed."""

NO_BYTES = bytearray()
"""Shared by all queues without a tail, or without runs, and always empty."""

NO_RECORDS: list[bytes] = []
"""Shared by all queues without records that are still to be copied to the tail, and always empty."""

_NO_RUNS: list[tuple[bytes, bytes, bytes]] = []
"""Shared by all queues without runs, and always empty."""

_POSITION = Struct("<q")
_END = Struct("<i")
_ZERO = bytes(OFFSET_BYTES)


class RetainedStore:
    """The records of one queue in memory. Readers get runs, which never change.

    newest: single records after those of the tail, without a gap.
    """

    __slots__ = (
        "_dead",
        "_distances",
        "_ends",
        "_firsts",
        "_id",
        "_run_bytes",
        "_run_memory",
        "_run_records",
        "_runs",
        "_tail",
        "_tail_first",
        "newest",
    )

    can_continue = True

    def __init__(self, queue_id: int) -> None:
        self._id = queue_id
        self._run_records = self._run_bytes = 0  # of the runs, and on the disk; without the truncated records
        self._run_memory = 0
        self._firsts = NO_BYTES  # the first position of each run; taking from its front does not move the rest
        self._runs = _NO_RUNS  # offsets, payload and distances of each: exact tuples, which the cycle collector skips
        self._dead = 0  # truncated records of the oldest run, or of the tail if there is none
        self._tail = NO_BYTES  # payloads
        self._ends = NO_BYTES  # for each of the tail's records, the offset after its last byte
        self._tail_first = 0  # of the newest records, if the tail has none
        self.newest = NO_RECORDS
        self._distances: bytearray | None = None  # of the tail, once there is a gap in it: from its first position

    @property
    def records(self) -> int:
        """Number of retained records."""
        return self._run_records + self._tail_records()

    @property
    def held_bytes(self) -> int:
        """Payload bytes of the runs and the tail, with truncated records that are still held."""
        return self._run_bytes + len(self._tail) + sum(map(len, self.newest))

    @property
    def memory_bytes(self) -> int:
        """Memory of the runs and the tail."""
        newest = self.newest
        if not newest and not self._ends:
            return self._run_memory
        held = NEWEST_OVERHEAD_BYTES * len(newest) + sum(map(len, newest)) if newest else 0
        return self._run_memory + tail_memory(self._tail_size()) + held

    def _tail_size(self) -> int:
        return len(self._tail) + len(self._ends) + len(self._distances or b"")

    def _tail_records(self) -> int:
        return (len(self._ends) >> 2) + len(self.newest)

    def count(self, records: int, size: int) -> None:
        """Count records that are on the disk alone, and their bytes; fewer than 0 if they are dropped."""
        self._run_records += records
        self._run_bytes += size

    # Reading. The runs come first, then the tail.

    def pieces(self, first: int, last: int, most: int | None = None, records_max: int | None = None) -> list[HeldRun]:
        """Return what memory has of positions *first* … *last* - 1; see `Store.pieces`."""
        if first >= last:
            return []
        found: list[HeldRun] = []
        if self._runs:
            begin, end = self._ended_by(first), self._begun_before(last)
            found = [self._run(at) for at in range(begin, end if most is None else min(end, begin + most))]
        if last > self._tail_first:
            found += self._unsealed(first, last, records_max)
        return found if most is None else found[:most]

    def runs_from(self, start: int, records_max: int, bytes_max: int) -> Iterator[Run]:
        """Yield the runs from *start* on; see `Store.runs_from`."""
        for at in range(self._ended_by(start) if self._runs else 0, len(self._runs)):
            run = self._run(at)
            if isinstance(run, Run):
                yield run
            elif (cut := run.cut(start, POSITION_MAX + 1)) is not None:
                yield from runs_of((cut,))
        yield from runs_of(self._unsealed(start, POSITION_MAX + 1, records_max, bytes_max))

    def first_record(self) -> int | None:
        """Return the position of the oldest retained record, or None if there is none."""
        if not self._runs:
            return self._tail_position(self._dead) if self._ends else self._tail_first if self.newest else None
        oldest, dead = self._run(0), self._dead
        return oldest.first_position + (dead if isinstance(oldest, Run) else oldest.distance(dead))

    def end(self) -> int | None:
        """Return the position after the newest retained record, or None if nothing is retained."""
        if self._ends or self.newest:
            return self._newest_first() + len(self.newest)
        return self._run(len(self._runs) - 1).next_position if self._runs else None

    def live_bytes(self) -> int:
        """Return the payload bytes of the retained records."""
        return self.held_bytes - self._bytes_before(self._dead)

    def has_runs(self) -> bool:
        """Return whether there is any record in memory."""
        return bool(self._runs or self._ends or self.newest)

    def checksum(self, first: int, stop: int) -> int:
        """Return the checksum of the last append; see `Store.checksum`."""
        if stop - first == 1 and (self.newest or self._ends):  # a roll asks every queue: most end with a single record
            payload = self.newest[-1] if self.newest else self._tail[self._tail_end((len(self._ends) >> 2) - 1) :]
            return crc32c(payload, crc32c(len(payload).to_bytes(OFFSET_BYTES, "little")))
        return checksum_of(list(runs_of(cut_to(self.pieces(first, stop), first, stop))))

    # Adding.

    def append(self, run: Run, records: int, size: int, continues: bool) -> int:
        """Add *run* after the others; see `Store.append`."""
        first, offsets, payload = run
        held = self.memory_bytes
        if size >= KEPT_BYTES or records >= KEPT_RECORDS:
            self.seal()
            self.count(records, size)
            self._keep(first, offsets, payload, b"")
            return self.memory_bytes - held
        self._copy_newest()
        self._begin_addition(first, records)
        base = len(self._tail)
        self._tail += payload
        self._ends += _END.pack(base + size) if records == 1 else shifted(offsets, -base)[OFFSET_BYTES:]
        self._fit()
        return self.memory_bytes - held

    def append_one(self, position: int, payload: bytes) -> int:
        """Add a record that follows the last one; see `Store.append_one`."""
        size = len(payload)
        if size > NEWEST_BYTES_MAX:
            return self.append(Run(position, offsets_of_one(size), payload), 1, size, False)
        newest, grown = self.newest, NEWEST_OVERHEAD_BYTES + size
        if len(newest) >= NEWEST_MAX:
            grown += self._copy_newest()
        if not newest and not self._ends:
            self._tail_first = position
            grown += TAIL_OVERHEAD_BYTES
        if newest is NO_RECORDS:
            newest = self.newest = []
        newest.append(payload)
        return grown

    def _copy_newest(self) -> int:
        """Copy the newest records to the tail; return as `append` does."""
        payloads = self.newest
        if not payloads:
            return 0
        copied, held = b"".join(payloads), self._run_memory + tail_memory(self._tail_size())
        self._begin_addition(self._newest_first(), len(payloads))
        ends = array("i", accumulate(map(len, payloads), initial=len(self._tail)))
        self._ends += ends.tobytes()[OFFSET_BYTES:]
        self._tail += copied
        grown = -len(copied) - NEWEST_OVERHEAD_BYTES * len(payloads)
        payloads.clear()
        self._fit()
        return grown + self.memory_bytes - held

    def _begin_addition(self, first: int, records: int) -> None:
        """Have the tail be ready for *records* records, the first of which is at position *first*."""
        if self._ends and (self._distances is not None or first != self._tail_first + (len(self._ends) >> 2)):
            self._note_gap(first, records)
        if not self._ends:
            self._tail, self._ends, self._tail_first = bytearray(), bytearray(), first

    def _note_gap(self, first: int, records: int) -> None:
        """Note the positions of *records* records that are about to be added to the tail, from *first* on."""
        if self._distances is None and len(self._ends) >> 2 > GAPLESS_MAX:
            self._seal_tail()
            return
        if self._distances is None:
            self._distances = bytearray(array("q", range(len(self._ends) >> 2)).tobytes())
        begin = first - self._tail_first
        self._distances += array("q", range(begin, begin + records)).tobytes()

    def _fit(self) -> None:
        """Seal the tail if it is full."""
        spread, records = self._id % SEAL_SPREAD, len(self._ends) >> 2
        if records >= SEAL_RECORDS - spread or self._tail_size() >= SEAL_BYTES - SPREAD_BYTES * spread:
            self._seal_tail()

    def seal(self) -> None:
        """Make a run of the tail; see `Store.seal`."""
        self._copy_newest()
        self.newest = NO_RECORDS
        self._seal_tail()

    def _seal_tail(self) -> None:
        if self._ends:
            self.count(len(self._ends) >> 2, len(self._tail))
            self._keep(self._tail_first, _ZERO + self._ends, bytes(self._tail), self._packed_distances())
            self._drop_tail()

    def _packed_distances(self) -> bytes:
        if self._distances is None:
            return b""
        distances = array("q", bytes(self._distances))
        return array("i", distances).tobytes() if distances[-1] < SPAN_MAX else bytes(self._distances)

    def _drop_tail(self) -> None:
        self._tail, self._ends, self._distances = NO_BYTES, NO_BYTES, None

    def _keep(self, first: int, offsets: bytes, payload: bytes, distances: bytes) -> None:
        if self._runs is _NO_RUNS:
            self._runs, self._firsts = [], bytearray()
        self._firsts += _POSITION.pack(first)
        self._runs.append((offsets, payload, distances))
        self._run_memory += RUN_OVERHEAD_BYTES + len(offsets) + len(payload) + len(distances)

    # Dropping.

    def drop_before(self, position: int) -> None:
        """Drop the runs that end before *position*; count the truncated records of what is the oldest one then."""
        if self.newest and position >= self._newest_first():
            self._copy_newest()
        if self._runs and (count := self._ended_by(position)):
            self._drop(count)
        dead = self._before(position)
        self._run_records -= dead - self._dead
        self._dead = dead
        if dead and not self._runs:
            self._compact(dead)

    def clear(self) -> None:
        """Drop everything. Its cost does not depend on what there was."""
        self._runs, self._firsts = _NO_RUNS, NO_BYTES
        self._drop_tail()
        self.newest = NO_RECORDS
        self._run_records = self._run_bytes = self._run_memory = self._dead = 0

    def _drop(self, count: int) -> None:
        """Drop the first *count* runs."""
        dropped = self._runs[:count]
        del self._runs[:count], self._firsts[: count * _POSITION.size]
        payloads, offsets = sum([len(run[1]) for run in dropped]), sum([len(run[0]) for run in dropped])
        self.count(self._dead - offsets // OFFSET_BYTES + count, -payloads)
        self._run_memory -= count * RUN_OVERHEAD_BYTES + payloads + offsets + sum([len(run[2]) for run in dropped])
        self._dead = 0

    def _compact(self, dead: int) -> None:
        """Drop the first *dead* records of the tail, if they are much of it."""
        dead_bytes = self._tail_end(dead)
        if dead_bytes < max(COMPACT_BYTES, len(self._tail) >> 1):
            return
        first, ends, tail, distances = self._tail_position(dead), self._ends, self._tail, self._distances
        begin = first - self._tail_first
        self._drop_tail()
        self._ends = bytearray(shifted(bytes(ends[dead * OFFSET_BYTES :]), dead_bytes))
        self._tail, self._tail_first = tail[dead_bytes:], first
        if distances is not None:
            rest = array("q", bytes(distances[dead * _POSITION.size :]))
            self._distances = bytearray(array("q", [distance - begin for distance in rest]).tobytes())
        self._run_records += dead  # they are not counted among those of the tail any more
        self._dead = 0
        self._fit()

    # Leaving.

    def before(self, position: int) -> tuple[int, int]:
        """Return how much of the oldest piece is before *position*; see `Store.before`."""
        if not self._runs and not self._ends:
            payloads = self.newest[: max(position - self._tail_first, 0)]
            return len(payloads), sum(map(len, payloads))
        records = self._before(position)
        return records, self._bytes_before(records)

    def leave(self, stop: int) -> Left | None:
        """Drop the runs that end at or before *stop*; see `Store.leave`."""
        count = self._ended_by(stop) if self._runs else 0
        if not count:
            return None
        records, size = self._run_records, self._run_bytes
        self._drop(count)
        following = self._first(0) if self._runs else self._tail_first if self._ends or self.newest else None
        left = Left(records - self._run_records, size - self._run_bytes, following)
        self._run_records, self._run_bytes = records, size  # the caller takes them from the sums
        return left

    # Finding.

    def _first(self, at: int) -> int:
        first: int = _POSITION.unpack_from(self._firsts, at * _POSITION.size)[0]
        return first

    def _run(self, at: int) -> HeldRun:
        offsets, payload, distances = self._runs[at]
        first = self._first(at)
        return GappedRun(first, offsets, payload, distances) if distances else Run(first, offsets, payload)

    def _begun_before(self, position: int) -> int:
        """Return the number of runs that begin before *position*."""
        return bisect_left(memoryview(self._firsts).cast("q"), position)

    def _ended_by(self, position: int) -> int:
        """Return the number of runs that end at or before *position*: those at the front."""
        at = self._begun_before(position + 1)
        # Of these, only the last one may end after it.
        return at - 1 if at and self._run(at - 1).next_position > position else at

    def _before(self, position: int) -> int:
        """Return the number of records before *position* in the oldest run, or in the tail if there is none."""
        return self._run(0).before(position) if self._runs else self._tail_before(position)

    def _bytes_before(self, record: int) -> int:
        """Return the payload bytes of the first *record* records of the oldest run, or of the tail if there is none."""
        if not self._runs:
            return self._tail_end(record)
        end: int = _END.unpack_from(self._runs[0][0], record * OFFSET_BYTES)[0]
        return end

    def _tail_before(self, position: int) -> int:
        """Return the number of records of the tail before *position*."""
        distance = position - self._tail_first
        if self._distances is not None:
            return bisect_left(memoryview(self._distances).cast("q"), distance)
        return min(max(distance, 0), len(self._ends) >> 2)

    def _tail_end(self, records: int) -> int:
        """Return the payload bytes of the first *records* records of the tail."""
        return _END.unpack_from(self._ends, (records - 1) * OFFSET_BYTES)[0] if records else 0

    def _tail_position(self, record: int) -> int:
        """Return the position of the record of the tail with this number, from 0 on."""
        if self._distances is None:
            return self._tail_first + record
        distance: int = _POSITION.unpack_from(self._distances, record * _POSITION.size)[0]
        return self._tail_first + distance

    def _newest_first(self) -> int:
        """Return the position of the first record that is still to be copied to the tail."""
        return self._tail_position((len(self._ends) >> 2) - 1) + 1 if self._ends else self._tail_first

    def _unsealed(
        self, start: int, stop: int, records_max: int | None = None, bytes_max: int | None = None
    ) -> list[HeldRun]:
        """Return copies of the records that are in no run, with positions *start* … *stop* - 1; see `_tail_run`."""
        run, base = self._tail_run(start, stop, records_max, bytes_max), self._newest_first()
        if run is not None and run.next_position < base:  # it is cut, or is all that is wanted
            return [run]
        payloads = self.newest[max(start - base, 0) : max(stop - base, 0)][:records_max]
        if payloads and bytes_max is not None:
            payloads = payloads[: max(bisect_right(list(accumulate(map(len, payloads))), bytes_max), 1)]
        return [each for each in (run, Run.of(max(start, base), payloads) if payloads else None) if each is not None]

    def _tail_run(
        self, start: int, stop: int, records_max: int | None = None, bytes_max: int | None = None
    ) -> HeldRun | None:
        """Return a copy of the tail's records with positions *start* … *stop* - 1; None if there are none.

        records_max, bytes_max: only the first ones within these limits, but at least one.
        """
        first, end = self._tail_before(start), self._tail_before(stop)
        if records_max is not None:
            end = min(end, first + records_max)
        if first >= end:
            return None
        base, ends = self._tail_end(first), bytes(self._ends[first * OFFSET_BYTES : end * OFFSET_BYTES])
        if bytes_max is not None:
            end = first + max(bisect_right(memoryview(ends).cast("i"), base + bytes_max), 1)
            ends = ends[: (end - first) * OFFSET_BYTES]
        with memoryview(self._tail) as tail:
            payload = bytes(tail[base : self._tail_end(end)])
        offsets = shifted(_END.pack(base) + ends, base)
        if self._distances is None:
            return Run(self._tail_first + first, offsets, payload)
        return self._gapped(first, end, offsets, payload)

    def _gapped(self, first: int, end: int, offsets: bytes, payload: bytes) -> HeldRun:
        """Return the records *first* … *end* - 1 of the tail, which has gaps, with their positions."""
        assert self._distances is not None
        distances = array("q", bytes(self._distances[first * _POSITION.size : end * _POSITION.size]))
        positions = [self._tail_first + distance for distance in distances]
        if positions[-1] - positions[0] == end - first - 1:
            return Run(positions[0], offsets, payload)
        return GappedRun.of(positions, offsets, payload)


def tail_memory(size: int) -> int:
    """Return the memory of a tail whose byte arrays hold *size* bytes."""
    return TAIL_OVERHEAD_BYTES + size + (size >> ADVANCE_SHIFT)


class RetainedStores:
    """Makes stores that keep all records in memory."""

    def new_store(self, queue_id: int) -> Store:
        """Return the store of a new queue."""
        return RetainedStore(queue_id)

    def enter_segment(self, segment: int) -> None:
        """Do nothing: it does not matter where records are on the disk."""

    def begin_batch(self, batch: int, offset: int) -> None:
        """Do nothing: it does not matter where records are on the disk."""

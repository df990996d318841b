"""Loose records: single records that stay in the block they arrived in until their queue has enough of them for a run.

A MANY holds single records of up to 250 queues. Its payload is kept as one **block**, and each queue notes the
**places** of its records: eight bytes each, with no object per record. The loose records of a queue are its newest
ones, without gaps. They are **settled**, that is copied out and joined to a run, when there are 257 to 512 of them, and
before another kind of append. Reading makes runs of them and changes nothing.

One live record keeps its whole block in memory. So memory is charged by block until the last of its records is dropped
or settled. A block of which less than a quarter lives is **sparse**: its records are settled soon, a limited number at
a time. A block of an earlier segment is **old**: its records are settled within seconds after the roll, in short steps,
so that what a few records keep is no more than a segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from struct import Struct
from threading import Lock
from typing import Any, Protocol

from mrecordlog_async.compiled import LooseBlock, encode_queues, joined_at, release_at, ticks_at
from mrecordlog_async.format.record import Many
from mrecordlog_async.model import OFFSET_BYTES, Run

PLACE_BITS = 8
_PLACE_MASK = (1 << PLACE_BITS) - 1

LOOSE_RECORDS_MIN = 4
"""The records of a smaller MANY do not become loose: so small a block costs more than runs of one record."""

LOOSE_BYTES_MAX = 1_024
"""A MANY with a larger record does not become a block: settling copies 512 records at once."""

BLOCK_OVERHEAD_BYTES = 400
"""Memory of a block in addition to its bytes: five objects and the entry of a dictionary."""

PLACE_BYTES = 10
"""Memory of a place in a queue's array, which grows by a sixteenth at a time."""

SETTLED_OVERHEAD_BYTES = 130
"""Memory of a settled record in addition to its payload, at most: it has its own run."""

SETTLED_AT_ONCE = 2_000
"""Sparse blocks are settled this many records at a time: that takes about half a millisecond of the event loop."""

FREED_AT_ONCE = 20_000
"""The same before an append is refused for lack of memory."""

NO_PLACES = array("Q")
"""Shared by all queues without loose records, and always empty."""

_BOUNDS = Struct("<ii")


def _memory_of(many: Many) -> int:
    """Return the memory of a block."""
    return (
        BLOCK_OVERHEAD_BYTES + len(many.payload) + len(many.offsets) + (PLACE_BYTES + many.ids.itemsize) * len(many.ids)
    )


def _wastes_memory(block: LooseBlock) -> bool:
    """Return whether at most half of it lives, and settling that frees memory even if each record is alone."""
    records = len(block.ids)
    settled_bytes = block.live * (SETTLED_OVERHEAD_BYTES + len(block.payload) // records)
    return block.live * 2 <= records and settled_bytes < block.memory_bytes


class Blocks:
    """The blocks with loose records, by number. `Queues` owns them.

    memory_bytes: of all blocks. next_number: of the block that is added next. A place is a block's number, shifted,
    plus the record's index in it; places ascend in the order of arrival.
    """

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.sparse: deque[int] = deque()  # numbers of sparse blocks; some of them may be gone
        self._blocks: dict[int, LooseBlock] = {}
        self.next_number = 0
        self._released = 0  # records that are no longer loose, ever
        self._search_after = 0

    def __iter__(self) -> Iterator[tuple[int, LooseBlock]]:
        return iter(self._blocks.items())

    def get(self, number: int) -> LooseBlock | None:
        """Return a block, or None if none of its records is loose any more."""
        return self._blocks.get(number)

    def add(self, many: Many, tick: int) -> int:
        """Keep the payloads of *many*, stored at *tick*, all of them loose; return the place of the first one."""
        number = self.next_number
        self.next_number = number + 1
        block = self._blocks[number] = LooseBlock(many, tick, _memory_of(many))
        self.memory_bytes += block.memory_bytes
        return number << PLACE_BITS

    def joined(self, first_position: int, places: Iterable[int]) -> Run:
        """Return the records at *places* as a run from *first_position* on."""
        return Run(first_position, *joined_at(self._blocks, places, PLACE_BITS))

    def size(self, places: Iterable[int]) -> int:
        """Return the payload bytes of the records at *places*."""
        blocks, bounds, mask = self._blocks, _BOUNDS.unpack_from, _PLACE_MASK
        size = 0
        for place in places:
            start, stop = bounds(blocks[place >> PLACE_BITS].offsets, (place & mask) * OFFSET_BYTES)
            size += stop - start
        return size

    def payload(self, place: int) -> bytes:
        """Return the payload at *place*."""
        block = self._blocks[place >> PLACE_BITS]
        start, stop = _BOUNDS.unpack_from(block.offsets, (place & _PLACE_MASK) * OFFSET_BYTES)
        return block.payload[start:stop]

    def count_within(self, places: Sequence[int], bytes_max: int) -> int:
        """Return how many of the records at *places*, the first ones, have at most *bytes_max* bytes together."""
        if len(places) * LOOSE_BYTES_MAX <= bytes_max:
            return len(places)
        blocks, bounds, mask = self._blocks, _BOUNDS.unpack_from, _PLACE_MASK
        for count, place in enumerate(places):
            start, stop = bounds(blocks[place >> PLACE_BITS].offsets, (place & mask) * OFFSET_BYTES)
            bytes_max -= stop - start
            if bytes_max < 0:
                return count
        return len(places)

    def ticks(self, places: Iterable[int]) -> list[int]:
        """Return when the records at *places* were stored."""
        return ticks_at(self._blocks, places, PLACE_BITS)

    def encode_queues(
        self, queues: Sequence[Any], plain: object, no_consumers: object, encode: Callable[[Any], bytes]
    ) -> bytes:
        """Return what *encode* makes of each of *queues*, whose loose records are here, as one."""
        return encode_queues(queues, self._blocks, PLACE_BITS, plain, no_consumers, encode)

    def release(self, places: Sequence[int]) -> None:
        """Note that the records at *places* are no longer loose. A block without any is dropped."""
        self._released += len(places)
        for number in release_at(self._blocks, places, PLACE_BITS):
            block = self._blocks.get(number)
            if block is None:
                continue
            if block.live:
                self.sparse.append(number)
            else:
                del self._blocks[number]
                self.memory_bytes -= block.memory_bytes

    def wasteful(self) -> list[int]:
        """Return the numbers of the blocks whose records take less memory once they are settled, oldest first.

        Visits all blocks, so it returns nothing until as many records as there are blocks were released since the last
        time.
        """
        if self._released < self._search_after:
            return []
        found = [number for number, block in self._blocks.items() if _wastes_memory(block)]
        self._search_after = self._released + len(self._blocks)
        return found


def any_in_block(places: Sequence[int], number: int) -> bool:
    """Return whether one of a queue's *places* is in block *number*."""
    at = bisect_left(places, number << PLACE_BITS)
    return at < len(places) and places[at] >> PLACE_BITS == number


class LooseQueue(Protocol):
    """The part of a queue that settling needs."""

    def loose_with(self, block: int) -> int:
        """Return the number of loose records if any of them is in *block*, otherwise 0."""

    def settle(self) -> int:
        """Join the loose records to a run; return by how many bytes the memory in use grew."""


class Settling:
    """Settles the loose records of a log's queues, a limited number at a time. `Queues` owns it.

    lock: held while the log's thread reads the queues for a table; nothing may be settled meanwhile. grown_bytes: how
    much the memory of the queues, without the blocks, has grown by all settling so far. old_end: the blocks before this
    number are of earlier segments.
    """

    def __init__(self, blocks: Blocks, queues: Mapping[int, LooseQueue]) -> None:
        """Settle what the *queues*, by id, have in *blocks*."""
        self.lock = Lock()
        self._blocks = blocks
        self._queues = queues
        self.grown_bytes = 0
        self.old_end = 0
        self._settled_end = 0  # the blocks before it are settled

    def has_sparse(self) -> bool:
        """Return whether `settle_sparse` has something to do."""
        return bool(self._blocks.sparse)

    def settle_sparse(self, records: int = SETTLED_AT_ONCE) -> None:
        """Settle what is left of sparse blocks; stop after about *records* records."""
        sparse = self._blocks.sparse
        while sparse:
            for settled in self._settle_block(sparse[0]):
                records -= settled
                if records <= 0:
                    return
            sparse.popleft()  # nothing of it is left

    def has_old(self) -> bool:
        """Return whether `settle_old` has something to do: a new segment was entered since."""
        return self._settled_end < self.old_end

    def settle_old(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Settle the blocks of earlier segments, oldest first, until *is_over* is true after a queue or a block.

        May be called at any time on the event loop. Does nothing while the log's thread writes a table.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            for number in range(self._settled_end, self.old_end):
                for _ in self._settle_block(number):
                    if is_over():
                        return
                self._settled_end = number + 1
                if is_over():
                    return
        finally:
            self.lock.release()

    def free_memory(self, wanted: int) -> None:
        """Free up to about *wanted* bytes that dead records take in blocks, because an append is about to be refused.

        May be called at any time on the event loop. Does nothing while the log's thread writes a table.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            self._settle_blocks(wanted)
        finally:
            self.lock.release()

    def _settle_blocks(self, wanted: int) -> None:
        """Settle sparse blocks and others that waste memory until *wanted* bytes are free."""
        records, goal = FREED_AT_ONCE, self.grown_bytes + self._blocks.memory_bytes - wanted
        for number in chain(tuple(self._blocks.sparse), self._blocks.wasteful()):
            if self.grown_bytes + self._blocks.memory_bytes <= goal:
                return
            for settled in self._settle_block(number):
                records -= settled
                if records <= 0:
                    return

    def _settle_block(self, number: int) -> Iterator[int]:
        """Settle one queue after the other that has loose records in a block; yield how many it had.

        All loose records of these queues, since one long run costs less than many short ones. A caller that stops
        before the end continues with the same block the next time.
        """
        block = self._blocks.get(number)
        for queue_id in dict.fromkeys(block.ids) if block is not None else ():
            queue = self._queues.get(queue_id)
            if queue is not None and (settled := queue.loose_with(number)):
                self.grown_bytes += queue.settle()
                yield settled

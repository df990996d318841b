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
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

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

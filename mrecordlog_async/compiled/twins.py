"""The loops of `_loops.pyx` in Python: they run where nothing was compiled, and the compiled ones do the same.

A run is given by its offsets and payload (`model.Run`); *start* and *stop* are numbers of its records, from 0 on, and
lie within it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, count, repeat
from operator import sub
from struct import Struct
from typing import TypeVar

Kind = TypeVar("Kind", bound=tuple[int, bytes])
Queue = TypeVar("Queue")
RunKind = TypeVar("RunKind", bound=tuple[int, bytes, bytes])

_BOUNDS = Struct("<ii")
_RUN = Struct("<qII")


def payloads_of_run(offsets: bytes, payload: bytes, start: int, stop: int) -> list[bytes]:
    """Return the payloads of the records *start* … *stop* - 1. A payload that is all of the run is not copied."""
    ends = memoryview(offsets).cast("i")[start : stop + 1].tolist()
    stream = BytesIO(payload)
    stream.seek(ends[0])
    # BytesIO.read avoids slice objects: 19 M payloads/s instead of 14 M.
    return list(map(stream.read, map(sub, ends[1:], ends)))


def pairs_of_run(position: int, offsets: bytes, payload: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, payload) of the records *start* … *stop* - 1; the record *start* has this *position*."""
    return zip(count(position), payloads_of_run(offsets, payload, start, stop))


class LooseBlock:
    """The payloads of a MANY of *many*'s ids, positions, offsets and payload, in *memory_bytes* of memory.

    ids: the queue of each record. tick: when it was stored. live: how many of its records are still loose; with
    `sparse_at` of them it is sparse.
    """

    __slots__ = ("ids", "live", "memory_bytes", "offsets", "payload", "sparse_at", "tick")

    def __init__(self, many: tuple[Sequence[int], object, bytes, bytes], tick: int, memory_bytes: int) -> None:
        self.ids, _, self.offsets, self.payload = many
        self.tick = tick
        self.memory_bytes = memory_bytes
        self.live = len(self.ids)
        self.sparse_at = self.live // 4


# A place is the number of a block, shifted by *bits*, plus that of a record in it.


def joined_at(blocks: Mapping[int, LooseBlock], places: Iterable[int], bits: int) -> tuple[bytes, bytes]:
    """Join the payloads at *places*; return offsets and payload of a run of them.

    Raises OverflowError for 2 GiB or more.
    """
    bounds, mask = _BOUNDS.unpack_from, (1 << bits) - 1
    found = []
    for place in places:
        block = blocks[place >> bits]
        start, stop = bounds(block.offsets, (place & mask) * 4)
        found.append(block.payload[start:stop])
    return array("i", accumulate(map(len, found), initial=0)).tobytes(), b"".join(found)


def ticks_at(blocks: Mapping[int, LooseBlock], places: Iterable[int], bits: int) -> list[int]:
    """Return when the records at *places* were stored."""
    return [blocks[place >> bits].tick for place in places]


def release_at(blocks: Mapping[int, LooseBlock], places: Iterable[int], bits: int) -> list[int]:
    """Note that the records at *places* are no longer loose; return the numbers of the blocks that are sparse or gone.

    A number may be there twice.
    """
    found = []
    for place in places:
        block = blocks[place >> bits]
        block.live = live = block.live - 1
        if not live or live == block.sparse_at:
            found.append(place >> bits)
    return found


def records_of_run(
    kind: type[Kind], position: int, offsets: bytes, payload: bytes, start: int, stop: int
) -> Iterator[Kind]:
    """Yield the same as objects of *kind*, a subclass of tuple with two items."""
    # No Python frame per record: 6.2 M records/s, against 4.2 M with starmap(Record, ...).
    return map(tuple.__new__, repeat(kind), pairs_of_run(position, offsets, payload, start, stop))


def encode_queues(
    queues: Iterable[Queue],
    blocks: Mapping[int, LooseBlock],
    bits: int,
    plain: object,
    no_consumers: object,
    encode: Callable[[Queue], bytes],
) -> bytes:
    """Return the entries of *queues* in a segment's table, as `encode` makes each.

    blocks: with their loose records. plain, no_consumers: what `settings` and `consumers` of a queue without any are.
    """
    return b"".join(map(encode, queues))


def runs_in_place(
    kind: type[RunKind], data: memoryview, at: int, count: int, start: int, stop: int
) -> list[RunKind | tuple[int, bytes, bytes, bytes]]:
    """Return the *count* runs that a place of a gathered file, *data*, has from offset *at* on (see `format.gathered`).

    Those without gaps are cut to positions *start* … *stop* - 1, and left out if they have none of these: objects of
    *kind*, a subclass of tuple with three items. One with gaps is a plain tuple, with its distances too, and uncut.
    """
    found: list[RunKind | tuple[int, bytes, bytes, bytes]] = []
    for _ in range(count):
        position, records, width = _RUN.unpack_from(data, at)
        payload_at = at + _RUN.size + 4 * (records + 1)
        offsets = bytes(data[at + _RUN.size : payload_at])
        ends = memoryview(offsets).cast("i")
        distances_at = payload_at + ends[-1]
        at = distances_at + width * records
        if width:
            payload, distances = bytes(data[payload_at:distances_at]), bytes(data[distances_at:at])
            found.append((position, offsets, payload, distances))
            continue
        first, last = min(max(start - position, 0), records), min(max(stop - position, 0), records)
        if first < last:
            if last - first < records:
                offsets = array("i", [end - ends[first] for end in ends[first : last + 1]]).tobytes()
            payload = bytes(data[payload_at + ends[first] : payload_at + ends[last]])
            found.append(tuple.__new__(kind, (position + first, offsets, payload)))
    return found

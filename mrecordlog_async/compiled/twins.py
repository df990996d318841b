"""The loops of `_loops.pyx` in Python: they run where nothing was compiled, and the compiled ones do the same.

A run is given by its offsets and payload (`model.Run`); *start* and *stop* are numbers of its records, from 0 on, and
lie within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import count, repeat
from operator import sub
from struct import Struct
from typing import Protocol, TypeVar

Kind = TypeVar("Kind", bound=tuple[int, bytes])

_BOUNDS = Struct("<ii")


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


class PayloadBlock(Protocol):
    """Payloads of records, laid out as in a run."""

    @property
    def offsets(self) -> bytes:
        """The start of each payload, and the end."""

    @property
    def payload(self) -> bytes:
        """The payloads back to back."""


def payloads_at(blocks: Mapping[int, PayloadBlock], places: Iterable[int], bits: int) -> list[bytes]:
    """Return the payloads at *places*: the number of a block, shifted by *bits*, plus that of a record in it."""
    bounds, mask = _BOUNDS.unpack_from, (1 << bits) - 1
    found = []
    for place in places:
        block = blocks[place >> bits]
        start, stop = bounds(block.offsets, (place & mask) * 4)
        found.append(block.payload[start:stop])
    return found


def records_of_run(
    kind: type[Kind], position: int, offsets: bytes, payload: bytes, start: int, stop: int
) -> Iterator[Kind]:
    """Yield the same as objects of *kind*, a subclass of tuple with two items."""
    # No Python frame per record: 6.2 M records/s, against 4.2 M with starmap(Record, ...).
    return map(tuple.__new__, repeat(kind), pairs_of_run(position, offsets, payload, start, stop))

"""The loops of `_loops.pyx` in Python: they run where nothing was compiled, and the compiled ones do the same.

A run is given by its offsets and payload (`model.Run`); *start* and *stop* are numbers of its records, from 0 on, and
lie within it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import count, repeat
from operator import sub
from struct import Struct
from typing import TypeVar

from crc32c import crc32c

Kind = TypeVar("Kind", bound=tuple[int, bytes])
RunKind = TypeVar("RunKind", bound=tuple[int, bytes, bytes])

StoredRun = tuple[int, bytes, bytes, bytes]

PARTS_MAX, JOINED_BYTES = 64, 1 << 20
"""This many stored runs at most, and bytes of several, are joined to one: most of the cost of a read is per run."""

_PLACE = Struct("<II")
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


def records_of_run(
    kind: type[Kind], position: int, offsets: bytes, payload: bytes, start: int, stop: int
) -> Iterator[Kind]:
    """Yield the same as objects of *kind*, a subclass of tuple with two items."""
    # No Python frame per record: 6.2 M records/s, against 4.2 M with starmap(Record, ...).
    return map(tuple.__new__, repeat(kind), pairs_of_run(position, offsets, payload, start, stop))


def runs_in_places(
    kind: type[RunKind],
    data: memoryview,
    columns: tuple[Sequence[int], Sequence[int], Sequence[int]],
    places: range,
    seed: int,
    start: int,
    stop: int,
) -> tuple[list[RunKind | StoredRun], array[int], array[int]] | None:
    """Return the runs in neighbouring places of a gathered file (see `format.gathered`), and their times.

    Those without gaps are cut to positions *start* … *stop* - 1, left out if they have none of these, and joined to
    the one before if they continue it: objects of *kind*, a subclass of tuple with three items. One with gaps is a
    plain tuple, with its distances too, and uncut. Returns None if a checksum differs.

    data: the bytes of the places. columns: offset, length and checksum of each place of the file. seed: from which the
    checksums continue.
    """
    offsets, lengths, checksums = columns
    found, positions, ticks = list[RunKind | StoredRun](), array("q"), array("q")
    parts: list[tuple[int, bytes, bytes]] = []  # runs to be joined
    for place in places:
        at = offsets[place] - offsets[places[0]]
        body = data[at : at + lengths[place]]
        if crc32c(body, seed) != checksums[place]:
            return None
        count, entries = _PLACE.unpack_from(body)
        at = _PLACE.size + 16 * entries
        times = memoryview(bytes(body[_PLACE.size : at])).cast("q").tolist()
        for first, following, tick in zip(times, [*times[1:entries], 1 << 63], times[entries:], strict=False):
            if following > start and first < stop and (not ticks or ticks[-1] != tick):
                positions.append(max(first, start))
                ticks.append(tick)
        for _ in range(count):
            position, records, width = _RUN.unpack_from(body, at)
            payload_at = at + _RUN.size + 4 * (records + 1)
            stored = bytes(body[at + _RUN.size : payload_at])
            ends = memoryview(stored).cast("i")
            distances_at = payload_at + ends[-1]
            at = distances_at + width * records
            if width:
                found += _joined(kind, parts)
                found.append((position, stored, bytes(body[payload_at:distances_at]), bytes(body[distances_at:at])))
                continue
            begin, end = min(max(start - position, 0), records), min(max(stop - position, 0), records)
            if begin < end:
                payload = bytes(body[payload_at + ends[begin] : payload_at + ends[end]])
                if end - begin < records:
                    stored = array("i", [each - ends[begin] for each in ends[begin : end + 1]]).tobytes()
                if parts and not _continues(parts, position + begin, len(payload)):
                    found += _joined(kind, parts)
                parts.append((position + begin, stored, payload))
    return found + _joined(kind, parts), positions, ticks


def _continues(parts: list[tuple[int, bytes, bytes]], position: int, size: int) -> bool:
    last, offsets, _ = parts[-1]
    held = sum([len(payload) for _, _, payload in parts])
    return last + len(offsets) // 4 - 1 == position and len(parts) < PARTS_MAX and held + size <= JOINED_BYTES


def _joined(kind: type[RunKind], parts: list[tuple[int, bytes, bytes]]) -> list[RunKind]:
    """Return *parts*, which are empty afterwards, as one run; nothing if there are none."""
    if not parts:
        return []
    size, ends = len(parts[0][2]), [parts[0][1]]
    for _, offsets, payload in parts[1:]:
        # One addition of long integers: a thousand small ones take eight times as long. No sum reaches 2**31.
        more = int.from_bytes(offsets[4:], "little") + size * _ones(len(offsets) // 4 - 1)
        ends.append(more.to_bytes(len(offsets) - 4, "little"))
        size += len(payload)
    run = tuple.__new__(kind, (parts[0][0], b"".join(ends), b"".join([payload for _, _, payload in parts])))
    parts.clear()
    return [run]


@lru_cache(16)
def _ones(count: int) -> int:
    """Return the integer whose bytes are *count* int32 of 1."""
    return int.from_bytes(b"\1\0\0\0" * count, "little")

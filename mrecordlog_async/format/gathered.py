"""Gathered files: the records of one complete segment once more, in the order of their queues. This is their format.

A segment has records in the order in which they arrived: of 10,000 queues in turn, 64 KiB of one queue are spread over
600 MB. So records that left memory are read from `wal-N.runs`, a file next to segment N. It is derived: nothing is
lost with it, it is never synced, and it is made again from its segment if it is missing, or is not the right one.
Integers are unsigned, unless a line says otherwise, and little endian.

    gathered file = head place* index foot

The head, 72 bytes:

    offset size field
         0    8 magic, ASCII "mreclogR"
         8    4 version, 1
        12   16 log id
        28    8 segment number
        36    8 end of the segment: the offset after its last COMMIT
        44    4 CRC-32C of the segment's TABLE, as its frames hold it
        48    4 CRC-32C of the TABLE of the segment after it
        52    8 nonce of the newest opening, and
        60    8 last batch, of the state whose retained records are here; both 0: every record of the segment is here
        68    4 CRC-32C of bytes 0 to 67

A log that lacks that opening, or whose next opening begins at that batch or before it, went back to an older state: it
may retain records that are not here. With other tables or another end, the segment is not the one that was read.

A place holds neighbouring records of one queue: up to 256 KiB of runs, or one larger run.

         0    4 number of runs       4    4 number of times t
         8    8 times t positions: signed; from each one on, the tick at the same place holds; the first is the place's
         …    8 times t ticks: signed, tenths of a second since 1970
              then each run:
         0    8 first position       8    4 number of records n
        12    4 width w of a distance: 0 for a run without gaps, else 4 or 8
        16    4 times (n + 1) offsets, then payloads, as in APPEND
         …    w times n distances of the records from the first position

The index is a column after the other. Of q queues, by ascending id:

    8 id        4 times (q + 1) numbers of the first place of each, and the number of all places

Of all places, by queue and ascending position:

    8 first position    8 next position    4 records    4 payload bytes    8 offset in this file    4 length
    4 CRC-32C of its bytes, continued from that of the head    8 first tick    8 highest tick; ticks are signed

The foot, the last 32 bytes of the file:

         0    8 magic    8    8 offset of the index    16    4 number of queues    20    4 number of places
        24    4 CRC-32C of the index, continued from that of the head
        28    4 CRC-32C of bytes 0 to 27
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from mrecordlog_async.compiled import runs_in_places
from mrecordlog_async.format.frame import Buffer
from mrecordlog_async.model import OFFSET_BYTES, Run, Times

MAGIC = b"mreclogR"
VERSION = 1
PLACE_BYTES = 256 * 1024

_HEAD = struct.Struct("<8sI16sQQIIQQ")
_FOOT = struct.Struct("<8sQIII")
_CHECKSUM = struct.Struct("<I")
_PLACE = struct.Struct("<II")
_RUN = struct.Struct("<qII")
_ID_BYTES, _START_BYTES, _ENTRY_BYTES = 8, 4, 56
"""Bytes of the index: of a queue's id, of the number of a first place, and of a place."""

HEAD_BYTES = _HEAD.size + _CHECKSUM.size
FOOT_BYTES = _FOOT.size + _CHECKSUM.size

StoredRun = tuple[int, bytes, bytes, bytes]
"""First position, offsets, payload, and the distances of the positions: empty for a run without gaps."""


class GatheredError(ValueError):
    """The bytes are not an intact part of the gathered file that was expected."""


class GatheredHead(NamedTuple):
    """Statements of a gathered file about its segment, and about the state of the log that its records are of."""

    log_id: bytes
    segment: int
    end: int
    own_table: int
    next_table: int
    opening: int
    batch: int

    def encode(self) -> bytes:
        """Return the first bytes of the file."""
        return _HEAD.pack(MAGIC, VERSION, *self) + _CHECKSUM.pack(self.seed)

    @property
    def whole(self) -> GatheredHead:
        """The head of a file that has every record of the segment, whatever the state: made by a pass over it."""
        return self._replace(opening=0, batch=0)

    @property
    def seed(self) -> int:
        """The head's checksum, from which those of places and of the index continue."""
        # Not of all 72 bytes: the CRC of bytes that end in their own CRC is the same for every head.
        return crc32c(_HEAD.pack(MAGIC, VERSION, *self))


def decode_head(data: Buffer) -> GatheredHead:
    """Decode the first `HEAD_BYTES` of a file; raise GatheredError if they are not an intact head."""
    if len(data) < HEAD_BYTES or crc32c(data[: _HEAD.size]) != _CHECKSUM.unpack_from(data, _HEAD.size)[0]:
        raise GatheredError("its head is damaged")
    magic, version, *fields = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise GatheredError("its head is of another version, or not of a gathered file")
    return GatheredHead._make(fields)


class GatheredIndex:
    """The places of one gathered file, by column: immutable once it is whole, and dropped with its segment.

    Truncates and deletes never change it: who looks something up names the queue and the positions that are retained.
    head: of its file. ids, starts: the queues, and the number of each one's first place.
    """

    def __init__(self, head: GatheredHead) -> None:
        self.head = head
        self.seed = head.seed  # of the checksums of places, once: a place takes a few microseconds
        self.ids = array("Q")
        self.starts = array("I", (0,))
        self.first_positions = array("q")
        self.next_positions = array("q")
        self.records = array("I")
        self.payload_bytes = array("I")
        self.offsets = array("Q")
        self.lengths = array("I")
        self.checksums = array("I")
        self.first_ticks = array("q")
        self.highest_ticks = array("q")
        self._of_places = self.offsets, self.lengths, self.checksums

    def columns(self) -> list[array[int]]:
        """Return the columns, in the order of the file: first those of queues, then those of places."""
        return [
            *(self.ids, self.starts, self.first_positions, self.next_positions, self.records, self.payload_bytes),
            *(self.offsets, self.lengths, self.checksums, self.first_ticks, self.highest_ticks),
        ]

    @property
    def memory_bytes(self) -> int:
        """Memory of the columns."""
        return sum(len(column) * column.itemsize for column in self.columns())

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the number of a queue's first place, and the one after its last; equal if it has none."""
        at = bisect_left(self.ids, queue_id)
        if at == len(self.ids) or self.ids[at] != queue_id:
            return 0, 0
        return self.starts[at], self.starts[at + 1]

    def places(self, queue_id: int, start: int, stop: int) -> range:
        """Return the numbers of a queue's places that reach into positions *start* … *stop* - 1."""
        first, end = self.bounds(queue_id)
        return range(
            bisect_right(self.next_positions, start, first, end), bisect_left(self.first_positions, stop, first, end)
        )

    def length(self, places: range) -> int:
        """Return the bytes of neighbouring places of a queue, at least one."""
        return self.offsets[places[-1]] + self.lengths[places[-1]] - self.offsets[places[0]]

    def first(self, places: range, records_max: int, bytes_max: int, length_max: int) -> tuple[range, int, int]:
        """Return the first of *places*, neighbours of one queue, with their records and payload bytes.

        As many as it takes to reach *records_max* or *bytes_max*; of more than *length_max* in the file, one at least.
        """
        records = size = length = 0
        for place in places:
            length += self.lengths[place]
            if length > length_max and place != places[0]:
                return range(places[0], place), records, size
            records += self.records[place]
            size += self.payload_bytes[place]
            if records >= records_max or size >= bytes_max:
                return range(places[0], place + 1), records, size
        return places, records, size

    def before(self, place: int, start: int) -> tuple[int, int]:
        """Return how many records of a place, and bytes, are before *start*: about, or all where it has gaps."""
        records, size = self.records[place], self.payload_bytes[place]
        skipped = start - self.first_positions[place]
        if skipped <= 0:
            return 0, 0
        return (records, size) if self.has_gaps(place) else (skipped, size * skipped // records)

    def has_gaps(self, place: int) -> bool:
        """Return whether the positions of a place are not consecutive."""
        return self.next_positions[place] - self.first_positions[place] != self.records[place]

    def decode(self, data: memoryview, places: range, start: int, stop: int) -> tuple[list[Run | StoredRun], Times]:
        """Return what neighbouring places have of positions *start* … *stop* - 1, and when that was stored.

        Args:
            data: The bytes of these places; what is returned is a copy.
            places: Their numbers, at least one.
            start: First position.
            stop: Position after the last one.

        Returns:
            Runs that are cut to these positions and joined, those with gaps as they are stored, uncut; and the times.

        Raises:
            GatheredError: The bytes are others.
        """
        found = runs_in_places(Run, data, self._of_places, places, self.seed, start, stop)
        if found is None:
            raise GatheredError("a place is damaged")
        runs, positions, ticks = found
        return runs, Times(positions, ticks)


class Gathering:
    """Lays out one gathered file, queue by queue, and makes its index. Pure: returns buffers to be written in order.

    is_whole: `end` was called.
    """

    def __init__(self, head: GatheredHead) -> None:
        self.index = GatheredIndex(head)
        self.size = HEAD_BYTES  # of the file so far
        self.is_whole = False
        self._seed = head.seed

    def add_queue(self, queue_id: int, runs: Iterable[StoredRun], times: Times) -> Iterator[list[Buffer]]:
        """Yield the places of a queue whose id is above all before it, or of more records of the last one.

        *times*: from the first of these records on.
        """
        held: list[StoredRun] = []
        size = 0
        for run in runs:
            length = _RUN.size + len(run[1]) + len(run[2]) + len(run[3])
            if held and size + length > PLACE_BYTES:
                yield self._place(held, times)
                held, size = [], 0
            held.append(run)
            size += length
        if held:
            yield self._place(held, times)
            ids, starts = self.index.ids, self.index.starts
            if ids and ids[-1] == queue_id:
                starts.pop()
            else:
                ids.append(queue_id)
            starts.append(len(self.index.records))

    def _place(self, runs: list[StoredRun], times: Times) -> list[Buffer]:
        first = following = runs[0][0]
        parts: list[Buffer] = []
        records = payload_bytes = 0
        for position, offsets, payload, distances in runs:
            count = len(offsets) // OFFSET_BYTES - 1
            width = len(distances) // count
            following = position + (int.from_bytes(distances[-width:], "little") + 1 if width else count)
            parts += (_RUN.pack(position, count, width), offsets, payload, distances)
            records += count
            payload_bytes += len(payload)
        at = max(bisect_right(times.positions, first) - 1, 0)
        end = bisect_left(times.positions, following, at + 1)
        positions, ticks = times.positions[at:end], times.ticks[at:end]
        if positions:
            positions[0] = first
        parts.insert(0, b"".join((_PLACE.pack(len(runs), len(positions)), positions, ticks)))
        index, checksum = self.index, self._seed
        for part in parts:
            checksum = crc32c(part, checksum)
        index.first_positions.append(first)
        index.next_positions.append(following)
        index.records.append(records)
        index.payload_bytes.append(payload_bytes)
        index.offsets.append(self.size)
        index.lengths.append(sum(map(len, parts)))
        index.checksums.append(checksum)
        index.first_ticks.append(ticks[0] if ticks else 0)
        index.highest_ticks.append(max(ticks, default=0))
        self.size += index.lengths[-1]
        return parts

    def end(self) -> list[Buffer]:
        """Return the index and the foot, with which the file ends."""
        index, self.is_whole = self.index, True
        body = b"".join(map(memoryview, index.columns()))
        foot = _FOOT.pack(MAGIC, self.size, len(index.ids), len(index.records), crc32c(body, self._seed))
        self.size += len(body) + FOOT_BYTES
        return [body, foot + _CHECKSUM.pack(crc32c(foot))]


class GatheredFoot(NamedTuple):
    """The place and the size of a file's index, and its checksum."""

    offset: int
    queues: int
    places: int
    checksum: int

    @property
    def index_bytes(self) -> int:
        """Length of the index."""
        return _ID_BYTES * self.queues + _START_BYTES * (self.queues + 1) + _ENTRY_BYTES * self.places


def decode_foot(data: Buffer, size: int) -> GatheredFoot:
    """Decode the last `FOOT_BYTES` of a file of *size* bytes; raise GatheredError if they are not its intact foot."""
    if len(data) != FOOT_BYTES or crc32c(data[: _FOOT.size]) != _CHECKSUM.unpack_from(data, _FOOT.size)[0]:
        raise GatheredError("its foot is damaged")
    magic, *fields = _FOOT.unpack_from(data)
    foot = GatheredFoot._make(fields)
    if magic != MAGIC or foot.offset + foot.index_bytes + FOOT_BYTES != size:
        raise GatheredError("its foot is not that of a file of this size")
    return foot


def decode_index(data: Buffer, head: GatheredHead, foot: GatheredFoot) -> GatheredIndex:
    """Decode the index of a file; raise GatheredError if it is damaged."""
    if len(data) != foot.index_bytes or crc32c(data, head.seed) != foot.checksum:
        raise GatheredError("its index is damaged")
    index, view, at = GatheredIndex(head), memoryview(data), 0
    index.starts = array("I")
    counts = [foot.queues, foot.queues + 1] + [foot.places] * 9
    for column, count in zip(index.columns(), counts, strict=True):
        end = at + count * column.itemsize
        column.frombytes(view[at:end])
        at = end
    return index

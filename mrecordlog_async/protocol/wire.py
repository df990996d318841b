"""Runs on the wire: the content type `application/vnd.mrecordlog.runs`, for bulk readers and writers.

A run is sent as header + offsets + payload, the buffers that it has in memory, and received as views into the input:
neither side touches single records. The offsets and payload of a block are the buffers of an Arrow BinaryArray.

A stream is a preamble, then entries, the last of them a TRAILER; everything is little endian:

    preamble   8 bytes   "mrlruns" and the version, 0x01
    entry     32 bytes   kind u32, small u32, first u64, second u64, third u64; then a body padded to 8 bytes with zeros

    kind       small           first             second           third            body
    1 QUEUE    name bytes      queue id          0                0                name in UTF-8
    2 BLOCK    records n ≥ 1   first position    payload bytes    0                n+1 offsets as int32, payload
    3 TRAILER  queues          blocks            records          payload bytes    none
    4 POSITIONS records n ≥ 1  first position    0                0                none
    5 TIMES    changes n ≥ 1   0                 0                0                n positions, then n times, as int64

1. A QUEUE names the queue of the following BLOCKs. A response to `/v1/fetch` has one for each range, in the order of
   the request, even for an empty range. The queue id is the queue's incarnation and is never reused; in requests it is
   0.
2. A BLOCK holds consecutive positions: first position … first position + n - 1. After a gap a new block begins. The
   first offset is 0, offsets never decrease, and the last one equals payload bytes, which is below 2 GiB.
3. The TRAILER counts what precedes it. A stream without a TRAILER was cut short and must not be treated as complete.
4. POSITIONS is a BLOCK without its body: it says which n records exist, not what they contain. Adjacent runs may share
   one. It is used in responses to `/v1/fetch` with `"payload": false`, which have no BLOCKs; everywhere else it is an
   error. The TRAILER counts it as a block of 0 payload bytes.
5. TIMES come before the BLOCKs or POSITIONS of a queue, or of a part of a long range, and say when their records were
   stored: from each of the positions on, which ascend over all of them, at that many tenths of a second since 1970.
   They are absent where times are not known, and ignored in requests.
6. A kind or version not listed here is an error.

Entries start at multiples of 8 bytes, so offsets are aligned in an aligned buffer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from mrecordlog_async.model import OFFSET_BYTES, Run, Times

CONTENT_TYPE = "application/vnd.mrecordlog.runs"

PREAMBLE = b"mrlruns\x01"
ENTRY = Struct("<IIQQQ")
QUEUE, BLOCK, TRAILER, POSITIONS, TIMES = 1, 2, 3, 4, 5

NAME_BYTES_MAX = 65_535
PAYLOAD_BYTES_MAX = 2**31 - 1
RECORDS_MAX = 2**29
TIMES_MAX = 65_536
"""A decoder checks the lengths in a header against these bounds before it uses them."""

JOINED_BYTES = 4_096
"""A payload up to this size is copied to its entry; a larger one is sent as the object that it is."""

_PADDINGS = tuple(map(bytes, range(8)))

Buffer: TypeAlias = "bytes | array[int]"
"""A part of the stream that is joined to others."""


class WireError(ValueError):
    """The input is not a complete stream of runs; the message says why."""


class QueueRuns(NamedTuple):
    """The runs of one queue to send; there may be none. times: when its records were stored, if that is known."""

    queue: str
    queue_id: int
    runs: Iterable[Run]
    times: Times | None = None


class QueuePositions(NamedTuple):
    """The positions of one queue to send: first position and record count of each span."""

    queue: str
    queue_id: int
    spans: Iterable[tuple[int, int]]
    times: Times | None = None


def encode(parts: Iterable[QueueRuns]) -> Iterator[bytes]:
    """Yield the buffers of a whole stream, in order; large payloads are the objects that the runs hold, not copies."""
    encoder = Encoder()
    yield PREAMBLE
    yield from encoder.encode(parts)
    yield encoder.trailer()


class Encoder:
    """Encodes a stream whose parts are not all known at once: PREAMBLE, what `encode` yields each time, the trailer."""

    def __init__(self) -> None:
        self._totals = (0, 0, 0, 0)

    def trailer(self) -> bytes:
        """Return the TRAILER of what was encoded."""
        return ENTRY.pack(TRAILER, *self._totals)

    def encode(self, parts: Iterable[QueueRuns], continues: bool = False) -> Iterator[bytes]:
        """Yield the buffers of *parts*; exhaust it before the next call.

        continues: the first part is the rest of the one that was encoded last.
        """
        queues, blocks, records, payload_bytes = self._totals
        for queue, queue_id, runs, times in parts:
            queues += not continues
            head = () if continues else _queue_entry(queue, queue_id)
            continues = False
            begun: tuple[Buffer, ...] = (*head, *_times_entries(times))
            for first_position, offsets, payload in runs:
                count, size = len(offsets) // OFFSET_BYTES - 1, len(payload)
                blocks += 1
                records += count
                payload_bytes += size
                header = ENTRY.pack(BLOCK, count, first_position, size, 0)
                padding = _PADDINGS[-(len(offsets) + size) % 8]
                # Of thousands of small queues, one buffer for each takes half of the time of ten.
                if size <= JOINED_BYTES:
                    yield b"".join((*begun, header, offsets, payload, padding))
                else:
                    yield b"".join((*begun, header, offsets))
                    yield payload
                    yield padding
                begun = ()
            if begun:
                yield b"".join(begun)
        self._totals = queues, blocks, records, payload_bytes


def size_of(parts: Iterable[QueueRuns]) -> int:
    """Return how many bytes `encode` yields."""
    size = len(PREAMBLE) + ENTRY.size
    for queue, _, runs, times in parts:
        size += size_of_queue(queue, times) + sum(map(size_of_run, runs))
    return size


def size_of_queue(queue: str, times: Times | None = None) -> int:
    """Return the bytes of a QUEUE entry, and of the TIMES after it."""
    changes = len(times.ticks) if times is not None else 0
    return ENTRY.size + _padded(len(queue.encode())) + -(-changes // TIMES_MAX) * ENTRY.size + 16 * changes


def size_of_run(run: Run) -> int:
    """Return the bytes of a BLOCK entry."""
    return ENTRY.size + _padded(len(run.offsets) + len(run.payload))


def _padded(size: int) -> int:
    return size + -size % 8


def encode_positions(parts: Iterable[QueuePositions]) -> Iterator[bytes]:
    """Yield the buffers of a stream with POSITIONS instead of BLOCKs: 32 bytes per span."""
    yield PREAMBLE
    queues = blocks = records = 0
    for queue, queue_id, found, times in parts:
        queues += 1
        yield b"".join((*_queue_entry(queue, queue_id), *_times_entries(times)))
        for first_position, count in found:
            blocks += 1
            records += count
            yield ENTRY.pack(POSITIONS, count, first_position, 0, 0)
    yield ENTRY.pack(TRAILER, queues, blocks, records, 0)


def _queue_entry(queue: str, queue_id: int) -> tuple[bytes, bytes, bytes]:
    name = queue.encode()
    return ENTRY.pack(QUEUE, len(name), queue_id, 0, 0), name, _PADDINGS[-len(name) % 8]


def _times_entries(times: Times | None) -> Sequence[Buffer]:
    if times is None or not times.ticks:
        return ()
    positions, ticks = times.positions, times.ticks
    if len(ticks) <= TIMES_MAX:
        return ENTRY.pack(TIMES, len(ticks), 0, 0, 0), positions, ticks
    parts = list[Buffer]()
    for at in range(0, len(ticks), TIMES_MAX):
        stop = min(at + TIMES_MAX, len(ticks))
        parts += (ENTRY.pack(TIMES, stop - at, 0, 0, 0), positions[at:stop], ticks[at:stop])
    return parts


def join_spans(found: list[tuple[int, int]], more: Iterable[tuple[int, int]]) -> None:
    """Add spans to *found*, joining adjacent ones."""
    for first, count in more:
        if found and found[-1][0] + found[-1][1] == first and found[-1][1] + count <= RECORDS_MAX:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))


def gather(buffers: Iterable[bytes], piece_bytes: int) -> Iterator[bytes]:
    """Join small buffers into pieces of about *piece_bytes*; a larger buffer is yielded as it is, not copied."""
    waiting: list[bytes] = []
    size = 0
    for buffer in buffers:
        if len(buffer) >= piece_bytes:
            if waiting:
                yield b"".join(waiting)
                waiting, size = [], 0
            yield buffer
            continue
        waiting.append(buffer)
        size += len(buffer)
        if size >= piece_bytes:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)

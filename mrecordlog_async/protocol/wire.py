"""Runs on the wire: the content type `application/vnd.mrecordlog.runs`, for bulk readers and writers.

A run leaves as header + offsets + payload, the three buffers it has in memory, and arrives as views into what was
received: neither side touches a record. The offsets and payload of a block are the buffers of an Arrow BinaryArray.

A stream is a preamble, then entries, the last of them a TRAILER; everything is little endian:

    preamble   8 bytes   "mrlruns" and the version, 0x01
    entry     32 bytes   kind u32, small u32, first u64, second u64, third u64; then a body padded to 8 bytes with zeros

    kind       small           first             second           third            body
    1 QUEUE    name bytes      queue id          0                0                name in UTF-8
    2 BLOCK    records n ≥ 1   first position    payload bytes    0                n+1 offsets as int32, payload
    3 TRAILER  queues          blocks            records          payload bytes    none
    4 POSITIONS records n ≥ 1  first position    0                0                none

1. A QUEUE says whose the following BLOCKs are. In an answer to `/v1/fetch` there is one for each range, in the order of
   the request, also where the range is empty. The queue id is the queue's incarnation, which never comes back; in
   requests it is 0.
2. A BLOCK holds consecutive positions: first position … first position + n - 1. A gap begins a new block. Offsets begin
   with 0, never go down and end with payload bytes, which is below 2 GiB.
3. The TRAILER counts what came before it. A stream without one was cut short: nothing of it may be taken for complete.
4. POSITIONS is a BLOCK without its body: which n records are there, not what they hold. Runs that follow each other
   may share one. It stands in answers to `/v1/fetch` with `"payload": false`, which have no BLOCKs; everywhere else it
   is an error. The TRAILER counts it as a block of 0 payload bytes.
5. A kind or version not listed here is an error.

Entries start at multiples of 8 bytes, so in an aligned buffer offsets are aligned too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from mrecordlog_async.model import OFFSET_BYTES, Run

CONTENT_TYPE = "application/vnd.mrecordlog.runs"

PREAMBLE = b"mrlruns\x01"
ENTRY = Struct("<IIQQQ")
QUEUE, BLOCK, TRAILER, POSITIONS = 1, 2, 3, 4

NAME_BYTES_MAX = 65_535
PAYLOAD_BYTES_MAX = 2**31 - 1
RECORDS_MAX = 2**29
"""Bounds that a decoder holds a header against before it believes its lengths."""


class WireError(ValueError):
    """What was received is not a whole stream of runs; the message says where it stops being one."""


class Block(NamedTuple):
    """A run as it was received: views into the buffer, nothing copied.

    offsets: records + 1 int32, little endian. payload: the payloads back to back. Both are empty where only positions
    were asked for.
    """

    queue: str
    queue_id: int
    first_position: int
    records: int
    offsets: memoryview
    payload: memoryview

    @property
    def next_position(self) -> int:
        """Position behind the last record."""
        return self.first_position + self.records

    def run(self) -> Run:
        """Copy it into a run of its own, which does not keep the buffer alive."""
        assert self.offsets, "positions without payloads are no run"
        return Run(self.first_position, bytes(self.offsets), bytes(self.payload))


class Totals(NamedTuple):
    """What a trailer counts."""

    queues: int = 0
    blocks: int = 0
    records: int = 0
    payload_bytes: int = 0


class QueueRuns(NamedTuple):
    """The runs of one queue that are to be sent; there may be none."""

    queue: str
    queue_id: int
    runs: Iterable[Run]


class QueueStretches(NamedTuple):
    """The positions of one queue that are to be sent: first position and number of records of each stretch."""

    queue: str
    queue_id: int
    stretches: Iterable[tuple[int, int]]


# Encoding.


def encode(parts: Iterable[QueueRuns]) -> Iterator[bytes]:
    """Yield the buffers of a whole stream, in order; payloads are the objects that the runs hold, not copies."""
    yield PREAMBLE
    queues = blocks = records = payload_bytes = 0
    for queue, queue_id, runs in parts:
        queues += 1
        yield from _queue_entry(queue, queue_id)
        for first_position, offsets, payload in runs:
            count, size = len(offsets) // OFFSET_BYTES - 1, len(payload)
            blocks += 1
            records += count
            payload_bytes += size
            yield ENTRY.pack(BLOCK, count, first_position, size, 0)
            yield offsets
            yield payload
            padding = -(len(offsets) + size) % 8
            if padding:
                yield bytes(padding)
    yield ENTRY.pack(TRAILER, queues, blocks, records, payload_bytes)


def size_of(parts: Iterable[QueueRuns]) -> int:
    """Return how many bytes `encode` yields."""
    size = len(PREAMBLE) + ENTRY.size
    for queue, _, runs in parts:
        size += size_of_queue(queue) + sum(map(size_of_run, runs))
    return size


def size_of_queue(queue: str) -> int:
    """Return the bytes of a QUEUE entry."""
    return ENTRY.size + _padded(len(queue.encode()))


def size_of_run(run: Run) -> int:
    """Return the bytes of a BLOCK entry."""
    return ENTRY.size + _padded(len(run.offsets) + len(run.payload))


def _padded(size: int) -> int:
    return size + -size % 8


def encode_positions(parts: Iterable[QueueRuns]) -> Iterator[bytes]:
    """Yield the buffers of a stream with POSITIONS for BLOCKs: 32 bytes a stretch, whatever the payloads hold."""
    return encode_stretches(QueueStretches(queue, queue_id, stretches(runs)) for queue, queue_id, runs in parts)


def encode_stretches(parts: Iterable[QueueStretches]) -> Iterator[bytes]:
    """Do what `encode_positions` does, of stretches that were found before."""
    yield PREAMBLE
    queues = blocks = records = 0
    for queue, queue_id, found in parts:
        queues += 1
        yield from _queue_entry(queue, queue_id)
        for first_position, count in found:
            blocks += 1
            records += count
            yield ENTRY.pack(POSITIONS, count, first_position, 0, 0)
    yield ENTRY.pack(TRAILER, queues, blocks, records, 0)


def _queue_entry(queue: str, queue_id: int) -> tuple[bytes, bytes, bytes]:
    name = queue.encode()
    return ENTRY.pack(QUEUE, len(name), queue_id, 0, 0), name, bytes(-len(name) % 8)


def stretches(runs: Iterable[Run]) -> Iterator[tuple[int, int]]:
    """Yield first position and number of records; runs that follow each other are one stretch, up to `RECORDS_MAX`."""
    found: list[tuple[int, int]] = []
    join_stretches(found, ((run.first_position, run.records) for run in runs))
    return iter(found)


def join_stretches(found: list[tuple[int, int]], more: Iterable[tuple[int, int]]) -> None:
    """Add stretches to *found*, joined where they follow each other."""
    for first, count in more:
        if found and found[-1][0] + found[-1][1] == first and found[-1][1] + count <= RECORDS_MAX:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))


def gather(buffers: Iterable[bytes], piece_bytes: int) -> Iterator[bytes]:
    """Join small buffers into pieces of about *piece_bytes*; one that is larger goes out as it is, uncopied."""
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


# Decoding.


class Decoder:
    """Takes a stream piece by piece: ask `wanted`, hand `take` exactly that many bytes, repeat until it is `done`.

    It does no I/O, so it serves blocking sockets, asyncio and whole buffers alike. Anything that is not a whole stream
    raises WireError. positions: payloads were not asked for, so POSITIONS are due instead of BLOCKs.
    """

    def __init__(self, *, positions: bool = False) -> None:
        self._positions = positions
        self.wanted = len(PREAMBLE)
        self.totals = Totals()
        self.done = False
        self.queue: tuple[str, int] | None = None
        self._entry: tuple[int, int, int, int, int] | None = None  # whose body is wanted
        self._begun = False

    def take(self, data: bytes | bytearray | memoryview) -> Block | None:
        """Take the next `wanted` bytes; return a block when they complete one. The block holds on to *data*."""
        if len(data) != self.wanted:
            raise WireError(f"the stream of runs was cut short: {len(data)} bytes instead of {self.wanted}")
        if not self._begun:
            self._take_preamble(data)
            return None
        if self._entry is None:
            return self._take_entry(ENTRY.unpack(data))
        entry, self._entry = self._entry, None
        self.wanted = ENTRY.size
        if entry[0] == QUEUE:
            self._take_queue(entry, data)
            return None
        return self._take_block(entry, memoryview(data))

    def _take_preamble(self, data: bytes | bytearray | memoryview) -> None:
        if data != PREAMBLE:
            raise WireError("this is not a stream of runs, or one of another version")
        self._begun = True
        self.wanted = ENTRY.size

    def _take_entry(self, entry: tuple[int, int, int, int, int]) -> Block | None:
        kind, small, first, second, third = entry
        block_fits = 0 < small <= RECORDS_MAX and second <= PAYLOAD_BYTES_MAX and self.queue is not None
        if kind == QUEUE and small <= NAME_BYTES_MAX:
            self._expect(entry, small)
        elif kind == BLOCK and block_fits and not self._positions:
            self._expect(entry, (small + 1) * OFFSET_BYTES + second)
        elif kind == POSITIONS and block_fits and self._positions and not second:
            return self._block(small, first, memoryview(b""), memoryview(b""))
        elif kind == TRAILER:
            self._take_trailer(Totals(small, first, second, third))
        else:
            raise WireError(f"kind {kind} with {small} and {second} is no entry that may stand here")
        return None

    def _expect(self, entry: tuple[int, int, int, int, int], body_bytes: int) -> None:
        """Go on to the body of *entry*, or finish it at once where there is none."""
        self._entry = entry
        self.wanted = body_bytes + -body_bytes % 8
        if not self.wanted:
            self.take(b"")

    def _take_queue(self, entry: tuple[int, int, int, int, int], data: bytes | bytearray | memoryview) -> None:
        try:
            name = bytes(data[: entry[1]]).decode()
        except UnicodeDecodeError:
            raise WireError("a queue's name is not UTF-8") from None
        self.queue = (name, entry[2])
        self.totals = self.totals._replace(queues=self.totals.queues + 1)

    def _take_block(self, entry: tuple[int, int, int, int, int], body: memoryview) -> Block:
        _, records, first_position, payload_bytes, _ = entry
        end = (records + 1) * OFFSET_BYTES
        offsets = body[:end]
        if int.from_bytes(offsets[:4], "little") or int.from_bytes(offsets[-4:], "little") != payload_bytes:
            raise WireError("the offsets of a block do not fit its payload")
        return self._block(records, first_position, offsets, body[end : end + payload_bytes])

    def _block(self, records: int, first_position: int, offsets: memoryview, payload: memoryview) -> Block:
        queues, blocks, all_records, all_bytes = self.totals
        self.totals = Totals(queues, blocks + 1, all_records + records, all_bytes + len(payload))
        assert self.queue is not None, "checked when the entry was read"
        return Block(*self.queue, first_position, records, offsets, payload)

    def _take_trailer(self, totals: Totals) -> None:
        if totals != self.totals:
            raise WireError(f"the trailer counts {tuple(totals)}, what came was {tuple(self.totals)}")
        self.done = True
        self.wanted = 0


def decode(data: bytes | bytearray | memoryview, *, positions: bool = False) -> Iterator[Block]:
    """Yield the blocks of a whole stream as views into *data*."""
    view = memoryview(data)
    offset = 0

    def read(size: int) -> memoryview:
        nonlocal offset
        offset += size
        return view[offset - size : offset]

    yield from read_blocks(read, positions=positions)
    if offset != len(view):
        raise WireError(f"{len(view) - offset} bytes follow the trailer")


def read_blocks(read: Callable[[int], bytes | bytearray | memoryview], *, positions: bool = False) -> Iterator[Block]:
    """Yield the blocks of a stream as *read(size)* delivers them, which returns fewer bytes only at its end."""
    decoder = Decoder(positions=positions)
    while not decoder.done:
        block = decoder.take(read(decoder.wanted))
        if block is not None:
            yield block


def check_offsets(offsets: memoryview) -> list[int]:
    """Return the offsets of a block from outside that is to be cut into records; WireError where one goes down."""
    ends: list[int] = offsets.cast("i").tolist()
    if ends != sorted(ends):  # what is in order is sorted in 8 ns an offset; comparing pairs takes 40
        raise WireError("the offsets of a block go down")
    return ends

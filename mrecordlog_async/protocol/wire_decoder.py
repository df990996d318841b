"""Decode a stream of runs, at once or piece by piece; `wire` describes the format."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from mrecordlog_async.model import OFFSET_BYTES, Run, Times
from mrecordlog_async.protocol.wire import (
    BLOCK,
    ENTRY,
    NAME_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    POSITIONS,
    PREAMBLE,
    QUEUE,
    RECORDS_MAX,
    TIMES,
    TIMES_MAX,
    TRAILER,
    WireError,
)


class Block(NamedTuple):
    """A run as it was received: views into the buffer, nothing copied.

    offsets: record_count + 1 int32, little endian. payload: the payloads back to back. Both are empty if only positions
    were requested. times: of the whole queue, as far as they were sent before the block.
    """

    queue: str
    queue_id: int
    first_position: int
    record_count: int
    offsets: memoryview
    payload: memoryview
    times: Times = Times.none()

    @property
    def next_position(self) -> int:
        """Position after the last record."""
        return self.first_position + self.record_count

    def run(self) -> Run:
        """Return a copy as a run, which does not keep the buffer alive."""
        assert self.offsets, "positions without payloads are not a run"
        return Run(self.first_position, bytes(self.offsets), bytes(self.payload))


class Totals(NamedTuple):
    """Counts of a trailer."""

    queues: int = 0
    blocks: int = 0
    records: int = 0
    payload_bytes: int = 0


class Decoder:
    """Decode a stream piece by piece: pass exactly `wanted` bytes to `take`, and repeat until it is `done`.

    It does no I/O, so it works with blocking sockets, asyncio and whole buffers. Input that is not a complete stream
    raises WireError. positions: the request excluded payloads, so POSITIONS are expected instead of BLOCKs.
    """

    def __init__(self, *, positions: bool = False) -> None:
        self._positions = positions
        self.wanted = len(PREAMBLE)
        self.totals = Totals()
        self.done = False
        self.queue: tuple[str, int] | None = None
        self._times = Times.none()  # of the queue
        self._entry: tuple[int, int, int, int, int] | None = None  # the entry whose body comes next
        self._begun = False

    def take(self, data: bytes | bytearray | memoryview) -> Block | None:
        """Take the next `wanted` bytes; return a block when they complete one. The block refers to *data*.

        Raises:
            WireError: *data* has another length, or is not the next part of a stream.
        """
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
        if entry[0] == TIMES:
            self._take_times(memoryview(data).cast("B"))
            return None
        return self._take_block(entry, memoryview(data))

    def take_small(self, data: bytes, at: int) -> tuple[list[Block], int]:
        """Take the entries that are whole in *data* from *at* on, as long as they are valid.

        `take` checks the same, entry by entry, and says what is wrong: pass it what is left. This takes a third of its
        time, for streams with thousands of queues.

        Args:
            data: A part of the stream; the blocks refer to it.
            at: Where the next entry begins. Nothing is taken before the preamble, or if the body of an entry is next.

        Returns:
            The blocks, and where what is left begins in *data*.
        """
        found: list[Block] = []
        if not self._begun or self._entry is not None or self.done:
            return found, at
        queues, blocks, records, size = self.totals
        end, view, queue = len(data), memoryview(data), self.queue
        times: Times | None = self._times
        new: Callable[[type[Block], tuple[object, ...]], Block] = tuple.__new__
        while at + ENTRY.size <= end:
            kind, small, first, second, third = ENTRY.unpack_from(data, at)
            body = at + ENTRY.size
            if kind == QUEUE and small <= NAME_BYTES_MAX:
                after = body + small + -small % 8
                text = _name_of(data[body : body + small]) if after <= end else None
                if text is None:
                    break
                queue, times, queues = (text, first), None, queues + 1
            elif queue is None:
                break
            elif kind == TIMES and small == 1 and times is None and not (first or second or third):
                after = body + 16
                if after > end:
                    break
                times = Times(array("q", data[body : body + 8]), array("q", data[body + 8 : after]))
            elif kind == BLOCK and 0 < small <= RECORDS_MAX and second <= PAYLOAD_BYTES_MAX and not self._positions:
                middle = body + (small + 1) * OFFSET_BYTES
                stop = middle + second
                after = stop + (body - stop) % 8
                if after > end or _U32(data, body) != _ZERO or _U32(data, middle - OFFSET_BYTES) != (second,):
                    break
                if times is None:
                    times = Times.none()
                # By tuple's own constructor: the one of a class with names takes twice as long.
                found.append(new(Block, (*queue, first, small, view[body:middle], view[middle:stop], times)))
                records, size = records + small, size + second
            else:
                break
            at = after
        self.queue, self._times = queue, Times.none() if times is None else times
        self.totals = Totals(queues, blocks + len(found), records, size)
        return found, at

    def _take_preamble(self, data: bytes | bytearray | memoryview) -> None:
        if data != PREAMBLE:
            raise WireError("not a stream of runs, or one of another version")
        self._begun = True
        self.wanted = ENTRY.size

    def _take_entry(self, entry: tuple[int, int, int, int, int]) -> Block | None:
        kind, small, first, second, third = entry
        # Every length is bounded here, before `wanted` makes the caller read or allocate that much.
        block_fits = 0 < small <= RECORDS_MAX and second <= PAYLOAD_BYTES_MAX and self.queue is not None
        if kind == QUEUE and small <= NAME_BYTES_MAX:
            self._expect(entry, small)
        elif kind == BLOCK and block_fits and not self._positions:
            self._expect(entry, (small + 1) * OFFSET_BYTES + second)
        elif kind == POSITIONS and block_fits and self._positions and not second:
            return self._block(small, first, memoryview(b""), memoryview(b""))
        elif kind == TIMES and 0 < small <= TIMES_MAX and self.queue is not None and not (first or second or third):
            self._expect(entry, 16 * small)
        elif kind == TRAILER:
            self._take_trailer(Totals(small, first, second, third))
        else:
            raise WireError(f"entry of kind {kind} with {small} and {second} is not valid here")
        return None

    def _expect(self, entry: tuple[int, int, int, int, int], body_bytes: int) -> None:
        """Expect the body of *entry* next; finish the entry at once if it has none."""
        self._entry = entry
        self.wanted = body_bytes + -body_bytes % 8
        if not self.wanted:
            self.take(b"")

    def _take_queue(self, entry: tuple[int, int, int, int, int], data: bytes | bytearray | memoryview) -> None:
        name = _name_of(bytes(data[: entry[1]]))
        if name is None:
            raise WireError("a queue's name is not UTF-8")
        self.queue = (name, entry[2])
        self._times = Times.none()
        self.totals = self.totals._replace(queues=self.totals.queues + 1)

    def _take_times(self, body: memoryview) -> None:
        middle = len(body) // 2
        before = len(self._times.positions)
        self._times.positions.frombytes(body[:middle])
        self._times.ticks.frombytes(body[middle:])
        added = self._times.positions[max(before - 1, 0) :].tolist()
        if any(later <= earlier for earlier, later in pairwise(added)):
            raise WireError("the positions of times do not ascend")

    def _take_block(self, entry: tuple[int, int, int, int, int], body: memoryview) -> Block:
        _, records, first_position, payload_bytes, _ = entry
        end = (records + 1) * OFFSET_BYTES
        offsets = body[:end]
        if int.from_bytes(offsets[:4], "little") or int.from_bytes(offsets[-4:], "little") != payload_bytes:
            raise WireError("the offsets of a block do not match its payload")
        return self._block(records, first_position, offsets, body[end : end + payload_bytes])

    def _block(self, records: int, first_position: int, offsets: memoryview, payload: memoryview) -> Block:
        queues, blocks, all_records, all_bytes = self.totals
        self.totals = Totals(queues, blocks + 1, all_records + records, all_bytes + len(payload))
        assert self.queue is not None, "checked when the entry was read"
        return Block(*self.queue, first_position, records, offsets, payload, self._times)

    def _take_trailer(self, totals: Totals) -> None:
        if totals != self.totals:
            raise WireError(f"the trailer counts {tuple(totals)}, but the stream had {tuple(self.totals)}")
        self.done = True
        self.wanted = 0


def _name_of(text: bytes) -> str | None:
    """Return a queue's name, or None if it is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


_U32 = Struct("<I").unpack_from
_ZERO = (0,)


def decode(data: bytes | bytearray | memoryview, *, positions: bool = False) -> Iterator[Block]:
    """Yield the blocks of a whole stream as views into *data*.

    Args:
        data: The stream.
        positions: The stream has POSITIONS instead of BLOCKs.

    Raises:
        WireError: *data* is not exactly one complete stream.
    """
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
    """Yield the blocks of a stream.

    Args:
        read: Called with a size; returns that many of the next bytes, fewer only at the end of the stream.
        positions: The stream has POSITIONS instead of BLOCKs.

    Raises:
        WireError: The stream ends early, or is not a stream of runs.
    """
    decoder = Decoder(positions=positions)
    while not decoder.done:
        block = decoder.take(read(decoder.wanted))
        if block is not None:
            yield block


def check_offsets(offsets: memoryview) -> list[int]:
    """Return the offsets of a received block, for cutting it into records; raise WireError if one decreases."""
    ends: list[int] = offsets.cast("i").tolist()
    if ends != sorted(ends):  # sorting a sorted list takes 8 ns per offset, comparing pairs 40
        raise WireError("the offsets of a block decrease")
    return ends

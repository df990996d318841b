"""Decode a stream of runs; `wire` describes the format."""

from __future__ import annotations

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


_U32 = Struct("<I").unpack_from
_new: Callable[[type[Block], tuple[object, ...]], Block] = tuple.__new__


def decode(data: bytes | bytearray | memoryview, *, positions: bool = False) -> Iterator[Block]:
    """Yield the blocks of a whole stream as views into *data*.

    Args:
        data: The stream.
        positions: The stream has POSITIONS instead of BLOCKs.

    Raises:
        WireError: *data* is not exactly one complete stream.
    """
    return (block for block in entries(data, positions=positions) if block is not None)


def entries(data: bytes | bytearray | memoryview, *, positions: bool = False) -> Iterator[Block | None]:
    """Yield for each entry of a whole stream its block, or None if it is of another kind; see `decode`."""
    return _Stream(memoryview(data).cast("B"), positions).entries()


class _Stream:
    """A stream that is decoded: its queue and times, and what its trailer has to count."""

    def __init__(self, view: memoryview, positions: bool) -> None:
        self._view = view
        self._positions = positions
        self._queue: tuple[str, int] | None = None
        self._times = Times.none()
        self._queues = self._blocks = self._records = self._bytes = 0

    def entries(self) -> Iterator[Block | None]:
        view, at, end = self._view, len(PREAMBLE), len(self._view)
        if view[:at] != PREAMBLE:
            raise WireError("not a stream of runs, or one of another version")
        while True:
            body = at + ENTRY.size
            _check_end(body, end)
            entry = kind, small, first, second, _ = ENTRY.unpack_from(view, at)
            if kind == TRAILER:
                self._check_trailer(entry[1:], end - body)
                return
            size = self._body_bytes(*entry)
            after = body + size
            at = after + -size % 8
            _check_end(at, end)
            if kind == QUEUE:
                self._begin_queue(view[body:after], first)
            elif kind == TIMES:
                self._extend_times(view[body:after])
            else:
                yield self._block(small, first, view[body : after - second], view[after - second : after])
                continue
            yield None

    def _body_bytes(self, kind: int, small: int, first: int, second: int, third: int) -> int:
        """Return the size of the body of an entry, which is valid here. Every length is bounded."""
        in_queue = self._queue is not None
        fits = in_queue and 0 < small <= RECORDS_MAX and second <= PAYLOAD_BYTES_MAX
        if kind == BLOCK and fits and not self._positions:
            return (small + 1) * OFFSET_BYTES + second
        if kind == QUEUE and small <= NAME_BYTES_MAX:
            return small
        if kind == TIMES and in_queue and 0 < small <= TIMES_MAX and not (first or second or third):
            return 16 * small
        if kind == POSITIONS and fits and self._positions and not second:
            return 0
        raise WireError(f"entry of kind {kind} with {small} and {second} is not valid here")

    def _begin_queue(self, name: memoryview, queue_id: int) -> None:
        try:
            self._queue = str(name, "utf-8"), queue_id
        except UnicodeDecodeError:
            raise WireError("a queue's name is not UTF-8") from None
        self._times = Times.none()
        self._queues += 1

    def _extend_times(self, body: memoryview) -> None:
        middle, before = len(body) // 2, len(self._times.positions)
        self._times.positions.frombytes(body[:middle])
        self._times.ticks.frombytes(body[middle:])
        added = self._times.positions[max(before - 1, 0) :].tolist()
        if any(later <= earlier for earlier, later in pairwise(added)):
            raise WireError("the positions of times do not ascend")

    def _block(self, records: int, first_position: int, offsets: memoryview, payload: memoryview) -> Block:
        assert self._queue is not None, "checked with the size of its body"
        if offsets and (_U32(offsets)[0] or _U32(offsets, len(offsets) - OFFSET_BYTES)[0] != len(payload)):
            raise WireError("the offsets of a block do not match its payload")
        self._blocks += 1
        self._records += records
        self._bytes += len(payload)
        # By tuple's own constructor: the one of a class with names takes twice as long.
        return _new(Block, (*self._queue, first_position, records, offsets, payload, self._times))

    def _check_trailer(self, counts: tuple[int, ...], left: int) -> None:
        found = self._queues, self._blocks, self._records, self._bytes
        if counts != found:
            raise WireError(f"the trailer counts {counts}, but the stream had {found}")
        if left:
            raise WireError(f"{left} bytes follow the trailer")


def _check_end(at: int, end: int) -> None:
    if at > end:
        raise WireError(f"the stream of runs was cut short: it ends {at - end} bytes early")


def check_offsets(offsets: memoryview) -> list[int]:
    """Return the offsets of a received block, for cutting it into records; raise WireError if one decreases."""
    ends: list[int] = offsets.cast("i").tolist()
    if ends != sorted(ends):  # sorting a sorted list takes 8 ns per offset, comparing pairs 40
        raise WireError("the offsets of a block decrease")
    return ends

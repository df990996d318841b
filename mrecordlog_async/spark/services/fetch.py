"""Reading ranges of records: cut into requests, decoded as they arrive, and checked against the plan."""

from __future__ import annotations

import http.client
from collections.abc import Iterable, Iterator, Sequence

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE
from mrecordlog_async.protocol.wire import WireError
from mrecordlog_async.protocol.wire_decoder import Block, Decoder
from mrecordlog_async.spark.positions.partitions import Range, cut_range

FETCH_BYTES = 8 << 20
FETCH_RECORDS = 65_536
"""Approximate size of one fetch response; a task that stalls for longer than the service waits loses no more."""


class ShortResponseError(RecordLogError):
    """A service delivered something other than what it had planned; none of it may be considered complete."""


def requests_for(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Group *ranges*, in order, into requests of about `FETCH_BYTES`; a range without gaps is cut to fit."""
    part: list[Range] = []
    size, records = FETCH_BYTES, FETCH_RECORDS  # what still fits
    for each in ranges:
        rest: Range | None = each
        while rest is not None:
            head, after = cut_range(rest, size, records)
            if part and (head.bytes > size or head.records > records or len(part) == QUEUES_AT_ONCE):
                yield part
                part, size, records = [], FETCH_BYTES, FETCH_RECORDS
                continue
            part.append(head)
            size, records, rest = size - head.bytes, records - head.records, after
    if part:
        yield part


class Rest:
    """Rest of the ranges of one request while blocks arrive, which `verified` checks."""

    def __init__(self, part: list[Range]) -> None:
        self._part = part
        self._index = 0  # of the first range that remains
        self._start = part[0].start if part else 0  # what remains of it
        self._records = part[0].records if part else 0

    def drop(self, block: Block) -> None:
        """Drop *block* and the ranges before its own; nothing if no range that remains has it."""
        queue, queue_id, first, records = block[:4]
        for index in range(self._index, len(self._part)):
            each = self._part[index]
            start, left = (self._start, self._records) if index == self._index else (each.start, each.records)
            if each.queue == queue and each.id == queue_id and start <= first < each.stop:
                if left > records:
                    self._index, self._start, self._records = index, first + records, left - records
                else:
                    self._begin(index + 1)
                return

    def _begin(self, index: int) -> None:
        self._index = index
        if index < len(self._part):
            self._start, self._records = self._part[index].start, self._part[index].records

    def ranges(self) -> list[Range]:
        """Return what remains."""
        rest = self._part[self._index :]
        if rest:
            rest[0] = rest[0]._replace(start=self._start, records=self._records)
        return rest


def verified(blocks: Iterable[Block], ranges: Sequence[Range]) -> Iterator[Block]:
    """Yield *blocks* as long as they match *ranges*: the same queues, positions and number of records.

    Raises:
        ShortResponseError: at the first block that does not match, or at the end if records are missing.
    """
    index, missing, position = -1, 0, 0
    for block in blocks:
        queue, queue_id, first, records = block[:4]
        while missing == 0:
            index += 1
            if index == len(ranges):
                raise ShortResponseError(
                    f"the service sent queue {queue!r} from position {first}, which was not requested"
                )
            missing, position = ranges[index].records, ranges[index].start
        due, after = ranges[index], first + records
        inside = position <= first and after <= due.stop
        if queue != due.queue or queue_id != due.id or not inside or records > missing:
            raise ShortResponseError(
                f"expected {missing} more records of queue {due.queue!r} from position {position}, got {records} of "
                f"{queue!r} at {first}"
            )
        missing, position = missing - records, after
        yield block
    left = missing + sum(each.records for each in ranges[index + 1 :])
    if left:
        raise ShortResponseError(f"the response ended {left} records early")


def decode_blocks(response: http.client.HTTPResponse, *, positions: bool) -> Iterator[Block]:
    """Decode a response as it arrives; blocks own the buffer that they were received in. Raises WireError."""
    decoder, received = Decoder(positions=positions), _Received(response)
    while not decoder.done:
        yield from received.take_small(decoder)
        block = decoder.take(received.take(decoder.wanted))
        if block is not None:
            yield block
    response.read()  # read to the end of the body, so that the connection can be reused


READ_AHEAD_BYTES = 65_536


class _Received:
    """A response's body, taken in parts of any size. Small ones are cut out of what was read ahead.

    Each queue has half a dozen entries, and most of them have few bytes: a read for each took half of the time of a
    task with thousands of queues. A large part is read into its own buffer, without a copy.
    """

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self._ahead = b""
        self._at = 0

    def take_small(self, decoder: Decoder) -> list[Block]:
        """Pass to *decoder* what was read ahead, and return the blocks that are whole in it."""
        blocks, self._at = decoder.take_small(self._ahead, self._at)
        return blocks

    def take(self, size: int) -> bytes | bytearray:
        """Return the next *size* bytes, in a separate buffer. Raises WireError if the body ends before."""
        if size > len(self._ahead) - self._at:
            if size >= READ_AHEAD_BYTES:
                return self._read_exactly(size)
            self._read_ahead(size)
        self._at += size
        return self._ahead[self._at - size : self._at]

    def _read_ahead(self, size: int) -> None:
        parts = [self._ahead[self._at :]]
        missing = size - len(parts[0])
        while missing > 0:
            # What has arrived, and no more: if the response breaks off later, this much was received.
            parts.append(self._response.read1(READ_AHEAD_BYTES))
            if not parts[-1]:
                raise WireError(f"{missing} bytes are missing")
            missing -= len(parts[-1])
        self._ahead, self._at = b"".join(parts), 0

    def _read_exactly(self, size: int) -> bytearray:
        buffer, begun = bytearray(size), self._ahead[self._at :]
        view, at = memoryview(buffer), len(begun)
        view[:at] = begun
        self._ahead, self._at = b"", 0
        while at < size:
            count = self._response.readinto(view[at:])
            if not count:
                raise WireError(f"{size - at} bytes are missing")
            at += count
        return buffer

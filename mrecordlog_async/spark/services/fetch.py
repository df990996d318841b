"""Reading ranges of records: cut into requests, decoded as they arrive, and checked against the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.calls import QUEUES_AT_ONCE
from mrecordlog_async.protocol.wire_decoder import Block
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

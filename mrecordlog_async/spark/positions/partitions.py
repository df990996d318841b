"""Packs ranges of positions into partitions of about one size, one for each task. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.servers.names import Endpoint

RECORD_COST = 200
"""A record costs a task about as much as this many bytes, in addition to its own."""

SMALL_PARTITION_COST = 8 << 20
"""Less is not worth another task: the fixed cost of a task, 35 to 55 ms, is that of 20,000 records of 200 bytes."""


class Range(NamedTuple):
    """Positions start … stop - 1 of one queue, which hold *records* records: fewer than stop - start if it has gaps."""

    queue: str
    id: int
    start: int
    stop: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Partition:
    """Input of one task: ranges of one log."""

    server: str  # the name that the rows carry
    ranges: tuple[Range, ...]  # what to read
    log: str = ""  # the log's public id; "" if any log will do that has these queues
    address: str = ""  # the name of the server that has the log now; "" if it is *server*
    endpoint: Endpoint | None = None  # that server, if it was found by its DNS name: a task looks up no names

    @property
    def records(self) -> int:
        """Return how many records the task must deliver, no fewer and no more."""
        return sum(each.records for each in self.ranges)

    def __reduce__(self) -> tuple[Callable[..., Partition], tuple[object, ...]]:
        """Travel as columns: pickling thousands of ranges one by one takes five times as long."""
        columns = tuple(zip(*self.ranges, strict=True))
        return _arrived, (self.server, columns, self.log, self.address, self.endpoint)


def _arrived(
    server: str, columns: Sequence[Sequence[Any]], log: str, address: str, endpoint: Endpoint | None
) -> Partition:
    return Partition(server, tuple(map(Range._make, zip(*columns, strict=True))), log, address, endpoint)


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """Amount that one task should read: a cost in bytes, and a number of records."""

    cost: int
    records: int


def partition_size(
    ranges: Iterable[Range], partitions_min: int | None, records_max: int | None, cores: int
) -> PartitionSize:
    """Choose how much one task reads: one partition per core, but none that costs less than the task itself.

    Args:
        ranges: everything that is read.
        partitions_min: how many partitions the user wants at least, about; None for as few as above.
        records_max: limit per partition; None for no limit.
        cores: how many tasks run at once.
    """
    costs = [_cost(each) for each in ranges]
    total = sum(costs)
    wanted = max(-(-total // cores), SMALL_PARTITION_COST)
    if partitions_min is not None:
        wanted = min(wanted, -(-total // partitions_min))
    return PartitionSize(max(1, wanted), records_max or POSITION_MAX)


def pack(
    server: str,
    ranges: Iterable[Range],
    size: PartitionSize,
    *,
    log: str = "",
    address: str = "",
    endpoint: Endpoint | None = None,
) -> list[Partition]:
    """Pack *ranges*, in order, into partitions of about *size*.

    A range without gaps can be cut anywhere. One with gaps stays whole: only the server knows where its records are,
    and the pieces that it plans are already small.
    """
    partitions: list[Partition] = []
    gathered: list[Range] = []
    cost, records = size.cost, size.records

    for each in ranges:
        rest: Range | None = each if each.records else None
        while rest is not None:
            # Thousands of small ranges fit as they are: asking for that takes half of the time of a cut.
            head_cost = _cost(rest)
            fits = rest.records <= records and head_cost <= cost
            head, tail = (rest, None) if fits else _cut(rest, cost, records)
            joins = head.records <= records or not gathered
            if joins:
                _gather(gathered, head)
                head_cost = head_cost if fits else _cost(head)
                cost, records, rest = cost - head_cost, records - head.records, tail
            if not joins or cost <= 0 or records <= 0:
                partitions.append(Partition(server, tuple(gathered), log, address, endpoint))
                gathered, cost, records = [], size.cost, size.records
    if gathered:
        partitions.append(Partition(server, tuple(gathered), log, address, endpoint))
    return partitions


def _cost(each: Range) -> int:
    return each.bytes + each.records * RECORD_COST


def _cut(whole: Range, cost: int, records: int) -> tuple[Range, Range | None]:
    """Return the head of *whole* that costs at most *cost* and has at most *records*, and the rest."""
    return _cut_at(whole, min(whole.records, records, max(1, cost * whole.records // _cost(whole))))


def _cut_at(whole: Range, take: int) -> tuple[Range, Range | None]:
    if take == whole.records or not _dense(whole):
        return whole, None
    size = whole.bytes * take // whole.records
    middle = whole.start + take
    head = whole._replace(stop=middle, records=take, bytes=size)
    return head, whole._replace(start=middle, records=whole.records - take, bytes=whole.bytes - size)


def _dense(each: Range) -> bool:
    return each.records == each.stop - each.start


def cut_range(whole: Range, size: int, records: int) -> tuple[Range, Range | None]:
    """Return the head of *whole* with about *size* bytes and at most *records*, at least one, and the rest."""
    take = min(whole.records, max(records, 1), max(1, size * whole.records // max(whole.bytes, 1)))
    return _cut_at(whole, take)


def _gather(gathered: list[Range], head: Range) -> None:
    """Add *head*, joined to the last range if it continues it and both have no gaps."""
    last = gathered[-1] if gathered else None
    if (
        last is not None
        and last.queue == head.queue
        and (last.id, last.stop) == (head.id, head.start)
        and _dense(last)
        and _dense(head)
    ):
        gathered[-1] = last._replace(stop=head.stop, records=last.records + head.records, bytes=last.bytes + head.bytes)
    else:
        gathered.append(head)

"""The records that a plan writes, as payloads at positions, and the log records that they become. Pure.

The journal calls `build_records` on the log's thread, so that joining payloads does not hold the event loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.format.runs import MANY_BYTES_MAX, MANY_RECORDS_MAX, Append, Many, many_bytes
from mrecordlog_async.model import OFFSET_BYTES, RUN_BYTES, Run, offsets_of_one


class PlannedRun(NamedTuple):
    """Payloads to be stored at consecutive positions, in one or more runs."""

    id: int
    first_position: int
    payloads: Sequence[bytes]


class PlannedMany(NamedTuple):
    """Single records of several queues, each given by its place in the three sequences. A queue may occur repeatedly.

    They are stored in MANYs, in this order.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    payloads: Sequence[bytes]


PlannedRecord = LogRecord | PlannedRun | PlannedMany
"""Log records that a plan writes."""


def split_into_runs(first_position: int, payloads: Sequence[bytes]) -> list[Run]:
    """Join *payloads* into runs of at most about `RUN_BYTES`. A larger payload becomes its own run."""
    records = len(payloads)
    if sum(map(len, payloads)) + OFFSET_BYTES * records <= RUN_BYTES:
        return [Run.of(first_position, payloads)]
    ends = list(accumulate(map(OFFSET_BYTES.__add__, map(len, payloads)), initial=0))
    runs = []
    start = 0
    while start < records:
        stop = max(bisect_right(ends, ends[start] + RUN_BYTES) - 1, start + 1)
        part = payloads if stop - start == records else payloads[start:stop]
        runs.append(Run.of(first_position + start, part))
        start = stop
    return runs


def build_records(records: Iterable[PlannedRecord]) -> list[LogRecord]:
    """Turn a plan's records into log records: their payloads are joined into runs."""
    built: list[LogRecord] = []
    for record in records:
        if type(record) is PlannedRun:
            queue_id, first_position, payloads = record
            if len(payloads) == 1:  # most batches of few callers: as below, without the calls
                run = tuple.__new__(Run, (first_position, offsets_of_one(len(payloads[0])), payloads[0]))
                built.append(tuple.__new__(Append, (queue_id, run, False)))
            else:
                runs = split_into_runs(first_position, payloads)
                built += map(Append, repeat(queue_id), runs, chain((False,), repeat(True)))
        elif type(record) is PlannedMany:
            built += split_into_manys(record)
        else:
            built.append(record)  # type: ignore[arg-type]  # not planned records here; mypy keeps the union
    return built


def split_into_manys(planned: PlannedMany) -> Iterator[Append | Many]:
    """Cut single records of several queues into MANYs as large as these may be. A larger record becomes an APPEND."""
    for start in range(0, len(planned.payloads), MANY_RECORDS_MAX):
        part = _part(planned, start, start + MANY_RECORDS_MAX)
        if many_bytes(len(part.payloads), sum(map(len, part.payloads))) <= MANY_BYTES_MAX:
            yield Many.of(*part)
        else:
            yield from map(_many_or_append, _split_by_size(part))


def _split_by_size(planned: PlannedMany) -> Iterator[PlannedMany]:
    start = size = 0
    for at, payload in enumerate(planned.payloads):
        if at > start and many_bytes(at + 1 - start, size + len(payload)) > MANY_BYTES_MAX:
            yield _part(planned, start, at)
            start, size = at, 0
        size += len(payload)
    yield _part(planned, start, len(planned.payloads))


def _part(planned: PlannedMany, start: int, stop: int) -> PlannedMany:
    ids, positions, payloads = planned
    return PlannedMany(ids[start:stop], positions[start:stop], payloads[start:stop])


def _many_or_append(planned: PlannedMany) -> Append | Many:
    ids, positions, payloads = planned
    return Many.of(*planned) if len(payloads) > 1 else Append(ids[0], Run.of(positions[0], payloads))

"""The records that a plan writes, as payloads at positions. The log's thread turns them into log records (`encode`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mrecordlog_async.format.record import LogRecord
from mrecordlog_async.model import OFFSET_BYTES, RUN_BYTES, Run


class PlannedRun(NamedTuple):
    """Payloads to be stored at consecutive positions. The log's thread turns them into runs."""

    id: int
    first_position: int
    payloads: Sequence[bytes]


class PlannedMany(NamedTuple):
    """Single records of several queues, each given by its place in the three sequences. A queue may occur repeatedly.

    The log's thread turns them into MANYs, in this order.
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

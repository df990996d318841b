"""The table of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.benchmarks.compare.opening import Opening
from tests.benchmarks.compare.rows import Appends, CreateQueues, Place, Range, Running, fill, fill_in_turn
from tests.benchmarks.log_api import LogApi

QUEUES = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its name for `--only`, what it measures, and what makes it in a contestant's process.

    Attributes:
        per_second: what the rate counts.
        peers: whether other stores can run it.
        seconds_min: a shorter measurement would not see several batches.
        rounds_max: bounds the rounds of a row whose measurements take long.
    """

    name: str
    what: str
    make: Callable[[Place], Running]
    per_second: str = "records"
    peers: bool = False
    seconds_min: float = 0.0
    rounds_max: int = 1_000


async def _in_batches(log: LogApi, records: int) -> None:
    await fill(log, records, 200)


async def _in_turn(log: LogApi, records: int) -> None:
    await fill_in_turn(log, records, min(QUEUES, records))


ROWS = (
    Row("one-caller", "1 caller, 100 B", partial(Appends, callers=1), peers=True),
    Row("10-callers", "10 callers, 100 B", partial(Appends, callers=10), peers=True),
    Row("100-callers", "100 callers, 100 B", partial(Appends, callers=100), peers=True),
    Row("1000-callers", "1,000 callers, 100 B", partial(Appends, callers=1_000), peers=True),
    Row("10000-callers", "10,000 callers, 100 B", partial(Appends, callers=10_000), peers=True, seconds_min=0.1),
    Row(
        "16-kib",
        "16 callers, 16 KiB",
        partial(Appends, callers=16, size=16 * 1024, truncate=True),
        peers=True,
    ),
    Row(
        "large",
        "16 callers, 1 MiB",
        partial(Appends, callers=16, size=1024**2, truncate=True),
        peers=True,
        seconds_min=0.1,
    ),
    Row(
        "batches",
        "4 callers, 1,000 × 1 KiB",
        partial(Appends, callers=4, size=1024, records=1_000, truncate=True),
        peers=True,
        seconds_min=0.1,
    ),
    Row(
        "queues",
        "1,000 callers, 100 B, 10,000 queues in turn",
        partial(Appends, callers=1_000, queues=QUEUES),
        peers=True,
        seconds_min=0.1,
    ),
    Row("range", "range over 1 M records of 100 B", partial(Range, records=1_000_000, size=100), rounds_max=15),
    Row("create", "10,000 queues created at once", partial(CreateQueues, queues=QUEUES), "queues", rounds_max=15),
    Row(
        "create-together",
        "10,000 queues created by one call",
        partial(CreateQueues, queues=QUEUES, together=True),
        "queues",
        rounds_max=15,
    ),
    Row(
        "open-warm",
        "open 1 M × 200 B after a crash, warm cache",
        partial(Opening, records=1_000_000, fill=_in_batches),
        rounds_max=9,
    ),
    Row(
        "open-cold",
        "open 1 M × 200 B after a crash, cold cache",
        partial(Opening, records=1_000_000, fill=_in_batches, cold=True),
        rounds_max=9,
    ),
    Row(
        "open-queues",
        "open 1.5 M single records of 10,000 queues after a crash, warm cache",
        partial(Opening, records=1_500_000, fill=_in_turn),
        rounds_max=9,
    ),
)
"""Every row, in the order of a run."""


def chosen(names: Sequence[str] | None) -> list[Row]:
    """Return the rows of these names (None: all), in the order of the table.

    Raises:
        ValueError: A name is not in the table; the message lists those that are.
    """
    unknown = sorted(set(names or ()) - {row.name for row in ROWS})
    if unknown:
        raise ValueError(f"unknown row {', '.join(unknown)}; rows: {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if names is None or row.name in names]

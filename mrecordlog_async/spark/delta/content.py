"""The contents of a batch as numbers, which decide whether it is already in the table. Pure.

Spark's batch numbers alone decide nothing: another checkpoint has a batch of the same number. So each commit carries,
next to the number, a digest of what its rows are: of each queue its id, the number of records, the first and last
position and the sum of all positions. However a batch is divided among tasks, the digest is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

import pyarrow as pa

from mrecordlog_async.errors import RecordLogError

DIGEST_BITS = 63
"""A transaction's version in a Delta table is a signed 64-bit number, and not negative."""


class ForeignBatchError(RecordLogError):
    """The table and the checkpoint do not continue each other; nothing was stored, and nothing more is truncated."""


class TableError(RecordLogError):
    """The table cannot take the batch; nothing of it was stored."""


class QueueRows(NamedTuple):
    """Rows of one incarnation of a queue."""

    server: str  # the queue's server
    queue: str
    queue_id: int  # its incarnation
    records: int
    first: int  # the lowest position
    last: int  # the highest position
    sum: int  # of all positions

    def joined(self, other: QueueRows) -> QueueRows:
        """Return both together."""
        return self._replace(
            records=self.records + other.records,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            sum=self.sum + other.sum,
        )


KEY = ["server", "queue", "queue_id"]


def rows_of(batch: pa.RecordBatch) -> list[QueueRows]:
    """Return what *batch* holds, by queue."""
    table = pa.table({name: batch.column(name) for name in (*KEY, "position")})
    # Positions reach 2**63 - 1, so their sum needs more than 64 bits: summed as a high and a low half.
    high, low = _halves(table.column("position"))
    found = (
        table.append_column("high", high)
        .append_column("low", low)
        .group_by(KEY, use_threads=False)
        .aggregate([("position", "count"), ("position", "min"), ("position", "max"), ("high", "sum"), ("low", "sum")])
    )
    return [_rows(row) for row in found.to_pylist()]


def _halves(positions: Any) -> tuple[Any, Any]:
    import pyarrow.compute as pc

    return pc.shift_right(positions, 32), pc.bit_wise_and(positions, pa.scalar(0xFFFFFFFF, pa.int64()))


def _rows(row: dict[str, Any]) -> QueueRows:
    total = (row["high_sum"] << 32) + row["low_sum"]
    key = (row["server"], row["queue"], row["queue_id"])
    return QueueRows(*key, row["position_count"], row["position_min"], row["position_max"], total)


def merged(parts: Iterable[QueueRows]) -> list[QueueRows]:
    """Return *parts* with one entry for each queue, sorted."""
    found: dict[tuple[str, str, int], QueueRows] = {}
    for part in parts:
        key = part[:3]
        found[key] = found[key].joined(part) if key in found else part
    return sorted(found.values())


def digest(content: Iterable[QueueRows]) -> int:
    """Return a number below 2**63 that is different for any other *content*, which `merged` returned."""
    text = json.dumps([list(each) for each in content], separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> (64 - DIGEST_BITS)


class BatchVerdict(Enum):
    """Decision about a batch."""

    STORE = auto()
    SKIP = auto()
    """The table has it already: the last run ended after the commit."""


def judge(batch: int, content: int, stands: int | None, stored_content: int | None, table: str) -> BatchVerdict:
    """Decide whether the batch of the number *batch* is stored or skipped.

    content: its digest. stands, stored_content: the last batch of this query in the table, and the digest of that.

    Raises:
        ForeignBatchError: the last batch in the table is not the one before this batch.
    """
    last = -1 if stands is None else stands
    if last == batch - 1:
        return BatchVerdict.STORE
    if last == batch and content == stored_content:
        return BatchVerdict.SKIP
    looks_like = OTHER_RECORDS.format(batch) if last == batch else _looks_like(batch, last)
    raise ForeignBatchError(f"{table} {looks_like}. {ADVICE}")


def refuse_apart(planned: int, committed: int, stands: int | None, table: str) -> None:
    """Check that the last batch in a table is the one that its checkpoint continues.

    planned, committed: the checkpoint's last batches with offsets and with a commit file, -1 for none. stands: the last
    batch of this query in the table.

    Raises:
        ForeignBatchError: the table has another last batch than the checkpoint, and not the one that runs next.
    """
    last = -1 if stands is None else stands
    if last != committed and not (last == committed + 1 and planned >= last):
        raise ForeignBatchError(f"{table} {_looks_like(committed + 1, last)}. {ADVICE}")


ADVICE = (
    "Nothing was stored or truncated. Use the table and the checkpoint that belong together; if one of them is lost, "
    "`mrecordlog lake resume TABLE --checkpoint DIR` makes a new checkpoint that continues after what the table holds"
)


OTHER_RECORDS = (
    "already has a batch {} of this query with other records: the checkpoint was copied and two drains use it, or the "
    "log changed after the batch was stored"
)


def _looks_like(batch: int, last: int) -> str:
    """Return what went wrong, from the number of the next batch and of the last one in the table."""
    if last >= batch:
        return (
            f"ends with batch {last} of this query, but its checkpoint continues with batch {batch}: the checkpoint is "
            "older than the table (restored from a backup, or a copy)"
        )
    if last < 0:
        return (
            f"has no batch of this query, but its checkpoint continues with batch {batch}: the table was replaced, or "
            "is not the one that this checkpoint belongs to"
        )
    return (
        f"ends with batch {last} of this query, but its checkpoint continues with batch {batch}: the table is older "
        "than the checkpoint (restored from a backup, or to an earlier version)"
    )

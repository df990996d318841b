"""The rows of a Parquet file in batches of a bounded size in memory, however well they are compressed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_BYTES = 8 << 20
"""About how much of a file is decoded at a time. Of rows of 64 kB, 65,536 (pyarrow's default) are 4 GiB."""

ROWS_MAX = 65_536
PROBED_ROWS = 64


def row_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *file* in batches of about BATCH_BYTES."""
    for group in range(file.num_row_groups):
        rows = _rows_of_a_batch(file, group)
        yield from file.iter_batches(rows, [group])


def _rows_of_a_batch(file: pq.ParquetFile, group: int) -> int:
    """Return how many rows of a row group are about BATCH_BYTES.

    The footer states the size of all columns before compression, but a value that a dictionary holds counts once: so
    the first rows are decoded, too.
    """
    facts = file.metadata.row_group(group)
    stated = facts.total_byte_size / max(facts.num_rows, 1)
    first = next(file.iter_batches(PROBED_ROWS, [group]), None)
    decoded = first.nbytes / first.num_rows if first is not None and first.num_rows else 0
    return max(1, min(ROWS_MAX, int(BATCH_BYTES / max(stated, decoded, 1))))

"""Reading Parquet files takes memory for one batch, whatever the size of a row and however well rows are compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.sink import DeltaReader, schema_of
from mrecordlog_async.spark.delta.upkeep import Replaced, open_table, optimize
from mrecordlog_async.spark.rows.row_batches import BATCH_BYTES, row_batches
from mrecordlog_async.spark.settings.options import TARGET_FILE_BYTES

ROWS = 2_000
ROW_BYTES = 64_000


def rows_of(payloads: list[bytes]) -> pa.Table:
    numbers = range(len(payloads))
    names = ["a"] * len(payloads)
    return pa.table({"server": names, "queue": names, "position": numbers, "payload": pa.array(payloads, pa.binary())})


LARGE = [b"%d" % number + bytes(ROW_BYTES) for number in range(ROWS)]
SAME = [bytes(ROW_BYTES)] * ROWS
GROWING = [b""] * ROWS + LARGE
SMALL = [b"%d" % number for number in range(200_000)]


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize(
    ("payloads", "batches"),
    [(LARGE, range(10, 40)), (SAME, range(10, 40)), (GROWING, range(10, 40)), (SMALL, range(3, 5)), ([], range(1))],
    ids=["large", "same", "growing", "small", "none"],
)
def test_a_batch_is_small_in_memory(tmp_path: Path, payloads: list[bytes], batches: range, dictionary: bool) -> None:
    """Whether a writer gave values a dictionary or not; small rows come in batches of many."""
    path, table = tmp_path / "rows.parquet", rows_of(payloads)
    pq.write_table(table, path, use_dictionary=dictionary, row_group_size=ROWS if payloads is GROWING else None)
    assert path.stat().st_size < 10 << 20
    with pq.ParquetFile(path) as file:
        found = [*row_batches(file)]
        assert pa.Table.from_batches(found, table.schema).equals(table)
        assert len(found) in batches and all(each.nbytes < 2 * BATCH_BYTES for each in found)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the size of each batch that is read of a file."""
    found = list[int]()
    read = pq.ParquetFile.iter_batches

    def noted(file: Any, *given: Any, **named: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(file, *given, **named):
            found.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    return found


def test_optimize_reads_large_rows_in_pieces(tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files that are small on the disk are large in memory; what is gathered is written in groups of rows."""
    place, written = TablePlace(str(tmp_path / "t")), list[int]()
    for _ in range(2):
        write_deltalake(place.uri, rows_of(LARGE), mode="append")
    write = pq.ParquetWriter.write_table

    def noted(writer: Any, table: pa.Table, *given: Any, **named: Any) -> None:
        written.append(table.nbytes)
        write(writer, table, *given, **named)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", noted)
    assert optimize(place) == Replaced(2, 1)
    assert sum(sizes) > 2 * ROWS * ROW_BYTES and max(sizes) < 2 * BATCH_BYTES
    assert max(written) < TARGET_FILE_BYTES // 2
    assert open_table(place).to_pyarrow_table().num_rows == 2 * ROWS


def test_spark_reads_a_table_in_pieces(tmp_path: Path, sizes: list[int]) -> None:
    """Each batch goes to Java as one message."""
    place = TablePlace(str(tmp_path / "t"))
    write_deltalake(place.uri, rows_of(LARGE))
    reader = DeltaReader(place, schema_of(place))
    (part,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(part)) == ROWS
    assert max(sizes) < 2 * BATCH_BYTES

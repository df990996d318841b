"""Loading a table into a log: what is refused, and what is skipped. For a round trip, see test_drain_delta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.restore.load import Loaded, run_load
from tests.spark.services import ThreadedService, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_load_refuses_rows_of_several_servers(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """Rows of several servers would collide, so one has to be chosen."""
    rows = [("a", "q", 0, bytearray(b"from a")), ("b", "q", 0, bytearray(b"from b"))]
    frame = spark.createDataFrame(rows, "server string, queue string, position bigint, payload binary")
    write_deltalake(str(tmp_path / "copy"), frame.toArrow())
    with pytest.raises(RefusedError, match="several servers"):
        run_load(spark, str(tmp_path / "copy"), service.url)
    assert run_load(spark, str(tmp_path / "copy"), service.url, from_server="b") == Loaded(1, 0)
    assert service.records() == {"q": [(0, b"from b")]}


def test_load_refuses_rows_of_a_recreated_queue(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """A queue that was deleted and created again has two records at a position; nothing is mixed, or stored."""
    rows = [("q", 1, 0, bytearray(b"old")), ("q", 2, 0, bytearray(b"new")), ("r", 3, 0, bytearray(b"r"))]
    frame = spark.createDataFrame(rows, "queue string, queue_id bigint, position bigint, payload binary")
    write_deltalake(str(tmp_path / "copy"), frame.toArrow())
    with pytest.raises(RefusedError, match=r"queue 'q' was deleted and created again.*queue_id 1 and 2"):
        run_load(spark, str(tmp_path / "copy"), service.url)
    assert service.records() == {}
    both = frame.where("queue_id > 1")
    write_deltalake(str(tmp_path / "twice"), both.union(both).toArrow())
    loaded = run_load(spark, str(tmp_path / "twice"), service.url)
    assert loaded == Loaded(stored=2, present=2)
    assert loaded.line(1.0) == "stored 2 of 4 records in 1.0 s; 2 were already stored"


def test_rows_where_the_log_was_truncated_are_refused(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """A log cannot store truncated positions again: the load is refused, or skips those rows and counts them."""
    service.append("q", numbered("q", 0, 10))
    service.truncate("q", 5)
    rows = [("q", at, bytearray(payload)) for at, payload in enumerate(numbered("q", 0, 20))]
    frame = spark.createDataFrame([*rows, ("new", 7, bytearray(b"x"))], "queue string, position bigint, payload binary")
    write_deltalake(str(tmp_path / "copy"), frame.toArrow())
    with pytest.raises(RefusedError, match=r"6 rows are .* below position 6 of queue 'q'"):
        run_load(spark, str(tmp_path / "copy"), service.url)
    assert service.positions("q") == (6, 10)
    loaded = run_load(spark, str(tmp_path / "copy"), service.url, skip_truncated=True)
    assert loaded == Loaded(stored=11, present=4, skipped=6)
    assert loaded.line(1.0) == (
        "stored 11 of 21 records in 1.0 s; 4 were already stored; 6 skipped: the log was truncated past them"
    )
    assert service.positions("q") == (6, 20)


def test_every_row_of_a_load_is_counted_once(spark: SparkSession, service: ThreadedService, tmp_path: Path) -> None:
    """Each row is stored, already there, truncated or refused, and the sentence says which queue differs."""
    service.append("q", numbered("q", 0, 10))
    service.truncate("q", 1)
    service.append("other", [b"other:0", b"differs"])
    rows = [
        (queue, at, payload) for queue in ("q", "other", "new") for at, payload in enumerate(numbered(queue, 0, 15))
    ]
    found = [*rows, (None, 3, b"x"), ("", 3, b"x"), ("q", None, b"x"), ("q", 99, None), ("q", -1, b"x")]
    columns = dict(zip(("queue", "position", "payload"), map(list, zip(*found, strict=True)), strict=True))
    table = pa.table(columns, schema=pa.schema([("queue", "string"), ("position", "int64"), ("payload", "binary")]))
    place = tmp_path / "copy"
    write_deltalake(str(place), table)
    loaded = run_load(spark, place.as_uri(), service.url, skip_truncated=True)
    assert loaded == Loaded(stored=20, present=9, skipped=2, refused=19, conflicts={"other": 1})
    assert loaded.rows == len(found)
    assert "19 refused: queue 'other' differs from position 1 on" in loaded.line(1.0)
    assert {queue: len(records) for queue, records in service.records().items()} == {"new": 15, "other": 2, "q": 13}
    again = run_load(spark, str(place), service.url, skip_truncated=True)
    assert again == Loaded(stored=0, present=29, skipped=2, refused=19, conflicts={"other": 1})


def test_rows_without_a_whole_position_are_refused(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Positions may be stored as floating-point numbers. Those that no log can assign are counted; the others load."""
    positions = [0.0, 1.0, 1.5, 2.0, -0.5, 1e300, float("nan"), float("inf")]
    rows = {"queue": ["q"] * len(positions), "position": positions, "payload": [b"x"] * len(positions)}
    source = tmp_path / "copy"
    write_deltalake(str(source), pa.table(rows))
    with pytest.raises(RefusedError, match="no column server, so there are no rows of server 'a' to choose"):
        run_load(spark, str(source), service.url, from_server="a")
    assert service.records() == {}
    loaded = run_load(spark, str(source), service.url)
    assert loaded == Loaded(stored=3, present=0, refused=5)
    assert loaded.line(1.0) == (
        "stored 3 of 8 records in 1.0 s; 5 refused: they have no queue, no payload, or no position that is a whole "
        "number of at least 0"
    )
    assert service.records() == {"q": [(0, b"x"), (1, b"x"), (2, b"x")]}


def test_only_a_delta_table_on_this_machine_is_loaded(
    spark: SparkSession, service: ThreadedService, tmp_path: Path
) -> None:
    """Other files and other places are refused, with what to do instead; nothing is stored."""
    path = tmp_path / "copy.parquet"
    pq.write_table(pa.table({"queue": ["q"], "position": [0], "payload": [b"one"]}), path)
    for source in (path, tmp_path):
        with pytest.raises(RefusedError, match="is not a Delta table"):
            run_load(spark, str(source), service.url)
    with pytest.raises(RefusedError, match="copy the table to one"):
        run_load(spark, "s3://lake/table", service.url)
    assert service.records() == {}

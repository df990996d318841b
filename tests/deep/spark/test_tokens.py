"""Services that require different tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.delta.place import TablePlace
from mrecordlog_async.spark.delta.sink import SinkOptions
from mrecordlog_async.spark.drain.job import run_drain
from mrecordlog_async.spark.drain.query import source_rows
from mrecordlog_async.spark.settings.drain_job import DrainJob
from tests.spark.conftest import NewService
from tests.spark.services import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_REDACTS = "(?i)secret|password|token|access[.]?key"
"""The default of `spark.redaction.regex`."""

A, B = "0123456789abcdef-of-a", "fedcba9876543210-of-b"


def test_keys_of_an_object_store_are_redacted() -> None:
    """Spark redacts an option by its name wherever it prints a plan, and the job shows none of them."""
    keys = {"AWS_SECRET_ACCESS_KEY": A}
    job = DrainJob("http://h:1", "s3://lake/t", "c", storage_options=keys)
    sink = SinkOptions(TablePlace(job.output, keys))
    shown = [value for name, value in sink.encode().items() if not re.search(SPARK_REDACTS, name)]
    assert SinkOptions.decode(sink.encode()).place.storage_options == keys
    assert not any(A in text for text in (*shown, repr(job), repr(sink)))


def test_each_server_gets_its_own_token(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """A drain reads and truncates both; a wrong token names its server; no plan, file or error has a token."""
    a, b = new_service(A), new_service(B)
    a.append("q", numbered("q", 0, 10))
    b.append("r", numbered("r", 0, 10))
    tokens = {"token": A, "token.b": B}
    job = DrainJob(f"a={a.url},b={b.url}", str(tmp_path / "t"), str(tmp_path / "c"), options={"token": A})
    wrong = r"server 'b' returned status 401: .*--token-file b=FILE"
    with pytest.raises(RefusedError, match=wrong) as told:
        run_drain(spark, job)
    assert A not in str(told.value) and A not in repr(job)
    assert not DeltaTable.is_deltatable(job.output), "the next attempt may choose another layout"

    said: list[str] = []
    assert run_drain(spark, replace(job, options=tokens), said.append).records == 20
    assert not any(a.records().values()) and not any(b.records().values())
    java = source_rows(spark, {"servers": job.servers, **tokens})._jdf.queryExecution()
    kept = [path.read_bytes() for place in ("t", "c") for path in (tmp_path / place).rglob("*") if path.is_file()]
    for token in (A, B):
        assert token not in java.toString() + java.logical().treeString() + "".join(said)
        assert not any(token.encode() in content for content in kept)

"""Services that require different tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mrecordlog_async.spark.drain import run_drain
from mrecordlog_async.spark.drain_query import source_rows
from mrecordlog_async.spark.identity import RefusedError
from mrecordlog_async.spark.preflight import DrainJob
from tests.spark.conftest import NewService
from tests.spark.services import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = "0123456789abcdef-of-a", "fedcba9876543210-of-b"


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

    said: list[str] = []
    assert run_drain(spark, replace(job, options=tokens), said.append).records == 20
    assert not any(a.records().values()) and not any(b.records().values())
    java = source_rows(spark, {"servers": job.servers, **tokens})._jdf.queryExecution()
    kept = [path.read_bytes() for place in ("t", "c") for path in (tmp_path / place).rglob("*") if path.is_file()]
    for token in (A, B):
        assert token not in java.toString() + java.logical().treeString() + "".join(said)
        assert not any(token.encode() in content for content in kept)

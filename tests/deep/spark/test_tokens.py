"""No plan, event, file or message of a drain has a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mrecordlog_async.spark.drain_call import DrainOptions, drain
from tests.spark.conftest import NewService
from tests.spark.services import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A, B = "0123456789abcdef-of-a", "fedcba9876543210-of-b"


def test_each_server_gets_its_own_token(spark: SparkSession, new_service: NewService, tmp_path: Path) -> None:
    """A drain on Spark reads and truncates both; a stream's plan shows no token either."""
    a, b = new_service(A), new_service(B)
    a.append("q", numbered("q", 0, 10))
    b.append("r", numbered("r", 0, 10))
    servers, said = f"a={a.url},b={b.url}", list[str]()
    options = DrainOptions(servers, str(tmp_path / "t"), tokens={"": A, "b": B})
    assert drain(options, spark, report=said.append).records == 20
    assert not any(a.records().values()) and not any(b.records().values())
    rows = spark.readStream.format("mrecordlog").options(**{"servers": servers, "token": A, "token.b": B}).load()
    java = rows._jdf.queryExecution()
    kept = [path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file()]
    for token in (A, B):
        assert token not in java.toString() + java.logical().treeString() + "".join(said) + repr(options)
        assert not any(token.encode() in content for content in kept)

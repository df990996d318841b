"""The session in the docstring of the data source works when it is copied."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mrecordlog_async.spark as spark_package
from mrecordlog_async.spark.data_source import RecordLogDataSource
from tests.spark.services import ThreadedService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(spark_package.__file__ or "").parent


def test_the_session_of_the_data_source_runs(spark: SparkSession, service: ThreadedService) -> None:
    """The table, stream and write examples run as printed."""
    service.append("q", [b"one", b"two"])
    lines = inspect.cleandoc(RecordLogDataSource.__doc__ or "").splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith(" " * 4)))
    assert code.count('format("mrecordlog")') == 3
    code = code.replace("a=http://h1:8080,b=http://h2:8080", f"a={service.url}")
    code = code.replace("http://127.0.0.1:8080", service.url)
    names: dict[str, Any] = {"spark": spark}
    names["frame"] = spark.createDataFrame([("q", bytearray(b"three"))], "queue string, payload binary")
    exec(code, names)
    assert service.log.next_position("q") == 3


def test_the_package_lists_its_modules() -> None:
    """The package's docstring names every module, and no other."""
    named = set(re.findall(r"(?:^ {4}| {2,})(\w+)/?  ", spark_package.__doc__ or "", re.MULTILINE))
    modules = {path.stem for path in HOME.glob("*.py")}
    assert modules - {"__init__", "__main__"} == named

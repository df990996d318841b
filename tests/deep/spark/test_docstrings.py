"""The session in the docstring of the data source works when it is copied."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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


def test_the_package_lists_its_rooms() -> None:
    """The package's docstring names every room and module, and no other."""
    named = set(re.findall(r"(?:^ {4}| {2,})(\w+)/?  ", spark_package.__doc__ or "", re.MULTILINE))
    modules = {path.stem for path in HOME.glob("*.py")} | {path.parent.name for path in HOME.glob("*/__init__.py")}
    assert modules - {"__init__", "__main__"} == named


@pytest.mark.parametrize("room", sorted(path.parent.name for path in HOME.glob("*/__init__.py")))
def test_a_room_lists_its_modules(room: str) -> None:
    """Its docstring begins with a sentence that says what the room promises, then names every module once."""
    text = importlib.import_module(f"{spark_package.__name__}.{room}").__doc__ or ""
    assert text.partition("\n")[0].endswith((".", ":"))
    listed = re.findall(r"^ *(\w+) {2,}\S", text.partition("\n\n")[2], re.MULTILINE)
    modules = {path.stem for path in (HOME / room).glob("*.py")} - {"__init__"}
    assert modules <= set(listed)
    assert len([name for name in listed if name in modules]) == len(modules)

"""Which Python the workers run, and what is on its import path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mrecordlog_async.spark import python
from mrecordlog_async.spark.python import ensure_python


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back afterwards
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_pyspark_python_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the variable is set, it is not changed."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert ensure_python(local=True) == "/opt/python"


def test_workers_on_other_machines_get_a_path_that_may_be_there() -> None:
    """Workers on other machines get this Python's path, not a script in this user's cache."""
    assert ensure_python(local=False) == sys.executable == os.environ["PYSPARK_PYTHON"]


def test_another_spark_keeps_its_zips(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SPARK_HOME, the pyspark in the zips may differ from the installed one, so the zips stay."""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert ensure_python(local=True) == sys.executable


def test_local_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    """Spark's zips are removed from the path; its other entries and the arguments stay as they are."""
    lib = "/opt/spark/python/lib"
    path = f"{lib}/pyspark.zip:{lib}/py4j-0.10-src.zip:/first place:{lib}/pyspark.zip:{tmp_path}/*:/mine/pyspark.zip"
    said = subprocess.run(
        [ensure_python(local=True), "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "a b", ""],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"/first place:{tmp_path}/*:/mine/pyspark.zip ['a b', '']\n"


def test_where_no_script_can_be_written_this_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the script cannot be written, workers run this Python directly, which only starts more slowly."""

    def refuse(name: str, script: str) -> Path:
        raise PermissionError(name)

    monkeypatch.setattr(python, "install_shim", refuse)
    assert ensure_python(local=True) == sys.executable

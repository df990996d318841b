"""Fixtures of the pipeline's tests: services, and one Spark session for all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark import small_java
from tests.spark.services import ThreadedService

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]
"""Without the extra `spark` there is nothing to test here."""
os.environ.setdefault("SPARK_SUBMIT_OPTS", small_java.OPTIONS)

FOREIGN = Path(__file__).parent / "foreign"
"""Where the data source of another project is, which Spark discovers too."""

NewService = Callable[..., ThreadedService]


@pytest.fixture
def new_service(tmp_path: Path) -> Iterator[NewService]:
    """Start services, each with its own log, and with the arguments of `ThreadedService`."""
    started: list[ThreadedService] = []

    def make(*arguments: Any, **named: Any) -> ThreadedService:
        started.append(ThreadedService(tmp_path / f"wal-{len(started)}", *arguments, **named))
        return started[-1]

    yield make
    for service in started:
        service.end()


@pytest.fixture
def service(new_service: NewService) -> ThreadedService:
    """Start one service."""
    return new_service()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once, on two cores of this machine."""
    from mrecordlog_async.spark.session import spark_session

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    warehouse = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(FOREIGN), prepend=os.pathsep)  # Java passes it on to workers
        session = spark_session(
            "tests",
            master="local[2]",
            settings={
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.local.dir": str(warehouse),
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
            },
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Return a function that waits, for a limited time, for something that another process does."""

    def wait(condition: Callable[[], bool], seconds: float = 900) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} seconds"
            time.sleep(0.02)

    return wait


@pytest.fixture(autouse=True)
def queries_closed() -> Iterator[None]:
    """Close the connections of a test's streaming queries."""
    yield
    for name in ("tests.spark.query", "tests.spark.old_query"):
        query = sys.modules.get(name)  # not imported here: it needs pyspark
        while query is not None and query.open_queries:
            query.open_queries.pop().reader.stop()


@pytest.fixture(autouse=True)
def drains_closed() -> Iterator[None]:
    """End the threads and connections of a test's drains."""
    yield
    draining = sys.modules.get("tests.spark.draining")  # not imported here: it needs deltalake
    while draining is not None and draining.open_drains:
        draining.open_drains.pop().close()

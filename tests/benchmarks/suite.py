"""The table of the project's workloads: those of `mrecordlog bench` with their targets, and those only it runs."""

from __future__ import annotations

from dataclasses import replace

from mrecordlog_async.bench import suite
from mrecordlog_async.bench.suite import Workload

_ROOM = "tests.benchmarks.workloads"

_JUDGED = {"one-caller", "callers", "sizes"}


def _judged(workload: Workload) -> Workload:
    """Return the workload of `mrecordlog bench` that also checks the targets of this project, where it has any."""
    return replace(workload, module=f"{_ROOM}.appends") if workload.name in _JUDGED else workload


WORKLOADS = (
    *(_judged(workload) for workload in suite.WORKLOADS),
    Workload("few-callers", "10 and 100 coroutines next to an older version", f"{_ROOM}.few_callers"),
    Workload("peers", "SQLite, LMDB, RocksDB, Redis, NATS under the same callers", f"{_ROOM}.peers", "singles"),
    Workload("peer-batches", "SQLite, LMDB, RocksDB with the same batches", f"{_ROOM}.peers", "batches"),
    Workload("peer-queues", "LMDB, RocksDB with 10,000 queues", f"{_ROOM}.peers", "queues"),
    Workload("reads", "range, runs and tail", f"{_ROOM}.reads"),
    Workload("consumers", "reading in batches, acknowledging, waiting", f"{_ROOM}.consumers"),
    Workload("create", "10,000 queues created at once", f"{_ROOM}.opening", "create_queues"),
    Workload("open", "opening a log after a crash, cold and warm", f"{_ROOM}.opening"),
    Workload("recovery", "opening a log that is in the page cache", f"{_ROOM}.recovery"),
    Workload("memory", "memory per retained record", f"{_ROOM}.memory"),
    Workload("truncate", "a long queue against a short one", f"{_ROOM}.truncate"),
    Workload("queues", "1 to 100,000 queues", f"{_ROOM}.queues"),
    Workload("roll", "the wait when a segment is full", f"{_ROOM}.roll"),
    Workload("service", "appends over HTTP", f"{_ROOM}.service"),
    Workload("spark-drain", "a log into a Delta table, next to Spark's Parquet sink", f"{_ROOM}.spark_drain"),
    Workload("spark-idle", "a drain without work, with one queue and with many", f"{_ROOM}.spark_queues", "idle"),
    Workload("spark-triggers", "one trigger over many queues", f"{_ROOM}.spark_queues", "triggers"),
    Workload("mission", "60 MB/s for a minute while the last minute is retained", f"{_ROOM}.mission"),
)
"""Every workload, in the order of a run."""

"""The table of the project's workloads: those of `mrecordlog bench` with their targets, and those only it runs."""

from __future__ import annotations

from mrecordlog_async.bench import suite
from mrecordlog_async.bench.suite import Workload

_ROOM = "tests.benchmarks.workloads"

WORKLOADS = (
    *(Workload(each.name, each.what, f"{_ROOM}.appends", each.function) for each in suite.WORKLOADS),
    Workload("peers", "SQLite, LMDB, RocksDB, Redis, NATS under the same callers", f"{_ROOM}.peers", "singles"),
    Workload("peer-batches", "SQLite, LMDB, RocksDB with the same batches", f"{_ROOM}.peers", "batches"),
    Workload("peer-queues", "LMDB, RocksDB with 10,000 queues", f"{_ROOM}.peers", "queues"),
    Workload("reads", "range, runs and tail", f"{_ROOM}.reads"),
    Workload("recovery", "opening a log that is in the page cache", f"{_ROOM}.recovery"),
    Workload("memory", "memory per retained record", f"{_ROOM}.memory"),
    Workload("truncate", "a long queue against a short one", f"{_ROOM}.truncate"),
    Workload("queues", "1 to 100,000 queues", f"{_ROOM}.queues"),
    Workload("roll", "the wait when a segment is full", f"{_ROOM}.roll"),
    Workload("service", "appends over HTTP", f"{_ROOM}.service"),
    Workload("mission", "60 MB/s for a minute while the last minute is retained", f"{_ROOM}.mission"),
)
"""Every workload, in the order of a run."""

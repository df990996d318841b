"""The table of workloads, and how one runs: in a fresh process, in an empty directory, on uvloop where it is installed.

A workload that fails becomes a row that names the error; the others still run.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from mrecordlog_async.support.event_loop import loop_factory
from mrecordlog_async.support.gc_tuning import calm_collector
from tests.benchmarks.neighbors import Neighbors
from tests.benchmarks.results import Row
from tests.benchmarks.scale import Bench, Scale
from tests.benchmarks.targets import NOISE_MAX, under_noise

_ROOM = "tests.benchmarks.workloads"


@dataclass(frozen=True, slots=True)
class Workload:
    """A name for `--only`, what it measures, and its function: `async def function(bench) -> list[Row]` in *module*."""

    name: str
    what: str
    module: str
    function: str = "run"


WORKLOADS = (
    Workload(
        "one-caller", "one coroutine, 100 B: latency next to a raw write and sync", f"{_ROOM}.appends", "one_caller"
    ),
    Workload("callers", "1 to 10,000 coroutines under every policy", f"{_ROOM}.appends", "many_callers"),
    Workload("sizes", "payloads of 100 B to 1 MiB", f"{_ROOM}.appends", "sizes"),
    Workload("batches", "append_records with 1,000 records per call", "tests.benchmarks.appends", "batches"),
    Workload("few-callers", "10 and 100 coroutines next to an older version", f"{_ROOM}.few_callers"),
    Workload("peers", "SQLite, LMDB, RocksDB, Redis, NATS under the same callers", f"{_ROOM}.peers", "singles"),
    Workload("peer-batches", "SQLite, LMDB, RocksDB with the same batches", f"{_ROOM}.peers", "batches"),
    Workload("peer-queues", "LMDB, RocksDB with 10,000 queues", f"{_ROOM}.peers", "queues"),
    Workload("reads", "range, runs and tail", f"{_ROOM}.reads"),
    Workload("consumers", "reading in batches, acknowledging, waiting", f"{_ROOM}.consumers"),
    Workload("create", "10,000 queues, by a call for each and by one call", f"{_ROOM}.opening", "create_queues"),
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


def chosen(names: Sequence[str] | None, workloads: Sequence[Workload] = WORKLOADS) -> list[Workload]:
    """Return the workloads of these names (None: all), in the order of the table.

    Raises:
        ValueError: a name is not in the table; the message lists those that are.
    """
    known = {workload.name for workload in workloads}
    unknown = sorted(set(names or ()) - known)
    if unknown:
        raise ValueError(f"unknown workload {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return [workload for workload in workloads if names is None or workload.name in names]


def run_all(
    workloads: Sequence[Workload], scale: Scale, directory: str, say: Callable[[str], object]
) -> Iterator[list[Row]]:
    """Run each workload in its own process and directory below *directory*, which is left as it was."""
    os.stat(directory)  # if it is missing, the error names it, not what would be created in it
    # Absolute: the processes that a workload starts may work in other directories.
    place = tempfile.mkdtemp(prefix="mrecordlog-bench-", dir=os.path.abspath(directory))
    os.chmod(place, 0o711)  # a server that does not run as root must reach its own directory below it
    try:
        for number, workload in enumerate(workloads, 1):
            say(f"[{number}/{len(workloads)}] {workload.name}: {workload.what}")
            with Neighbors() as neighbors:
                rows = _in_process(workload, scale, place)
            if neighbors.share > NOISE_MAX:
                say(f"    other programs took {neighbors.share:.0%} of the CPUs")
            yield [under_noise(row, neighbors.share) for row in rows]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_workload(workload: Workload, scale: Scale, place: str) -> list[Row]:
    """Run *workload* here, on its own event loop, in a new directory below *place*."""
    directory = os.path.join(place, workload.name)
    os.mkdir(directory)
    begun = time.perf_counter()

    def say(what: str) -> None:
        print(f"    {time.perf_counter() - begun:5.1f} s  {what}", file=sys.stderr, flush=True)

    module = importlib.import_module(workload.module)
    if scale.gc_threshold is not None:
        calm_collector(scale.gc_threshold)
    function: Callable[[Bench], Awaitable[list[Row]]] = getattr(module, workload.function)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_await(function(Bench(directory, scale, say))))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _await(rows: Awaitable[list[Row]]) -> list[Row]:
    return await rows


def _in_process(workload: Workload, scale: Scale, place: str) -> list[Row]:
    # "spawn": a forked child would begin with the memory of this process.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        try:
            return process.submit(run_workload, workload, scale, place).result()
        except Exception as error:
            return [Row(workload.name, workload.what, skipped=f"{type(error).__name__}: {error}", failed=True)]

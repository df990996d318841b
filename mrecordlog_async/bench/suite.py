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

from mrecordlog_async.bench.results import Row
from mrecordlog_async.bench.scale import Bench, Scale
from mrecordlog_async.event_loop import loop_factory
from mrecordlog_async.gc_tuning import calm_collector

APPENDS = "mrecordlog_async.bench.appends"


@dataclass(frozen=True, slots=True)
class Workload:
    """A name for `--only`, what it measures, and its function: `async def function(bench) -> list[Row]` in *module*."""

    name: str
    what: str
    module: str
    function: str = "run"


WORKLOADS = (
    Workload("one-caller", "one coroutine, 100 B: latency next to a raw write and sync", APPENDS, "one_caller"),
    Workload("callers", "1 to 10,000 coroutines under every policy", APPENDS, "many_callers"),
    Workload("sizes", "payloads of 100 B to 1 MiB", APPENDS, "sizes"),
    Workload("batches", "append_records with 1,000 records per call", APPENDS, "batches"),
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
    try:
        for number, workload in enumerate(workloads, 1):
            say(f"[{number}/{len(workloads)}] {workload.name}: {workload.what}")
            yield _in_process(workload, scale, place)
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
    function: Callable[[Bench[Scale]], Awaitable[list[Row]]] = getattr(module, workload.function)
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

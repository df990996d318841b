"""Measure this log and Quickwit's Rust crate in alternating rounds, and write docs/benchmarks/rust_crate.md.

Both sync each append. Each round is a new process and a new directory. BINARY is the program that cargo makes:

  cargo build --release --manifest-path tests/benchmarks/crate/Cargo.toml --target-dir build/crate
  python -m tests.benchmarks rust-crate build/crate/release/crate-bench
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from mrecordlog_async import Limits, MultiRecordLog, PersistPolicy
from mrecordlog_async.bench.disk import machine
from mrecordlog_async.bench.drive import duration, quantile
from mrecordlog_async.options import GIB
from mrecordlog_async.support.event_loop import loop_factory, loop_name
from tests.benchmarks.report import markdown_table

WORKLOADS = {
    "append": "one caller, 100 B, synced",
    "batch": "one caller, 1,000 × 1 KiB, synced",
    "range": "read 1,000,000 × 100 B from memory",
    "open": "open a log of 1,000,000 × 100 B",
}
PAGE = "docs/benchmarks/rust_crate.md"
HEADER = ("workload", "", "crate", "this log", "crate : this log, of the rounds")
HEAD = """# Next to the Rust crate

[`mrecordlog`](https://github.com/quickwit-oss/mrecordlog) 0.5 and this log. Appends are synced one by one. The rounds
alternate, and each is a new process with a new directory. Figures are medians of the rounds. The ratio is that of each
round, with its range: above 1 ×, the crate is faster.
"""
TAIL = """
The crate has no group commit: callers of one log take turns, so with many callers its rate is that of one.
[Performance](../performance.md) has the rates of this log with many callers."""
QUEUE = "bench"
LIMITS = Limits(memory_bytes=8 * GIB, disk_bytes=16 * GIB)

Figures = dict[str, float]
Rounds = list[tuple[Figures, Figures]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("binary", help="the program that cargo makes of tests/benchmarks/crate")
    parser.add_argument("--dir", default=".", help="directory to write in; cleaned up afterwards (default: here)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each workload (default: 10)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of appending in a round (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and write the page."""
    crate = [arguments.binary]
    log = [sys.executable, "-m", "tests.benchmarks.rust_crate"]
    found: dict[str, Rounds] = {name: [] for name in WORKLOADS}
    for number in range(arguments.rounds):
        for name, rounds in found.items():
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            measured = [_measure(side, name, arguments) for side in ((crate, log), (log, crate))[number % 2]]
            rounds.append((measured[number % 2], measured[1 - number % 2]))
    Path(PAGE).write_text("".join(f"{line}\n" for line in _page(found, arguments)), encoding="utf-8")
    return 0


def _measure(command: list[str], name: str, arguments: argparse.Namespace) -> Figures:
    with TemporaryDirectory(dir=arguments.dir) as place:
        words = [*command, name, os.path.join(place, "wal"), str(arguments.seconds)]
        figures: Figures = json.loads(subprocess.check_output(words))
        return figures


def _page(found: dict[str, Rounds], arguments: argparse.Namespace) -> Iterator[str]:
    yield HEAD
    yield from markdown_table(HEADER, [row for name, rounds in found.items() for row in _rows(name, rounds)], numbers=0)
    yield ""
    yield f"{arguments.rounds} rounds by `python -m tests.benchmarks rust-crate` on {machine(arguments.dir)};"
    yield f"{loop_name()}. Load average of the machine at the end: {os.getloadavg()[1]:.1f}."
    yield TAIL


def _rows(name: str, rounds: Rounds) -> Iterator[tuple[str, ...]]:
    for figure in rounds[0][0]:
        crate, log = ([one[figure] for one in side] for side in zip(*rounds, strict=True))
        faster = [b / a if figure != "rate" else a / b for a, b in zip(crate, log, strict=True)]
        shown = f"{median(faster):.2f} × ({min(faster):.2f} to {max(faster):.2f})"
        yield (WORKLOADS[name], _unit(figure), _shown(figure, median(crate)), _shown(figure, median(log)), shown)


def _unit(figure: str) -> str:
    return "records per second" if figure == "rate" else figure


def _shown(figure: str, value: float) -> str:
    return f"{float(f'{value:.3g}'):,.0f}" if figure == "rate" else duration(value)


async def _append(directory: str, seconds: float, payloads: list[bytes]) -> Figures:
    """Append again and again; truncating now and then is not timed."""
    taken: list[float] = []
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.always(), limits=LIMITS) as log:
        await log.create_queue(QUEUE)
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            last = await log.append_records(QUEUE, None, payloads)
            taken.append(time.perf_counter() - begun)
            if len(taken) % 100 == 0:
                assert last is not None
                await log.truncate(QUEUE, last)
    taken.sort()
    rate = len(taken) * len(payloads) / sum(taken)
    return {"rate": rate, "p50": quantile(taken, 0.5), "p99": quantile(taken, 0.99)}


async def _fill(directory: str) -> None:
    async with MultiRecordLog.open(directory, persist_policy=PersistPolicy.never(), limits=LIMITS) as log:
        await log.create_queue(QUEUE)
        for _ in range(1_000):
            await log.append_records(QUEUE, None, [bytes(100)] * 1_000)


async def _range(directory: str) -> Figures:
    await _fill(directory)
    async with MultiRecordLog.open(directory, limits=LIMITS) as log:
        begun = time.perf_counter()
        assert sum(len(payload) for _, payload in log.pairs(QUEUE)) == 100_000_000
        return {"rate": 1e6 / (time.perf_counter() - begun)}


async def _open(directory: str) -> Figures:
    await _fill(directory)
    begun = time.perf_counter()
    async with MultiRecordLog.open(directory, limits=LIMITS):
        return {"rate": 1e6 / (time.perf_counter() - begun)}


async def measure(name: str, directory: str, seconds: float) -> Figures:
    """Measure one workload of this log in *directory*, which does not exist yet."""
    if name == "append":
        return await _append(directory, seconds, [bytes(100)])
    if name == "batch":
        return await _append(directory, seconds, [bytes(1_024)] * 1_000)
    return await (_range if name == "range" else _open)(directory)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(measure(sys.argv[1], sys.argv[2], float(sys.argv[3])))))

"""Contenders in turns: each in a process that prepares a case and measures a round whenever it is asked to.

A program has `CASES`: name → contender → how to prepare it. The contender `LOG` is the package, and is measured in each
version. A round returns its figures by name; the first one is the rate, of which ratios are made.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import IO

ROOT = Path(__file__).parents[2]
LOG = "this log"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Figures = dict[str, float]
Round = Callable[[float], Awaitable[Figures]]
"""Measures for so many seconds."""
Case = Callable[[Path], AbstractAsyncContextManager[Round]]
"""Prepares a contender in a directory that does not exist yet."""
Rows = dict[str, list[Figures]]
"""Contender → the figures of its rounds."""


class MissingError(Exception):
    """What a contender needs is not installed."""


def run_case(program: str, case: str, place: Path, versions: Sequence[Path], rounds: int, seconds: float) -> Rows:
    """Prepare all contenders of *case*, and measure them in turns; one round before is not counted."""
    cases: dict[str, dict[str, Case]] = importlib.import_module(f"tests.benchmarks.{program}").CASES
    rows: Rows = {}
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for name in cases[case]:
            for version in (ROOT, *(versions if name == LOG else ())):
                label = name if version == ROOT else str(version)
                directory = place / f"{len(os.listdir(place))}"
                directory.mkdir()
                contenders[label] = stack.enter_context(Contender([program, case, name], version, directory))
        for number in range(-1, rounds):
            for label, contender in contenders.items():
                figures = contender.round(seconds)
                if number >= 0:
                    rows.setdefault(label, []).append(figures)
    return rows


class Contender:
    """A process that has prepared a case. Use it as a context."""

    def __init__(self, words: Sequence[str], version: Path, directory: Path) -> None:
        self._words = words
        path = directory / "path"  # only the package comes from there: these programs measure each version
        path.mkdir()
        (path / "mrecordlog_async").symlink_to((version / "mrecordlog_async").resolve())
        (path / "pyspark_mrecordlog.py").symlink_to((version / "pyspark_mrecordlog.py").resolve())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.turns", *words, str(directory / "data")],
            env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}", "PYTHONWARNINGS": "ignore"},
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Contender:
        line = self._line()
        if line != "ready":
            self._process.wait()
            raise MissingError(line)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._process.communicate()  # closes its input, at which it ends

    def round(self, seconds: float) -> Figures:
        """Measure once."""
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        figures: Figures = json.loads(self._line())
        return figures

    def _line(self) -> str:
        output: IO[str] | None = self._process.stdout
        assert output is not None
        for line in output:
            if line.startswith("> "):  # others are Spark's
                return line.removeprefix("> ").strip()
        raise RuntimeError(f"{' '.join(self._words)} ended with {self._process.wait()}")


class Table:
    """The rows of a program, each printed as soon as it is there."""

    def __init__(self, program: str) -> None:
        self.rows: dict[str, Rows] = {}
        print(f"| {program} | contender | ratio | figures |\n|---|---|---|---|")

    def add(self, case: str, rows: Rows) -> None:
        """Print the medians of each contender of *case*, and its rate as a part of the first one's."""
        self.rows[case] = rows
        first = next(iter(rows.values()))
        rate = next(iter(first[0]))
        for label, rounds in rows.items():
            ratio = median(mine[rate] / other[rate] for mine, other in zip(rounds, first, strict=True))
            figures = ", ".join(f"{median(one[name] for one in rounds):,.4g} {name}" for name in rounds[0])
            print(f"| {case} | {label} | {ratio:.2f} | {figures} |", flush=True)

    def machine(self, place: Path) -> str:
        """Describe what this was measured on."""
        found = subprocess.run(["stat", "-f", "-c", "%T", str(place)], capture_output=True, text=True).stdout.strip()
        cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
        system = f"Linux {platform.release()}, CPython {platform.python_version()}"
        return f"{cpu.partition(': ')[2]}, {os.cpu_count()} cores, {system}, {found}"


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, of all that it has started, and of its children that have ended."""
    ticks, processes = 0, [pid]
    for each in processes:
        try:
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()[11:15]))
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                processes += map(int, children.read_text().split())
        except OSError:  # it has ended
            continue
    return ticks / TICKS_PER_SECOND


@asynccontextmanager
async def serving(directory: Path, *words: str) -> AsyncIterator[tuple[int, int]]:
    """Run `mrecordlog serve` in its own process; yield its port and its pid."""
    command = [sys.executable, "-u", "-m", "mrecordlog_async", "serve", str(directory), "--port", "0", *words]
    async with listening(command) as found:
        yield found


@asynccontextmanager
async def listening(command: Sequence[str]) -> AsyncIterator[tuple[int, int]]:
    """Run a server that says "listening on http://HOST:PORT" on its standard error; yield its port and its pid."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    lines = []
    while b"listening on http://" not in (line := await process.stderr.readline()):
        lines.append(line)
        if not line:
            raise RuntimeError(f"the server did not start: {b''.join(lines).decode()}")
    reading = asyncio.ensure_future(process.stderr.read())  # a full pipe would block the server
    port = int(line.partition(b"listening on http://")[2].partition(b"/")[0].split()[0].rpartition(b":")[2])
    try:
        yield port, process.pid
    finally:
        process.terminate()
        await process.wait()
        await reading


async def _contend(program: str, case: str, name: str, directory: Path) -> None:
    prepare: Case = importlib.import_module(f"tests.benchmarks.{program}").CASES[case][name]
    try:
        async with prepare(directory) as measure:
            print("> ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(f"> {json.dumps(await measure(float(line)))}", flush=True)
    except MissingError as missing:
        print(f"> {missing}", flush=True)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_contend(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))

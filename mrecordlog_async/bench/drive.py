"""Callers: coroutines that append, wait for the result, and append again, while the clock runs."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Append = Callable[[], Awaitable[object]]
"""One caller's next call."""

SAMPLED_CALLERS = 64
"""This many callers read the clock; with more, the reading itself would cost what it measures."""

WARM_FRACTION = 0.2
"""This part of a measurement runs before the clock starts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Calls between two readings of the clock."""

    calls: int  # acknowledged in that time
    seconds: float
    cpu_seconds: float
    latencies: list[float]  # in seconds, of the callers that read the clock
    acknowledged: list[int]  # every acknowledged call by caller, before and after that time too

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds

    @property
    def acknowledged_calls(self) -> int:
        """All acknowledged calls."""
        return sum(self.acknowledged)


async def drive(
    appends: Sequence[Append],
    seconds: float,
    on_begin: Callable[[], object] | None = None,
    on_end: Callable[[], object] | None = None,
) -> Measurement:
    """Run one caller for each of *appends*; on_begin and on_end are called when the clock starts and stops."""
    running = [True]
    counts = [0] * len(appends)
    samples: list[float] = []
    next_answer: list[asyncio.Future[None]] = []
    gc.collect()
    tasks = [
        asyncio.create_task(
            _timed(append, index, running, counts, samples, next_answer)
            if index < SAMPLED_CALLERS
            else _untimed(append, index, running, counts)
        )
        for index, append in enumerate(appends)
    ]
    try:
        await asyncio.sleep(seconds * WARM_FRACTION)
        await _next_answer(next_answer, tasks)
        samples.clear()
        if on_begin is not None:
            on_begin()
        first, cpu, begun = sum(counts), time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        await _next_answer(next_answer, tasks)
        calls = sum(counts) - first
        taken, cpu_taken = time.perf_counter() - begun, time.process_time() - cpu
        if on_end is not None:
            on_end()
        latencies = list(samples)
    finally:
        running.clear()
        await asyncio.gather(*tasks)
    return Measurement(calls, taken, cpu_taken, latencies or samples, counts)


def payloads(count: int, size: int) -> list[bytes]:
    """Make *count* different payloads that do not compress, the same in every run."""
    source = random.Random(size)
    return [index.to_bytes(min(4, size)) + source.randbytes(max(size - 4, 0)) for index in range(count)]


async def _untimed(append: Append, index: int, running: list[bool], counts: list[int]) -> None:
    while running:
        await append()
        counts[index] += 1


async def _timed(
    append: Append,
    index: int,
    running: list[bool],
    counts: list[int],
    samples: list[float],
    next_answer: list[asyncio.Future[None]],
) -> None:
    clock = time.perf_counter
    while running:
        begun = clock()
        await append()
        samples.append(clock() - begun)
        counts[index] += 1
        if next_answer:
            next_answer.pop().set_result(None)


async def _next_answer(next_answer: list[asyncio.Future[None]], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for the next acknowledgement: the clock is read at the end of a batch, never in the middle of one."""
    ring: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    next_answer.append(ring)
    await asyncio.wait((ring, *tasks[:1]), return_when=asyncio.FIRST_COMPLETED)
    if not ring.done():
        next_answer.clear()  # the first caller ended, which only an error does; gather raises it


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the smallest of the ascending values that *fraction* of all values do not exceed."""
    return ordered[max(math.ceil(fraction * len(ordered)) - 1, 0)]


def duration(seconds: float) -> str:
    """Return a time for people, three digits: 87.1 µs, 1.24 ms, 3.02 s."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"

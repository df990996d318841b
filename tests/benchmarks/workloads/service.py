"""The service: `mrecordlog serve` in its own process, and an aiohttp client with keep-alive connections."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from mrecordlog_async.bench.drive import Measurement, drive
from mrecordlog_async.readonly import ReadOnlyLog
from tests.benchmarks.appends import BATCH_RECORDS, RECORD_BYTES
from tests.benchmarks.latency import Latencies
from tests.benchmarks.raw import SYNC, RawDisk
from tests.benchmarks.results import Row, median_ratio
from tests.benchmarks.scale import Bench
from tests.benchmarks.serving import serve_command, serving
from tests.benchmarks.subject import QUEUE, check_read_back, raw_disk
from tests.benchmarks.targets import JudgedRow, rounds_at_least

CALLERS = 64
BATCH_CALLERS = 4
START_SECONDS = 30.0
OF_BARE = 0.85
MEMORY = "/dev/shm"
"""A directory in memory: a disk that does not decide."""


async def run(bench: Bench) -> list[Row]:
    """Post single records from 64 connections, and batches of 1,000 as lines from 4."""
    try:
        import aiohttp
    except ModuleNotFoundError:
        return [Row("service", "appends over HTTP", skipped="pip install 'mrecordlog_async[server]'")]
    directory = bench.path("log")
    stored: Counter[bytes] = Counter()
    async with raw_disk(bench) as raw:
        with serving(serve_command(directory)) as address:
            await _ready(address)
            async with aiohttp.ClientSession(address) as session:
                rows = await _rows(bench, raw, session, stored)
        await asyncio.to_thread(_compare, directory, stored)
    rows.append(await _next_to_bare(bench, bench.path("bare"), "on the disk"))
    if os.path.isdir(MEMORY):
        with tempfile.TemporaryDirectory(dir=MEMORY) as in_memory:
            rows.append(await _next_to_bare(bench, in_memory, "in memory"))
    return rows


async def _next_to_bare(bench: Bench, directory: str, where: str) -> Row:
    """Post durable single records to the service, in turns with a handler that only reads the body."""
    from tests.benchmarks.http_service import both, empty, one_round, post

    body = _line(0, RECORD_BYTES)
    request = post(f"/v1/queues/{QUEUE}/records", body, "application/octet-stream")
    rates, bare_rates, latencies = [], [], []
    async with both(directory, [QUEUE]) as (bare_port, port):
        for number in range(bench.scale.rounds):
            bench.say(f"next to a bare handler, {where}, round {number + 1} of {bench.scale.rounds}")
            bare, ours = await one_round(bare_port, port, request, CALLERS, bench.scale.seconds)
            rates.append(ours.requests)
            bare_rates.append(bare.requests)
            latencies += ours.latencies
            await empty(port, QUEUE)
    ratios = tuple(rate / bare for rate, bare in zip(rates, bare_rates, strict=True))
    what = f"HTTP, {CALLERS} connections, 100 B, {where}"
    target = f"{what}: ≥ {OF_BARE} × an aiohttp handler that stores nothing"
    return JudgedRow(
        "service",
        what,
        median(rates),
        "records/s",
        raw=median(bare_rates),
        ratio=median(ratios),
        ratios=ratios,
        latency=Latencies.of(latencies),
        checks=(rounds_at_least(target, ratios, OF_BARE),),
        note="raw: an aiohttp handler that reads the body and responds; client with prepared requests",
    )


async def _rows(bench: Bench, raw: RawDisk, session: Any, stored: Counter[bytes]) -> list[Row]:
    async with session.put(f"/v1/queues/{QUEUE}") as response:
        response.raise_for_status()
    singles = [[_line(number, RECORD_BYTES)] for number in range(CALLERS)]
    texts = [
        [_line(caller * BATCH_RECORDS + number, RECORD_BYTES) for number in range(BATCH_RECORDS)]
        for caller in range(BATCH_CALLERS)
    ]
    return [
        await _row(bench, raw, session, f"{CALLERS} connections, 100 B", singles, stored),
        await _row(bench, raw, session, f"{BATCH_CALLERS} connections, 1,000 × 100 B as lines", texts, stored),
    ]


async def _row(
    bench: Bench, raw: RawDisk, session: Any, what: str, texts: Sequence[Sequence[bytes]], stored: Counter[bytes]
) -> Row:
    measurements: list[Measurement] = []
    raw_rates: list[float] = []
    records = len(texts[0])
    appends = [partial(_post, session, b"\n".join(text), records) for text in texts]
    for number in range(bench.scale.rounds):
        bench.say(f"{what}, round {number + 1} of {bench.scale.rounds}")
        before = await _counters(session)
        measurement = await drive(appends, bench.scale.seconds)
        after = await _counters(session)
        measurements.append(measurement)
        for text, calls in zip(texts, measurement.acknowledged, strict=True):
            for line in text:
                stored[line] += calls
        # Only the number of the server's batches and their bytes are known: the raw disk repeats the mean batch.
        batches = max(after["commits"] - before["commits"], 1)
        size = (after["written_bytes"] - before["written_bytes"]) // batches
        replayed = await asyncio.to_thread(raw.replay, [size, SYNC] * batches)
        raw_rates.append(measurement.acknowledged_calls * records / replayed.seconds)
    rates = [measurement.rate * records for measurement in measurements]
    return Row(
        "service",
        f"HTTP, {what}",
        median(rates),
        "records/s",
        raw=median(raw_rates),
        ratio=median_ratio(rates, raw_rates),
        latency=Latencies.of([seconds for one in measurements for seconds in one.latencies]),
        cpu_microseconds=median(one.cpu_seconds * 1e6 / (one.calls * records) for one in measurements),
        note="CPU is the client's; server and client share this machine",
    )


async def _post(session: Any, body: bytes, records: int) -> None:
    content_type = "application/octet-stream" if records == 1 else "application/x-ndjson"
    headers = {"Content-Type": content_type}
    async with session.post(f"/v1/queues/{QUEUE}/records", data=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"the service responded {response.status}: {await response.text()}")
        await response.read()


async def _counters(session: Any) -> dict[str, int]:
    async with session.get("/v1/stats") as response:
        response.raise_for_status()
        counters: dict[str, int] = (await response.json())["counters"]
        return counters


async def _ready(address: str) -> None:
    import aiohttp

    deadline = asyncio.get_running_loop().time() + START_SECONDS
    async with aiohttp.ClientSession(address) as session:
        while asyncio.get_running_loop().time() < deadline:
            async with session.get("/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
    raise RuntimeError("the service did not get ready")


def _line(number: int, size: int) -> bytes:
    """Make a line of text, as log shippers send them."""
    return b'{"number":%012d,"text":"' % number + b"x" * (size - 36) + b'"}'


def _compare(directory: str, stored: Counter[bytes]) -> None:
    with ReadOnlyLog.open(directory) as log:
        found = Counter(payload for run in log.runs(QUEUE) for payload in run.payloads())
    check_read_back("the service", stored, found)

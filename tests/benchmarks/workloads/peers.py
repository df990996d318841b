"""This log beside other stores: the same callers, the same bytes, every answer durable, all in the same rounds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TypeVar

from mrecordlog_async.bench.appends import BATCH_CALLERS, BATCH_RECORDS, RECORD_BYTES, batch_callers
from mrecordlog_async.bench.drive import Measurement, drive, payloads
from mrecordlog_async.bench.latency import Latencies
from mrecordlog_async.bench.results import Row, median_ratio
from mrecordlog_async.bench.scale import Bench
from mrecordlog_async.bench.subject import (
    Caller,
    Round,
    check_read_back,
    cpu_microseconds_of,
    latencies_of,
    rate_of,
    ratio_of,
    raw_disk,
    raw_rate_of,
    subject,
)
from mrecordlog_async.options import KIB
from tests.benchmarks.peers.embedded import BARE_FILE, EMBEDDED
from tests.benchmarks.peers.group_commit import GroupCommit, Plain
from tests.benchmarks.peers.nats import NatsStore
from tests.benchmarks.peers.peer import EmbeddedStore, MissingPeerError, ServerStore
from tests.benchmarks.peers.redis import RedisStore
from tests.benchmarks.scale import Scale
from tests.benchmarks.targets import at_least, judged

T = TypeVar("T")
Front = Callable[[EmbeddedStore, ThreadPoolExecutor], Plain | GroupCommit]

GROUPED = "group commit by hand"
FRONTS: tuple[tuple[str, Front], ...] = (("plain", Plain), (GROUPED, GroupCommit))
SERVERS: tuple[tuple[str, Callable[[str], Awaitable[ServerStore]]], ...] = (
    ("Redis Streams, appendfsync always", RedisStore.start),
    ("NATS JetStream, sync_interval always", NatsStore.start),
)


@dataclass(slots=True)
class Competitor:
    """A peer at the start: its callers, how to read it back, and what was measured."""

    name: str
    callers: list[Caller]
    read: Callable[[], Awaitable[Iterable[bytes]]]
    measurements: list[Measurement] = field(default_factory=list)
    stored: Counter[bytes] = field(default_factory=Counter)
    read_rate: float = 0.0

    @property
    def rates(self) -> list[float]:
        """Records a second, by round."""
        return [measurement.rate * len(self.callers[0].payloads) for measurement in self.measurements]

    async def measurement(self, seconds: float) -> None:
        """Let its callers run."""
        measurement = await drive([caller.append for caller in self.callers], seconds)
        for caller, calls in zip(self.callers, measurement.acknowledged, strict=True):
            for payload in caller.payloads:
                self.stored[payload] += calls
        self.measurements.append(measurement)

    async def compare(self) -> None:
        """Read everything back, and raise unless it is what was acknowledged."""
        begun = time.perf_counter()
        found = await self.read()
        self.read_rate = self.stored.total() / (time.perf_counter() - begun)
        check_read_back(self.name, self.stored, Counter(found))


class Competitors:
    """Who takes part: opened one by one, closed with *stack*; who is not installed is skipped by name."""

    def __init__(self, bench: Bench[Scale], stack: AsyncExitStack) -> None:
        self.opened: list[Competitor] = []
        self.skipped: list[tuple[str, str]] = []
        self._bench = bench
        self._stack = stack

    async def add_embedded(self, parts: Sequence[Sequence[bytes]]) -> None:
        """Add every embedded store, plain and grouped; each caller sends one of *parts*."""
        for store_name, make in EMBEDDED:
            for way, front in FRONTS:
                name = f"{store_name}, {way}"
                try:
                    store = await asyncio.to_thread(make, self._bench.path(name))
                except MissingPeerError as missing:
                    self.skipped.append((name, str(missing)))
                    continue
                thread = self._stack.enter_context(ThreadPoolExecutor(1))
                self._stack.push_async_callback(_in_thread, thread, store.close)
                read = partial(_in_thread, thread, partial(_read_all, store))
                self.opened.append(Competitor(name, _callers(front(store, thread), parts), read))

    async def add_servers(self, texts: Sequence[bytes]) -> None:
        """Add every server that can be started here; each caller sends one of *texts*."""
        for name, start in SERVERS:
            self._bench.say(f"starting {name}")
            try:
                store = await start(self._bench.path(name))
            except MissingPeerError as missing:
                self.skipped.append((name, str(missing)))
                continue
            self._stack.push_async_callback(store.close)
            callers = [Caller(partial(store.append, text), (text,)) for text in texts]
            self.opened.append(Competitor(name, callers, store.read))

    async def run(self, ours: Callable[[], Awaitable[Round]]) -> list[Round]:
        """Let everybody run in turn, round by round; read the peers back at the end."""
        scale, rounds = self._bench.scale, []
        for number in range(scale.rounds):
            self._bench.say(f"round {number + 1} of {scale.rounds}: mrecordlog")
            rounds.append(await ours())
            for competitor in self.opened:
                self._bench.say(f"round {number + 1} of {scale.rounds}: {competitor.name}")
                await competitor.measurement(scale.seconds)
        for competitor in self.opened:
            await competitor.compare()
        return rounds


async def singles(bench: Bench[Scale]) -> list[Row]:
    """1,000 callers, 100 B: every peer plain, with a group commit, and the servers."""
    count = bench.scale.compared_callers
    texts = payloads(count, RECORD_BYTES)
    async with raw_disk(bench) as raw, subject(bench, raw) as log, AsyncExitStack() as stack:
        competitors = Competitors(bench, stack)
        await competitors.add_embedded([(text,) for text in texts])
        await competitors.add_servers(texts)
        callers = log.one_by_one(texts)
        ours = await competitors.run(lambda: log.round(callers, bench.scale.seconds))
    rows = _report(competitors, f"{count:,} callers, 100 B", ours)
    best, lead = _best_grouped(competitors.opened, ours)
    check = at_least(
        f"{count:,} callers, 100 B: ≥ 2 × the best of SQLite, LMDB, RocksDB with a group commit by hand",
        lead,
        2.0,
        f"{lead:.1f} × {best}",
    )
    return [judged(rows[0], check), *rows[1:]]


async def batches(bench: Bench[Scale]) -> list[Row]:
    """Four callers with batches of 1,000 × 1 KiB, which the embedded stores take as one transaction."""
    async with raw_disk(bench) as raw, subject(bench, raw) as log, AsyncExitStack() as stack:
        callers = batch_callers(log, KIB)
        competitors = Competitors(bench, stack)
        await competitors.add_embedded([caller.payloads for caller in callers])
        ours = await competitors.run(lambda: log.round(callers, bench.scale.seconds / 2))
    return _report(competitors, f"{BATCH_CALLERS} callers, {BATCH_RECORDS:,} × 1 KiB", ours)


def _callers(front: Plain | GroupCommit, parts: Sequence[Sequence[bytes]]) -> list[Caller]:
    return [
        Caller(partial(front.append, part[0]) if len(part) == 1 else partial(front.append_many, part), part)
        for part in parts
    ]


def _read_all(store: EmbeddedStore) -> list[bytes]:
    return list(store.read())


async def _in_thread(thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)


def _best_grouped(competitors: Sequence[Competitor], ours: Sequence[Round]) -> tuple[str, float]:
    """Return the grouped peer that comes closest, and how many times its rate ours is."""
    leads = [
        (median_ratio([one.rate for one in ours], competitor.rates), competitor.name)
        for competitor in competitors
        if competitor.name.endswith(GROUPED) and not competitor.name.startswith(BARE_FILE)
    ]
    lead, name = min(leads)
    return name, lead


def _report(competitors: Competitors, what: str, ours: Sequence[Round]) -> list[Row]:
    first = Row(
        "peers",
        f"mrecordlog, {what}",
        rate_of(ours),
        "records/s",
        raw=raw_rate_of(ours),
        ratio=ratio_of(ours),
        latency=latencies_of(ours),
        cpu_microseconds=cpu_microseconds_of(ours),
    )
    rows = [first, *(_row(competitor, what, ours) for competitor in competitors.opened)]
    return rows + [Row("peers", f"{name}, {what}", skipped=reason) for name, reason in competitors.skipped]


def _row(competitor: Competitor, what: str, ours: Sequence[Round]) -> Row:
    lead = median_ratio([one.rate for one in ours], competitor.rates)
    records = len(competitor.callers[0].payloads)
    return Row(
        "peers",
        f"{competitor.name}, {what}",
        median(competitor.rates),
        "records/s",
        latency=Latencies.of([seconds for one in competitor.measurements for seconds in one.latencies]),
        cpu_microseconds=median(one.cpu_seconds * 1e6 / (one.calls * records) for one in competitor.measurements),
        note=f"mrecordlog in the same rounds: {lead:.1f} ×; read back {competitor.read_rate / 1e6:.2f} M records/s",
    )

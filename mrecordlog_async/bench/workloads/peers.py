"""This log beside other stores: the same callers, the same bytes, every answer durable, all in the same rounds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TypeVar

from mrecordlog_async.bench.drive import Stretch, drive, payloads
from mrecordlog_async.bench.latency import Latencies
from mrecordlog_async.bench.peers.embedded import BARE_FILE, EMBEDDED
from mrecordlog_async.bench.peers.group_commit import GroupCommit, Plain
from mrecordlog_async.bench.peers.nats import NatsStore
from mrecordlog_async.bench.peers.peer import EmbeddedStore, MissingPeerError, ServerStore
from mrecordlog_async.bench.peers.redis import RedisStore
from mrecordlog_async.bench.results import Row, at_least, median_ratio
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
from mrecordlog_async.bench.workloads.appends import BATCH_CALLERS, BATCH_RECORDS, RECORD_BYTES, batch_callers
from mrecordlog_async.options import KIB

T = TypeVar("T")
Front = Callable[[EmbeddedStore, ThreadPoolExecutor], Plain | GroupCommit]

GROUPED = "group commit by hand"
FRONTS: tuple[tuple[str, Front], ...] = (("plain", Plain), (GROUPED, GroupCommit))
SERVERS: tuple[tuple[str, Callable[[str], Awaitable[ServerStore]]], ...] = (
    ("Redis Streams, appendfsync always", RedisStore.start),
    ("NATS JetStream, sync_interval always", NatsStore.start),
)


@dataclass(slots=True)
class Rival:
    """A peer at the start: its callers, how to read it back, and what was measured."""

    name: str
    callers: list[Caller]
    read: Callable[[], Awaitable[Iterable[bytes]]]
    stretches: list[Stretch] = field(default_factory=list)
    stored: Counter[bytes] = field(default_factory=Counter)
    read_rate: float = 0.0

    @property
    def rates(self) -> list[float]:
        """Records a second, by round."""
        return [stretch.rate * len(self.callers[0].payloads) for stretch in self.stretches]

    async def stretch(self, seconds: float) -> None:
        """Let its callers run."""
        stretch = await drive([caller.append for caller in self.callers], seconds)
        for caller, calls in zip(self.callers, stretch.acknowledged, strict=True):
            for payload in caller.payloads:
                self.stored[payload] += calls
        self.stretches.append(stretch)

    async def compare(self) -> None:
        """Read everything back, and raise unless it is what was acknowledged."""
        begun = time.perf_counter()
        found = await self.read()
        self.read_rate = self.stored.total() / (time.perf_counter() - begun)
        check_read_back(self.name, self.stored, Counter(found))


class Lineup:
    """Who takes part: opened one by one, closed with *stack*; who is not installed is skipped by name."""

    def __init__(self, bench: Bench, stack: AsyncExitStack) -> None:
        self.rivals: list[Rival] = []
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
                self.rivals.append(Rival(name, _callers(front(store, thread), parts), read))

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
            self.rivals.append(Rival(name, callers, store.read))

    async def run(self, ours: Callable[[], Awaitable[Round]]) -> list[Round]:
        """Let everybody run in turn, round by round; read the peers back at the end."""
        scale, rounds = self._bench.scale, []
        for number in range(scale.rounds):
            self._bench.say(f"round {number + 1} of {scale.rounds}: mrecordlog")
            rounds.append(await ours())
            for rival in self.rivals:
                self._bench.say(f"round {number + 1} of {scale.rounds}: {rival.name}")
                await rival.stretch(scale.seconds)
        for rival in self.rivals:
            await rival.compare()
        return rounds


async def singles(bench: Bench) -> list[Row]:
    """1,000 callers, 100 B: every peer plain, with a group commit, and the servers."""
    count = bench.scale.compared_callers
    texts = payloads(count, RECORD_BYTES)
    async with raw_disk(bench) as raw, subject(bench, raw) as log, AsyncExitStack() as stack:
        lineup = Lineup(bench, stack)
        await lineup.add_embedded([(text,) for text in texts])
        await lineup.add_servers(texts)
        callers = log.one_by_one(texts)
        ours = await lineup.run(lambda: log.round(callers, bench.scale.seconds))
    rows = _report(lineup, f"{count:,} callers, 100 B", ours)
    best, lead = _best_grouped(lineup.rivals, ours)
    check = at_least(
        f"{count:,} callers, 100 B: ≥ 2 × the best of SQLite, LMDB, RocksDB with a group commit by hand",
        lead,
        2.0,
        f"{lead:.1f} × {best}",
    )
    return [replace(rows[0], checks=(check,)), *rows[1:]]


async def batches(bench: Bench) -> list[Row]:
    """Four callers with batches of 1,000 × 1 KiB, which the embedded stores take as one transaction."""
    async with raw_disk(bench) as raw, subject(bench, raw) as log, AsyncExitStack() as stack:
        callers = batch_callers(log, KIB)
        lineup = Lineup(bench, stack)
        await lineup.add_embedded([caller.payloads for caller in callers])
        ours = await lineup.run(lambda: log.round(callers, bench.scale.seconds / 2))
    return _report(lineup, f"{BATCH_CALLERS} callers, {BATCH_RECORDS:,} × 1 KiB", ours)


def _callers(front: Plain | GroupCommit, parts: Sequence[Sequence[bytes]]) -> list[Caller]:
    return [
        Caller(partial(front.append, part[0]) if len(part) == 1 else partial(front.append_many, part), part)
        for part in parts
    ]


def _read_all(store: EmbeddedStore) -> list[bytes]:
    return list(store.read())


async def _in_thread(thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(thread, work)


def _best_grouped(rivals: Sequence[Rival], ours: Sequence[Round]) -> tuple[str, float]:
    """Return the grouped peer that comes closest, and how many times its rate ours is."""
    leads = [
        (median_ratio([one.rate for one in ours], rival.rates), rival.name)
        for rival in rivals
        if rival.name.endswith(GROUPED) and not rival.name.startswith(BARE_FILE)
    ]
    lead, name = min(leads)
    return name, lead


def _report(lineup: Lineup, what: str, ours: Sequence[Round]) -> list[Row]:
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
    rows = [first, *(_row(rival, what, ours) for rival in lineup.rivals)]
    return rows + [Row("peers", f"{name}, {what}", skipped=reason) for name, reason in lineup.skipped]


def _row(rival: Rival, what: str, ours: Sequence[Round]) -> Row:
    lead = median_ratio([one.rate for one in ours], rival.rates)
    records = len(rival.callers[0].payloads)
    return Row(
        "peers",
        f"{rival.name}, {what}",
        median(rival.rates),
        "records/s",
        latency=Latencies.of([seconds for stretch in rival.stretches for seconds in stretch.latencies]),
        cpu_microseconds=median(stretch.cpu_seconds * 1e6 / (stretch.calls * records) for stretch in rival.stretches),
        note=f"mrecordlog in the same rounds: {lead:.1f} ×; read back {rival.read_rate / 1e6:.2f} M records/s",
    )

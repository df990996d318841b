"""Who can take part in a row: this log, and the stores that it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from mrecordlog_async import Limits, MultiRecordLog, ReadOnlyLog
from tests.benchmarks.log_api import LogApi
from tests.benchmarks.peers.bare_file import BareFile
from tests.benchmarks.peers.embedded import EMBEDDED
from tests.benchmarks.peers.group_commit import NAMES, GroupCommit
from tests.benchmarks.peers.nats import NatsStore
from tests.benchmarks.peers.peer import EmbeddedStore
from tests.benchmarks.peers.postgres import PostgresStore
from tests.benchmarks.peers.redis import RedisStore

LIMITS = Limits(memory_bytes=16 * 1024**3, disk_bytes=64 * 1024**3)
THIS_LOG = "this log"
BARE_FILE = "a bare file"
"""Not a peer but the ceiling: see `bare_file`."""


class Written(NamedTuple):
    """Batches and their bytes since the log was opened; zeros where they are not counted."""

    commits: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Contender:
    """One of those that take part.

    Attributes:
        open: opens the directory, which is created if needed; every acknowledged call is durable.
        close: closes the log.
        close_and_read: closes the log and returns the payloads of the given queues, from its files where that can be.
        written: counts what an open log wrote.
    """

    open: Callable[[str], Awaitable[LogApi]]
    close: Callable[[LogApi], Awaitable[None]]
    close_and_read: Callable[[LogApi, str, Iterable[str]], Awaitable[Counter[bytes]]]
    written: Callable[[LogApi], Written] = lambda log: Written(0, 0)


def _log() -> Contender:
    async def open_log(directory: str) -> LogApi:
        return await MultiRecordLog.open(directory, limits=LIMITS)

    async def close(log: LogApi) -> None:
        assert isinstance(log, MultiRecordLog)
        await log.close()

    async def close_and_read(log: LogApi, directory: str, queues: Iterable[str]) -> Counter[bytes]:
        await close(log)
        with ReadOnlyLog.open(directory) as reader:
            return Counter(payload for queue in queues for _, payload in reader.range(queue))

    def written(log: LogApi) -> Written:
        assert isinstance(log, MultiRecordLog)
        counters = log.stats()
        return Written(counters.commits, counters.written_bytes)

    return Contender(open_log, close, close_and_read, written)


def _embedded(make: Callable[[str], EmbeddedStore]) -> Contender:
    async def open_store(directory: str) -> LogApi:
        return GroupCommit(make(directory))

    async def close(log: LogApi) -> None:
        assert isinstance(log, GroupCommit)
        await log.close()

    async def close_and_read(log: LogApi, directory: str, queues: Iterable[str]) -> Counter[bytes]:
        await close(log)
        store, wanted = make(directory), {queue.encode() for queue in queues}
        try:
            numbers = [number for number, name in store.read(NAMES) if name in wanted]
            return Counter(payload for number in numbers for _, payload in store.read(number))
        finally:
            store.close()

    return Contender(open_store, close, close_and_read)


def _postgres() -> Contender:
    stores: list[PostgresStore] = []

    async def open_store(directory: str) -> LogApi:
        stores.append(await PostgresStore.start(directory))
        return GroupCommit(stores[-1])

    async def close(log: LogApi) -> None:
        assert isinstance(log, GroupCommit)
        await log.close()

    async def close_and_read(log: LogApi, directory: str, queues: Iterable[str]) -> Counter[bytes]:
        try:
            return Counter(await stores[-1].read_all(NAMES, queues))
        finally:
            await close(log)

    return Contender(open_store, close, close_and_read)


def _bare_file() -> Contender:
    async def open_file(directory: str) -> LogApi:
        return BareFile(directory)

    async def close(log: LogApi) -> None:
        assert isinstance(log, BareFile)
        await log.close()

    async def close_and_read(log: LogApi, directory: str, queues: Iterable[str]) -> Counter[bytes]:
        found = Counter(payload for _, payload in log.range(""))
        await close(log)
        return found

    return Contender(open_file, close, close_and_read)


def _server(start: Callable[[str], Awaitable[RedisStore | NatsStore]]) -> Contender:
    async def close(log: LogApi) -> None:
        assert isinstance(log, RedisStore | NatsStore)
        await log.close()

    async def close_and_read(log: LogApi, directory: str, queues: Iterable[str]) -> Counter[bytes]:
        assert isinstance(log, RedisStore | NatsStore)
        try:
            return Counter(await log.read(queues))
        finally:
            await log.close()

    return Contender(start, close, close_and_read)


CONTENDERS: dict[str, Callable[[], Contender]] = {
    THIS_LOG: _log,
    **{name: partial(_embedded, make) for name, make in EMBEDDED.items()},
    "Redis": partial(_server, RedisStore.start),
    "NATS": partial(_server, NatsStore.start),
    "PostgreSQL": _postgres,
    BARE_FILE: _bare_file,
}
"""By name."""

PEERS = [name for name in CONTENDERS if name != THIS_LOG]
FAIR_PEERS = list(EMBEDDED)
"""Those in this process that give what this log gives."""

"""Appends that are durable when they return: this log, LMDB, RocksDB, PostgreSQL, and a file.

The stores get what a good programmer writes on top of them: what callers append while a transaction is synced goes into
the next one. The file has no names and no positions, and nothing that a reader could find records with: it is the
ceiling for anything that coroutines wait for.
"""

from __future__ import annotations

import asyncio
import glob
import importlib
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from tests.benchmarks.core import appends, drive
from tests.benchmarks.turns import LOG, Case, Figures, MissingError, Round

Item = tuple[int, int, bytes]
"""Queue, position, payload."""
Store = Callable[[Sequence[Item]], object]
"""Stores the items in one transaction; they are durable when it returns."""

KEY = struct.Struct(">IQ")
QUEUES = 100
POSTGRES = "/usr/lib/postgresql/*/bin"


class GroupCommit:
    """Stores what callers append while a transaction is synced with the next transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1)
        self._next = [0] * QUEUES
        self._items: list[Item] = []
        self._waiting: list[tuple[asyncio.Future[int], int]] = []
        self._working: asyncio.Task[None] | None = None

    async def append(self, queue: int, payload: bytes) -> int:
        """Store one record; return its position once it is durable."""
        position = self._next[queue]
        self._next[queue] = position + 1
        self._items.append((queue, position, payload))
        future: asyncio.Future[int] = self._loop.create_future()
        self._waiting.append((future, position))
        if self._working is None:
            self._working = self._loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._items:
            items, self._items = self._items, []
            waiting, self._waiting = self._waiting, []
            if iscoroutinefunction(self._store):
                await self._store(items)
            else:
                await self._loop.run_in_executor(self._thread, self._store, items)
            for future, position in waiting:
                future.set_result(position)
        self._working = None


def lmdb(directory: Path) -> Store:
    """Open LMDB with its default sync."""
    module = _import("lmdb")
    environment = module.open(str(directory), map_size=64 << 30)

    def store(items: Sequence[Item]) -> None:
        pairs = sorted((KEY.pack(queue, position), payload) for queue, position, payload in items)
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs)

    return store


def rocksdb(directory: Path) -> Store:
    """Open RocksDB with synced write batches."""
    module = _import("rocksdict")
    database = module.Rdict(str(directory), module.Options(raw_mode=True))
    options = module.WriteOptions()
    options.sync = True

    def store(items: Sequence[Item]) -> None:
        batch = module.WriteBatch(raw_mode=True)
        for queue, position, payload in items:
            batch.put(KEY.pack(queue, position), payload)
        database.write(batch, options)

    return store


def file(directory: Path) -> Store:
    """Open a file."""
    handle = os.open(directory, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def store(items: Sequence[Item]) -> None:
        os.write(handle, b"".join(payload for _, _, payload in items))
        os.fdatasync(handle)

    return store


def grouped(open_store: Callable[[Path], Store], callers: int, size: int) -> Case:
    """Return a case of *callers* tasks that append to a store."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        yield _rounds(open_store(directory), callers, size)

    return prepare


def postgres(callers: int, size: int) -> Case:
    """Return the case for PostgreSQL with its defaults, which sync each commit."""

    @asynccontextmanager
    async def prepare(directory: Path) -> AsyncIterator[Round]:
        asyncpg = _import("asyncpg")
        directory.mkdir()
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        if user:
            shutil.chown(directory, user)
            for parent in directory.parents[:2]:
                parent.chmod(0o711)
        start = partial(subprocess.run, user=user, check=True, stdout=subprocess.DEVNULL, cwd="/")
        data = str(directory / "data")
        start([_program("initdb"), "--pgdata", data, "--auth", "trust", "--username", "postgres"])
        port = _free_port()
        words = f"-p {port} -h 127.0.0.1 -c unix_socket_directories="
        control = [_program("pg_ctl"), "--pgdata", data, "--log", f"{data}/log", "--options", words, "--wait"]
        start([*control, "start"])
        try:
            connection = await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", database="postgres")
            columns = "queue int, position bigint, payload bytea NOT NULL, PRIMARY KEY (queue, position)"
            await connection.execute(f"CREATE TABLE log ({columns})")

            async def store(items: Sequence[Item]) -> None:
                insert = "INSERT INTO log SELECT * FROM unnest($1::int[], $2::bigint[], $3::bytea[])"
                await connection.execute(insert, *zip(*items, strict=True))

            yield _rounds(store, callers, size)
            await connection.close()
        finally:
            start([*control, "stop"])

    return prepare


def _rounds(store: Store, callers: int, size: int) -> Round:
    log, payload = GroupCommit(store), os.urandom(size)
    calls = [partial(log.append, number % QUEUES, payload) for number in range(callers)]

    async def measure(seconds: float) -> Figures:
        return await drive(calls, 1, seconds)

    return measure


def _program(name: str) -> str:
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"{POSTGRES}/{name}"), reverse=True)), None)
    if found is None:
        raise MissingError(f"{name} is neither on PATH nor in {POSTGRES}")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingError(f"pip install -e '.[benchmarks]' ({module} is missing)") from None


def contenders(callers: int, size: int) -> dict[str, Case]:
    """Return all of them."""
    return {
        LOG: appends(callers, size, queues=QUEUES),
        "LMDB": grouped(lmdb, callers, size),
        "RocksDB": grouped(rocksdb, callers, size),
        "PostgreSQL": postgres(callers, size),
        "a file": grouped(file, callers, size),
    }


CASES: dict[str, dict[str, Case]] = {
    **{f"{callers:,} callers, 100 B": contenders(callers, 100) for callers in (1, 10, 100, 1_000)},
    "16 callers, 16 KiB": contenders(16, 16 << 10),
    "16 callers, 1 MiB": contenders(16, 1 << 20),
}

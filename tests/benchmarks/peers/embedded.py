"""SQLite, LMDB and RocksDB as logs: the key of a record is its queue and its position, every transaction is synced."""

from __future__ import annotations

import importlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

from tests.benchmarks.peers.peer import EmbeddedStore, Item, MissingPeerError

MAP_BYTES = 64 * 1024**3
KEY = Struct(">IQ")
"""The number of a queue and a position, in the order of their bytes."""
POSITION_MAX = 2**64 - 1


class SqliteStore:
    """SQLite in WAL mode with synchronous=FULL: the WAL is synced at every commit."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, "log.sqlite")
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        mode = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        assert mode == "wal"
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS log (queue INTEGER, position INTEGER, payload BLOB NOT NULL, "
            "PRIMARY KEY (queue, position)) WITHOUT ROWID"
        )

    def store(self, items: Sequence[Item]) -> None:
        """See `EmbeddedStore`."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO log VALUES (?, ?, ?)", items)
        self._connection.execute("COMMIT")

    def truncate(self, queue: int, position: int) -> None:
        """See `EmbeddedStore`."""
        self._connection.execute("DELETE FROM log WHERE queue = ? AND position <= ?", (queue, position))

    def read(self, queue: int) -> Iterator[tuple[int, bytes]]:
        """See `EmbeddedStore`."""
        yield from self._connection.execute(
            "SELECT position, payload FROM log WHERE queue = ? ORDER BY position", (queue,)
        )

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._connection.close()


class LmdbStore:
    """LMDB with its default sync: a commit is on the medium when it returns."""

    def __init__(self, directory: str) -> None:
        lmdb = _import("lmdb")
        os.makedirs(directory, exist_ok=True)
        self._environment = lmdb.open(directory, map_size=MAP_BYTES, sync=True, metasync=True)
        self._last = b""  # the highest key; LMDB stores keys above it without a search

    def store(self, items: Sequence[Item]) -> None:
        """See `EmbeddedStore`."""
        pack = KEY.pack
        pairs = [(pack(queue, position), payload) for queue, position, payload in items]
        pairs.sort(key=_first)  # neighbors go to the same page; nearly free where they are in order already
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs, append=pairs[0][0] > self._last)
        self._last = max(self._last, pairs[-1][0])

    def truncate(self, queue: int, position: int) -> None:
        """See `EmbeddedStore`."""
        end = KEY.pack(queue, position)
        with self._environment.begin(write=True) as transaction:
            cursor = transaction.cursor()
            found = cursor.set_range(KEY.pack(queue, 0))
            while found and cursor.key() <= end:
                found = cursor.delete()

    def read(self, queue: int) -> Iterator[tuple[int, bytes]]:
        """See `EmbeddedStore`."""
        end = KEY.pack(queue, POSITION_MAX)
        with self._environment.begin() as transaction:
            cursor = transaction.cursor()
            if cursor.set_range(KEY.pack(queue, 0)):
                for key, payload in cursor.iternext():
                    if key > end:
                        return
                    yield KEY.unpack(key)[1], payload

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._environment.close()


class RocksStore:
    """RocksDB through rocksdict: write batches with sync, so its log is synced before it returns."""

    def __init__(self, directory: str) -> None:
        self._module = _import("rocksdict")
        self._database = self._module.Rdict(directory, self._module.Options(raw_mode=True))
        self._options = self._module.WriteOptions()
        self._options.sync = True

    def store(self, items: Sequence[Item]) -> None:
        """See `EmbeddedStore`."""
        batch = self._module.WriteBatch(raw_mode=True)
        put, pack = batch.put, KEY.pack
        for queue, position, payload in items:
            put(pack(queue, position), payload)
        self._database.write(batch, self._options)

    def truncate(self, queue: int, position: int) -> None:
        """See `EmbeddedStore`."""
        batch = self._module.WriteBatch(raw_mode=True)
        batch.delete_range(KEY.pack(queue, 0), KEY.pack(queue, position + 1))
        self._database.write(batch, self._options)

    def read(self, queue: int) -> Iterator[tuple[int, bytes]]:
        """See `EmbeddedStore`."""
        end = KEY.pack(queue, POSITION_MAX)
        for key, payload in self._database.items(from_key=KEY.pack(queue, 0)):
            if key > end:
                return
            yield KEY.unpack(key)[1], payload

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._database.close()


EMBEDDED: dict[str, type[EmbeddedStore]] = {"SQLite": SqliteStore, "LMDB": LmdbStore, "RocksDB": RocksStore}
"""By name. Creating one raises MissingPeerError where it is not installed."""


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPeerError(f"pip install {module}") from None


def _first(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0]

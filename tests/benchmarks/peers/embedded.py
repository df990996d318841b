"""SQLite, LMDB and RocksDB as append-only logs: ascending keys, every commit synced. And a bare file, as the floor."""

from __future__ import annotations

import importlib
import os
import sqlite3
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from mrecordlog_async.options import GIB
from mrecordlog_async.storage.filesystem import OsFileSystem, write_all
from tests.benchmarks.peers.peer import EmbeddedStore, MissingPeerError


class SqliteStore:
    """SQLite in WAL mode with synchronous=FULL: the WAL is synced at every commit."""

    def __init__(self, directory: str) -> None:
        os.mkdir(directory)
        self._connection = sqlite3.connect(
            os.path.join(directory, "log.sqlite"), isolation_level=None, check_same_thread=False
        )
        mode = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        assert mode == "wal"
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, payload BLOB NOT NULL)")

    def store(self, payloads: Sequence[bytes]) -> None:
        """See `EmbeddedStore`."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO log (payload) VALUES (?)", ((payload,) for payload in payloads))
        connection.execute("COMMIT")

    def read(self) -> Iterator[bytes]:
        """See `EmbeddedStore`."""
        for (payload,) in self._connection.execute("SELECT payload FROM log ORDER BY position"):
            yield payload

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._connection.close()


class LmdbStore:
    """LMDB with its default sync: a commit is on the medium when it returns."""

    def __init__(self, directory: str) -> None:
        lmdb = _import("lmdb", "lmdb")
        os.mkdir(directory)
        self._environment = lmdb.open(directory, map_size=64 * GIB, sync=True, metasync=True)
        self._keys = count()

    def store(self, payloads: Sequence[bytes]) -> None:
        """See `EmbeddedStore`."""
        keys = (position.to_bytes(8) for position in self._keys)
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(_pairs(keys, payloads), append=True)

    def read(self) -> Iterator[bytes]:
        """See `EmbeddedStore`."""
        with self._environment.begin() as transaction:
            yield from transaction.cursor().iternext(keys=False)

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._environment.close()


class RocksStore:
    """RocksDB through rocksdict: write batches with sync, so its log is synced before it answers."""

    def __init__(self, directory: str) -> None:
        self._module = _import("rocksdict", "rocksdict")
        self._database = self._module.Rdict(directory, self._module.Options(raw_mode=True))
        self._options = self._module.WriteOptions()
        self._options.sync = True
        self._keys = count()

    def store(self, payloads: Sequence[bytes]) -> None:
        """See `EmbeddedStore`."""
        batch = self._module.WriteBatch(raw_mode=True)
        put = batch.put
        for payload, position in zip(payloads, self._keys, strict=False):
            put(position.to_bytes(8), payload)
        self._database.write(batch, self._options)

    def read(self) -> Iterator[bytes]:
        """See `EmbeddedStore`."""
        yield from self._database.values()

    def close(self) -> None:
        """See `EmbeddedStore`."""
        self._database.close()


class BareFile:
    """No store at all: payloads joined, written and synced. What is left is the price of coroutines that wait."""

    def __init__(self, directory: str) -> None:
        os.mkdir(directory)
        self._path = os.path.join(directory, "file")
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self._end = 0
        self._lengths = array("I")

    def store(self, payloads: Sequence[bytes]) -> None:
        """See `EmbeddedStore`."""
        joined = b"".join(payloads)
        write_all(OsFileSystem(), self._handle, [joined], self._end)
        OsFileSystem().sync(self._handle)
        self._end += len(joined)
        self._lengths.extend(map(len, payloads))

    def read(self) -> Iterator[bytes]:
        """See `EmbeddedStore`."""
        with open(self._path, "rb") as file:
            yield from map(file.read, self._lengths)

    def close(self) -> None:
        """See `EmbeddedStore`."""
        os.close(self._handle)


BARE_FILE = "a bare file"
EMBEDDED: tuple[tuple[str, Callable[[str], EmbeddedStore]], ...] = (
    ("SQLite", SqliteStore),
    ("LMDB", LmdbStore),
    ("RocksDB", RocksStore),
    (BARE_FILE, BareFile),
)
"""Name and maker; a maker raises MissingPeerError where the peer is not installed."""


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingPeerError(f"pip install {package}") from None


def _pairs(keys: Iterable[bytes], payloads: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    # payloads first: zip stops at their end without having drawn one more key
    return [(key, payload) for payload, key in zip(payloads, keys, strict=False)]

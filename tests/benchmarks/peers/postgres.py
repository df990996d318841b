"""PostgreSQL through asyncpg, as an application uses it for a log: one table, one row per record, durable commits.

Its settings for durability are the defaults (fsync, synchronous_commit and full_page_writes are on). Callers have
the same group commit as those of the embedded stores: the rows that gather while a transaction commits are
inserted by one statement. A single caller has a transaction for each of its rows.
"""

from __future__ import annotations

import asyncio
import glob
import importlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.benchmarks.peers.peer import Item, MissingPeerError
from tests.benchmarks.peers.server import START_SECONDS, Server, find_program, free_port

USER = "postgres"
"""The server refuses to run as root; a bench that root runs starts it as this user."""
DEBIAN = "/usr/lib/postgresql/*/bin"
TABLE = "CREATE TABLE log (queue int, position bigint, payload bytea NOT NULL, PRIMARY KEY (queue, position))"
INSERT = "INSERT INTO log SELECT * FROM unnest($1::int[], $2::bigint[], $3::bytea[])"


class PostgresStore:
    """A server in its own directory, and a connection to it. Its calls are coroutines (see `GroupCommit`)."""

    def __init__(self, server: Server, connection: Any) -> None:
        self._server = server
        self._connection = connection

    @classmethod
    async def start(cls, directory: str) -> PostgresStore:
        """Create a cluster in *directory* and start it; MissingPeerError where it is not installed."""
        try:
            asyncpg = importlib.import_module("asyncpg")
        except ImportError:
            raise MissingPeerError("pip install asyncpg") from None
        initdb, postgres, port = _program("initdb"), _program("postgres"), free_port()
        user = _user()
        data = os.path.join(directory, "data")
        os.mkdir(directory)
        if user is not None:
            shutil.chown(directory, user)
            _check_reachable(directory, user)
        made = [initdb, "--pgdata", data, "--auth", "trust", "--username", USER, "--encoding", "UTF8"]
        subprocess.run(made, user=user, check=True, capture_output=True, cwd=directory)
        command = [postgres, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-c", "unix_socket_directories="]
        server = Server(command, port, os.path.join(directory, "output"), user)
        try:
            await server.wait()
            connection = await _connect(asyncpg, port)
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                assert await connection.fetchval(f"SHOW {setting}") == "on", f"{setting} is off"
            await connection.execute(TABLE)
        except BaseException:
            await server.stop()
            raise
        return cls(server, connection)

    async def store(self, items: Sequence[Item]) -> None:
        """Insert *items* in one transaction; return when it would survive a power cut."""
        queues, positions, payloads = zip(*items, strict=True)
        await self._connection.execute(INSERT, queues, positions, payloads)

    async def truncate(self, queue: int, position: int) -> None:
        """Delete the records of *queue* up to and including *position*."""
        await self._connection.execute("DELETE FROM log WHERE queue = $1 AND position <= $2", queue, position)

    async def read_all(self, names: int, queues: Iterable[str]) -> list[bytes]:
        """Return the payloads of *queues*, whose names are the records of queue *names*."""
        rows = await self._connection.fetch(
            "SELECT log.payload FROM log JOIN log AS named ON named.queue = $1 AND named.position = log.queue "
            "WHERE named.payload = ANY($2::bytea[]) ORDER BY log.queue, log.position",
            names,
            [queue.encode() for queue in queues],
        )
        return [row[0] for row in rows]

    def read(self, queue: int) -> Iterator[tuple[int, bytes]]:
        """Not offered: a server is read over its connection."""
        raise NotImplementedError("PostgreSQL is read over its connection")

    async def close(self) -> None:
        """Stop the server."""
        await self._connection.close()
        await self._server.stop()


async def _connect(asyncpg: Any, port: int) -> Any:
    """Connect as soon as the server permits it: its port is open before."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            return await asyncpg.connect(host="127.0.0.1", port=port, user=USER, database="postgres")
        except asyncpg.CannotConnectNowError:
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(0.02)


def _program(name: str) -> str:
    """Return the path of *name*; Debian keeps the server's programs off PATH."""
    try:
        return find_program(name)
    except MissingPeerError:
        for directory in sorted(glob.glob(DEBIAN), reverse=True):
            if os.access(os.path.join(directory, name), os.X_OK):
                return os.path.join(directory, name)
        raise MissingPeerError(f"no {name} on PATH or in {DEBIAN}") from None


def _user() -> str | None:
    """Return the user that runs the server, or None for this one."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(USER).pw_name
    except KeyError:
        raise MissingPeerError(f"root cannot run the server, and there is no user {USER}") from None


def _check_reachable(directory: str, user: str) -> None:
    """Raise MissingPeerError if *user* cannot enter *directory*, below one that only root may enter."""
    entered = subprocess.run(["test", "-w", directory], user=user, cwd="/", check=False)
    if entered.returncode != 0:
        raise MissingPeerError(f"user {user} cannot write in {directory}: choose another --dir")

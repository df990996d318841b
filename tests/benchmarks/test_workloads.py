"""Every workload of the project once, with very few records, and every store that it compares with."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mrecordlog_async.bench.results import Row
from mrecordlog_async.bench.suite import Workload, run_workload
from tests.benchmarks.peers.embedded import EMBEDDED
from tests.benchmarks.peers.nats import NatsStore
from tests.benchmarks.peers.peer import MissingPeerError
from tests.benchmarks.peers.redis import RedisStore
from tests.benchmarks.scale import TINY
from tests.benchmarks.suite import WORKLOADS

AWKWARD = [b"", b"\r\n", b"a\r\nb$5\r\n", bytes(range(256)), b"x" * 70_000]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_workload_ends_with_complete_rows(workload: Workload, tmp_path: Path) -> None:
    """Each row has its figure or the reason for having none, and the directory is empty afterwards."""
    rows = run_workload(workload, TINY, str(tmp_path))
    assert rows
    assert all(_is_complete(row) for row in rows)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "make"), EMBEDDED, ids=[name for name, _ in EMBEDDED])
def test_embedded_peer_returns_what_it_stored_in_order(name: str, make: type, tmp_path: Path) -> None:
    """A store that drops or reorders records would be compared unfairly."""
    try:
        store = make(str(tmp_path / "peer"))
    except MissingPeerError as missing:
        pytest.skip(f"{name}: {missing}")
    store.store(AWKWARD)
    store.store([b"last"])
    assert list(store.read()) == [*AWKWARD, b"last"]
    store.close()


def test_redis_returns_what_it_stored(tmp_path: Path) -> None:
    """Payloads that look like the protocol are payloads."""

    async def run() -> list[bytes]:
        store = await RedisStore.start(str(tmp_path / "redis"))
        try:
            await asyncio.gather(*map(store.append, AWKWARD))
            return await store.read()
        finally:
            await store.close()

    assert _run_or_skip(run()) == AWKWARD


def test_nats_returns_what_it_stored(tmp_path: Path) -> None:
    """As for Redis, and every message is synced before it is acknowledged."""

    async def run() -> list[bytes]:
        store = await NatsStore.start(str(tmp_path / "nats"))
        try:
            await asyncio.gather(*map(store.append, AWKWARD))
            return await store.read()
        finally:
            await store.close()

    assert sorted(_run_or_skip(run())) == sorted(AWKWARD)


def _run_or_skip(running: object) -> list[bytes]:
    try:
        found: list[bytes] = asyncio.run(running)  # type: ignore[arg-type]  # one of the coroutines above
        return found
    except MissingPeerError as missing:
        pytest.skip(str(missing))


def _is_complete(row: Row) -> bool:
    if row.skipped:
        return not row.failed and not row.value
    return bool(row.what and row.unit) and (row.value > 0 or row.workload == "memory")

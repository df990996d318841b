"""Every workload once, with next to no records: rows are complete, and what was acknowledged is in the files.

The workloads compare by themselves what was acknowledged with what another reader finds; here they must also notice
when it is not the same.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mrecordlog_async.bench.peers.embedded import EMBEDDED
from mrecordlog_async.bench.peers.nats import NatsStore
from mrecordlog_async.bench.peers.peer import MissingPeerError
from mrecordlog_async.bench.peers.redis import RedisStore
from mrecordlog_async.bench.results import NotReadBackError, Row
from mrecordlog_async.bench.scale import TINY, Bench
from mrecordlog_async.bench.subject import check_read_back, raw_disk, subject
from mrecordlog_async.bench.suite import WORKLOADS, Workload, chosen, run_all, run_workload

AWKWARD = [b"", b"\r\n", b"a\r\nb$5\r\n", bytes(range(256)), b"x" * 70_000]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_workload_ends_with_complete_rows(workload: Workload, tmp_path: Path) -> None:
    """Each row has its figure or the reason why there is none, and nothing is left in the directory."""
    rows = run_workload(workload, TINY, str(tmp_path))
    assert rows
    assert all(_is_complete(row) for row in rows)
    assert os.listdir(tmp_path) == []


def test_collector_is_set_in_the_workload_s_own_process(tmp_path: Path) -> None:
    """What is measured with another threshold leaves this process as it is."""
    before = gc.get_threshold()
    (rows,) = run_all(chosen(["one-caller"]), replace(TINY, gc_threshold=50_000), str(tmp_path), lambda _: None)
    assert all(_is_complete(row) for row in rows)
    assert gc.get_threshold() == before


def test_workload_that_breaks_is_a_row_that_says_so(tmp_path: Path) -> None:
    """The others go on, and the directory is left as it was."""
    broken = Workload("broken", "cannot be found", "nowhere")
    (rows,) = run_all([broken], TINY, str(tmp_path), lambda _: None)
    assert [(row.failed, row.skipped) for row in rows] == [
        (True, "ModuleNotFoundError: No module named 'mrecordlog_async.bench.workloads.nowhere'")
    ]
    assert os.listdir(tmp_path) == []


def test_workloads_are_chosen_by_name_in_the_order_of_the_table() -> None:
    """An unknown name is refused with those that there are."""
    assert [workload.name for workload in chosen(["reads", "callers"])] == ["callers", "reads"]
    assert chosen(None) == list(WORKLOADS)
    with pytest.raises(ValueError, match="no workload is called raeds; there are batches"):
        chosen(["raeds"])


def test_record_that_is_missing_in_the_files_is_an_error(tmp_path: Path) -> None:
    """A row whose records are not all there is no number."""

    async def run() -> None:
        bench = Bench(str(tmp_path), TINY, lambda _: None)
        async with raw_disk(bench) as raw, subject(bench, raw) as log:
            await log.round(log.one_by_one([b"one", b"two"]), 0.01)
            log.stored[b"two"] += 1

    with pytest.raises(NotReadBackError):
        asyncio.run(run())


def test_record_that_is_another_one_is_an_error() -> None:
    """Counting alone would not see it."""
    with pytest.raises(NotReadBackError, match="2 records were acknowledged, 2 are there, 1 of them the right ones"):
        check_read_back("a store", Counter([b"a", b"b"]), Counter([b"a", b"c"]))


@pytest.mark.parametrize(("name", "make"), EMBEDDED, ids=[name for name, _ in EMBEDDED])
def test_embedded_peer_returns_what_it_stored_in_order(name: str, make: type, tmp_path: Path) -> None:
    """A peer that drops or mixes records would be compared unfairly."""
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
    """As for Redis; without the syncs, which only newer servers can do."""

    async def run() -> list[bytes]:
        store = await NatsStore.start(str(tmp_path / "nats"), sync=False)
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

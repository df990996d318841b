"""What the package offers to the tests of applications: itself in memory, and the faults of a real machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrecordlog_async import (
    Limits,
    LogClosedError,
    LogFailedError,
    LogState,
    MultiRecordLog,
    PersistPolicy,
    ReadOnlyLog,
)
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient
from mrecordlog_async.maintenance.snapshot import snapshot
from mrecordlog_async.options import MIB
from mrecordlog_async.testing import MemoryDisk, crash, memory_log, memory_service, serving
from tests.docs.blocks import TUTORIAL, blocks

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("seed", range(5))
async def test_what_was_acknowledged_survives_every_power_cut(seed: int) -> None:
    """Under the default policy, again and again; what was not acknowledged may be there or not."""
    async with memory_log(queues=["q"]) as log:
        for life in range(4):
            for _ in range(3):
                await log.append("q", b"%d" % life)
            unsure = asyncio.ensure_future(log.append("q", b"?"))
            await asyncio.sleep(0)
            log = await crash(log, seed + life)
            kept = [payload for _, payload in log.range("q") if payload != b"?"]
            assert kept == [b"%d" % earlier for earlier in range(life + 1) for _ in range(3)]
            await asyncio.wait([unsure])
            if unsure.exception() is None:
                assert log.range("q", unsure.result(), limit=1)
        assert log.state is LogState.OPEN


async def test_a_policy_that_does_not_sync_loses_records_in_a_power_cut() -> None:
    """The model would prove nothing if every crash kept everything."""
    left = set()
    for seed in range(20):
        async with memory_log(queues=["q"], persist_policy=PersistPolicy.never()) as log:
            await log.append("q", b"first")  # the first batch of an open log is synced
            for _ in range(5):
                await log.append("q", bytes(1_000))
            log = await crash(log, seed)
            assert log.persist_policy == PersistPolicy.never()
            left.add(log.queue_summary("q").records)
    assert min(left) < 6
    assert 6 in left


@pytest.mark.parametrize("policy", [PersistPolicy.always(), PersistPolicy.never()], ids=["always", "never"])
async def test_a_test_of_an_application_fails_for_some_seed_if_its_records_are_not_synced(
    policy: PersistPolicy,
) -> None:
    """And for no seed if they are: a run over a few seeds tells the two apart."""
    failed = []
    for seed in range(20):
        async with memory_log(queues=["orders"], persist_policy=policy) as log:
            await log.append("orders", b"first")  # the first batch of an open log is synced under every policy
            await log.append("orders", b"espresso")
            after = await crash(log, seed)
            if [payload for _, payload in after.range("orders")] != [b"first", b"espresso"]:
                failed.append(seed)
    assert bool(failed) == (policy == PersistPolicy.never())


async def test_a_write_that_was_not_synced_is_cut_at_the_borders_of_sectors() -> None:
    """What a seed leaves of it is whole sectors of the new bytes, and zeros or nothing in the place of the others."""
    seen = set()
    for seed in range(60):
        disk = MemoryDisk()
        handle = disk.create("/data/file")
        disk.sync_directory(disk.open_directory("/data"))
        disk.write(handle, [b"x" * 1_400], 100)
        disk.restart(seed)
        handle = disk.open("/data/file")
        left = disk.read(handle, 2_000, 0)
        sectors = left[100:512], left[512:1_024], left[1_024:]
        assert not left[:100].strip(b"\0")
        assert all(sector == b"x" * len(sector) or not sector.strip(b"\0") for sector in sectors)
        seen.add(tuple(b"x" in sector for sector in sectors))
    assert {(False, False, False), (True, True, True)} < seen


async def test_a_log_that_the_power_left_stores_nothing_more() -> None:
    """The application of before is dead: its calls must not look as if they had worked."""
    async with memory_log(queues=["q"]) as log:
        await crash(log)
        with pytest.raises(LogClosedError):
            await log.append("q", b"")


async def test_a_disk_that_is_told_to_fail_fails_the_log() -> None:
    """A failed sync ends it; after that it is opened again from what is there."""
    disk = MemoryDisk()
    async with memory_log(disk, queues=["q"]) as log:
        await log.append("q", b"kept")
        disk.fail("sync")
        with pytest.raises(LogFailedError):
            await log.append("q", b"lost")
        assert log.state is LogState.FAILED
        disk.heal()
        log = await crash(log)
        assert next(log.range("q")).payload == b"kept"


async def test_a_call_that_fails_once_does_not_fail_again() -> None:
    """A disk that refuses a write for a moment."""
    disk = MemoryDisk()
    handle = disk.create("/data/file")
    disk.fail("write", once=True)
    with pytest.raises(OSError, match="Input/output"):
        disk.write(handle, [b"x"], 0)
    assert disk.write(handle, [b"x"], 0) == 1
    assert disk.read(handle, 9, 0) == b"x"


async def test_the_disk_of_a_log_is_that_of_the_log_after_a_power_cut() -> None:
    """It has the same size, works again whatever failed before, and fails when it is told to."""
    disk = MemoryDisk(capacity_bytes=256 * MIB)
    async with memory_log(disk, queues=["q"]) as log:
        disk.fail("sync")
        with pytest.raises(LogFailedError):
            await log.append_record("q", None, b"lost")
        after = await crash(log)
        await after.append_record("q", None, b"stored")
        assert disk.capacity_bytes == 256 * MIB
        assert disk.list_names("/data/log")
        disk.fail("sync")
        with pytest.raises(LogFailedError):
            await after.append_record("q", None, b"lost")


async def test_the_disk_has_no_links_so_a_snapshot_copies() -> None:
    """A call that it does not support fails as one that the system does not support."""
    disk = MemoryDisk()
    async with memory_log(disk, queues=["q"]) as log:
        await log.append("q", b"x")
        made = await asyncio.to_thread(snapshot, "/data/log", "/data/copy", filesystem=disk)
        assert (made.linked_bytes, made.copied_bytes > 0) == (0, True)
        with await asyncio.to_thread(ReadOnlyLog.open, "/data/copy", filesystem=disk) as copy:
            assert next(copy.range("q")).payload == b"x"


def test_threads_of_a_log_change_the_disk_at_the_same_time() -> None:
    """Every name and every handle of several threads is there, each once."""
    disk = MemoryDisk()

    def create(thread: int) -> list[int]:
        return [disk.create(f"/data/{thread}-{number}") for number in range(500)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            handles = [handle for made in threads.map(create, range(4)) for handle in made]
    finally:
        sys.setswitchinterval(before)
    assert len(set(handles)) == 2_000
    assert len(disk.list_names("/data")) == 2_000


async def test_options_of_the_log_are_passed_on_and_kept() -> None:
    """A crash opens the log with the same limits."""
    async with memory_log(limits=Limits(queues=1)) as log:
        assert (await crash(log)).limits.queues == 1


async def test_a_log_on_a_real_disk_is_not_crashed(log: MultiRecordLog) -> None:
    """Its files have no model of what is durable."""
    with pytest.raises(ValueError, match="takes a log of memory_log"):
        await crash(log)


async def test_clients_reach_a_log_of_this_event_loop() -> None:
    """For tests that look at both ends."""
    async with memory_log(queues=["q"]) as log, serving(log) as url, RecordLogClient(url) as client:
        assert await client.append("q", b"x") == 0
        assert log.queue_summary("q").records == 1


def test_a_service_for_blocking_clients_runs_in_a_thread() -> None:
    """The test itself needs no event loop."""
    with memory_service(queues=["q"]) as url, BlockingRecordLogClient(url) as client:
        assert client.append("q", b"x") == 0
        assert [record.payload for record in client.range("q")] == [b"x"]


def test_a_service_that_cannot_start_raises_in_the_test() -> None:
    """And not in a thread that nobody looks at."""
    with pytest.raises(ValueError, match="segment_bytes"), memory_service(segment_bytes=1):
        raise AssertionError


USED = """
import pytest
from mrecordlog_async.client import BlockingRecordLogClient
from mrecordlog_async.testing import crash


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(3))
async def test_log(memory_log, memory_disk, seed):
    await memory_log.append("q", b"x", create=True)
    log = await crash(memory_log, seed)
    assert len(list(log.range("q"))) == 1
    assert memory_disk.list_names("/data/log")


def test_service(memory_service):
    with BlockingRecordLogClient(memory_service) as client:
        assert client.append("q", b"x", create=True) == 0
"""


def run_pytest(directory: Path, text: str, runner: str = "pytest_asyncio.plugin", before: str = "pass") -> str:
    """Run a file of tests in a separate process, with the plugin and that of *runner*; return what it printed."""
    (directory / "test_used.py").write_text(text)
    plugins = ["-p", runner, "-p", "mrecordlog_async.pytest_plugin"]
    program = f"import sys; {before}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *plugins, directory],
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
    )
    return done.stdout + done.stderr


def test_pytest_finds_the_fixtures(tmp_path: Path) -> None:
    """By the entry point, which is named here because an editable installation may be older than it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"mrecordlog": "mrecordlog_async.pytest_plugin"}
    assert "4 passed" in (printed := run_pytest(tmp_path, USED)), printed


def test_the_test_of_the_tutorial_passes(tmp_path: Path) -> None:
    """As it stands there."""
    (block,) = [block.text for block in blocks(TUTORIAL) if "memory_log" in block.text and block.language == "python"]
    assert "10 passed" in (printed := run_pytest(tmp_path, block)), printed


def test_anyio_runs_the_fixtures_where_pytest_asyncio_is_missing(tmp_path: Path) -> None:
    """FastAPI's own tests are written with it."""
    backend = "import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'\n"
    missing = "sys.modules['pytest_asyncio'] = None"
    text = backend + USED.replace("mark.asyncio", "mark.anyio")
    assert "4 passed" in (printed := run_pytest(tmp_path, text, "anyio.pytest_plugin", missing)), printed


def test_a_start_of_pytest_imports_no_log() -> None:
    """The plugin is loaded by every run of pytest in an environment with the package."""
    program = "import sys, mrecordlog_async.pytest_plugin; print('mrecordlog_async.log' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

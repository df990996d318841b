"""What all tests share: both event loops, a detector for calls that block one, logs of a few blocks, and services."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit import upkeep
from tests.served import Served, serving

# Every run tries the same examples, on machines of any speed. HYPOTHESIS_PROFILE=random pytest … looks for others.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.register_profile("random", deadline=None, suppress_health_check=_SLOW, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What images set and users do not. Hundreds of processes import the package: without bytecode each compiles it again,
# which is half of its start, 0.4 s. And without buffers nothing is left in them when a process ends.
for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)
sys.dont_write_bytecode = False  # nor does this one rewrite the assertions of all files in each run, which takes 5 s

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

BOTH_LOOPS = (
    "client/test_connections.py",
    "engine/test_letting_go.py",
    "engine/test_writer.py",
    "engine/test_tail.py",
    "engine/test_thread.py",
    "deep/faults/test_loop_end.py",
    "service/test_limits.py",
    "service/test_security.py",
    "service/test_server.py",
    "service/test_tls.py",
)
"""Files whose tests run on both loops each time: what they test uses the loop's own transports, timers or end."""


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Run an async test on the standard loop or on uvloop, always on the same one of them; on both where they differ.

    `--nightly` runs all of them on both.
    """
    factories = LOOPS
    marker = item.get_closest_marker("asyncio")
    chosen = marker is not None and "loop_factories" in marker.kwargs
    everywhere = config.getoption("--nightly") or item.path in map(Path(__file__).parent.joinpath, BOTH_LOOPS)
    if not chosen and not everywhere:
        name = sorted(LOOPS)[crc32(item.nodeid.encode()) % len(LOOPS)]
        factories = {name: LOOPS[name]}
    if config.getoption("--eager-tasks"):
        return {name: eager(factory) for name, factory in factories.items()}
    return factories


def eager(factory: LoopFactory) -> LoopFactory:
    """Return a factory of loops whose tasks run at once, up to their first wait, as Python 3.12 and later can."""

    def make() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.set_task_factory(eager_task)
        return loop

    return make


def eager_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Do what `asyncio.eager_task_factory` does: that of 3.13.0 refuses an option which uvloop passes."""
    options["eager_start"] = True
    return asyncio.Task(coroutine, loop=loop, **options)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer more cases, and eager tasks."""
    parser.addoption("--nightly", action="store_true", help="try all cases, and each async test on both event loops")
    parser.addoption("--eager-tasks", action="store_true", help="run tasks at once, up to their first wait")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start two processes more than there are processors, because tests wait for disks, timers and other processes.

    One named file runs in this process.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    one_file = len(config.args) == 1 and Path(config.args[0].partition("::")[0]).is_file()
    return 0 if one_file else len(os.sched_getaffinity(0)) + 2


def pytest_collection_finish() -> None:
    """Have later collections of garbage pass over modules and tests: reading those took a sixth of a run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail any test in which the package touches a file or sleeps on the event loop."""
    if request.node.get_closest_marker("asyncio") is None:
        yield
        return
    detector = BlockBuster("mrecordlog_async")
    detector.activate()
    try:
        yield
    finally:
        detector.deactivate()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make Ctrl-C and hangups work as in a terminal, here and in child processes: `nohup … &` ignores them."""
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGHUP, hangup)


@pytest.fixture(autouse=True)
def never_idle() -> Iterator[None]:
    """Let no log write the mark of an idle one, which a test would count as a batch of its own after a slow second.

    A test of the mark sets when it is due.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upkeep, "MARK_SECONDS", 3_600.0)
        yield


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Name a log directory that does not exist yet."""
    return tmp_path / "wal"


@pytest.fixture
async def log(directory: Path) -> AsyncIterator[MultiRecordLog]:
    """Open a log of four-block segments with one queue, "q"."""
    async with MultiRecordLog.open(directory, segment_bytes=4 * 32_768) as opened:
        await opened.create_queue("q")
        yield opened


@pytest.fixture
async def served(directory: Path) -> AsyncIterator[Served]:
    """Serve an empty log with one queue, "q"."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        yield served


def contents(log: Any) -> dict[str, tuple[int, int, list[tuple[int, bytes]]]]:
    """Return everything that a reader can see: the first and next position of each queue, and its records."""
    return {
        queue: (log.first_position(queue), log.next_position(queue), [tuple(record) for record in log.range(queue)])
        for queue in log.list_queues()
    }

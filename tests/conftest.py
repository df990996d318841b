"""What all tests share: both event loops, a detector for calls that block one, logs of a few blocks, and services."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.engine.commit import upkeep
from tests import quick_java
from tests.cpu import CpuTimes
from tests.faults.explore import TALLY, Tally
from tests.serving import Served, serving

# Every run tries the same examples, on machines of any speed. HYPOTHESIS_PROFILE=random pytest … looks for others.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.register_profile("random", deadline=None, suppress_health_check=_SLOW, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_java.OPTIONS)
# What images set and users do not. Hundreds of processes import the package: without bytecode each compiles it again,
# which is half of its start, 0.4 s. And without buffers nothing is left in them when a process ends.
for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)
sys.dont_write_bytecode = False  # nor does this one rewrite the assertions of all files in each run, which takes 5 s
SESSIONS = 20
"""A run with this many tests of a Spark session starts Java often enough to make the archive of `quick_java`."""
ARCHIVING = pytest.StashKey[subprocess.Popen[bytes]]()

LONG = (
    "docs/test_blocks.py",
    "engine/test_growth.py",
    "service/test_adversary.py",
    "test_typing.py",
    "benchmarks/test_workloads.py",
    "spark/test_drain.py",
    "spark/test_cluster.py",
    "spark/test_command.py",
    "spark/test_kill.py",
    "spark/test_examples.py",
    "spark/test_drain_delta.py",
    "spark/test_discovery.py",
    "spark/test_load.py",
    "spark/test_real_disks.py",
    "docs/test_tutorial.py",
    "examples/test_prometheus.py",
    "docs/test_site.py",
    "client/fleet/test_kills.py",
    "cli/test_tour.py",
    "cli/test_demo.py",
)
"""Files whose tests take tens of seconds. They come first: at the end, one process would run them while others wait.

Those of Spark come after more files than a run on two processors has processes, so that the archive of `quick_java` is
there: without it, a start of Spark and its first batch take 12 s of processor time more.
"""

APART = (
    "tests/faults/test_state_machine.py",
    "tests/faults/test_crash_states.py",
    "tests/faults/test_tiny_memory.py",
    "tests/faults/test_disk_faults.py",
    "tests/faults/test_seeded_bugs.py",
    "tests/faults/test_consumer_states.py",
    "tests/faults/test_tools.py",
)
"""Long files whose tests share no fixture: they are handed out test by test, and come last, to end all processes.

Those with the longest tests come first, because a process has up to three tests that no other one can take.
"""

HANGS_AFTER_SECONDS = 1_200
"""A test of these files hangs if it takes this long: some take over a minute, and a machine may be 8 times slower."""


LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

BOTH_LOOPS = (
    "client/test_transport.py",
    "engine/test_letting_go.py",
    "engine/test_small.py",
    "engine/test_tail.py",
    "engine/test_thread.py",
    "faults/test_loop_end.py",
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


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer eager tasks. Let the suite run without pytest-timeout; a test that hangs then runs forever."""
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run each async test on the standard loop and on uvloop, and all seeded bugs",
    )
    parser.addoption("--cpu", action="store_true", help="print the processor time of each test file and test")
    parser.addoption("--eager-tasks", action="store_true", help="run tasks at once, up to their first wait")
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds for one test")
        parser.addini("timeout_method", "how a test that hangs is ended")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while tests are collected: all that is made then is kept."""
    gc.disable()
    try:
        _import_share(session.config)
        return (yield)
    finally:
        gc.enable()


def _import_share(config: pytest.Config) -> None:
    """In each of several processes that run all tests, import a share of the test files first.

    The first import of a file rewrites its assertions, which takes as long as all other collecting, and keeps the
    result for later ones: so each file is rewritten by one process.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    here, count = Path(__file__).parent, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in sorted(here.rglob("test_*.py"))[int(worker.removeprefix("gw")) :: count]:
        with suppress(Exception, pytest.skip.Exception):  # of a file that cannot be collected: it is reported then
            import_module(".".join(path.relative_to(here.parent).with_suffix("").parts))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have later collections of garbage pass over modules and tests: reading those took a sixth of a run.

    Make the archive for Java in the background, in one process of the suite, if this run starts Java often.
    """
    gc.collect()
    gc.freeze()
    needed = sum("spark" in getattr(item, "fixturenames", ()) for item in session.items) >= SESSIONS
    if needed and os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0" and not session.config.option.collectonly:
        archiving = quick_java.begin()
        if archiving is not None:
            session.config.stash[ARCHIVING] = archiving


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what this process tried to the process that prints the summary, if the suite is spread over several."""
    archiving = session.config.stash.get(ARCHIVING, None)
    if archiving is not None and archiving.poll() is None:
        os.killpg(archiving.pid, signal.SIGKILL)
        archiving.wait()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = asdict(TALLY)


def pytest_configure(config: pytest.Config) -> None:
    """Keep pytest-xdist from sorting files by their number of tests: `pytest_collection_modifyitems` sorts better."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if config.getoption("--cpu"):
        config.pluginmanager.register(CpuTimes(), "cpu")
    _refuse_missing_paths(config)


def _refuse_missing_paths(config: pytest.Config) -> None:
    """End the run if a path that was named does not exist: with pytest-xdist it would end as if it had no tests."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS or config.option.pyargs:
        return
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise pytest.UsageError(f"no such file or directory: {', '.join(missing)}; CONTRIBUTING.md lists the tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out files as `tests.scheduling` says."""
    from tests.scheduling import Scheduling

    return Scheduling(config, log, APART) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Start two processes more than there are processors, because tests wait for disks, timers and other processes.

    With one more, two processors were busy for three quarters of a run; `--cpu` prints how long they were.
    """
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long files first, then those with many tests, last those whose tests are handed out one by one.

    Tests of long files may take longer.
    """
    here = Path(__file__).parent
    counts = Counter(item.path for item in items)
    first = {here / name: place for place, name in enumerate(LONG)}
    last = {here.parent / name: place for place, name in enumerate(APART)}
    for item in items:
        if (item.path in first or item.path in last) and config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_SECONDS))
    items.sort(key=lambda item: (last.get(item.path, -1), first.get(item.path, len(LONG)), -counts[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what another process tried."""
    TALLY.add(Tally(**getattr(node, "workeroutput", {}).get("tally", {})))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print in one line how much the tests of faults tried and how many tests failed."""
    if Tally() != TALLY:
        failed = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
        terminalreporter.write_line(f"faults: {TALLY.line()}; {failed or 'no'} test(s) failed")


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

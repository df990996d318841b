"""For the tests of applications: a log in memory, power cuts, a disk that fails, a service for clients.

    async def test_an_accepted_order_survives_a_power_cut(memory_log):
        await accept(memory_log, b"espresso")  # the application
        log = await crash(memory_log)
        assert [payload for _, payload in log.range("orders")] == [b"espresso"]

With pytest, the fixtures `memory_log`, `memory_disk` and `memory_service` are there once the package is installed.
`memory_log` needs pytest-asyncio or anyio's plugin.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from mrecordlog_async.errors import LogFailedError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.support.extras import naming
from mrecordlog_async.testing.disk import MemoryDisk

__all__ = ["MemoryDisk", "crash", "memory_log", "memory_service", "serving"]

DIRECTORY = "/data/log"

_disks: weakref.WeakKeyDictionary[MultiRecordLog, MemoryDisk] = weakref.WeakKeyDictionary()
_after_crash: weakref.WeakKeyDictionary[MultiRecordLog, MultiRecordLog] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def memory_log(disk: MemoryDisk | None = None, **options: Any) -> AsyncIterator[MultiRecordLog]:
    """Open a log in memory; at the end, close it and the logs that `crash` made of it.

    Args:
        disk: Its disk, which may have a log already; None for a new one.
        options: Further options of `MultiRecordLog.open`.
    """
    log: MultiRecordLog | None = await _open(disk or MemoryDisk(), options)
    assert log is not None
    try:
        yield log
    finally:
        while log is not None:
            with suppress(LogFailedError):  # the test had the disk fail
                await log.close()
            log = _after_crash.get(log)


async def _open(disk: MemoryDisk, options: dict[str, Any]) -> MultiRecordLog:
    log = await MultiRecordLog.open(DIRECTORY, filesystem=disk, **options)
    _disks[log] = disk
    return log


async def crash(log: MultiRecordLog, seed: int | None = None, **options: Any) -> MultiRecordLog:
    """Cut the power, and open the log from what that left on the disk, which works again.

    What was synced is there. Of everything else a part is there, cut at the borders of sectors: try several seeds. The
    calls of the old log that are under way raise LogFailedError, and later ones LogClosedError.

    Args:
        log: A log of `memory_log`, or what `crash` returned.
        seed: Chooses what survives besides what was synced; None for another part each time.
        options: Options of `MultiRecordLog.open`; the policy and the limits are those of *log* unless they are passed.

    Returns:
        The log after the power cut. `memory_log` closes it with the old one.

    Raises:
        ValueError: *log* is not in memory.
    """
    if log not in _disks:
        raise ValueError("crash() takes a log of memory_log(): the files of others are on a disk that keeps its power")
    disk = _disks[log]
    disk.cut_power()
    with suppress(LogFailedError, OSError):  # the process that wrote is gone, whatever it was doing
        await log.close()
    disk.restart(seed)
    found = await _open(disk, {"persist_policy": log.persist_policy, "limits": log.limits, **options})
    _after_crash[log] = found
    return found


@asynccontextmanager
async def serving(log: MultiRecordLog) -> AsyncIterator[str]:
    """Serve *log* over HTTP on a free port of this machine, on this event loop; yield the URL for clients.

    Needs the packages of the service: `pip install 'mrecordlog_async[server]'`.
    """
    try:
        from mrecordlog_async.service.app import App
        from mrecordlog_async.service.connections import Connections
        from mrecordlog_async.service.listening import bind
        from mrecordlog_async.service.service import Service
        from mrecordlog_async.service.watching.watch import watch
    except ModuleNotFoundError as error:
        raise naming(error, "server") from None

    service = Service(None)
    service.attach(log)
    sockets = await bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    connections = Connections(App(service))
    connections.listen(sockets)
    watching = asyncio.create_task(watch(connections.check, service.refused.check))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await connections.end(1.0, asyncio.Event())
        watching.cancel()


@contextmanager
def memory_service(**options: Any) -> Iterator[str]:
    """Serve a new log in memory from a separate thread; yield the URL. For clients of any kind, blocking ones too.

    Args:
        options: Options of `MultiRecordLog.open`.
    """
    ready: Future[Any] = Future()  # of the URL, the loop, and the event that ends it

    async def serve() -> None:
        stop = asyncio.Event()
        async with memory_log(**options) as log, serving(log) as url:
            ready.set_result((url, asyncio.get_running_loop(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1, "mrecordlog memory service") as threads:
        ended: Future[Any] = threads.submit(asyncio.run, serve())
        wait((ready, ended), return_when=FIRST_COMPLETED)
        if ended.done():  # it could not start
            ended.result()
        url, loop, stop = ready.result()
        try:
            yield url
        finally:
            loop.call_soon_threadsafe(stop.set)
            ended.result()

"""`serve` from listening to the exit code, in this process, with real signals and disks that fail."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from mrecordlog_async import Limits, LogState, MultiRecordLog
from mrecordlog_async.cli import errors as exit_codes
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.security import is_loopback
from mrecordlog_async.service.server import LOG_FAILED, ExposedError, ServeSettings, check_exposure, serve
from mrecordlog_async.service.service import Service
from mrecordlog_async.service.watching.systemd import Status
from tests.cached_files import CachedFiles
from tests.served import serving


class Running:
    """A service that was started by `serve`."""

    def __init__(self, session: aiohttp.ClientSession, address: str, result: asyncio.Task[int]) -> None:
        self.session, self.address, self.result = session, address, result

    async def status(self, path: str, method: str = "GET", body: bytes | None = None) -> int:
        async with self.session.request(method, self.address + path, data=body) as response:
            return response.status

    async def stats(self) -> Any:
        async with self.session.get(self.address + "/v1/stats") as response:
            return await response.json()

    async def ready(self) -> None:
        while await self.status("/readyz") != 200:
            await asyncio.sleep(0.001)

    async def stop(self) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return await self.result


@asynccontextmanager
async def running(
    directory: Path, options: ServiceOptions | None = None, *, failure_grace_seconds: float = 60.0, **log_options: Any
) -> AsyncIterator[Running]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = ServeSettings(
        str(directory),
        port=0,
        failure_grace_seconds=failure_grace_seconds,
        options=options or ServiceOptions(),
        log_options=log_options,
    )
    result = asyncio.create_task(serve(settings, on_listening=address.set_result))
    async with aiohttp.ClientSession() as session:
        waits: list[asyncio.Future[Any]] = [address, result]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        yield Running(session, address.result(), result)
    if not result.done():
        os.kill(os.getpid(), signal.SIGTERM)
        await result


class Disk(CachedFiles):
    """A disk that fails or waits on demand."""

    def __init__(self) -> None:
        self.sync_fails = False
        self.reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()

    def sync(self, handle: int) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, "the disk is gone")
        if not self.may_sync.is_set():
            self.syncing.set()
        self.may_sync.wait()
        super().sync(handle)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self.reading.set()
        self.may_read.wait()
        return super().read(handle, length, offset)


async def test_a_clean_end_is_exit_code_0(directory: Path) -> None:
    """After a signal the log is closed and may be opened again."""
    async with running(directory) as service:
        await service.ready()
        assert await service.status("/v1/queues/q", "PUT") == 201
        assert await service.stop() == 0
    async with MultiRecordLog.open(directory) as log:
        assert log.list_queues() == ["q"]
        assert log.recovery_report.clean


async def test_a_log_that_failed_has_its_own_exit_code(directory: Path) -> None:
    """Reads work until the end; the exit code shows a supervisor that the log failed."""
    disk = Disk()
    async with running(directory, filesystem=disk) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        disk.sync_fails = True
        assert await service.status("/v1/queues/q/records", "POST", b"a") == 503
        assert await service.status("/v1/queues/q/records") == 200
        async with service.session.get(service.address + "/readyz") as response:
            ready = await response.json()
        assert (response.status, ready["state"]) == (503, "failed")
        assert ready["cause"].startswith("a write or sync failed (EIO)")
        assert await service.stop() == LOG_FAILED == exit_codes.LOG_FAILED


async def test_a_failure_is_in_the_services_log_and_status_when_it_happens(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator need not wait for the end of the process; systemd shows the cause in one line."""
    notified: list[str] = []
    monkeypatch.setattr("mrecordlog_async.service.watching.systemd.notify", lambda *lines: notified.extend(lines))
    disk = Disk()
    async with running(directory, filesystem=disk) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        disk.sync_fails = True
        assert await service.status("/v1/queues/q/records", "POST", b"a") == 503
        assert [record for record in caplog.records if "the disk is gone" in record.getMessage()]
        while not any(line.startswith("STATUS=failed") for line in notified):
            await asyncio.sleep(0.01)
        (line,) = [line for line in notified if line.startswith("STATUS=failed")]
        assert "the disk is gone" in line
        assert "\n" not in line
        assert await service.stop() == LOG_FAILED


async def test_a_failed_log_ends_the_service_after_a_while(directory: Path) -> None:
    """Without a signal: a supervisor starts it again, which is the only way to recover. Until then it is read."""
    disk = Disk()
    async with running(directory, filesystem=disk, failure_grace_seconds=0.3) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        disk.sync_fails = True
        assert await service.status("/v1/queues/q/records", "POST", b"a") == 503
        assert await service.result == LOG_FAILED


async def test_without_a_grace_a_failed_log_is_served_until_a_signal(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """0 leaves the end to whatever watches the service."""
    disk = Disk()
    async with running(directory, filesystem=disk, failure_grace_seconds=0.0) as service:
        await service.ready()
        disk.sync_fails = True
        assert await service.status("/v1/queues/q", "PUT") == 503
        while "until the service is stopped" not in caplog.text:
            await asyncio.sleep(0.001)
        assert await service.status("/v1/queues") == 200
        assert await service.stop() == LOG_FAILED


def test_systemd_is_notified_once_of_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not notified of each refused request, and it is notified when none was refused for a while."""
    notified: list[str] = []
    monkeypatch.setattr("mrecordlog_async.service.watching.systemd.notify", lambda *lines: notified.extend(lines))
    now = 0.0
    service = Service()
    service.attach(cast(MultiRecordLog, _open_log()))
    status = Status(service, "http://x", lambda: now)
    for second in range(200):
        now = float(second)
        if 10 <= second < 60 and second % 20 == 0:
            service.problems[507] = service.problems.get(507, 0) + 7
        status.check()
    assert notified == ["STATUS=the disk is full, appends are refused", "STATUS=serving on http://x"]


def _open_log() -> SimpleNamespace:
    """Return what a service asks a log about before the first request."""
    inspection = SimpleNamespace(failure=None, next_positions=dict, under_way_seconds=0.0, public_id="0" * 32)
    return SimpleNamespace(state=LogState.OPEN, inspection=inspection, limits=Limits())


def test_systemd_is_notified_of_a_disk_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once while it hangs, and once when it is back."""
    notified: list[str] = []
    monkeypatch.setattr("mrecordlog_async.service.watching.systemd.notify", lambda *lines: notified.extend(lines))
    log = _open_log()
    service = Service(ServiceOptions(stall_seconds=5.0))
    service.attach(cast(MultiRecordLog, log))
    status = Status(service, "http://x")
    for log.inspection.under_way_seconds in (0.0, 4.9, 5.0, 6.0, 0.0, 0.0):
        status.check()
    assert notified == ["STATUS=the disk does not respond", "STATUS=serving on http://x"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_every_signal_that_ends_it_closes_the_log(directory: Path, number: int) -> None:
    """A closed terminal sends one too."""
    async with running(directory) as service:
        await service.ready()
        os.kill(os.getpid(), number)
        assert await service.result == 0
    assert (directory / "CLOSED").exists()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_second_signal_does_not_interrupt_the_close(
    directory: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A closed terminal sends SIGHUP twice; the second one arrives while the log is being closed."""
    close = MultiRecordLog.close

    async def hit_again(log: MultiRecordLog) -> None:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler), "this ends the process"
        os.kill(os.getpid(), number)
        await close(log)

    monkeypatch.setattr(MultiRecordLog, "close", hit_again)
    caplog.set_level("INFO", "mrecordlog_async.serve")
    async with running(directory) as service:
        await service.ready()
        os.kill(os.getpid(), number)
        assert await service.result == 0
    assert (directory / "CLOSED").exists()
    assert f"{number.name} received again: the log is being closed" in caplog.text


async def test_a_hangup_that_nohup_hides_does_not_end_it(directory: Path) -> None:
    """A service started with nohup outlives the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with running(directory) as service:
            await service.ready()
            os.kill(os.getpid(), signal.SIGHUP)
            assert await service.status("/readyz") == 200
            assert await service.stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_no_time_for_requests_is_still_time_to_close(directory: Path) -> None:
    """drain_seconds=0 drops requests, but the log is still closed cleanly."""
    async with running(directory, ServiceOptions(drain_seconds=0.0)) as service:
        await service.ready()
        assert await service.status("/v1/queues/q", "PUT") == 201
        assert await service.stop() == 0
    assert (directory / "CLOSED").exists()


async def test_a_request_under_way_is_finished(directory: Path) -> None:
    """SIGTERM while a body is being sent: the record is stored and acknowledged before the end."""
    async with running(directory) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        port = int(service.address.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
        writer.write(bytes(100_000))
        while not (await service.stats())["receiving_bytes"]:
            await asyncio.sleep(0.001)
        async with service.session.get(service.address + "/v1/queues/q/tail") as tail:
            os.kill(os.getpid(), signal.SIGTERM)
            assert b"closing" in await tail.content.read()  # now it is shutting down
        writer.write(bytes(100_000))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert await service.result == 0
    async with MultiRecordLog.open(directory) as log:
        assert [len(record.payload) for record in log.range("q")] == [200_000]


async def test_a_shutdown_closes_the_connection_of_a_refused_request(directory: Path) -> None:
    """Its client may stay: the process does not wait for it."""
    async with serving(directory) as served:
        served.service.begin_shutdown()
        response = await served.call("GET", "/v1/queues/none")
        assert (response.status, response.headers.get("Connection")) == (404, "close")


async def test_a_shutdown_closes_the_connection_of_a_response_that_began_before(directory: Path) -> None:
    """Its head could not say so: the connection ends with the last byte."""
    async with serving(directory) as served:
        await served.log.create_queue("q")
        for _ in range(8):
            await served.log.append_record("q", None, bytes(1_000_000))
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        try:
            writer.write(b"GET /v1/queues/q/records HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await reader.readexactly(12) == b"HTTP/1.1 200"
            while not any(connection.paused for connection in served.connections.known.values()):
                await asyncio.sleep(0.001)
            ending = asyncio.create_task(served.connections.end(3_600.0, asyncio.Event()))
            async with asyncio.timeout(30):
                response = await reader.read()
            await ending
            assert len(response) > 8_000_000
            assert b"connection: close" not in response.partition(b"\r\n\r\n")[0].lower()
        finally:
            writer.transport.abort()


async def test_a_second_signal_does_not_wait_for_requests(directory: Path) -> None:
    """Ctrl-C twice drops running requests; acknowledged records are safe."""
    async with running(directory, ServiceOptions(drain_seconds=3_600.0)) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        await service.status("/v1/queues/q/records", "POST", b"a")
        port = int(service.address.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/queues/q/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\nhalf")
        async with service.session.get(service.address + "/v1/queues/q/tail?start=next") as tail:
            os.kill(os.getpid(), signal.SIGTERM)
            await tail.content.read()
        os.kill(os.getpid(), signal.SIGINT)
        assert await service.result == 0
        writer.transport.abort()
    async with MultiRecordLog.open(directory) as log:
        assert [record.payload for record in log.range("q")] == [b"a"]


async def test_a_disk_that_does_not_respond_does_not_delay_the_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shutdown deadline includes the disk; the exit code says that the log was not closed cleanly."""
    monkeypatch.setattr("mrecordlog_async.service.server.CLOSE_SECONDS_MIN", 0.2)
    disk = Disk()
    async with running(directory, ServiceOptions(drain_seconds=0.2), filesystem=disk) as service:
        await service.ready()
        await service.status("/v1/queues/q", "PUT")
        disk.may_sync.clear()
        appending = asyncio.create_task(service.status("/v1/queues/q/records", "POST", b"a"))
        await asyncio.to_thread(disk.syncing.wait)
        try:
            assert await service.stop() == 1
        finally:
            disk.may_sync.set()
        with pytest.raises(aiohttp.ClientError):
            await appending


async def test_it_responds_while_it_recovers_and_can_be_stopped_then(directory: Path) -> None:
    """It listens first: probes see that it recovers, and a signal does not wait for the end of the recovery."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
    disk = Disk()
    disk.may_read.clear()
    async with running(directory, filesystem=disk) as service:
        await asyncio.to_thread(disk.reading.wait)
        async with service.session.get(service.address + "/readyz") as response:
            assert (response.status, (await response.json())["state"]) == (503, "recovering")
        assert await service.status("/healthz") == 200
        assert await service.status("/v1/queues") == 503
        os.kill(os.getpid(), signal.SIGTERM)
        disk.may_read.set()
        assert await service.result == 0


async def test_a_directory_that_cannot_be_opened_ends_it(directory: Path) -> None:
    """The error that prevents opening is raised, and the port is released."""
    directory.write_bytes(b"a file")
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(OSError, match=directory.name):
        await serve(ServeSettings(str(directory), port=0), on_listening=address.set_result)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(address.result().rpartition(":")[2]))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("a.b", False),
    ],
)
def test_what_other_machines_can_reach_needs_a_token(host: str, expected: bool) -> None:
    """A name that is not certainly loopback counts as reachable."""
    assert is_loopback(host) is expected
    if not expected:
        with pytest.raises(ExposedError, match="token"):
            check_exposure(ServeSettings("wal", host))
        check_exposure(ServeSettings("wal", host, uds="/tmp/socket"))

"""An application or a service that starts while the process before it still has the log open: it waits for that one."""

from __future__ import annotations

import asyncio
import http.client
import logging
import selectors
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from fastapi import FastAPI

from mrecordlog_async import LogClosedError, LogLockedError, MultiRecordLog, embedding
from mrecordlog_async.aiohttp import LOG, setup
from mrecordlog_async.fastapi import lifespan, log_of
from tests.holder import HELD, Holder
from tests.serving import TIMEOUT_SECONDS, Process, config, free_port

WAITS = "waiting for it to end"


async def said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until a line with *text* was logged."""
    while text not in caplog.text:
        await asyncio.sleep(0.001)


async def test_a_lifespan_waits_for_the_process_before(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By default; the application then has what that one stored."""
    app = FastAPI(lifespan=lifespan(directory))
    starting = app.router.lifespan_context(app)
    with Holder(directory) as holder:
        entering = asyncio.create_task(starting.__aenter__())
        await said(caplog, WAITS)
        holder.close()
        await entering
    assert [bytes(payload) for _, payload in log_of(app).range("q")] == [HELD]
    await starting.__aexit__(None, None, None)


async def test_an_application_of_aiohttp_waits_for_the_process_before(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By default; the application then has what that one stored."""
    app = web.Application()
    setup(app, directory)
    runner = web.AppRunner(app)
    with Holder(directory) as holder:
        starting = asyncio.create_task(runner.setup())
        await said(caplog, WAITS)
        holder.close()
        await starting
    assert [bytes(payload) for _, payload in app[LOG].range("q")] == [HELD]
    await runner.cleanup()


async def test_an_application_does_not_wait_for_a_log_of_its_own_process(directory: Path) -> None:
    """Two applications in one process would wait for each other."""
    async with MultiRecordLog.open(directory):
        app = FastAPI(lifespan=lifespan(directory, lock_seconds=1e6))
        with pytest.raises(LogLockedError, match="in this process already"):
            await app.router.lifespan_context(app).__aenter__()


def test_the_default_leaves_a_worker_of_gunicorn_time_to_start() -> None:
    """It aborts one that has not started within 30 s: then nobody would read whom it waited for."""
    assert embedding.LOCK_SECONDS == 25.0


# A signal ends the wait.

UNDER_UVICORN = """
import sys, uvicorn
from fastapi import FastAPI
from mrecordlog_async.fastapi import lifespan
app = FastAPI(lifespan=lifespan(sys.argv[1], lock_seconds=1e6))
uvicorn.run(app, port=int(sys.argv[2]))
"""
UNDER_AIOHTTP = """
import sys
from aiohttp import web
from mrecordlog_async.aiohttp import setup
app = web.Application()
setup(app, sys.argv[1], lock_seconds=1e6)
web.run_app(app, port=int(sys.argv[2]))
"""


@contextmanager
def starting(program: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start *program*; yield once it waits for the lock."""
    arguments = [sys.executable, "-X", "dev", "-c", program, str(directory), str(free_port())]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    guard = threading.Timer(TIMEOUT_SECONDS, process.kill)
    guard.start()
    assert process.stdout is not None
    try:
        assert any(WAITS in line for line in process.stdout), "it ended before it waited"
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("program", [UNDER_UVICORN, UNDER_AIOHTTP], ids=["uvicorn", "aiohttp"])
def test_a_signal_ends_the_wait_at_once(directory: Path, program: str, number: int) -> None:
    """Without a traceback, and the log stays the other process's."""
    with Holder(directory) as holder, starting(program, directory) as process:
        process.send_signal(number)
        assert process.stdout is not None
        out = process.stdout.read()
        process.wait()
        assert "Traceback" not in out and "Exception ignored" not in out and "Warning" not in out, out
        assert "complete" not in out and "Running on" not in out, "it never served"
        if program is UNDER_UVICORN:
            assert f"told to stop ({signal.Signals(number).name}) before the log was open" in out
            # uvicorn has SIGINT raise KeyboardInterrupt, and then ends as after any start that failed.
            assert process.returncode == (-number if number == signal.SIGTERM else 3)
        else:
            assert process.returncode == 0
        assert holder.process.poll() is None


class LateSignals(selectors.DefaultSelector):
    """Has SIGTERM come once *is_due*, after the loop has looked what there is and before it acts."""

    def __init__(self, is_due: Callable[[], bool]) -> None:
        super().__init__()
        self._is_due = is_due

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else min(timeout, 0.01))
        if self._is_due():
            self._is_due = lambda: False
            signal.raise_signal(signal.SIGTERM)
        return ready


def test_a_signal_between_two_turns_of_the_loop_ends_the_wait(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The application ends before aiohttp hears of the signal: an error in its place was a traceback."""
    app = web.Application()
    setup(app, directory, lock_seconds=1e6)
    with Holder(directory) as holder:
        loop = asyncio.SelectorEventLoop(LateSignals(lambda: WAITS in caplog.text))
        web.run_app(app, port=free_port(), print=None, loop=loop)
        assert WAITS in caplog.text
        assert holder.process.poll() is None


async def test_the_log_of_uvicorn_is_as_before_once_a_lifespan_has_ended(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it was told to stop before the log was open, or served: a test suite starts an application many times."""
    uvicorn = logging.getLogger("uvicorn.error")
    before, stops = uvicorn.filters.copy(), list[int]()

    async def serve(app: FastAPI) -> int:
        async with app.router.lifespan_context(app):
            return len(uvicorn.filters)

    app = FastAPI(lifespan=lifespan(directory, lock_seconds=1e6))
    own = signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    try:
        with Holder(directory):
            starting = asyncio.create_task(serve(app))
            await said(caplog, WAITS)
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(LogClosedError, match="told to stop"):
                await starting
        while len(stops) < 2:  # the lifespan raises it again
            await asyncio.sleep(0)
    finally:
        signal.signal(signal.SIGTERM, own)
    assert await asyncio.create_task(serve(app)) == len(before) + 1
    await asyncio.sleep(0)
    assert uvicorn.filters == before


# The service.


def asked(service: Process, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return the response of *service* to one request."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@contextmanager
def waiting(directory: Path, holder: Holder, *arguments: str) -> Iterator[Process]:
    """Start a service on *directory*; yield once it says that it waits for *holder*."""
    service = Process(directory, arguments)
    service.start()
    try:
        cause = f"the log is still open in process {holder.pid}".encode()
        while cause not in (answer := asked(service, "GET", "/readyz"))[1]:
            assert answer[0] == 503, answer
        yield service
    finally:
        service.kill()


def test_a_service_waits_for_the_one_before_and_is_not_ready(directory: Path) -> None:
    """It listens, and says whom it waits for; then it serves what that one stored."""
    with Holder(directory) as holder, waiting(directory, holder) as service:
        assert asked(service, "POST", "/v1/queues/q/records", b"too early")[0] == 503
        assert asked(service, "GET", "/healthz")[0] == 200
        holder.close()
        service.wait_ready()
        assert b64encode(HELD) in asked(service, "GET", "/v1/queues/q/records")[1]
        code, said = service.stop()
        assert code == 0 and f"is in use by process {holder.pid} (" in said and WAITS in said


def test_a_service_that_waits_ends_at_a_signal(directory: Path) -> None:
    """With exit code 0, and nothing but lines of its log."""
    long = config(directory.parent, lock_seconds="1000000s")
    with Holder(directory) as holder, waiting(directory, holder, *long) as service:
        code, said = service.stop()
        assert code == 0 and "Traceback" not in said, said
        assert holder.process.poll() is None


@pytest.mark.parametrize("way", ["variable", "file"])
def test_a_service_waits_as_long_as_it_is_told(directory: Path, way: str, tmp_path: Path) -> None:
    """Then it ends with exit code 4."""
    service = Process(directory, config(tmp_path, lock_seconds="0s") if way == "file" else [])
    with Holder(directory):
        service.start({"MRECORDLOG_LOCK_SECONDS": "0s"} if way == "variable" else {})
        assert service.process is not None
        _, said = service.process.communicate()
        assert service.process.returncode == 4
        assert "is in use by process" in said and WAITS not in said

"""gunicorn with one worker, started as the page on frameworks says: reloads under load, and with slow requests."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrecordlog_async import ReadOnlyLog
from mrecordlog_async.support.processes import TOGETHER_SECONDS
from tests.docs.blocks import ROOT, blocks
from tests.holder import Holder
from tests.serving import free_port

pytest.importorskip("uvicorn_worker", reason="needs gunicorn and uvicorn-worker, which the extra `dev` has")

PAGE = ROOT / "docs" / "frameworks.md"
WORKER = next(block.text for block in blocks(PAGE) if "UvicornWorker" in block.text)
COMMAND = next(block.text for block in blocks(PAGE) if block.text.startswith("gunicorn "))
APP = """
import asyncio
from fastapi import FastAPI, Request
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, mount

app = FastAPI(lifespan=lifespan("./wal", queues=["clicks"]))
add_exception_handlers(app)
mount(app, "/wal")

@app.post("/ingest")
async def ingest(request: Request, log: Log) -> dict[str, int]:
    return {"position": await log.append("clicks", await request.body())}

@app.post("/slow")
async def slow(request: Request, log: Log) -> dict[str, int]:
    body = await request.body()
    await asyncio.sleep(15)
    return {"position": await log.append("clicks", body)}
"""
TIMEOUT_SECONDS = 300.0
"""Only a test that fails waits this long."""


class Gunicorn:
    """A master and its worker, in a directory with the application and the page's `worker.py`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "app.py").write_text(APP)
        (directory / "worker.py").write_text(WORKER)
        self.directory, self.port = directory, free_port()
        self._out = (directory / "out").open("wb")
        command = [sys.executable, "-m", *shlex.split(COMMAND), "--bind", f"127.0.0.1:{self.port}", *arguments]
        self.process = subprocess.Popen(command, cwd=directory, stdout=self._out, stderr=subprocess.STDOUT)
        self.acknowledged: list[tuple[int, bytes]] = []

    def __enter__(self) -> Gunicorn:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(TIMEOUT_SECONDS)
        self._out.close()

    def said(self) -> str:
        return (self.directory / "out").read_text()

    def until(self, reached: Callable[[], object]) -> None:
        """Wait for *reached*; fail if the master ends."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not reached():
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.02)

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return set(map(int, children.split()))

    def post(self, path: str, body: bytes) -> bool:
        """Send one record; note it if it was acknowledged."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if response.status != 200:
            return False
        self.acknowledged.append((json.loads(text)["position"], body))
        return True

    def reload(self) -> None:
        """Send HUP, and wait until another worker than before stores a record."""
        before = self.workers()
        assert before
        # Workers that started together do not wait for each other's end, and a worker may start in less than a second.
        self.until(lambda: all(age(worker) > TOGETHER_SECONDS for worker in before))
        self.process.send_signal(signal.SIGHUP)
        self.until(lambda: (now := self.workers()) and not now & before)
        self.until(lambda: self.post("/ingest", b"after a reload %d" % len(self.acknowledged)))

    def check_stored(self) -> None:
        """Each record that was acknowledged is stored, once."""
        with ReadOnlyLog.open(self.directory / "wal") as log:
            stored = [(position, bytes(payload)) for position, payload in log.range("clicks")]
        assert set(self.acknowledged) <= set(stored)
        assert len({payload for _, payload in stored}) == len(stored)


def age(process_id: int) -> float:
    """Return for how many seconds a process has run."""
    stat = Path(f"/proc/{process_id}/stat").read_bytes()
    started = int(stat[stat.rindex(b")") + 1 :].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


@contextmanager
def load(server: Gunicorn) -> Iterator[None]:
    """Have two clients append meanwhile, each record another one."""
    ends = threading.Event()

    def send(name: int) -> None:
        number = 0
        while not ends.is_set():
            server.post("/ingest", b"%d-%d" % (name, number))
            number += 1
            ends.wait(0.01)

    clients = [threading.Thread(target=send, args=(name,)) for name in range(2)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        ends.set()
        for client in clients:
            client.join()


@pytest.mark.parametrize("arguments", [[], ["--preload"]], ids=["plain", "preload"])
def test_a_reload_under_load_keeps_the_service_up(tmp_path: Path, arguments: list[str]) -> None:
    """What was acknowledged is stored, and nothing twice."""
    with Gunicorn(tmp_path / "app", *arguments) as server:
        server.until(lambda: server.post("/ingest", b"first"))
        with load(server):
            for _ in range(3):
                server.reload()
    assert server.process.returncode == 0
    server.check_stored()


def test_a_reload_waits_for_a_request_that_takes_15_seconds(tmp_path: Path) -> None:
    """It is stored and acknowledged by the old worker; then the new one opens the log."""
    with Gunicorn(tmp_path / "app") as server:
        server.until(lambda: server.post("/ingest", b"first"))
        done: list[bool] = []
        slow = threading.Thread(target=lambda: done.append(server.post("/slow", b"slow")))
        slow.start()
        time.sleep(1)  # the request is under way in nearly all runs; in the others the new worker handles it
        server.reload()
        slow.join()
        assert done == [True]
    server.check_stored()


def test_a_body_that_never_arrives_does_not_keep_the_new_worker_from_the_log(tmp_path: Path) -> None:
    """The page's worker ends such a request before the new worker gives up, for which gunicorn would end."""
    with Gunicorn(tmp_path / "app") as server, socket.socket() as client:
        server.until(lambda: server.post("/ingest", b"first"))
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"POST /ingest HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 100"), "the application waits for the body"
        server.reload()
    server.check_stored()


def test_a_worker_that_is_told_to_stop_while_it_waits_does_not_end_the_master(tmp_path: Path) -> None:
    """Its exit status is not the one for which gunicorn ends: the next worker waits in its place."""
    with Holder(tmp_path / "app" / "wal") as holder, Gunicorn(tmp_path / "app") as server:
        server.until(lambda: server.said().count("waiting for it to end") == 1)
        (worker,) = server.workers()
        os.kill(worker, signal.SIGTERM)
        server.until(lambda: server.said().count("waiting for it to end") == 2)
        holder.close()
        server.until(lambda: server.post("/ingest", b"after"))
        assert "Traceback" not in server.said()


def test_two_workers_are_refused_with_the_reason(tmp_path: Path) -> None:
    """The second one gives up, the master ends with status 3, and its output names the ways out."""
    with Gunicorn(tmp_path / "app", "--workers", "2") as server:
        assert server.process.wait(TIMEOUT_SECONDS) == 3
    assert "run `mrecordlog serve`" in server.said()

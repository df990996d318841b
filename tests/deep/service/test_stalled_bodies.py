"""A client that has sent half of a body keeps no server from ending, and no new process from starting."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from mrecordlog_async import ReadOnlyLog
from tests.deep.examples.test_examples import EXAMPLES, ask
from tests.serving import TIMEOUT_SECONDS, free_port

LONGEST_SECONDS = 60.0
"""Their limits are 10 and 20 s; a server without one waits for ever."""
SAVED_AGAIN_SECONDS = 10.0
FASTAPI = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_ingest:app", "--port", "PORT")
SERVERS = {
    "the README's command": ((*FASTAPI, "--timeout-graceful-shutdown", "10"), "/ingest", "/ingest", "./wal"),
    "a mount, by its own limit": (FASTAPI, "/ingest", "/wal/v1/queues/clicks/records", "./wal"),
    "aiohttp": ((str(EXAMPLES / "aiohttp_ingest.py"), "./wal", "PORT"), "/ingest/clicks", "/ingest/clicks", "./wal"),
    "serve": (
        ("-m", "mrecordlog_async", "serve", "./wal", "--port", "PORT"),
        "/v1/queues/clicks/records?create=1",
        "/v1/queues/clicks/records",
        "./wal",
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_body_that_never_arrives_does_not_hold_up_sigterm(tmp_path: Path, name: str) -> None:
    """The process ends within its limit, without a traceback, and what it has acknowledged is there."""
    arguments, path, stalled, directory = SERVERS[name]
    port = free_port()
    command = [sys.executable, *(str(port) if word == "PORT" else word for word in arguments)]
    said = tmp_path / "said"
    with said.open("wb") as output, subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as process:
        try:
            until(lambda: ask(port, "POST", path, b"acknowledged")[0] // 100 == 2)  # `serve` listens before it is ready
            with half_a_body(port, stalled):
                process.send_signal(signal.SIGTERM)
                process.wait(LONGEST_SECONDS)
        finally:
            process.kill()
    assert "Traceback" not in said.read_text()
    with ReadOnlyLog.open(tmp_path / directory) as log:
        assert [payload for _, payload in log.range("clicks")] == [b"acknowledged"]


def test_a_reload_waits_neither_for_tails_nor_for_half_a_body(tmp_path: Path) -> None:
    """Each saved file gives a new process with the log, also after one with a syntax error; none is refused it."""
    program, port = (EXAMPLES / "fastapi_ingest.py").read_text(), free_port()
    file, output = tmp_path / "app.py", tmp_path / "output"

    def save(version: str) -> None:
        file.write_text(f"{program}\n\n@app.get('/version')\nasync def version() -> int:\n    return {version}\n")

    def reach(version: int) -> None:
        """Save this version until it runs: uvicorn overlooks what is saved just after it has restarted."""
        for _ in range(6):
            save(f"{version}")
            end = time.monotonic() + SAVED_AGAIN_SECONDS
            while time.monotonic() < end:
                if ask_whole(port, "/version") == b"%d" % version:
                    return
                time.sleep(0.05)
        pytest.fail(output.read_text())

    save("0")
    command = ("-m", "uvicorn", "app:app", "--reload", "--port", str(port), "--timeout-graceful-shutdown", "3")
    with ExitStack() as stack:
        said = stack.enter_context(output.open("wb"))
        process = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stdout=said, stderr=said)
        stack.callback(process.wait, LONGEST_SECONDS)
        stack.callback(process.terminate)
        stored = []
        for version in range(4):
            reach(version)
            stored.append(ask(port, "POST", "/ingest", b"%d" % version)[0])
            stack.enter_context(tail(port))
            stack.enter_context(half_a_body(port, "/ingest"))
            if version == 1:
                save("= no Python")
                until(lambda: "SyntaxError" in output.read_text())
        reach(4)
    assert stored == [200] * 4 and "LogLockedError" not in output.read_text()
    with ReadOnlyLog.open(tmp_path / "wal") as log:
        assert [payload for _, payload in log.range("clicks")] == [b"0", b"1", b"2", b"3"]


@contextmanager
def half_a_body(port: int, path: str) -> Iterator[None]:
    """Send the beginning of a request, of which the server has begun to wait for the rest."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        client.sendall(head.encode() + b"abc")
        ask(port, "GET", "/")  # on a later connection: the server has read what came before it
        yield


@contextmanager
def tail(port: int) -> Iterator[None]:
    """Follow the queue as a browser does."""
    following = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    following.request("GET", "/wal/v1/queues/clicks/tail", headers={"Accept": "text/event-stream"})
    following.getresponse().readline()
    yield
    following.close()


def ask_whole(port: int, path: str) -> bytes:
    """Return the body of a response; none while no process listens, one ends, or none is there to respond."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SAVED_AGAIN_SECONDS)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)

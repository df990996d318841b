"""Every example runs as a person would run it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.serving import TIMEOUT_SECONDS, free_port

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(
    *command: str, input: str = "", cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=120, cwd=cwd, env=variables)


@contextmanager
def running(*command: str, cwd: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    variables = {**os.environ, **environment}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd, env=variables)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Send one request, waiting until the server listens."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionRefusedError:
            time.sleep(0.05)
        finally:
            connection.close()
    raise AssertionError("the server does not listen")


@pytest.mark.parametrize("name", ["aiohttp_ingest", "batch_to_parquet"])
def test_wrong_arguments_show_the_usage(name: str, tmp_path: Path) -> None:
    """Nothing is created, and the text at the top of the file says how to start it."""
    if name == "batch_to_parquet":
        pytest.importorskip("pyarrow")
    program = EXAMPLES / f"{name}.py"
    done = run(sys.executable, str(program), str(tmp_path / "wal"))
    assert (done.returncode, f"python examples/{name}.py ./wal" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["worker", "two_consumers"])
def test_help_is_no_directory(name: str, tmp_path: Path) -> None:
    """Programs whose directory may be left out show how to start them, too."""
    program = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, program, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, f"python examples/{name}.py" in done.stderr) == (1, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("interruptible")
def test_aiohttp_ingest(tmp_path: Path) -> None:
    """Records are stored, can be read through the API below the prefix, and exist after a restart."""
    port = free_port()
    command = (sys.executable, str(EXAMPLES / "aiohttp_ingest.py"), str(tmp_path / "wal"), str(port))
    with running(*command) as process:
        status, body = ask(port, "POST", "/ingest/clicks", b"one")
        assert (status, json.loads(body)) == (202, {"position": 0})
        assert ask(port, "POST", "/wal/v1/queues/clicks/records", b"two")[0] == 200
        lines = ask(port, "GET", "/wal/v1/queues/clicks/records?as=text")[1].splitlines()
        assert [json.loads(line)["payload"] for line in lines] == ["one", "two"]
        assert ask(port, "GET", "/wal/readyz")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 0
    with running(*command):
        assert ask(port, "GET", "/wal/v1/queues/clicks/records?as=text")[1].splitlines() == lines


STREAMING = """
from collections.abc import AsyncIterator
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from mrecordlog_async.fastapi import Log, add_exception_handlers, lifespan, mount, tail_until_disconnect

app = FastAPI(lifespan=lifespan("./wal", queues=["clicks"]))
add_exception_handlers(app)
mount(app, "/wal")


@app.get("/follow/{queue}")
async def follow(queue: str, request: Request, log: Log) -> StreamingResponse:
    log.queue_summary(queue)  # 404 before the response begins

    async def lines() -> AsyncIterator[bytes]:
        async for record in tail_until_disconnect(request, log, queue):
            yield record.payload + b"\\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")
"""


def test_streams_of_an_application_under_uvicorn_follow_and_end_at_sigterm(tmp_path: Path) -> None:
    """Its own ones and those of the mounted API; errors are problem documents."""
    (tmp_path / "streaming.py").write_text(STREAMING)
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "streaming:app", "--port", str(port))  # waits for open responses
    with running(*command, cwd=tmp_path) as process:
        status, body = ask(port, "GET", "/follow/nothing")
        assert (status, json.loads(body)["code"]) == (404, "queue_not_found")
        ask(port, "POST", "/wal/v1/queues/clicks/records", b"one")
        following = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        following.request("GET", "/follow/clicks")
        stream = following.getresponse()
        assert stream.readline() == b"one\n"
        ask(port, "POST", "/wal/v1/queues/clicks/records", b"two")
        assert stream.readline() == b"two\n"
        assert ask(port, "GET", "/wal/readyz")[0] == 200
        tail = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        tail.request("GET", "/wal/v1/queues/clicks/tail?start=next")
        events = tail.getresponse()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=TIMEOUT_SECONDS)
        assert stream.read() == b""
        assert events.read() == b"event: end\ndata: closing\n\n"
        following.close()
        tail.close()
        stream.close()
        events.close()
        assert "Application shutdown complete" in told
        assert "Traceback" not in told


def test_a_second_worker_is_told_the_ways_out(tmp_path: Path) -> None:
    """Two processes on one directory: the second does not start, and says what to do instead."""
    first, second = free_port(), free_port()
    arguments = (sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_ingest:app", "--port")
    with running(*arguments, str(first), cwd=tmp_path) as owner:
        assert ask(first, "GET", "/wal/readyz")[0] == 200
        done = run(*arguments, str(second), cwd=tmp_path)
        assert done.returncode != 0
        assert f"process {owner.pid}" in done.stderr
        for way_out in ("Use one worker", "its own directory", "mrecordlog serve"):
            assert way_out in done.stderr

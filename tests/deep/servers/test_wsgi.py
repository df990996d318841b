"""gunicorn forks workers after the application has made a client and used it, as a Flask application does at import."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrecordlog_async.client import BlockingRecordLogClient
from tests.serving import TIMEOUT_SECONDS, Process, free_port

pytest.importorskip("uvicorn_worker", reason="needs gunicorn, which the extra `dev` has")

REQUESTS, CALLERS = 300, 16
APP = """
import sys
from mrecordlog_async.client import BlockingRecordLogClient

client = BlockingRecordLogClient({url!r})
client.list_queues()  # a connection is open before the fork

def app(environ, start_response):
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    position = client.append("clicks", body)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d" % position]
"""


def post(port: int, body: bytes) -> int:
    """Send a record; return its position."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", "/", body)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        return int(text)
    finally:
        connection.close()


@pytest.mark.parametrize(
    "workers", [["--workers", "3"], ["--workers", "2", "--threads", "8"]], ids=["forks", "threads"]
)
@pytest.mark.parametrize("preload", [[], ["--preload"]], ids=["each imports", "imported before the fork"])
def test_each_request_stores_one_record(tmp_path: Path, workers: list[str], preload: list[str]) -> None:
    """No worker sends on the connection of another one, and none hangs."""
    with Process(tmp_path / "wal") as service, BlockingRecordLogClient(service.address) as client:
        client.create_queue("clicks")
        (tmp_path / "clicks.py").write_text(APP.format(url=service.address))
        port = free_port()
        command = [sys.executable, "-m", "gunicorn", "clicks:app", "--bind", f"127.0.0.1:{port}", *workers, *preload]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            assert any("Listening at" in line for line in server.stderr)
            try:
                with ThreadPoolExecutor(CALLERS) as callers:
                    positions = list(callers.map(lambda number: post(port, b"%d" % number), range(REQUESTS)))
            finally:
                server.send_signal(signal.SIGTERM)
            said = server.stderr.read()
        assert server.returncode == 0 and "Traceback" not in said, said
        assert sorted(positions) == list(range(REQUESTS))
        stored = {position: int(bytes(payload)) for position, payload in client.range("clicks")}
        assert stored == {position: number for number, position in enumerate(positions)}

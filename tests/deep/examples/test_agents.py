"""The configurations of agents, run by the real ones where Debian has them: what is sent is stored, once at least."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrecordlog_async import QueueOptions
from mrecordlog_async.client import BlockingRecordLogClient
from tests.deep.examples.test_deploy import ROOT
from tests.serving import Process, free_port

AGENTS = ROOT / "examples/agents"
SYSLOG_NG = shutil.which("syslog-ng", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def test_the_table_has_every_configuration() -> None:
    """And says of each whether the tests run it."""
    rows = [line.split("|") for line in (AGENTS / "README.md").read_text().splitlines() if line.startswith("| `")]
    files = {row[1].strip(" `"): row[4].strip() for row in rows}
    assert {path.name for path in AGENTS.iterdir()} - {"README.md"} == set(files)
    for name, run in files.items():
        assert (run == "not run") == ("Not run by the tests." in (AGENTS / name).read_text()), name


@contextmanager
def syslog_ng(directory: Path, service: Process) -> Iterator[socket.socket]:
    """Run syslog-ng with the example; yield a connection on which it takes messages. Source and port are replaced."""
    port, text = free_port(), (AGENTS / "syslog-ng.conf").read_text()
    for old, new in (
        ("system(); internal();", f'network(ip("127.0.0.1") port({port}) transport("tcp") flags(syslog-protocol));'),
        ("http://127.0.0.1:8080/", f"http://127.0.0.1:{service.port}/"),
        ("disk-buffer(", f'disk-buffer(dir("{directory}") '),
        ("time-reopen(2)", "time-reopen(1)"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (directory / "syslog-ng.conf").write_text(text)
    assert SYSLOG_NG is not None
    files = [f"--{name}={directory / name}" for name in ("persist-file", "control", "pidfile")]
    command = [SYSLOG_NG, "--foreground", "--no-caps", "-f", str(directory / "syslog-ng.conf"), *files]
    with (directory / "output").open("w") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            while True:
                assert process.poll() is None, (directory / "output").read_text()
                try:
                    connection = socket.create_connection(("127.0.0.1", port))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            with connection:
                yield connection
        finally:
            process.terminate()


def stored(client: BlockingRecordLogClient) -> list[str]:
    """Return the messages in the queue."""
    return [json.loads(record.payload)["MESSAGE"] for record in client.range("syslog")]


@pytest.mark.skipif(SYSLOG_NG is None, reason="syslog-ng is not installed (Debian: syslog-ng-core syslog-ng-mod-http)")
def test_every_message_of_syslog_ng_is_stored(tmp_path: Path) -> None:
    """Although the service is killed meanwhile, and its queue is full for a time."""

    def send(first: int, last: int) -> None:
        lines = (f"<13>1 2026-01-01T00:00:00Z host app - - - message {number}\n" for number in range(first, last))
        connection.sendall("".join(lines).encode())

    def until(count: int) -> list[str]:
        while len(set(found := stored(client))) < count:
            time.sleep(0.05)
        return found

    with (
        Process(tmp_path / "wal") as service,
        syslog_ng(tmp_path, service) as connection,
        BlockingRecordLogClient(service.address) as client,
    ):
        client.create_queue("syslog")
        send(0, 500)
        until(500)
        service.kill()
        send(500, 1_000)
        service.start()
        service.wait_ready()
        until(1_000)
        client.configure_queue("syslog", QueueOptions(max_records=client.next_position("syslog")))
        send(1_000, 1_500)
        while not client.stats().refused.get("queue"):
            time.sleep(0.05)
        client.configure_queue("syslog", QueueOptions())
        found = until(1_500)
    assert list(dict.fromkeys(found)) == [f"message {number}" for number in range(1_500)]


def test_every_record_of_the_opentelemetry_sdk_is_stored(tmp_path: Path) -> None:
    """The example as a program; each request of its exporter is a record, compressed on the way."""
    reason = "pip install opentelemetry-exporter-otlp-proto-http"
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason=reason)
    requests = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2", reason=reason)
    text, line = (AGENTS / "opentelemetry_sdk.py").read_text(), 'logging.getLogger("app").warning("the coffee is cold")'
    assert text.count(line) == text.count("http://127.0.0.1:8080/") == 1
    many = 'for n in range(2_000): logging.getLogger("app").warning("message %d", n)'
    with Process(tmp_path / "wal") as service:
        text = text.replace(line, many).replace("http://127.0.0.1:8080/", f"{service.address}/")
        subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True, stderr=subprocess.DEVNULL)
        with BlockingRecordLogClient(service.address) as client:
            found = [
                log.body.string_value
                for record in client.range("otel")
                for resource in requests.ExportLogsServiceRequest.FromString(record.payload).resource_logs
                for scope in resource.scope_logs
                for log in scope.log_records
            ]
    assert found == [f"message {number}" for number in range(2_000)]

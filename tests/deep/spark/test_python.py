"""Which Python the workers run, and what is on its import path."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrecordlog_async.spark import worker_python as python
from mrecordlog_async.spark.worker_python import ensure_python


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back afterwards
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_pyspark_python_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the variable is set, it is not changed."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert ensure_python(local=True) == "/opt/python"


def test_workers_on_other_machines_get_a_path_that_may_be_there() -> None:
    """Workers on other machines get this Python's path, not a script in this user's cache."""
    assert ensure_python(local=False) == sys.executable == os.environ["PYSPARK_PYTHON"]


def test_another_spark_keeps_its_zips(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SPARK_HOME, the pyspark in the zips may differ from the installed one, so the zips stay."""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert ensure_python(local=True) == sys.executable


def test_local_workers_import_the_installed_pyspark(tmp_path: Path) -> None:
    """Spark's zips and jar are removed from the path; its other entries and the arguments stay as they are."""
    lib = "/opt/spark/python/lib"
    path = f"/opt/spark/jars/spark-core_2.13-4.3.0.jar:{lib}/pyspark.zip"
    path += f":{lib}/py4j-0.10-src.zip:/first place:{lib}/pyspark.zip:{tmp_path}/*:/mine/pyspark.zip"
    said = subprocess.run(
        [ensure_python(local=True), "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:])", "a b", ""],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"/first place:{tmp_path}/*:/mine/pyspark.zip ['a b', '']\n"


def test_where_no_script_can_be_written_this_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the script cannot be written, workers run this Python directly, which only starts more slowly."""

    def refuse(name: str, script: str) -> Path:
        raise PermissionError(name)

    monkeypatch.setattr(python, "install_shim", refuse)
    assert ensure_python(local=True) == sys.executable


def daemon_of(module: str, place: Path) -> subprocess.Popen[bytes]:
    """Start pyspark's daemon, as Java does, for workers that run *module*, which is in *place*."""
    environment = os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "PYTHONPATH": str(place)}
    environment |= {"PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    command, pipe = [ensure_python(local=True), "-m", "pyspark.daemon", module], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def test_a_planner_whose_connection_java_closes_prints_no_traceback(tmp_path: Path) -> None:
    """Spark asks for pyspark's daemon by name to plan a query; this package's daemon is started in its place."""
    (tmp_path / "pyspark_hasty.py").write_text(
        "def main(infile, outfile):\n"
        "    infile.read()  # until Java has closed the connection\n"
        "    outfile.write(b'an answer that nobody reads')\n"
    )
    with daemon_of("pyspark_hasty", tmp_path) as daemon:
        assert daemon.stdout is not None
        port = struct.unpack("!i", daemon.stdout.read(4))[0]
        with socket.create_connection(("127.0.0.1", port)) as java:
            worker = struct.unpack("!i", java.recv(4, socket.MSG_WAITALL))[0]
            java.sendall(struct.pack("!i", len(b"secret")) + b"secret")
            assert java.recv(6, socket.MSG_WAITALL)[4:] == b"ok"
            java.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
        while Path(f"/proc/{worker}").exists():
            time.sleep(0.01)
        _, errors = daemon.communicate()
    assert errors == b""


def test_a_worker_that_is_ended_before_it_begins_prints_no_traceback(tmp_path: Path) -> None:
    """SIGTERM reaches it after the fork and before it has its own handlers."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "os.dup2 = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"  # the daemon calls it in a worker that begins
    )
    with daemon_of("pyspark.worker", tmp_path) as daemon:
        assert daemon.stdout is not None
        port = struct.unpack("!i", daemon.stdout.read(4))[0]
        with socket.create_connection(("127.0.0.1", port)) as java:
            assert java.recv(4) == b""
        _, errors = daemon.communicate()
    assert errors == b""

"""How a job uses Spark: failed tasks run again on one machine, and large batches use the cores that Spark has."""

from __future__ import annotations

import logging
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters  # type: ignore[import-untyped]  # it has none
from py4j.java_gateway import GatewayProperty  # type: ignore[import-untyped]
from py4j.protocol import ERROR  # type: ignore[import-untyped]

from mrecordlog_async.spark import session


@pytest.mark.parametrize(
    ("given", "variables", "used"),
    [
        (None, {}, "local[*,3]"),
        ("local[2]", {}, "local[2]"),
        (None, {"MASTER": "spark://h:7077"}, None),
        (None, {"PYSPARK_GATEWAY_PORT": "1"}, None),
        (None, {"SPARK_CONF_DIR": "/etc/spark"}, None),
    ],
)
def test_a_failed_task_runs_again_on_one_machine(
    given: str | None, variables: dict[str, str], used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a master, a job tries each task three times, as on a cluster; what the user chose is left alone."""
    for name in ("MASTER", "PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    masters: list[str | None] = []
    monkeypatch.setattr(session, "spark_session", lambda name, *, master, settings: masters.append(master))
    monkeypatch.setattr(session, "_quiet", lambda session: None)
    monkeypatch.setattr(session, "_is_asked_for", lambda setting: False)
    session.job_session("drain", given)
    assert masters == [used]


@pytest.mark.parametrize("asked", [False, True])
def test_the_web_page_of_spark_is_off_unless_asked_for(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that the user gave to spark-submit is not overridden."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.ui.enabled=true pyspark-shell" if asked else "")
    given: dict[str, str] = {}
    monkeypatch.setattr(session, "spark_session", lambda name, *, master, settings: given.update(settings))
    monkeypatch.setattr(session, "_quiet", lambda session: None)
    session.job_session("drain", None)
    assert given.get("spark.ui.enabled") == (None if asked else "false")


@pytest.mark.parametrize(
    ("failure", "printed"), [(EOFError(), False), (ConnectionResetError(), False), (KeyError(), True)]
)
def test_a_killed_java_leaves_no_traceback_of_pyspark(failure: Exception, printed: bool) -> None:
    """The thread that Java reports to is silent about a connection that ended, and about nothing else."""
    reported: list[Any] = []
    server: Any = SimpleNamespace(handle_error=lambda request, address: reported.append(address))
    session._quiet_server(server)
    try:
        raise failure
    except Exception:
        server.handle_error(None, "java")
    assert reported == (["java"] if printed else [])


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _interrupt(connection: socket.socket) -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


@pytest.mark.parametrize(("end", "error"), [(_reset, None), (_interrupt, KeyboardInterrupt)])
def test_a_call_that_ends_before_java_responds_leaves_no_traceback_of_py4j(
    end: Callable[[socket.socket], None], error: type[BaseException] | None
) -> None:
    """The command says in a sentence that Java was killed, and in its exit code that it was interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as java:

        def serve() -> None:
            accepted.append(java.accept()[0])
            accepted[0].recv(100)
            end(accepted[0])

        accepted: list[socket.socket] = []
        serving = threading.Thread(target=serve)
        handled = signal.signal(signal.SIGUSR1, signal.default_int_handler)
        serving.start()
        client = JavaClient(
            JavaParameters(port=java.getsockname()[1]), PythonParameters(), GatewayProperty(False, None)
        )
        records: list[logging.LogRecord] = []
        handler: Any = logging.Handler()
        handler.emit = records.append
        root = logging.getLogger()
        root.addHandler(handler)
        root.addFilter(session._is_no_end_of_a_call)
        try:
            with pytest.raises(error) if error else nullcontext():
                assert client.send_command("c\n") == ERROR
            logging.getLogger().error("something else")
        finally:
            root.removeFilter(session._is_no_end_of_a_call)
            root.removeHandler(handler)
            signal.signal(signal.SIGUSR1, handled)
            serving.join()
            accepted[0].close()
    assert [record.getMessage() for record in records] == ["something else"]


def test_a_pyspark_without_data_sources_is_told_what_to_do_instead() -> None:
    """pyspark 3.5 has none: the session, the data source and the job for spark-submit name the drain as the way."""
    hide = "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
    programs = (
        "from mrecordlog_async.spark import session\ntry: session.spark_session()\n"
        "except ImportError as e: sys.exit(e)",
        "try: import mrecordlog_async.spark.data_source\nexcept ImportError as e: sys.exit(e)",
        "import runpy; sys.argv[1:] = 'drain --server http://h --output o'.split()\n"
        "runpy.run_module('mrecordlog_async.spark', run_name='__main__')",
    )
    for program in programs:
        ran = subprocess.run([sys.executable, "-c", hide + program], capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "has no data sources in Python" in ran.stderr and "run `mrecordlog drain`" in ran.stderr
        assert "Traceback" not in ran.stderr

"""The command as a shell sees it: what it prints, its exit codes, where it listens."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it has none
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mrecordlog_async.cli.main import build_parser, main
from mrecordlog_async.spark import __main__ as script
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain import job as drain
from mrecordlog_async.spark.drain.command import (
    JobFailedError,
    ServiceDownError,
    Stop,
    cause_of,
    failures_as_sentences,
    print_error,
    read_token,
    reporter,
    warnings_reported,
)
from mrecordlog_async.spark.drain.progress import DrainProgress, Summary
from mrecordlog_async.spark.restore import load
from mrecordlog_async.spark.services.connection import ServerDownError
from tests.spark.services import ThreadedService, numbered


def test_sigterm_ends_a_drain_with_its_summary(
    service: ThreadedService, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    """It exits with 0 and prints only a JSON object, without tracebacks; while running it listens on loopback only."""
    service.append("q", numbered("q", 0, 100))
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"a={service.url}", "--every", "200ms"]
    command += ["--output", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "c"), "--json", "--metrics", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    with (
        open(tmp_path / "errors", "w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True, text=True
        ) as process,
    ):
        ended = threading.Timer(1_000, process.kill)
        ended.start()
        until(lambda: '"records": 100' in (tmp_path / "errors").read_text() or process.poll() is not None)
        listening = _listening(process.pid)
        address = re.search(r"http://127[^\"]+/metrics", (tmp_path / "errors").read_text())
        metrics = urlopen(address[0]).read().decode() if address else ""
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate()
        ended.cancel()
    told = (tmp_path / "errors").read_text()
    assert process.returncode == 0, told
    assert "\nmrecordlog_drain_rows_total 100.0\n" in metrics and 'lag_records{server="a"} 0.0' in metrics
    assert "\nmrecordlog_drain_bytes_total 390.0\n" in metrics
    found = json.loads(said)
    assert (found["records"], found["left"], found["verified"]) == (100, {"a": 0}, True)
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [line["records"] for line in lines if "batch" in line] == [100]
    assert "Traceback" not in told and "Exception" not in told and "resolves to a loopback" not in told
    assert listening and all(address in ("127.0.0.1", "::ffff:127.0.0.1") for address in listening)


def test_the_second_signal_interrupts_once_spark_has_started() -> None:
    """A start of Java that is interrupted leaves a stack trace, and a Java that runs on."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        late = Stop()
        late.install()
        signal.raise_signal(signal.SIGTERM)
        assert late()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        early = Stop()
        for number in handlers:
            signal.raise_signal(number)
        assert early()
        with pytest.raises(KeyboardInterrupt):
            early.install()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _listening(session: int) -> list[str]:
    """Return the addresses that processes of a session listen at, from /proc."""
    inodes = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            handles = [*(process / "fd").iterdir()] if os.getsid(int(process.name)) == session else []
            for handle in handles:
                with suppress(FileNotFoundError):  # closed meanwhile: listening sockets stay open
                    inodes.add(os.readlink(handle))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ".".join(str(byte) for byte in words[-1])
    mapped = len(words) == 4 and words[:3] == [bytes(4), bytes(4), b"\0\0\xff\xff"]
    return f"::ffff:{address}" if mapped else address if len(words) == 1 else text


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (
            Py4JNetworkError("Answer from Java side is empty"),
            JobFailedError,
            "Spark's Java process ended",
        ),
        (
            ConnectionRefusedError(111, "Connection refused"),
            JobFailedError,
            "Spark's Java process ended",
        ),
        (
            PySparkException(
                "x\n  mrecordlog_async.spark.services.connection.ServerDownError: server 'a' cannot be reached\n  at"
            ),
            ServiceDownError,
            "server 'a' cannot be reached",
        ),
        (ServerDownError("a", "http://h:1", "refused"), ServiceDownError, "server 'a' at http://h:1"),
        (PySparkException("Broken pipe SQLSTATE: XXKST"), JobFailedError, "the data source's Python process ended"),
        (PySparkException("exception:  SQLSTATE: XXKST"), JobFailedError, "the data source's Python process ended"),
        (PySparkException("exception: Connection reset SQLSTATE: XXKST"), JobFailedError, "the data source's Python"),
        (PySparkException("Python worker exited unexpectedly (crashed)"), JobFailedError, "a Python process of Spark"),
    ],
)
def test_failures_are_one_sentence(failure: Exception, kind: type[Exception], said: str) -> None:
    """A failure is one line, not a traceback of Spark or Java."""
    with pytest.raises(kind) as told, failures_as_sentences():
        raise failure
    assert str(told.value).startswith(said)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(RefusedError("refused"), 2), (ServiceDownError("down"), 5), (JobFailedError("failed"), 1)],
)
def test_exit_codes(
    failure: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways to start a job exit with the same codes: wrong usage, service down, failed."""

    def fail(arguments: Namespace) -> int:
        raise failure

    monkeypatch.setattr(drain, "run", fail)
    line = ["drain", "--server", "http://h:1", "--output", "o", "--checkpoint", "c"]
    assert main(line) == code
    assert script.main(line) == code
    assert capsys.readouterr().err == f"mrecordlog: {failure}\n" * 2


class Broken(io.StringIO):
    """An output that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


def test_a_summary_that_nobody_reads_is_no_end_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mrecordlog drain … | head -0`: the command ends as all others do, whose output is closed."""
    session = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(drain, "job_session", lambda name, master: session)
    monkeypatch.setattr(drain, "reporter", lambda session, as_json: print)
    monkeypatch.setattr(drain, "run_drain", lambda *given: Summary(1, 7, 1.0, {}, {}))
    monkeypatch.setattr("signal.signal", lambda number, handler: None)  # this process keeps its signals
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    line = ["drain", "--server", "http://h:1", "--output", "o", "--checkpoint", "c"]
    with pytest.raises(BrokenPipeError):
        drain.run(build_parser().parse_args(line))


def test_a_summary_of_a_load_that_nobody_reads_fails_before_the_command_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a drain: Python itself would report it after the end, with a traceback and another exit code."""

    class BrokenPipe(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(load, "job_session", lambda name, master: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(load, "run_load", lambda *given, **options: load.Loaded(1, 0))
    monkeypatch.setattr(sys, "stdout", BrokenPipe())
    with pytest.raises(BrokenPipeError):
        load.run(build_parser().parse_args(["load-table", "http://h:1", "/lake"]))


def test_a_full_disk_below_its_messages_does_not_end_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mrecordlog drain … 2> drain.log`: a line is missing, and the drain goes on."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    session: Any = SimpleNamespace()
    monkeypatch.setattr(sys, "stderr", Broken(OSError(errno.ENOSPC, "No space left on device")))
    reporter(session)("batch 1")
    with monkeypatch.context() as writable:
        written = io.StringIO()
        writable.setattr(sys, "stderr", written)
        reporter(session)("batch 2")
    assert written.getvalue() == "batch 2\n"


def test_progress_goes_past_spark_submits_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """spark-submit would merge both outputs of Python into its standard output, so Java prints the progress."""
    lines: list[str] = []
    java = SimpleNamespace(System=SimpleNamespace(err=SimpleNamespace(println=lines.append)))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=java))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    reporter(session)("one")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with warnings_reported(reporter(session)):
        logging.getLogger("mrecordlog_async.spark").warning("%s", "two")
    reporter(session, as_json=True)("three")
    reporter(session, as_json=True)(DrainProgress(1, 7, 2.5, {"a": 0}).line())
    monkeypatch.setattr(SparkContext, "_jvm", java)
    print_error("the drain failed")
    assert lines.pop() == "the drain failed"
    monkeypatch.setattr(SparkContext, "_jvm", None)
    print_error("three")
    progress = '{"batch": 1, "records": 7, "rate": 2, "lag": {"a": 0}}'
    assert (capsys.readouterr().err, lines) == ("one\nthree\n", ["two", '{"message": "three"}', progress])


def test_a_token_file_is_read_as_the_service_reads_it(tmp_path: Path) -> None:
    """Comments and empty lines are skipped; the first token is used, further ones are for the service only."""
    path = tmp_path / "token"
    path.write_text("# rotated in November\n\n  new  # of the drain\nold\n")
    assert read_token(str(path)) == "new"
    path.write_text("# nothing\n")
    with pytest.raises(RefusedError, match="holds no token"):
        read_token(str(path))


def test_the_cause_is_found_in_the_text_of_spark() -> None:
    """The package's own sentence is extracted from two pages of the JVM's text."""
    text = (
        "[STREAM_FAILED] Query failed\n  mrecordlog_async.spark.plan.DataLossError: queue 'q' is gone\n  at org.apache"
    )
    assert cause_of(text) == "queue 'q' is gone"
    assert cause_of("[OTHER] something\nelse") == "[OTHER] something"


def test_the_cause_in_a_foreign_error_is_found_too() -> None:
    """A full disk under the checkpoint, and an error of a library, are named without their stack traces."""
    java = (
        "terminated with exception: java.io.IOException: No space left on device SQLSTATE: XXKST\n\tat java.base/java"
    )
    assert cause_of(java).startswith("Spark could not use the checkpoint or its own temporary files: No space left on")
    python = (
        "[X] from the worker: Traceback (most recent call last):\n  File\nValueError: no such codec\n SQLSTATE: 38000"
    )
    assert cause_of(python) == "ValueError: no such codec"

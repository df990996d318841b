"""The drain as a shell sees it: what it prints, where, and its exit codes. Without Spark, but for its texts."""

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
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]  # it has none
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mrecordlog_async.cli import lake
from mrecordlog_async.cli.main import main
from mrecordlog_async.spark import __main__ as script
from mrecordlog_async.spark import drain_command
from mrecordlog_async.spark.connection import ServerDownError
from mrecordlog_async.spark.consuming import ConsumerNotOursError
from mrecordlog_async.spark.drain_call import DrainOptionError, DrainOptions, DrainProgress, DrainSummary, drain
from mrecordlog_async.spark.drain_command import Stop, print_error, reporters, warnings_reported
from mrecordlog_async.spark.json_columns import function_named
from mrecordlog_async.spark.losses import ServersHeldError, UnreadLossError
from mrecordlog_async.spark.output import BatchFailedError, OutputRefusedError
from mrecordlog_async.spark.runners import SparkEndedError, failures_as_sentences
from tests.cli.running import given
from tests.compatibility.record import unpacked
from tests.spark.conftest import NewService
from tests.spark.draining import expected, table_rows
from tests.spark.services import ThreadedService, drain_samples, numbered

LINE = ["drain", "--server", "http://h:1", "--output", "o", "--no-spark"]


@pytest.fixture
def signals() -> Any:
    """Give this process its signals back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_drain_stores_what_the_log_holds(
    service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what was stored and what is left; --json prints the same for programs, one object."""
    service.append("q", numbered("q", 0, 10))
    line = ["drain", "--server", f"a={service.url}", "--output", str(tmp_path / "table"), "--no-spark"]
    assert main([*line, "--partition-by", "queue"]) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"drained 10 records in .* durable in the output; left to drain: a 0\n", said.out)
    created, progress = map(json.loads, said.err.splitlines())
    assert "a new table is created" in created["message"] and progress["records"] == 10, (
        "no terminal: progress is JSON lines"
    )
    service.append("q", numbered("q", 10, 12))
    assert main([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batches"], found["records"], found["rows"], found["left"]) == (1, 2, 2, {"a": 0})
    assert table_rows(tmp_path / "table") == expected(q=12)


def test_sigterm_ends_a_drain_with_its_summary(
    service: ThreadedService, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    """It ends after the batch, exits with 0, and prints no traceback; metrics are served meanwhile."""
    service.append("q", numbered("q", 0, 100))
    errors = tmp_path / "errors"
    command = [sys.executable, "-m", "mrecordlog_async", "drain", "--server", f"a={service.url}", "--every", "200ms"]
    command += ["--output", str(tmp_path / "out"), "--metrics", "0", "--no-spark", "--json"]
    with (
        open(errors, "w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        until(lambda: '"records": 100' in errors.read_text() or process.poll() is not None)
        address = re.search(r"http://127[^\"]+/metrics", errors.read_text())
        assert address is not None, errors.read_text()
        samples = drain_samples(address[0])
        process.terminate()
        said, _ = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.read_text().splitlines()]
    assert process.returncode == 0, lines
    assert (samples["rows_total", ""], samples["bytes_total", ""], samples["lag_records", "a"]) == (100, 390, 0)
    assert (json.loads(said)["records"], json.loads(said)["left"]) == (100, {"a": 0})
    assert [line["records"] for line in lines if "batch" in line] == [100]


@pytest.mark.usefixtures("signals")
def test_the_second_signal_interrupts_once_spark_has_started() -> None:
    """A start of Java that is interrupted leaves a stack trace, and a Java that runs on."""
    late = Stop()
    late.install()
    signal.raise_signal(signal.SIGTERM)
    assert late()
    late.pause(1_000)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    early = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    assert early()
    with pytest.raises(KeyboardInterrupt):
        early.install()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (DrainOptionError("set one"), 2),
        (OutputRefusedError("the table is another one"), 2),
        (UnreadLossError("records were removed"), 2),
        (ConsumerNotOursError("it belongs to another reader"), 2),
        (ServerDownError("a", "http://h:1", "refused"), 5),
        (BatchFailedError("a task failed"), 1),
        (ServersHeldError({"a": "it went back"}), 1),
        (SparkEndedError("Java was killed"), 1),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.usefixtures("signals")
def test_exit_codes(
    failure: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ways to start a drain exit with the same codes: it would lose data, service down, failed."""

    def fail(*given: object, **named: object) -> None:
        raise failure

    monkeypatch.setattr(drain_command, "drain", fail)
    assert main(LINE) == code
    assert script.main(LINE) == code
    assert capsys.readouterr().err == f"mrecordlog: {failure}\n" * 2


@pytest.mark.usefixtures("signals")
def test_a_server_that_was_left_out_is_a_failed_run(
    service: ThreadedService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --skip-down the others are drained, and the exit code is 1; without it, nothing starts, and it is 5."""
    service.append("q", numbered("q", 0, 10))
    line = ["drain", "--server", f"a={service.url}", "--server", "b=http://127.0.0.1:9", "--no-spark"]
    line += ["--output", str(tmp_path / "table")]
    assert main(line) == 5
    assert "server 'b' at http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err
    assert not (tmp_path / "table").exists(), "the next start may choose another layout"
    assert main([*line, "--skip-down"]) == 1
    assert "NOT drained: server 'b' was down" in capsys.readouterr().out
    assert table_rows(tmp_path / "table") == expected(q=10)


@pytest.mark.usefixtures("signals")
def test_a_queue_that_no_server_has_is_refused(
    new_service: NewService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name is refused; otherwise the drain would store nothing and report success."""
    one, two = new_service(), new_service()
    one.append("orders", numbered("orders", 0, 3))
    two.append("clicks", numbered("clicks", 0, 3))
    table = tmp_path / "table"
    line = ["drain", "--server", f"a={one.url}", "--server", f"b={two.url}", "--no-spark", "--output", str(table)]
    assert main([*line, "--subscribe", "order"]) == 2
    assert "no server has a queue 'order'; did you mean 'orders'?" in capsys.readouterr().err
    assert not table.exists(), "the next start may choose another layout"
    assert main([*line, "--subscribe", "orders,clicks"]) == 0
    one.delete("orders")
    assert main([*line, "--subscribe", "orders,clicks"]) == 0, "it was drained before"
    capsys.readouterr()
    assert main([*line, "--subscribe", "click"]) == 2
    two.stop()
    assert main([*line, "--subscribe", "click", "--skip-down"]) == 1, "that server may have it"
    two.start()


def test_a_drain_that_keeps_running_reports_a_queue_that_is_missing(service: ThreadedService, tmp_path: Path) -> None:
    """It is drained once it exists."""
    said: list[str] = []
    options = DrainOptions(service.url, str(tmp_path / "table"), every_seconds=1.0, subscribe=("late",))

    def pause(seconds: float) -> None:
        service.append("late", numbered("late", 0, 3), 0)

    done = drain(options, report=said.append, stopped=lambda: service.records() == {"late": []}, pause=pause)
    assert said[0] == "no server has a queue 'late'; it is drained once it exists" and done.records == 3


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("release", ["0.2.0", "0.3.0"])
def test_a_table_of_an_earlier_version_is_refused_with_the_command_that_continues_it(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That command continues it, once; afterwards nothing is needed."""
    place = unpacked(release, tmp_path)
    service = ThreadedService(place / "log")
    try:
        table, checkpoint = place / "orders" / "table", place / "orders" / "checkpoint"
        line = ["drain", "--server", f"shop={service.url}", "--subscribe", "orders", "--output", str(table)]
        line += ["--no-spark"]
        before = DeltaTable(table).version()
        assert main(line) == 2
        said = capsys.readouterr().err
        assert f"--output {table} --migrate-from CHECKPOINT`" in said
        assert DeltaTable(table).version() == before
        assert main(["lake", "show", str(table)]) == 0
        assert "by an earlier version" in capsys.readouterr().out
        assert main([*line, "--migrate-from", str(checkpoint)]) == 0
        assert "drained 40 records" in capsys.readouterr().out
        assert main(line) == 0
        assert "drained 0 records" in capsys.readouterr().out
    finally:
        service.end()


# Where it prints.


def test_progress_is_for_people_or_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A line has the records, the rows if there are fewer, the rate, and what is left; JSON has the same."""
    progress = DrainProgress(2, 1_000, 900, 250.5, {"a": 7}, {"b": "refused"}, {"c": "it went back"})
    for as_json in (False, True):
        report, show = reporters(None, as_json=as_json)
        report("metrics: here")
        show(progress)
    assert capsys.readouterr().err.splitlines() == [
        "metrics: here",
        "batch 2: 1,000 records into 900 rows, 250 records/s, lag: a 7; DOWN: b; HELD BACK: c",
        '{"message": "metrics: here"}',
        '{"batch": 2, "records": 1000, "rows": 900, "rate": 250, "lag": {"a": 7}, "down": {"b": "refused"}, '
        '"held": {"c": "it went back"}}',
    ]


def test_progress_goes_past_spark_submits_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """spark-submit would merge both outputs of Python into its standard output, so Java prints the progress."""
    lines: list[str] = []
    java = SimpleNamespace(System=SimpleNamespace(err=SimpleNamespace(println=lines.append)))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=java))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    reporters(session, as_json=False)[0]("one")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with warnings_reported(reporters(session, as_json=False)[0]):
        logging.getLogger("mrecordlog_async.spark").warning("%s", "two")
    reporters(session, as_json=True)[0]("three")
    monkeypatch.setattr(SparkContext, "_jvm", java)
    print_error("the drain failed")
    assert lines.pop() == "the drain failed"
    monkeypatch.setattr(SparkContext, "_jvm", None)
    print_error("three")
    assert (capsys.readouterr().err, lines) == ("one\nthree\n", ["two", '{"message": "three"}'])


class Broken(io.StringIO):
    """An output that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.usefixtures("signals")
def test_a_summary_that_nobody_reads_is_no_end_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mrecordlog drain … | head -0`: the command ends as all others do, whose output is closed."""
    monkeypatch.setattr(drain_command, "drain", lambda *given, **named: DrainSummary(1, 7, 7, 1.0, {}, {}, {}))
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    with pytest.raises(BrokenPipeError):
        drain_command.run(lake.given(given(*LINE)))


def test_a_full_disk_below_its_messages_does_not_end_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """`mrecordlog drain … 2> drain.log`: a line is missing, and the drain goes on."""
    monkeypatch.setattr(sys, "stderr", Broken(OSError(errno.ENOSPC, "No space left on device")))
    report, _ = reporters(None, as_json=False)
    report("batch 1")
    with monkeypatch.context() as writable:
        written = io.StringIO()
        writable.setattr(sys, "stderr", written)
        report("batch 2")
    assert written.getvalue() == "batch 2\n"


# What Spark says.


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), SparkEndedError, "Spark does not respond any more"),
        (Py4JError("An error occurred while calling o1.range"), SparkEndedError, "Spark does not respond any more"),
        (ConnectionRefusedError(111, "Connection refused"), SparkEndedError, "Spark does not respond any more"),
        (PySparkException("<_InactiveRpcError of RPC: StatusCode.UNAVAILABLE"), SparkEndedError, "Spark does not"),
        (
            PySparkException("x\n  mrecordlog_async.spark.connection.ServerDownError: server 'a' is away\n  at"),
            BatchFailedError,
            "server 'a' is away",
        ),
        (
            PySparkException("x\n  mrecordlog_async.spark.output.OutputRefusedError: not this directory\n  at"),
            OutputRefusedError,
            "not this directory",
        ),
        (PySparkException("Python worker exited unexpectedly (crashed)"), BatchFailedError, "a Python process of"),
        (
            PySparkException("exception: java.io.IOException: No space left on device SQLSTATE: XXKST\n\tat java"),
            BatchFailedError,
            "Spark could not use its temporary files: No space left on device",
        ),
        (
            PySparkException("[X] Traceback (most recent call last):\n  File\nValueError: no such codec\n SQLSTATE"),
            BatchFailedError,
            "ValueError: no such codec",
        ),
        (PySparkException("[OTHER] something\nelse"), BatchFailedError, "[OTHER] something"),
    ],
)
def test_failures_are_one_sentence(failure: Exception, kind: type[Exception], said: str) -> None:
    """A failure is one line, not a traceback of Spark or Java."""
    with pytest.raises(kind) as told, failures_as_sentences():
        raise failure
    assert str(told.value).startswith(said) and "\n" not in str(told.value)


def test_a_drain_without_spark_starts_no_java(service: ThreadedService, tmp_path: Path) -> None:
    """It runs where there is none, and needs no pyspark."""
    service.append("q", numbered("q", 0, 10))
    program = "import sys; sys.modules['pyspark'] = None\nfrom mrecordlog_async.cli.main import main\nsys.exit(main())"
    line = ["drain", "--server", service.url, "--output", str(tmp_path / "table"), "--no-spark"]
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program, *line], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert table_rows(tmp_path / "table") == expected(q=10)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("def broken(:", "SyntaxError"),
        ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("raise KeyError('at import')", "at import"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_wrong_setting(
    module: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart does not help."""
    name = f"transforming_{len(module)}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(drain_command.REFUSED, match=f"--transform {name}:f: its module cannot be imported.*{says}"):
        function_named(f"{name}:f")


def test_without_spark_a_script_says_what_to_install(tmp_path: Path) -> None:
    """As the command does."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from mrecordlog_async.spark.__main__ import main\n"
        "main(['drain', '--server', 'a=http://127.0.0.1:9', '--output', sys.argv[1], '--once'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "table")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 1 and "Traceback" not in said.stderr and "mrecordlog_async[spark]" in said.stderr

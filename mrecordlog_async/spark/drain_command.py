"""A drain as a command: `mrecordlog drain`, or `python -m mrecordlog_async.spark drain`.

It reports progress to people in a terminal, and as JSON lines otherwise. The first SIGTERM or SIGINT ends the drain
after the batch under way, the second one interrupts that.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from mrecordlog_async import tokens
from mrecordlog_async.spark.connection import ServiceRefusedError
from mrecordlog_async.spark.consuming import ConsumerNotOursError
from mrecordlog_async.spark.drain_call import DrainOptionError, DrainOptions, DrainProgress, drain
from mrecordlog_async.spark.drain_metrics import MetricsAddressError
from mrecordlog_async.spark.json_columns import ColumnsError, function_named
from mrecordlog_async.spark.losses import ForgetError, UnreadLossError
from mrecordlog_async.spark.options import OptionError, parse_servers
from mrecordlog_async.spark.output import OutputRefusedError
from mrecordlog_async.spark.runners import failures_as_sentences
from mrecordlog_async.spark.session import command_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED = (
    ColumnsError,
    ConsumerNotOursError,
    DrainOptionError,
    ForgetError,
    MetricsAddressError,
    OptionError,
    OutputRefusedError,
    ServiceRefusedError,
    UnreadLossError,
    tokens.TokenFileError,
)
"""Errors after which a restart does not help: the settings are wrong, or the drain would lose data."""

LOOK_SECONDS = 0.1
"""A pause ends this long after a signal."""


def run(typed: Mapping[str, Any]) -> int:
    """Run the command; return its exit code: 1 if a run that ends left a server out, 0 otherwise.

    typed: the values of `drain_arguments` that were given, by their names.

    Raises:
        RecordLogError, ValueError, OSError: the drain ended; see `REFUSED`.
    """
    options, stop = options_of(typed), Stop()
    in_process, master, as_json = typed.get("no_spark"), typed.get("master"), bool(typed.get("json"))
    if in_process and master is not None:
        raise DrainOptionError("--no-spark runs the drain in this process, --master names a Spark: set one")
    session = None
    if not in_process:
        with failures_as_sentences():
            session = command_session("mrecordlog drain", master)
    stop.install()
    report, progress = reporters(session, as_json=as_json or not sys.stderr.isatty())
    with warnings_reported(report):
        summary = drain(options, session, report=report, progress=progress, stopped=stop, pause=stop.pause)
    # Not within `failures_as_sentences`: a reader that has closed standard output is not Java.
    print(json.dumps(asdict(summary)) if as_json else summary.line, flush=True)
    if session is not None:
        with failures_as_sentences():
            session.stop()
    return 1 if (summary.down or summary.held) and options.every_seconds is None else 0


def options_of(typed: Mapping[str, Any]) -> DrainOptions:
    """Return what the command line describes. Raises one of `REFUSED`."""
    if typed.get("once") and "every_seconds" in typed:
        raise DrainOptionError("--once and --every exclude each other: set one")
    given = {each.name: typed[each.name] for each in fields(DrainOptions) if each.name in typed}
    servers = ",".join(typed["servers"])
    given |= {"servers": servers, "tokens": read_tokens(typed.get("token_file", ()), servers)}
    if "storage_options" in given:
        given["storage_options"] = dict(given["storage_options"])
    if "forget" in given:
        given["forget"] = tuple(log for logs in given["forget"] for log in logs)
    if "transform" in given:
        given["transform"] = function_named(given["transform"])
    options = DrainOptions(**given)
    options.check()
    return options


def read_tokens(given: Sequence[str], servers: str) -> dict[str, str]:
    """Return server → token, from files: FILE for all servers, "", and NAME=FILE for the one of that name.

    Args:
        given: what was typed.
        servers: as in `DrainOptions`.

    Raises:
        TokenFileError: a file has no token or cannot be read, no server has the name, or a token is given twice.
        OptionError: *servers* is malformed.
    """
    names = [server.name for server in parse_servers(servers)]
    shown = ", ".join(names)
    return tokens.read_named_tokens(
        given,
        names,
        lambda name: f"there is no --server {name}=…; the servers are {shown}. Write one of them",
        "all servers",
    )


class Stop:
    """Notes the first SIGTERM or SIGINT as a request to stop, and raises KeyboardInterrupt at the second.

    While Spark starts, the second one is noted too: a Java whose start is interrupted prints a stack trace, and
    continues to run after the command.
    """

    def __init__(self) -> None:
        self._signals, self._started = 0, False
        self._handle()

    def install(self) -> None:
        """Handle both signals again: Spark, which has started, replaces the handler of SIGINT."""
        self._handle()
        self._started = True
        self._interrupt()

    def __call__(self) -> bool:
        """Return whether a stop was requested."""
        return self._signals > 0

    def pause(self, seconds: float) -> None:
        """Wait, until a stop is requested."""
        deadline = time.monotonic() + seconds
        while not self._signals and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))

    def _handle(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self._interrupt()

    def _interrupt(self) -> None:
        if self._started and self._signals > 1:
            raise KeyboardInterrupt


def reporters(
    session: SparkSession | None, *, as_json: bool
) -> tuple[Callable[[str], None], Callable[[DrainProgress], None]]:
    """Return functions that write a sentence, and the progress, to standard error; as JSON objects if *as_json* is set.

    spark-submit merges both outputs of a Python program into its own standard output, except what Java writes.
    """
    write = _print_or_drop
    if session is not None and "PYSPARK_GATEWAY_PORT" in os.environ:
        java: Any = session.sparkContext._jvm  # noqa: SLF001  # pyspark has no public name for it
        write = java.System.err.println
    if as_json:
        return lambda line: write(_as_json({"message": line})), lambda progress: write(_as_json(progress.facts))
    return write, lambda progress: write(progress.line)


def _as_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False)


def _print_or_drop(line: str) -> None:
    """Print *line* on standard error. One that cannot be written is dropped: the job continues, as a service does."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


@contextmanager
def warnings_reported(report: Callable[[str], None]) -> Iterator[None]:
    """Pass the package's warnings in this process to *report*: spark-submit merges standard error into its output."""
    handler = _Reporting(report)
    log = logging.getLogger("mrecordlog_async")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Reporting(logging.Handler):
    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report(record.getMessage())


def print_error(line: str) -> None:
    """Print *line* on standard error; under spark-submit on that of Java, if it still runs."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
        from pyspark import SparkContext

        java: Any = SparkContext._jvm  # noqa: SLF001  # pyspark has no public name for it
        with suppress(Py4JError, OSError, AttributeError):
            java.System.err.println(line)
            return
    print(line, file=sys.stderr)

"""Shared parts of the commands of both jobs: signals, the token file, standard error, failures as one sentence."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mrecordlog_async import tokens
from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain.progress import Line
from mrecordlog_async.spark.services.connection import ServerDownError
from mrecordlog_async.spark.settings.option_values import TOKEN_OF, OptionError, parse_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Report = Callable[[str], None]
"""A function that is called with one sentence for the user."""


class JobFailedError(RecordLogError):
    """The query failed; the message says why. What it had committed is kept, and the next run continues there."""


class ServiceDownError(JobFailedError):
    """The query failed because a service could not be reached."""


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

    def _handle(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        self._interrupt()

    def _interrupt(self) -> None:
        if self._started and self._signals > 1:
            raise KeyboardInterrupt


def reporter(session: SparkSession, *, as_json: bool = False) -> Report:
    """Return a function that writes a line to standard error, as JSON objects if *as_json* is set.

    spark-submit merges both outputs of a Python program into its own standard output, except what Java writes.
    """
    shown: Callable[[str], str] = _as_json if as_json else str
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return lambda line: _print_or_drop(shown(line))
    java: Any = session.sparkContext._jvm  # noqa: SLF001  # pyspark has no public name for it
    error = java.System.err
    return lambda line: error.println(shown(line))


def _print_or_drop(line: str) -> None:
    """Print *line* on standard error. One that cannot be written is dropped: the job continues, as a service does."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


@contextmanager
def warnings_reported(report: Report) -> Iterator[None]:
    """Pass the package's warnings in this process to *report*: spark-submit merges standard error into its output."""
    handler = _Reporting(report)
    log = logging.getLogger("mrecordlog_async")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Reporting(logging.Handler):
    def __init__(self, report: Report) -> None:
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


def _as_json(line: str) -> str:
    facts = line.facts if isinstance(line, Line) else {"message": line}
    return json.dumps(facts, ensure_ascii=False)


@contextmanager
def failures_as_sentences() -> Iterator[None]:
    """Replace the long errors of Spark and its Java by one sentence.

    Raises JobFailedError or ServiceDownError; RefusedError for a consumer that the query may not use.
    """
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        text = str(error)
        down = "ServerDownError: " in text
        kind = ServiceDownError if down else RefusedError if "ConsumerRefusedError: " in text else JobFailedError
        raise kind(cause_of(text)) from error
    except ServerDownError as error:
        raise ServiceDownError(str(error)) from error
    except Py4JJavaError as error:  # Java responded, so it is still running
        raise JobFailedError(str(error.java_exception).partition("\n")[0]) from error
    except (Py4JError, ConnectionError, EOFError) as error:
        raise JobFailedError(
            "Spark's Java process ended during the job: it was killed or ran out of memory. What was not committed is "
            "still in the log; start again"
        ) from error


def cause_of(text: str) -> str:
    """Return this package's own sentence from Spark's text about a failed query, or the first line of that text."""
    ours = re.findall(r"mrecordlog_async\.[\w.]*Error: (.+)", text)
    if ours:
        return str(ours[-1])
    if "XXKST" in text and re.search(r"exception: (Connection reset)? *SQLSTATE|Broken pipe", text):
        return "the data source's Python process ended during the job: it was killed or ran out of memory; start again"
    if "Python worker exited unexpectedly" in text:
        return "a Python process of Spark ended during the job: it was killed or ran out of memory; start again"
    if java := re.findall(r"java\.[\w.]*IOException: (.+?)(?: SQLSTATE|$)", text, re.MULTILINE):
        return (
            f"Spark could not use the checkpoint or its own temporary files: {java[-1]}. What was committed is kept; "
            "check the disks and their free space, and start again"
        )
    python = re.findall(r"^([A-Za-z_][\w.]*(?:Error|Exception): .+)", text, re.MULTILINE)
    return str(python[-1]) if "Traceback (most recent call last)" in text and python else text.partition("\n")[0]


def read_token(path: str | None) -> str | None:
    """Return the first token in a file. Raises RefusedError if the file has none or cannot be read."""
    try:
        return None if path is None else tokens.read_token(path)
    except tokens.TokenFileError as error:
        raise RefusedError(str(error)) from None


def read_tokens(given: Sequence[str], servers: str) -> dict[str, str]:
    """Return the options that hold the tokens in files: FILE for all servers, NAME=FILE for the one of that name.

    given: what was typed. servers: as the option `servers`.

    Raises:
        RefusedError: a file has no token or cannot be read, no server has the name, a token is given twice, or
            *servers* is malformed.
    """
    try:
        names = [server.name for server in parse_servers(servers)]
        found = tokens.read_named_tokens(
            given,
            names,
            lambda name: f"there is no --server {name}=…; the servers are {', '.join(names)}. Write one of them",
            "all servers",
        )
    except (OptionError, tokens.TokenFileError) as error:
        raise RefusedError(str(error)) from None
    return {f"{TOKEN_OF}{name}" if name else "token": token for name, token in found.items()}

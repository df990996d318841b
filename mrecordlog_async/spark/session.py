"""A SparkSession set up for this package: Java is found, workers run this Python, data goes over Unix sockets."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from socketserver import BaseServer
from typing import TYPE_CHECKING, Any

from mrecordlog_async.spark.java import ensure_java
from mrecordlog_async.spark.pyspark_version import refuse_without_data_sources
from mrecordlog_async.spark.worker_python import ensure_python
from mrecordlog_async.support.extras import naming
from mrecordlog_async.support.forks import call_in_children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Workers and their JVM are on one machine. Measured: 34 instead of 57 ms per task, drains up to 1.9 times faster.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

LOOPBACK = "127.0.0.1"

LOCAL_SETTINGS = {
    # Everything runs on this machine: no other host needs Spark's ports, which require no password.
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.python.daemon.module": "mrecordlog_async.spark.worker_daemon",
}

JOB_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false"}
"""Settings of a job that runs as a command, unless its user has set them: its progress lines replace both."""


CONNECT = "sc://"
"""Begins the address of a server of Spark Connect."""

CONNECT_RETRIES = 4
"""Times that a request to a server of Spark Connect is repeated: by default, a client waits ten minutes for it."""


def command_session(name: str, master: str | None) -> SparkSession:
    """Return the session of a command, on Spark's own Java or on a server of Spark Connect; see `job_session`."""
    if master is None or not master.startswith(CONNECT):
        return job_session(name, master)
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session = SparkSession.builder.remote(master).getOrCreate()
    client: Any = session.client
    client.set_retry_policies([DefaultPolicy(max_retries=CONNECT_RETRIES)])
    return session


def job_session(name: str, master: str | None) -> SparkSession:
    """Return the session of a command; its Java ignores SIGTERM.

    systemd sends SIGTERM to all processes of a service. The driver decides when the query ends, and Java ends after it.

    Args:
        name: the application's name in Spark.
        master: where Spark runs; None for what spark-submit or the environment says, else this machine.

    Raises:
        NoJavaError: there is no Java that Spark can run on.
    """
    global _ignore_sigterm  # a fork hook takes no arguments
    logging.getLogger().addFilter(_is_no_end_of_a_call)  # before Java starts: that may be interrupted too
    _ignore_sigterm = True
    try:
        settings = {name: value for name, value in JOB_SETTINGS.items() if not _is_asked_for(name)}
        session = spark_session(name, master=master or _retrying_master(), settings=settings)
    finally:
        _ignore_sigterm = False
    _quiet(session)
    return session


def _retrying_master() -> str | None:
    """Return a master on this machine that runs a failed task again, as clusters do; None if another one is set."""
    chosen = "PYSPARK_GATEWAY_PORT" in os.environ or "MASTER" in os.environ or "SPARK_CONF_DIR" in os.environ
    return None if chosen else "local[*,3]"


def _is_asked_for(setting: str) -> bool:
    """Return whether the user gave *setting* to spark-submit, itself or through pyspark."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return setting in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    from pyspark import SparkConf, SparkContext

    # It connects to the Java of spark-submit, which has its settings.
    SparkContext._ensure_initialized()  # noqa: SLF001  # pyspark has no public name for it
    return SparkConf().contains(setting)


_ignore_sigterm = False
"""True if child processes ignore SIGTERM. Java does not handle a signal that was ignored when it started."""


def _apply_in_child() -> None:
    if _ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


call_in_children(_apply_in_child)


def spark_session(
    name: str = "mrecordlog", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the running SparkSession, or start one. A local one listens on the loopback address only.

    Args:
        name: the application's name in Spark.
        master: where Spark runs; None for what spark-submit or the environment says, else `local[*]`.
        settings: Spark configuration, which overrides this package's own.

    Raises:
        NoJavaError: there is no Java that Spark can run on.
        ImportError: pyspark is not installed, or is older than 4.0.
    """
    own = dict(SETTINGS)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started Java and chosen the Python
        local = _is_local(master, settings or {})
        ensure_java()
        ensure_python(local=local)
        if local:
            own |= LOCAL_SETTINGS
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)  # where the web pages listen; there is no setting for it
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise naming(error, "spark") from None
    refuse_without_data_sources()
    # pyspark warns of pandas 3 whatever is done with it. Its major versions read and convert the same here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)

    builder = SparkSession.Builder().appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**own, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


REPORTED_BY = (
    "sql.execution.streaming.runtime.MicroBatchExecution",
    "sql.execution.streaming.MicroBatchExecution",  # its name in Spark 4.0
    "sql.execution.streaming.runtime.AsyncProgressTrackingMicroBatchExecution",
    "sql.execution.datasources.v2.DataWritingSparkTask",
    "sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "executor.Executor",
    "scheduler.TaskSetManager",
    "util.Utils",
)
"""The classes of Spark that print why a task, a batch or a query failed: hundreds of lines for a full disk."""


def _quiet(session: SparkSession) -> None:
    """Keep out of Spark's log why a query ended, which the command reports in one sentence. Other errors stay."""
    session.sparkContext.setLogLevel("ERROR")
    java: Any = session.sparkContext._jvm  # noqa: SLF001  # pyspark has no public name for it
    log4j = java.org.apache.logging.log4j
    for name in REPORTED_BY:
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{name}", log4j.Level.OFF)
    _quiet_server(session.sparkContext._accumulatorServer)  # noqa: SLF001  # pyspark has no public name for it


def _is_no_end_of_a_call(record: logging.LogRecord) -> bool:
    """Return False for the traceback that py4j logs, as the root logger, if a call ends before Java responds.

    The command says in a sentence that Java was killed, and in its exit code that it was interrupted.
    """
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]  # it has none

    return not (record.exc_info and isinstance(record.exc_info[1], Py4JNetworkError | KeyboardInterrupt))


def _quiet_server(server: BaseServer) -> None:
    """Print no traceback if Java, which is connected to *server*, is killed: the command reports that in a sentence."""
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            report(request, address)

    server.handle_error = handle_error  # type: ignore[assignment,method-assign]  # of this instance


def _is_local(master: str | None, settings: Mapping[str, str]) -> bool:
    """Return whether executors run in this process; False if a configuration directory may say otherwise."""
    chosen = master or settings.get("spark.master") or os.environ.get("MASTER") or "local"
    return chosen.startswith("local") and "SPARK_CONF_DIR" not in os.environ

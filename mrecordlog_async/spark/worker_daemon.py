"""The process that starts Spark's Python workers: pyspark's own, without a traceback when Java closes a connection.

Java closes the connection to a task of a sink as soon as it has the task's result. The worker's last flush then fails,
which changes nothing, and pyspark would print the traceback to the terminal of the drain. So it would if SIGTERM, which
service managers send to all processes, came between the fork of a worker and the worker's own handlers: the fork
inherits the one that ends pyspark's daemon.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark import daemon

_worker: Callable[..., Any] = daemon.worker

LOST = (BrokenPipeError, ConnectionResetError)
"""Errors that a flush raises if Java has closed the connection."""


def worker(sock: Any, authenticated: Any) -> Any:
    """Run pyspark's worker; return a code that ends it if Java has closed the connection."""
    try:
        return _worker(sock, authenticated)
    except LOST:
        sys.unraisablehook = _report_others  # the writer is freed with this exception, and tries to flush again
        return 1


def _report_others(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an exception that nothing can catch, unless it says that the connection is closed."""
    if not isinstance(unraisable.exc_value, LOST):
        sys.__unraisablehook__(unraisable)


def _end_by_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    # Before pyspark's daemon forks its first worker: a worker inherits handlers, and SIGTERM may come at once.
    os.register_at_fork(after_in_child=_end_by_sigterm)
    daemon.worker = worker
    daemon.manager()

"""Runs a Spark job as a command. A refused start exits as wrong usage, and a service that is down as not ready."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mrecordlog_async.cli.shell.exit_codes import NotReadyError, UsageError


def run_job(job: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run *job* and return its exit code.

    Raises:
        UsageError: The job refuses to start.
        NotReadyError: A service is down.
    """
    from mrecordlog_async.spark.checkpoints.identity import RefusedError
    from mrecordlog_async.spark.drain.command import ServiceDownError

    try:
        return job(arguments)
    except RefusedError as error:
        raise UsageError(str(error)) from None
    except ServiceDownError as error:
        raise NotReadyError(str(error)) from None

"""Running a Spark job as a command: what it refuses is wrong usage, with that exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mrecordlog_async.cli.exits import UsageError


def run_job(job: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run *job*; return its exit code. Raises UsageError where it refuses to start."""
    from mrecordlog_async.spark.guards import RefusedError

    try:
        return job(arguments)
    except RefusedError as error:
        raise UsageError(str(error)) from None

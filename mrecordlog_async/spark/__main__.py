"""`python -m mrecordlog_async.spark drain | load`: the jobs, and a script for spark-submit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.drain import job as drain
from mrecordlog_async.spark.drain.command import ServiceDownError, print_error
from mrecordlog_async.spark.process.offers import NoDataSourcesError
from mrecordlog_async.spark.settings.arguments import add_drain_arguments, add_load_arguments

try:
    from mrecordlog_async.spark.restore import load
except NoDataSourcesError as error:  # spark-submit of an older Spark runs this file
    sys.exit(f"mrecordlog: {error}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job; return the exit code."""
    parser = argparse.ArgumentParser(prog="mrecordlog_async.spark", description="Jobs between logs and a lake.")
    subparsers = parser.add_subparsers(title="jobs", metavar="job", required=True)
    for name, add_arguments, job in (("drain", add_drain_arguments, drain), ("load", add_load_arguments, load)):
        subparser = subparsers.add_parser(name, description=job.__doc__)
        add_arguments(subparser)
        subparser.set_defaults(run=job.run)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        return code
    except KeyboardInterrupt:
        return 130
    except (RecordLogError, OSError) as error:
        print_error(f"mrecordlog: {error}")
        return _exit_code(error)


def _exit_code(error: Exception) -> int:
    """Return the exit code that `mrecordlog` uses for *error*: wrong usage, service not ready, failed."""
    if isinstance(error, RefusedError):
        return 2
    return 5 if isinstance(error, ServiceDownError) else 1


if __name__ == "__main__":
    sys.exit(main())

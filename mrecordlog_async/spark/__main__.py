"""`python -m mrecordlog_async.spark drain`: the drain, and a script for spark-submit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.drain_arguments import add_drain_arguments
from mrecordlog_async.support.extras import naming


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser(prog="mrecordlog_async.spark", description="Jobs between logs and a lake.")
    subparsers = parser.add_subparsers(title="jobs", metavar="job", required=True)
    add_drain_arguments(subparsers.add_parser("drain", description="Move records from services into a Delta table."))
    arguments = parser.parse_args(argv)
    try:
        from mrecordlog_async.spark import drain_command
        from mrecordlog_async.spark.connection import ServerDownError
    except ModuleNotFoundError as error:
        sys.exit(f"mrecordlog: {naming(error, 'spark')}")
    try:
        return drain_command.run(arguments)
    except ModuleNotFoundError as error:
        sys.exit(f"mrecordlog: {naming(error, 'spark')}")
    except KeyboardInterrupt:
        return 130
    except (RecordLogError, OSError, ValueError) as error:
        drain_command.print_error(f"mrecordlog: {error}")
        if isinstance(error, drain_command.REFUSED):
            return 2
        return 5 if isinstance(error, ServerDownError) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m mrecordlog_async.spark drain`: the drain, and a script for spark-submit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.spark.drain_arguments import ARGUMENTS, DrainArgument
from mrecordlog_async.support.extras import naming


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return the exit code."""
    parser = argparse.ArgumentParser(prog="mrecordlog_async.spark", description="Jobs between logs and a lake.")
    jobs = parser.add_subparsers(title="jobs", metavar="job", required=True)
    drain = jobs.add_parser("drain", description="Move records from services into a Delta table.")
    for each in ARGUMENTS:
        _add(drain, each)
    typed = vars(parser.parse_args(argv))
    try:
        from mrecordlog_async.spark import drain_command
        from mrecordlog_async.spark.connection import ServerDownError
    except ModuleNotFoundError as error:
        sys.exit(f"mrecordlog: {naming(error, 'spark')}")
    try:
        return drain_command.run(typed)
    except ModuleNotFoundError as error:
        sys.exit(f"mrecordlog: {naming(error, 'spark')}")
    except KeyboardInterrupt:
        return 130
    except (RecordLogError, OSError, ValueError) as error:
        drain_command.print_error(f"mrecordlog: {error}")
        if isinstance(error, drain_command.REFUSED):
            return 2
        return 5 if isinstance(error, ServerDownError) else 1


def _add(parser: argparse.ArgumentParser, each: DrainArgument) -> None:
    if each.read is None:
        parser.add_argument(
            each.flag,
            dest=each.field,
            action="store_const",
            const=each.means,
            default=argparse.SUPPRESS,
            help=each.help,
        )
        return
    parser.add_argument(
        each.flag,
        dest=each.field,
        type=_argument(each.read),
        action="append" if each.repeats else "store",
        metavar=each.metavar,
        required=each.is_required,
        default=argparse.SUPPRESS,
        help=each.help,
    )


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return *read* as argparse takes it: a ValueError of its own loses its sentence there."""

    def read_argument(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_argument


if __name__ == "__main__":
    sys.exit(main())

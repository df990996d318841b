"""`python -m mrecordlog_async.spark drain | load`: the jobs, also as a script for spark-submit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mrecordlog_async.spark import drain, load
from mrecordlog_async.spark.guards import RefusedError
from mrecordlog_async.spark.java import NoJavaError
from mrecordlog_async.spark.options import OptionError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job; return the exit code."""
    parser = argparse.ArgumentParser(prog="mrecordlog_async.spark", description="Jobs between logs and a lake.")
    subparsers = parser.add_subparsers(title="jobs", metavar="job", required=True)
    for name, job in (("drain", drain), ("load", load)):
        subparser = subparsers.add_parser(name, description=job.__doc__)
        job.add_arguments(subparser)
        subparser.set_defaults(run=job.run)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        return code
    except KeyboardInterrupt:
        return 130
    except (RefusedError, OptionError, NoJavaError, OSError) as error:
        print(f"mrecordlog: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

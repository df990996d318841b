"""`mrecordlog load-parquet`: Parquet files into a service, exactly once by position, with Spark."""

from __future__ import annotations

import argparse
from typing import Any

from mrecordlog_async.cli.spark_job import run_job
from mrecordlog_async.spark.arguments import add_load_arguments


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "load-parquet", help="restore queues from Parquet with Spark, exactly once", description=__doc__
    )
    add_load_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Load the files."""
    from mrecordlog_async.spark import load

    return run_job(load.run, arguments)

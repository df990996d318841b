"""`mrecordlog drain`: from services into a lake, exactly once, with Spark."""

from __future__ import annotations

import argparse
from typing import Any

from mrecordlog_async.cli.spark_job import run_job
from mrecordlog_async.spark.arguments import add_drain_arguments


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "drain", help="move records into Parquet with Spark, exactly once", description=__doc__
    )
    add_drain_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Drain until everything is stored, or for ever with --every."""
    from mrecordlog_async.spark import drain

    return run_job(drain.run, arguments)

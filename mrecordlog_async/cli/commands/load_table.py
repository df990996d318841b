"""Restore queues from a Delta table into a service with Spark, exactly once by position.

Missing queues are created. A record that is stored already at its position is not stored again, so the command can be
repeated after a failure.

  mrecordlog load-table http://127.0.0.1:8080 /lake/events
"""

from __future__ import annotations

import argparse

from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.spark_job import run_job
from mrecordlog_async.cli.shell.target import add_signpost
from mrecordlog_async.spark.settings.arguments import add_load_arguments


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("load-table", "Restore queues from a Delta table, exactly once", __doc__)
    add_load_arguments(parser)
    add_signpost(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Load the table."""
    from mrecordlog_async.spark.restore import load

    return run_job(load.run, arguments)

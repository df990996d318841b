"""Move records from services into a Delta table with Spark, exactly once.

Each batch is one durable transaction of the table, which also says how far the logs are stored; then its records are
truncated in the log. Without --every the command ends when everything that was there is stored.

  mrecordlog drain --server a=http://h1:8080 --server b=http://h2:8080 --output /lake/events
"""

from __future__ import annotations

import argparse

from mrecordlog_async.cli.shell.exit_codes import NotReadyError, UsageError
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.spark.drain_arguments import add_drain_arguments


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("drain", "Move records into a Delta table, exactly once", __doc__)
    add_drain_arguments(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Drain until everything is stored, or forever with --every."""
    from mrecordlog_async.spark import drain_command
    from mrecordlog_async.spark.connection import ServerDownError

    try:
        return drain_command.run(arguments)
    except drain_command.REFUSED as error:
        raise UsageError(str(error)) from None
    except ServerDownError as error:
        raise NotReadyError(str(error)) from None

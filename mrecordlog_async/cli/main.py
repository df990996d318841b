"""`mrecordlog`: parse, run one command, turn what went wrong into a sentence and an exit code.

A command is a module with `add_parser(subparsers)`, which describes it and returns its parser, and
`run(arguments) -> int`, which does it and returns the exit code. Heavy imports belong into `run`: `mrecordlog --help`
and the commands that read files work with the bare install.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

from mrecordlog_async.cli.commands import (
    append,
    bench,
    cat,
    completion,
    delete,
    demo,
    drain,
    dump,
    export_quickwit,
    import_quickwit,
    inspect,
    load,
    load_parquet,
    ls,
    repair,
    serve,
    snapshot,
    top,
    truncate,
    verify,
)
from mrecordlog_async.cli.exit_codes import FAILED, FINE, INTERRUPTED, UsageError, exit_code_of
from mrecordlog_async.errors import RecordLogError

EPILOG = """\
a first round:
  mrecordlog demo                              see it keep its promise under kill -9
  mrecordlog serve ./wal                       and, beside it:
  printf 'one\\ntwo\\n' | mrecordlog append orders --lines --create
  mrecordlog cat orders
  mrecordlog inspect ./wal --pins              what keeps the disk from being freed

Commands that only read work on a directory beside a running service and never write to it.
exit codes: 0 fine, 1 failed, 2 wrong usage, 3 damage found, 4 in use by another process, 5 service not ready
"""


class CommandModule(Protocol):
    """What each module in the table offers."""

    def add_parser(self, subparsers: Any) -> argparse.ArgumentParser:
        """Describe the command to argparse."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit code."""


COMMANDS: tuple[CommandModule, ...] = (
    serve,
    demo,
    append,
    cat,
    ls,
    truncate,
    delete,
    top,
    inspect,
    verify,
    repair,
    snapshot,
    dump,
    load,
    drain,
    load_parquet,
    import_quickwit,
    export_quickwit,
    bench,
    completion,
)
"""Every command, in the order that `--help` shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`). Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except ModuleNotFoundError as error:
        return _say(f"{error.name} is missing: {_extra_of(error.name or '')}", FAILED)
    except (RecordLogError, UsageError, OSError, ValueError) as error:
        return _say(_sentence(error), exit_code_of(error))
    except Exception as error:
        code = exit_code_of(error)
        if code == FAILED:
            raise  # our own mistake: the traceback is the report
        return _say(str(error), code)


def build_parser() -> argparse.ArgumentParser:
    """Put the parsers of all commands under one."""
    parser = argparse.ArgumentParser(
        prog="mrecordlog",
        description="A durable log of many queues in one directory.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mrecordlog {version('mrecordlog_async')}")
    subparsers = parser.add_subparsers(title="commands", metavar="command", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers).set_defaults(run=command.run)
    return parser


def _say(message: str, code: int) -> int:
    print(f"mrecordlog: {message}", file=sys.stderr)
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _extra_of(module: str) -> str:
    extra = {"rich": "cli", "pyspark": "spark", "pyarrow": "spark"}.get(module.split(".")[0], "server")
    return f"install it with pip install 'mrecordlog_async[{extra}]'"

"""`mrecordlog`: parse, run one command, turn an error into a sentence and an exit code.

A command is a module with `add_parser(command_line)`, which adds the command and returns its parser, and
`run(arguments) -> int`, which executes it and returns the exit code. Heavy imports belong in `run`: `mrecordlog --help`
and the commands that read files work with the bare install.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Protocol

from mrecordlog_async.cli.commands import (
    append,
    cat,
    completion,
    configure,
    consume,
    consumers,
    delete,
    drain,
    dump,
    lake,
    load,
    ls,
    repair,
    serve,
    snapshot,
    top,
    truncate,
    verify,
)
from mrecordlog_async.cli.output.standard_output import (
    OutputError,
    TerminalClosedError,
    drop_output,
    drop_unwritten_errors,
    name_standard_output,
)
from mrecordlog_async.cli.shell.completed_word import LINE, completed_words
from mrecordlog_async.cli.shell.exit_codes import FAILED, FINE, INTERRUPTED, UsageError, exit_code_of
from mrecordlog_async.cli.shell.explain import explain, refuse_foreign_directory
from mrecordlog_async.cli.shell.lookups import nearest_queue
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import is_service, refuse_token_file
from mrecordlog_async.compiled import BUILD, WHY_PURE
from mrecordlog_async.errors import QueueNotFoundError, RecordLogError
from mrecordlog_async.servers.names import shown_url
from mrecordlog_async.support.extras import naming

EPILOG = """\
LOG is the directory of a log (./wal), or the URL of a service
(http://127.0.0.1:8080, unix:/run/wal.sock). A directory can be read while a
service or another process writes to it; reading never changes it.

  mrecordlog serve ./wal &
  echo 'two coffees' | mrecordlog append http://127.0.0.1:8080 orders --create
  mrecordlog cat ./wal orders

Exit codes:
  0 success   1 failed   2 wrong usage   3 damage found
  4 log in use by another process   5 service not reachable or not ready
  6 the log failed while it was served: start the service again
"""


class CommandModule(Protocol):
    """The interface of each module in the table."""

    def add_parser(self, command_line: Parser) -> Parser:
        """Add the command with its arguments; return its parser."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run it; return the exit code."""


GROUPS: tuple[tuple[str, tuple[CommandModule, ...]], ...] = (
    ("Store and read records", (serve, append, cat, ls, configure, truncate, delete, top)),
    ("Consume records", (consume, consumers)),
    ("Back up, verify and repair", (snapshot, verify, repair)),
    ("Move queues between logs", (dump, load)),
    ("Move queues into a lake, with Spark", (drain, lake)),
    ("Set up your shell", (completion,)),
)
"""Every command, in the order that `--help` shows."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_standard_streams()
    arguments, directory = argparse.Namespace(), None
    try:
        if LINE in os.environ:
            return _complete()
        arguments = _parse(argv)
        directory = _directory_of(arguments)
        _check(arguments, directory)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        drop_output()  # its reader may have stopped reading, and Python would wait for it
        return INTERRUPTED
    except (BrokenPipeError, TerminalClosedError):
        drop_output()  # its reader has closed it (`| head`), or somebody its window
        return FINE
    except OutputError as error:
        drop_output()
        return _fail(f"standard output: {error.strerror}; what was printed is incomplete", FAILED)
    except ModuleNotFoundError as error:
        return _fail(str(naming(error, _extra_for(error, arguments))), FAILED)
    except (RecordLogError, UsageError, OSError, ValueError) as error:
        needs_files = hasattr(arguments, "directory")
        could_create = getattr(arguments, "create", None) is False
        sentence = explain(error, directory, takes_url=not needs_files, could_create=could_create)
        return _fail(sentence + _nearest_queue(error, arguments), exit_code_of(error))
    except Exception as error:
        code = exit_code_of(error)
        if code == FAILED:
            raise  # a bug in this package: the traceback is the report
        return _fail(str(error), code)
    finally:
        drop_unwritten_errors()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments. Ends the process after --help, and where they are wrong."""
    try:
        return build_parser().parse_args(argv)
    except SystemExit:
        if sys.stdout is not None:
            sys.stdout.flush()
        raise


def _complete() -> int:
    """Print what completes the word at the cursor of a shell; nothing if that cannot be found out."""
    with suppress(Exception):
        print("".join(f"{word}\n" for word in completed_words(build_parser())), end="", flush=True)
    return FINE


def _open_standard_streams() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed: otherwise a segment could get the number of one.

    What goes to a closed standard error is dropped. `_check` refuses to run without a standard output.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  # it stays open
    name_standard_output()


def _directory_of(arguments: argparse.Namespace) -> str | None:
    """Return the directory that a command reads or changes, if it has one that must be a log's."""
    log: str | None = getattr(arguments, "log", None) or getattr(arguments, "directory", None)
    return None if log is None or is_service(log) or hasattr(arguments, "source") else log


def _check(arguments: argparse.Namespace, directory: str | None) -> None:
    """Refuse what no command can work with, before it begins. `serve` needs no output, and reports in its own format.

    Raises UsageError.
    """
    if arguments.run is serve.run:
        sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # it stays open
        return
    if sys.stdout is None:
        raise UsageError("standard output is closed: send it to a file, or to /dev/null")
    if directory is not None:
        refuse_token_file(arguments, directory)
        refuse_foreign_directory(directory)


def build_parser() -> Parser:
    """Return the parser of the command line, with all commands."""
    parser = Parser(prog="mrecordlog", epilog=EPILOG)
    build = f"pure: {WHY_PURE}" if WHY_PURE else BUILD
    shown = f"mrecordlog {version('mrecordlog_async')} ({build})"
    parser.add_argument("--version", action="version", help="print the version", version=shown)
    for _, commands in GROUPS:
        for command in commands:
            command.add_parser(parser).set_defaults(run=command.run)
    parser.description = "\n".join(_description(parser.summaries))
    return parser


def _description(summaries: dict[str, str]) -> Iterator[str]:
    yield "A durable log of many queues in one directory.\n"
    remaining = iter(summaries.items())
    for title, commands in GROUPS:
        yield f"{title}:"
        for _, (name, summary) in zip(commands, remaining, strict=False):
            yield f"  {name:<17}{summary}"
        yield ""


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # standard error may be on a full disk, too
        print(f"mrecordlog: {shown_url(message)}", file=sys.stderr)
    return code


def _nearest_queue(error: Exception, arguments: argparse.Namespace) -> str:
    """Return the queue that was probably meant, if a command was given one that does not exist."""
    if not isinstance(error, QueueNotFoundError) or not hasattr(arguments, "log"):
        return ""
    return nearest_queue(error.queue, arguments.log, getattr(arguments, "token_file", None))


def _extra_for(error: ModuleNotFoundError, arguments: argparse.Namespace) -> str:
    package = (error.name or "").partition(".")[0]
    if package == "rich":
        return "cli"
    # What a command of Spark lacks may be a package of other extras, too: one command then installs all that it needs.
    runs_spark = getattr(arguments, "run", None) in (drain.run, lake.run)
    return "spark" if runs_spark or package in ("pyspark", "py4j", "pyarrow", "deltalake") else "server"

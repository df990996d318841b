"""`mrecordlog`: run one command of a table, turn an error into a sentence and an exit code.

A command is imported when it is called, and imports what it needs when it runs: `mrecordlog --help` costs the start of
Python and of click, and the commands that read files work with the bare install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mrecordlog_async.cli import errors
from mrecordlog_async.cli.params import suggest
from mrecordlog_async.cli.streams import (
    OutputError,
    TerminalClosedError,
    drop_output,
    drop_unwritten_errors,
    open_standard_streams,
)
from mrecordlog_async.servers.names import shown_url

GROUPS = {
    "Store and read records": {
        "serve": ("serve", "Serve a log over HTTP"),
        "append": ("records", "Append standard input to a queue"),
        "cat": ("records", "Print the records of a queue"),
        "ls": ("queues", "List queues with their positions and sizes"),
        "configure": ("queues", "Set the options of a queue, or seal it"),
        "truncate": ("queues", "Remove the oldest records of a queue"),
        "delete": ("queues", "Delete a queue with all its records"),
        "top": ("top", "Watch queues: rates, sizes, retained segments"),
    },
    "Consume records": {
        "consume": ("records", "Hand records to a program, and acknowledge them"),
        "consumers": ("queues", "List, create, delete or move consumers"),
    },
    "Back up, verify and repair": {
        "snapshot": ("files", "Copy a log while it is in use"),
        "verify": ("files", "Verify every byte of a log"),
        "repair": ("files", "Write what can be read of a damaged log as a new one"),
    },
    "Move queues between logs": {
        "dump": ("move", "Print queues and records as lines of JSON"),
        "load": ("move", "Store lines of JSON, as dump prints them"),
    },
    "Move queues into a lake, with Spark": {
        "drain": ("lake", "Move records into a Delta table, exactly once"),
        "lake": ("lake", "Show the table of a drain"),
    },
    "Set up your shell": {"completion": ("completion", "Print a script for completion in bash, zsh or fish")},
}
"""Every command in the order that `--help` shows, by the title of its group: its module, and a sentence about it."""
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}

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
WHAT_IS_LOG = "LOG is the directory of a log (./wal), or the URL of a service (http://127.0.0.1:8080)"


class Commands(click.Group):
    """The commands of the table, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command."""
        if name not in COMMANDS:
            return None
        module = import_module(f"mrecordlog_async.cli.{COMMANDS[name][0]}")
        found: click.Command = getattr(module, name)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Name the command that is nearest to a misspelt one."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            hint = suggest(args[0], list(COMMANDS)) or f": {', '.join(COMMANDS)}"
            ctx.fail(f"unknown command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group, without importing them."""
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in group.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the end of the help as it is."""
        formatter.write_paragraph()
        formatter.write(EPILOG)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands, without importing them, or the options."""
        if incomplete.startswith("-"):
            return [CompletionItem(each) for each in ("--help", "--version") if each.startswith(incomplete)]
        return [CompletionItem(name, help=about[1]) for name, about in COMMANDS.items() if name.startswith(incomplete)]


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from importlib.metadata import version

        from mrecordlog_async.compiled import BUILD, WHY_PURE

        print(f"mrecordlog {version('mrecordlog_async')} ({f'pure: {WHY_PURE}' if WHY_PURE else BUILD})")
        ctx.exit()


@click.group(
    cls=Commands,
    help="A durable log of many queues in one directory.",
    subcommand_metavar="COMMAND [options]",
    options_metavar="",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def cli() -> None:
    """Run one command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_standard_streams()
    words, given = list(sys.argv[1:] if argv is None else argv), dict[str, Any]()
    try:
        if asked := os.environ.get("_MRECORDLOG_COMPLETE"):
            from mrecordlog_async.cli.completion import complete

            with suppress(Exception):  # neither a message nor a traceback gets into the line that is being typed
                complete(cli, asked)
            return errors.FINE
        code = _run(words, given)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        drop_output()  # its reader may have stopped reading, and Python would wait for it
        return errors.INTERRUPTED
    except (BrokenPipeError, TerminalClosedError):
        drop_output()  # its reader has closed it (`| head`), or somebody its window
        return errors.FINE
    except OutputError as error:
        drop_output()
        return _fail(f"standard output: {error.strerror}; what was printed is incomplete", errors.FAILED)
    except ModuleNotFoundError as error:
        from mrecordlog_async.support.extras import naming

        return _fail(str(naming(error, _extra_for(error, words))), errors.FAILED)
    except Exception as error:
        from mrecordlog_async.cli.logs import nearest_queue
        from mrecordlog_async.errors import QueueNotFoundError, RecordLogError

        code = errors.exit_code_of(error)
        if code == errors.FAILED and not isinstance(error, RecordLogError | OSError | ValueError):
            raise  # a bug in this package: the traceback is the report
        near = nearest_queue(error.queue, given) if isinstance(error, QueueNotFoundError) else ""
        return _fail(errors.explain(error, given) + near, code)
    finally:
        drop_unwritten_errors()


def _run(words: list[str], given: dict[str, Any]) -> int:
    """Run a command, print the help, or say what is wrong with the line. *given* gets the arguments of the command."""
    if words[:1] == ["help"]:  # as git and cargo have it: help, help COMMAND
        words = [*words[1:2], "--help"]
    try:
        # Not `cli.main`, which prints at Ctrl-C and takes a closed pipe for an error.
        with cli.make_context("mrecordlog", words, obj=given) as ctx:
            return int(cli.invoke(ctx))
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else "")
        return errors.USAGE
    except click.UsageError as error:
        with suppress(OSError):
            print(_wrong_usage(error), file=sys.stderr)
        return errors.USAGE


def _wrong_usage(error: click.UsageError) -> str:
    """Return what is wrong, how the command is written, and where its help is."""
    ctx = error.ctx or click.Context(cli, info_name="mrecordlog")
    lines = [f"{ctx.command_path}: {shown_url(what_is_wrong(error))}", ctx.get_usage()]
    if isinstance(error, click.MissingParameter) and " LOG" in lines[1]:
        lines.append(WHAT_IS_LOG)
    return "\n".join([*lines, f"see `{ctx.command_path} --help`"])


def what_is_wrong(error: click.UsageError) -> str:
    """Return what is wrong with a command line, and where: an option, a variable, or a key in the file."""
    ctx = error.ctx or click.Context(cli)
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error.option_name, ctx.command.params)
    if isinstance(error, click.BadOptionUsage) and "does not take a value" in error.message:
        return f"{error.option_name} is a switch and takes no value"
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"missing {_name(error.param, ctx)}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        return f"{_name(error.param, ctx)}: {error.message}"
    return error.message


def _unknown_option(name: str, params: Sequence[click.Parameter]) -> str:
    known = ["--help"]
    for param in params:
        elsewhere = getattr(param, "elsewhere", "")  # a setting that has no option
        if elsewhere and name.replace("--no-", "--") in param.opts:
            return f"unknown option {name}: {elsewhere}"
        if isinstance(param, click.Option) and not elsewhere:
            known += [*param.opts, *param.secondary_opts]
    return f"unknown option {name}{suggest(name, known)}"


def _name(param: click.Parameter, ctx: click.Context) -> str:
    """Return what a person calls *param*: its option, its variable, or its key in the file, wherever its value is."""
    source = ctx.get_parameter_source(param.name or "")
    if source is ParameterSource.ENVIRONMENT:
        return str(param.envvar)
    if source is ParameterSource.DEFAULT_MAP:
        return f"{ctx.meta['mrecordlog.file']}: {param.name}"
    return param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx).strip("[].")


def _fail(message: str, code: int) -> int:
    with suppress(OSError):  # standard error may be on a full disk, too
        print(f"mrecordlog: {shown_url(message)}", file=sys.stderr)
    return code


def _extra_for(error: ModuleNotFoundError, words: list[str]) -> str:
    package = (error.name or "").partition(".")[0]
    if package == "rich":
        return "cli"
    # What a command of Spark lacks may be a package of other extras, too: one command then installs all that it needs.
    runs_spark = bool({"drain", "lake"}.intersection(words[:1]))
    return "spark" if runs_spark or package in ("pyspark", "py4j", "pyarrow", "deltalake") else "server"

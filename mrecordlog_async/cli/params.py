"""Parameters of commands: values with their units, LOG, and the shape of every command.

A command is a function below `command()`; its docstring is its help. It imports what it needs when it runs, because
`mrecordlog --help`, a typing error and each Tab press import the module of a command and nothing else.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from mrecordlog_async.cli.errors import UsageError, refuse_foreign_directory
from mrecordlog_async.quantities import parse_moment, parse_seconds, parse_size
from mrecordlog_async.support.nearest import did_you_mean, nearest
from mrecordlog_async.support.paths import absolute

if TYPE_CHECKING:
    from mrecordlog_async.model import Start

    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType

EXAMPLE_URL = "http://127.0.0.1:8080"
LOG_HELP = f"Directory of the log, or URL of a service: {EXAMPLE_URL}, unix:/path."

_SERVICE = re.compile(r"([\w.-]+=)?(dns\+)?(https?://|unix:)")
_ALMOST_URL = re.compile(r"\w+://|https?:/*")


_PATHS = {"DIR": "dir", "TARGET": "dir", "FILE": "file", "PATH": "file"}
"""Values that the shell completes, by their placeholders."""


class Value(ParamType):
    """A value that a function reads from text. The message of its ValueError is the one to print.

    words: the values, or how they begin, for completion.
    """

    def __init__(self, name: str, read: Callable[[str], Any], words: Sequence[str] = ()) -> None:
        self.name, self._read, self._words = name, read, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read *value*, unless it was read already."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Offer the words; for a file or a directory, let the shell offer what it has."""
        if path := _PATHS.get(self.name):
            return [CompletionItem(incomplete, type=path)]
        return [CompletionItem(word) for word in self._words if word.startswith(incomplete)]


class Argument(click.Argument):
    """An argument that the help explains."""

    def __init__(self, *names: Any, help: str, **options: Any) -> None:
        super().__init__(*names, **options)
        self._help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return its line of the help."""
        return self.make_metavar(ctx), self._help


class CliCommand(click.Command):
    """A command: its usage names the arguments first, and its errors say what to write instead.

    takes_no_more: what to say of an argument after the last one.
    """

    def __init__(self, name: str | None, *, takes_no_more: str = "", **options: Any) -> None:
        super().__init__(name, context_settings={"allow_extra_args": True}, **options)
        self._takes_no_more = takes_no_more

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; refuse an argument that nothing takes."""
        try:
            more = super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not name it where a value is missing
            raise
        if more and not ctx.resilient_parsing:
            taken = " ".join(self._arguments(ctx)) or "its name"
            ctx.fail(f"unexpected {more[0]!r}: {self._takes_no_more or f'the command takes no argument after {taken}'}")
        return more

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What it was given is kept for the error that may end it."""
        ctx.obj.update(ctx.params)
        if sys.stdout is None:  # it was closed when the process began
            if self.name != "serve":  # which needs none, and reports in its own format
                raise UsageError("standard output is closed: send it to a file, or to /dev/null")
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # it stays open
        directory = directory_of(ctx.params)
        if directory is not None:
            if ctx.params.get("token_file"):
                raise UsageError(
                    f"--token-file is for a service, and {directory} is a directory: name the URL, or leave it out"
                )
            refuse_foreign_directory(directory)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the arguments in order, then a word for the options."""
        return [*self._arguments(ctx), "[options]"]

    def _arguments(self, ctx: click.Context) -> list[str]:
        return [piece for param in self.params for piece in param.get_usage_pieces(ctx)]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Wrap the paragraphs; those with an indented line, such as examples, stay as they are."""
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            if re.search(r"^ ", paragraph, re.MULTILINE):
                formatter.write(f"{paragraph}\n")
            else:
                formatter.write_text(" ".join(paragraph.split()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the arguments, then the options."""
        for title, kind in (("Arguments", click.Argument), ("Options", click.Option)):
            found = [param.get_help_record(ctx) for param in self.get_params(ctx) if isinstance(param, kind)]
            if rows := [row for row in found if row is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)


command = partial(click.command, cls=CliCommand)
argument = partial(click.argument, cls=Argument)


def is_service(log: str) -> bool:
    """Return whether *log* is the URL of a service, or is meant as one, and not a directory."""
    return _SERVICE.match(log) is not None


def directory_of(values: dict[str, Any]) -> str | None:
    """Return the directory of a log that a command was given; None if it was given none, or a service too."""
    logs: list[str] = [*values.get("logs", ()), *filter(None, (values.get("log"), values.get("directory")))]
    return None if any(map(is_service, logs)) else next(iter(logs), None)


def log_place(text: str) -> str:
    """Return the directory or URL that was typed. Raises ValueError for what is probably a misspelt URL."""
    if not is_service(text) and (_ALMOST_URL.match(text) or re.match(r"[\w.-]+:\d+/?$", text)):
        scheme = "https" if text.startswith("https:") else "http"
        place = _ALMOST_URL.sub("", text, count=1)
        raise ValueError(f"{text!r} is not a URL of a service: write {scheme}://{place}")
    return text if is_service(text) else _in_home(text)


def directory_place(text: str) -> str:
    """Return the directory that was typed. Raises ValueError for a URL."""
    if "://" in text or is_service(text) or _ALMOST_URL.match(text):
        raise ValueError(f"{text!r} is a URL, and this command needs the files: name the directory")
    return _in_home(text)


def _in_home(text: str) -> str:
    """Return the directory that was typed, with the home directory in place of `~/`, which only some shells replace."""
    if text and not text.startswith("~"):
        return text
    from mrecordlog_async.storage.directory import LogDirectory

    return LogDirectory.at(text).path


def path_of(text: str) -> str:
    """Return the path of a file, with the home directory in place of `~/`."""
    return absolute(text) if text.startswith("~") else text


def whole(text: str) -> int:
    """Return a whole number of at least 0. Raises ValueError."""
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def read_start(text: str) -> Start:
    """Return a position, or a time that is not in the future. Raises ValueError."""
    if text.strip().isdecimal():
        return whole(text)
    from mrecordlog_async.model import tick_of_time

    try:
        found = parse_moment(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a position nor a time such as 10min (ago) or 2026-11-22T09:30:00Z"
        ) from None
    tick_of_time(found)  # raises for one in the future
    return found


POSITION = Value("POSITION", whole)
COUNT = Value("N", whole)
SIZE = Value("SIZE", parse_size)
TIME = Value("TIME", parse_seconds)
START = Value("START", read_start)
DIRECTORY = Value("DIR", directory_place)
TARGET = Value("TARGET", directory_place)
FILE = Value("FILE", str)
LOG = Value("LOG", log_place)


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


def suggest(word: str, known: Sequence[str], prefix: str = "") -> str:
    """Return "; did you mean NAME?" for the known name nearest to *word*, after *prefix*; "" if none is near."""
    near = nearest(word, known)
    return did_you_mean(near and prefix + near)

"""The parser of the command line: help that fits the terminal, errors that say what to write instead.

Built on argparse. What it changes: a usage line is short (arguments in order, then `[options]`), paragraphs of a
description are wrapped and its indented lines are left alone, and a misspelt command or option names the nearest one.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from mrecordlog_async.cli.exit_codes import USAGE
from mrecordlog_async.quantities import parse_seconds, parse_size

HELP_COLUMN = 26
WHAT_IS_LOG = "LOG is the directory of a log (./wal), or the URL of a service (http://127.0.0.1:8080)\n"
ON_OR_OFF = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0"))

T = TypeVar("T")


class HelpFormatter(argparse.HelpFormatter):
    """Wraps the paragraphs of a description; keeps those with an indented line, such as examples, as they are."""

    def __init__(self, prog: str, *, width: int | None = None) -> None:
        super().__init__(prog, max_help_position=HELP_COLUMN, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for paragraph in text.strip("\n").split("\n\n"):
            keep = re.search(r"^ ", paragraph, re.MULTILINE)
            filled.append(paragraph.rstrip() if keep else super()._fill_text(paragraph, width, indent))
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """A parser of the command line; those of the commands are of this class too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(add_help=False, formatter_class=HelpFormatter, **options)
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="print this help")

    def call(self) -> str:
        """Return how the command is written: its name, its arguments in order, `[options]`."""
        words = [_shown(action) for action in self._get_positional_actions()]
        return " ".join([self.prog, *words, "[options]"])

    def options(self) -> list[str]:
        """Return the long options that the help shows."""
        known = self._option_string_actions.items()
        return sorted(name for name, each in known if name.startswith("--") and each.help != argparse.SUPPRESS)

    def format_usage(self) -> str:
        """Return the usage line."""
        self.usage = self.call()
        return super().format_usage()

    def format_help(self) -> str:
        """Return the help."""
        self.usage = self.call()
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; end the process where anything is left that no argument takes."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._explain_unknown(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how the command is written; end the process with exit code 2."""
        message = message.removeprefix("argument ").replace("the following arguments are required:", "missing")
        message = re.sub(r"^(--\S+): ignored explicit argument.*", r"\1 is a switch and takes no value", message)
        usage = self.format_usage()
        what_is_log = WHAT_IS_LOG if message.startswith("missing") and " LOG " in usage else ""
        self.exit(USAGE, f"{self.prog}: {message}\n{usage}{what_is_log}see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # argparse lists every choice and suggests none.
        if action.choices is None or value in action.choices:
            return
        what = "command" if isinstance(action, argparse._SubParsersAction) else action.metavar or action.dest
        known = ", ".join(map(str, action.choices))
        raise argparse.ArgumentError(None, f"unknown {what} {value!r}{suggest(value, action.choices) or f': {known}'}")

    def _explain_unknown(self, word: str) -> str:
        if word.startswith("-"):
            name = word.partition("=")[0]
            return f"unknown option {name}{suggest(name, self.options())}"
        if word.lower() in ON_OR_OFF:
            return f"unexpected {word!r}: a switch takes no value; write --name for on, --no-name for off"
        return f"unexpected {word!r}: write the arguments before the options"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for the name that *word* is nearest to, "" where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def typed(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return *read* as an argument's type: argparse prints the sentence of its ValueError, not its name."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def whole(text: str) -> int:
    """Return a whole number from 0. Raises ValueError."""
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number from 0")
    return int(text)


def port(text: str) -> int:
    """Return a port, 0 for a free one. Raises ValueError."""
    if whole(text) > 65_535:
        raise ValueError(f"{text} is not a port: the highest one is 65535")
    return whole(text)


COUNT = typed(whole)
PORT = typed(port)
SIZE = typed(parse_size)
TIME = typed(parse_seconds)


def _shown(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return f"[{name}]" if action.nargs == "?" else name

"""The parser of the command line: help that fits the terminal, errors that say what to write instead.

Built on the public names of argparse. What it changes: a usage line is short (arguments in order, then `[options]`),
paragraphs of a description are wrapped and its indented lines are left alone, and an error names the command or option
that is nearest to a misspelt one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from mrecordlog_async.cli.shell.exit_codes import USAGE
from mrecordlog_async.model import Start, tick_of_time
from mrecordlog_async.options import GIB, check_segment_bytes
from mrecordlog_async.quantities import parse_moment, parse_seconds, parse_size
from mrecordlog_async.servers.names import shown_url
from mrecordlog_async.support.nearest import did_you_mean, nearest

HELP_COLUMN = 26
WHAT_IS_LOG = "LOG is the directory of a log (./wal), or the URL of a service (http://127.0.0.1:8080)\n"
ON_OR_OFF = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0"))

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser of one command, or, once it has commands, of a program whose first argument is a command."""

    def __init__(self, **options: Any) -> None:
        self.help_columns: int | None = None
        """Width of the help, None for the terminal's."""
        self.words: list[str] = []
        """The arguments in order, as the usage line shows them."""
        self.known: dict[argparse.Action, Callable[[], Iterable[str]]] = {}
        """Functions that find the values of an argument, for completion."""
        self.elsewhere: dict[str, str] = {}
        """Where a setting is set that has no option here, by the option that it would have."""
        self.takes_no_more = ""
        """Error for an argument after the last one; "" for that of every command."""
        self.commands: dict[str, Parser] = {}
        """The parser of each command, by its name."""
        self.summaries: dict[str, str] = {}
        """One sentence about each command, by its name."""
        self._add: Callable[..., Parser] | None = None
        super().__init__(add_help=False, formatter_class=self._format, **options)
        self.add_argument("-h", "--help", action="help", help="print this help")

    def add_argument(
        self, *names: str, known: Callable[[], Iterable[str]] | None = None, **options: Any
    ) -> argparse.Action:
        """Add an argument or an option. known: finds its values for completion, if `choices` does not list them."""
        action = super().add_argument(*names, **options)
        if known is not None:
            self.known[action] = known
        if not action.option_strings:
            self.words.append(_shown(action))
        return action

    def add_command(self, name: str, summary: str, description: str | None) -> Parser:
        """Add a command and return its parser.

        Args:
            name: What a user types.
            summary: One sentence for the list of commands.
            description: The beginning of the command's own help.
        """
        if self._add is None:
            # The description lists the commands by group, which argparse cannot do.
            self._add = self.add_subparsers(
                metavar="COMMAND", required=True, help=argparse.SUPPRESS, parser_class=Parser
            ).add_parser
            self.words.append("COMMAND")
        parser = self._add(name, description=description)
        self.commands[name], self.summaries[name] = parser, summary
        return parser

    def arguments(self) -> list[argparse.Action]:
        """Return all arguments and options, those of groups too, in the order in which they were added."""
        return self._actions

    def call(self) -> str:
        """Return how the command is written: its name, its arguments in order, `[options]`."""
        return " ".join([self.prog, *self.words, "[options]"])

    def options(self) -> list[str]:
        """Return the long options that the help shows."""
        self.usage = None  # argparse's own usage line has them all, those of exclusive groups too
        return sorted(set(re.findall(r"--[a-z][a-z-]*", super().format_usage())) | {"--help"})

    def format_usage(self) -> str:
        """Return the usage line."""
        self.usage = self.call()
        return super().format_usage()

    def format_help(self) -> str:
        """Return the help."""
        self.usage = self.call()
        self.description, self.epilog = self._wrap(self.description), self._wrap(self.epilog)
        return super().format_help().replace("\npositional arguments:\n", "\narguments:\n", 1)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; end the process where the command does not exist, or anything is left that no argument takes."""
        words = sys.argv[1:] if args is None else list(args)
        if self.commands:
            if words[:1] == ["help"]:  # as git and cargo have it: help, help COMMAND
                words = [*words[1:2], "--help"]
            self._check_command(words)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._explain_unknown(unknown[0], words))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and how the command is written; end the process with exit code 2."""
        message = message.removeprefix("argument ").replace("the following arguments are required:", "missing")
        message = message.replace("LOG, LOG", "LOG")  # of a command that takes several
        message = re.sub(r"^(--\S+): ignored explicit argument.*", r"\1 is a switch and takes no value", message)
        usage = self.format_usage()
        what_is_log = WHAT_IS_LOG if message.startswith("missing") and " LOG " in usage else ""
        self.exit(USAGE, f"{self.prog}: {shown_url(message)}\n{usage}{what_is_log}see `{self.prog} --help`\n")

    def _check_command(self, words: list[str]) -> None:
        if not words:
            self.print_help()
            self.exit(USAGE)
        # argparse would list every command and suggest none.
        if not words[0].startswith("-") and words[0] not in self.commands:
            hint = suggest(words[0], self.commands) or f": {', '.join(self.commands)}"
            self.error(f"unknown command {words[0]!r}{hint}")

    def _explain_unknown(self, word: str, line: list[str]) -> str:
        if word.startswith("-"):
            name = word.partition("=")[0]
            hint = self.elsewhere.get(name.replace("--no-", "--")) or suggest(name, self.options())
            return f"unknown option {name}{hint}"
        if word.lower() in ON_OR_OFF:
            return f"unexpected {word!r}: a switch takes no value; write --name for on, --no-name for off"
        if any(before.startswith("-") for before in line[: line.index(word)]):
            return f"unexpected {word!r}: write the arguments before the options"
        every = f"the command takes no argument after {' '.join(self.words) or 'its name'}"
        return f"unexpected {word!r}: {self.takes_no_more or every}"

    def _format(self, prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=HELP_COLUMN, width=self.help_columns)

    def _wrap(self, text: str | None) -> str | None:
        """Wrap the paragraphs of *text*; keep those with an indented line, such as examples, as they are."""
        if text is None:
            return None
        width = self.help_columns or shutil.get_terminal_size().columns - 2  # two columns stay free, as in argparse
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            paragraph.rstrip()
            if re.search(r"^ ", paragraph, re.MULTILINE)
            else textwrap.fill(" ".join(paragraph.split()), max(width, 11))
            for paragraph in paragraphs
        )


def add_segment_bytes(parser: Parser, meaning: str = "size of a segment file") -> None:
    """Add --segment-bytes, for a command that creates a log."""
    parser.add_argument(
        "--segment-bytes", type=SEGMENT_SIZE, default=GIB, metavar="SIZE", help=f"{meaning} (default: 1GiB)"
    )


def suggest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean NAME?" for the known name nearest to *word*, after *prefix*; "" if none is near."""
    near = nearest(word, known)
    return did_you_mean(near and prefix + near)


def typed(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return *read* as the type of an argument: argparse then prints the message of a ValueError, not the type."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def whole(text: str) -> int:
    """Return a whole number of at least 0. Raises ValueError."""
    if not re.fullmatch(r"\d{1,19}", text, re.ASCII):
        raise ValueError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def port(text: str) -> int:
    """Return a port, 0 for a free one. Raises ValueError."""
    if whole(text) > 65_535:
        raise ValueError(f"{text} is not a port: the highest one is 65535")
    return whole(text)


def start(text: str) -> Start:
    """Return a position, or a time that is not in the future."""
    if text.strip().isdecimal():
        return whole(text)
    try:
        found = parse_moment(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a position nor a time such as 10min (ago) or 2026-11-22T09:30:00Z"
        ) from None
    tick_of_time(found)  # raises for one in the future
    return found


def segment_size(text: str) -> int:
    """Return the size of a segment. Raises ValueError."""
    found = parse_size(text)
    check_segment_bytes(found)
    return found


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a reader that accepts only the words *allowed*."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} must be one of {', '.join(allowed)}")
        return text

    return read


COUNT = typed(whole)
SIZE = typed(parse_size)
SEGMENT_SIZE = typed(segment_size)
TIME = typed(parse_seconds)
MOMENT = typed(parse_moment)
START = typed(start)


def _shown(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name}...]"}.get(str(action.nargs), name)

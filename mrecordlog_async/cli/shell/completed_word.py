"""Finds the argument at the cursor, and the words that can complete it.

The script of `mrecordlog completion` runs `mrecordlog` with the variable `_MRECORDLOG_COMPLETE`: the line up to the
cursor. What fits is printed, one per line. Nothing is printed for a path, which shells complete themselves, and nothing
for what cannot be found out within a second, because the user who presses Tab waits.

An argument's metavar says what it is: QUEUE and CONSUMER are names in the log that the line names, LOG may be a URL.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mrecordlog_async.cli.shell.lookups import consumers_of, queues_of
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.target import EXAMPLE_URL, TOKEN_FILE
from mrecordlog_async.names import has_control_characters

LINE = "_MRECORDLOG_COMPLETE"
SHELL = "_MRECORDLOG_SHELL"
"""fish quotes what it inserts; bash and zsh insert it as it is."""
BREAKS = "_MRECORDLOG_BREAKS"
"""Characters at which the shell begins a new word: it replaces only what follows the last of them."""

NOTHING = (None, "")


class Meant(NamedTuple):
    """The argument that the last word belongs to, None for none; its metavar; values of the others, by metavar."""

    parser: Parser
    argument: argparse.Action | None
    kind: str
    values: dict[str, list[str]]
    word: str


def completed_words(command_line: Parser, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return what can stand in place of the last word of the line."""
    words, open_quote = split(environment[LINE])
    command = command_line.commands.get(words[1]) if len(words) > 2 else None
    if command is None:
        return []
    meant = meant_by(command, words[2:])
    found = [word for word in candidates(meant) if word.startswith(meant.word) and not has_control_characters(word)]
    if open_quote or environment.get(SHELL) == "fish":
        return found
    kept = _kept_by_the_shell(meant.word, environment.get(BREAKS, ""))
    return [shlex.quote(word[kept:]) for word in found]


def split(line: str) -> tuple[list[str], str]:
    """Return the words of an unfinished line, and the quote that is still open: "" for none."""
    if line.endswith("\\") and not line.endswith("\\\\"):
        line = line[:-1]  # the character that it quotes is still to come
    for open_quote in ("", "'", '"'):
        try:
            words = shlex.split(line + open_quote)
        except ValueError:
            continue  # another quote is open
        begins_new = not open_quote and (not line or line[-1].isspace())
        return ([*words, ""] if begins_new else words), open_quote
    return split(line[:-1])


def meant_by(parser: Parser, words: list[str]) -> Meant:
    """Go through *words* as argparse would, and return which argument the last one is."""
    *before, word = words
    options = {name: action for action in parser.arguments() for name in action.option_strings}
    positional = ((action, _kind(action)) for action in parser.arguments() if not action.option_strings)
    values: dict[str, list[str]] = {}
    waiting: list[tuple[argparse.Action, str]] = []  # what an option still takes
    for each in before:
        if waiting:
            values.setdefault(waiting.pop(0)[1], []).append(each)
        elif each.startswith("-"):
            waiting = _taken_by(options.get(each))
        else:
            values.setdefault(next(positional, NOTHING)[1], []).append(each)
    name, equals, value = word.partition("=")
    argument: argparse.Action | None
    if waiting:
        argument, kind = waiting[0]
    elif word.startswith("-"):
        word = value
        argument, kind = next(iter(_taken_by(options.get(name)) if equals else ()), NOTHING)
    else:
        argument, kind = next(positional, NOTHING)
    return Meant(parser, argument, kind, values, word)


def _taken_by(option: argparse.Action | None) -> list[tuple[argparse.Action, str]]:
    if option is None or option.nargs == 0:
        return []
    if isinstance(option.metavar, tuple):
        return [(option, kind) for kind in option.metavar]
    return [(option, _kind(option))]


def _kind(argument: argparse.Action) -> str:
    return str(argument.metavar or "")


def candidates(meant: Meant) -> Iterable[str]:
    """Return the values that the argument can have, as far as they are known."""
    argument, (log, *_) = meant.argument, meant.values.get("LOG", [None])
    if argument is None:
        return ()
    if argument.choices is not None:
        return argument.choices
    if argument in meant.parser.known:
        return meant.parser.known[argument]()
    if meant.kind in ("LOG", "URL"):
        return (*_default_urls(), "unix:") if meant.word else ()  # without a word: directories
    if meant.kind == "QUEUE" and log is not None:
        return queues_of(log, meant.word, _token_file(meant))
    if meant.kind == "CONSUMER" and log is not None and "QUEUE" in meant.values:
        return consumers_of(log, meant.values["QUEUE"][0], _token_file(meant))
    return ()


def _default_urls() -> tuple[str, ...]:
    port = os.environ.get("MRECORDLOG_PORT", "")  # Kubernetes may have set it, to tcp://…
    return (re.sub(r"\d+$", port, EXAMPLE_URL),) if port.isdecimal() else (EXAMPLE_URL,)


def _token_file(meant: Meant) -> str | None:
    """Return the file of the service's token, if the line names one."""
    return meant.values[TOKEN_FILE][-1] if TOKEN_FILE in meant.values else None


def _kept_by_the_shell(word: str, breaks: str) -> int:
    """Return how many characters of *word* the shell leaves in the line, because it takes them for words before it."""
    return max((word.rfind(each) + 1 for each in breaks if each in ":="), default=0)

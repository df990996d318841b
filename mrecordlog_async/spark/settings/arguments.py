"""The command lines of the jobs, separate from the jobs: `mrecordlog --help` must not import what only a job needs.

The flags of `drain` are rows of `DrainJob` and `Options`.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from mrecordlog_async.spark.settings import drain_job, option_values
from mrecordlog_async.spark.settings.drain_job import DrainJob
from mrecordlog_async.spark.settings.option import Flag, flags_of, options_of
from mrecordlog_async.spark.settings.options import Options

T = TypeVar("T")


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `drain` to argparse."""
    when = parser.add_mutually_exclusive_group()
    for name, flag in flags_of(DrainJob):
        if flag.name == "--every":
            when.add_argument(
                "--once",
                action="store_true",
                help="stop once everything that the logs held at the start is stored (default)",
            )
        _add_flag(when if flag.name == "--every" else parser, name, flag, flag.read)
    for _, option in options_of(Options):
        if option.flag is not None:
            _add_flag(parser, option.name, option.flag, _text_of(option.read))
    parser.add_argument(
        "--token-file",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="file with the bearer token of the services; with NAME=, of the server of that name; may be repeated",
    )
    _add_job(parser)


def _add_flag(parser: argparse._ActionsContainer, name: str, flag: Flag, read: Callable[[str], Any] | None) -> None:
    """Add *flag*, whose value has the name *name*; None if it is not typed, so that the table's default applies."""
    if not flag.metavar:
        parser.add_argument(flag.name, dest=name, action="store_const", const=flag.means, help=flag.help)
        return
    parser.add_argument(
        flag.name,
        dest=name,
        action="store" if flag.gather is None else "append",
        type=str if read is None else argument(read),
        required=flag.required,
        metavar=flag.metavar,
        help=flag.help,
    )


def typed_job(arguments: argparse.Namespace, tokens: dict[str, str]) -> DrainJob:
    """Return the job that the command line describes. tokens: options of the data source that hold the tokens."""
    typed = vars(arguments)
    values = {name: _gathered(flag, typed[name]) for name, flag in flags_of(DrainJob) if typed[name] is not None}
    options = {}
    own = {each.name for each in fields(DrainJob)}
    for field, option in options_of(Options):
        if option.flag is None or typed[option.name] is None:
            continue
        text = _gathered(option.flag, typed[option.name])
        if field.name in own:
            values[field.name] = option.value_of(text)
        else:
            options[option.name] = text
    return DrainJob(**values, options=options | tokens)


def _gathered(flag: Flag, typed: Any) -> Any:
    return typed if flag.gather is None else flag.gather(typed)


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `load` to argparse."""
    parser.add_argument("url", metavar="URL", help="service to load into: http://host:port")
    parser.add_argument(
        "source", metavar="TABLE", help="Delta table on this machine, with the columns queue, position and payload"
    )
    parser.add_argument("--from-server", metavar="NAME", help="load only rows of this server")
    parser.add_argument(
        "--skip-truncated", action="store_true", help="skip rows below the first position of their queue in the log"
    )
    parser.add_argument("--token-file", metavar="FILE", help="file with the bearer token of the service")
    _add_job(parser)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: what spark-submit sets, else this machine)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, and progress as JSON lines"
    )


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return *read* as argparse takes it: a ValueError of its own loses its sentence there."""

    def read_argument(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return read_argument


def _text_of(read: Callable[[str], Any]) -> Callable[[str], str]:
    """Return a function that checks a text with *read* and returns the text, which Spark passes on."""

    def checked(text: str) -> str:
        read(text)
        return text

    return checked


seconds_of = argument(option_values.interval)
size_of = argument(option_values.size)
pair_of = argument(drain_job.pair)

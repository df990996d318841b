"""The target of a command: LOG, which is the directory of a log or the URL of a service.

Reading a directory needs no lock and works while a service uses it. Writing to one takes the lock, so it fails while a
service holds the lock.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.output.text import ProgressBar
from mrecordlog_async.cli.shell.exit_codes import NotReadyError, UsageError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.maintenance.changing import COMMAND_LIMITS, open_to_change
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.tokens import read_token

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

_SERVICE = re.compile(r"([\w.-]+=)?(dns\+)?(https?://|unix:)")
_ALMOST_URL = re.compile(r"\w+://|https?:/*")
EXAMPLE_URL = "http://127.0.0.1:8080"
LOG_HELP = f"directory of the log, or URL of a service: {EXAMPLE_URL}, unix:/path"
RETRY_SECONDS = 2.0
"""Short, because a person is waiting to know whether the service is running."""
WRITE_RETRY_SECONDS = 30.0
"""Long enough to outlast a restart of the service."""
TOKEN_FILE = "FILE"


class _NameLogFirst(argparse.Action):
    """An option that other tools use to name their data; its error says where this tool expects the log."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        from mrecordlog_async.cli.shell.parser import Parser

        assert isinstance(parser, Parser)
        place = re.compile(r" \[?(?:LOG|DIR|URL)\]?(?= )")
        parser.error(f"there is no {option_string}; write `{place.sub(f' {values}', parser.call(), count=1)}`")


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add LOG, the directory of a log or the URL of a service, and --token-file."""
    parser.add_argument("log", metavar="LOG", type=log_argument, help=LOG_HELP)
    parser.add_argument(
        "--token-file", metavar=TOKEN_FILE, help="token of the service (default: MRECORDLOG_TOKEN_FILE)"
    )
    add_signpost(parser)


def add_signpost(parser: argparse.ArgumentParser) -> None:
    """Add hidden options --dir and --url, whose error says what to write instead."""
    for option in ("--dir", "--url"):
        parser.add_argument(option, action=_NameLogFirst, help=argparse.SUPPRESS)


def log_argument(text: str) -> str:
    """Return the directory or URL that was typed. Raises ArgumentTypeError for what is probably a misspelt URL."""
    if not is_service(text) and (_ALMOST_URL.match(text) or re.match(r"[\w.-]+:\d+/?$", text)):
        scheme = "https" if text.startswith("https:") else "http"
        place = _ALMOST_URL.sub("", text, count=1)
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL of a service: write {scheme}://{place}")
    return text if is_service(text) else _in_home(text)


def directory_argument(text: str) -> str:
    """Return the directory that was typed. Raises ArgumentTypeError for a URL, or a switch's value."""
    if "://" in text or is_service(text) or _ALMOST_URL.match(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a URL, and this command needs the files: name the directory")
    if text in ("true", "false"):
        raise argparse.ArgumentTypeError(f"a switch takes no value; write ./{text} for a directory of that name")
    return _in_home(text)


def _in_home(text: str) -> str:
    """Return the directory that was typed, with the home directory in place of `~/`, which only some shells replace."""
    if text and not text.startswith("~"):
        return text
    try:
        return LogDirectory.at(text).path
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def is_service(log: str) -> bool:
    """Return whether *log* is the URL of a service, or is meant as one, and not a directory."""
    return _SERVICE.match(log) is not None


def connect(arguments: argparse.Namespace, retry_seconds: float = RETRY_SECONDS) -> RecordLogClient:
    """Return a client of the service that LOG names."""
    path = arguments.token_file or os.environ.get("MRECORDLOG_TOKEN_FILE")
    return connect_to(arguments.log, read_token(path) if path else None, retry_seconds)


def connect_to(url: str, token: str | None, retry_seconds: float) -> RecordLogClient:
    """Return a client of the service at *url*. Raises UsageError for what a client refuses before it sends anything."""
    from mrecordlog_async.client.client import RecordLogClient

    if url.startswith("dns+") or ("," in url and not url.startswith("unix:")):
        raise UsageError(f"{url} names several services: name one of them")
    try:
        return RecordLogClient(url, token=token, retry_seconds=retry_seconds)
    except ValueError as error:
        raise UsageError(str(error)) from None


def refuse_token_file(arguments: argparse.Namespace, directory: str) -> None:
    """Raise UsageError if a token is given for *directory*, and no other LOG is a service."""
    if getattr(arguments, "token_file", None) and not any(map(is_service, getattr(arguments, "more", ()))):
        raise UsageError(
            f"--token-file is for a service, and {directory} is a directory: name the URL, or leave it out"
        )


@asynccontextmanager
async def open_target(arguments: argparse.Namespace, *, create: bool = False) -> AsyncIterator[Any]:
    """Open a log with its lock, or connect a client. Both have the same methods for changes."""
    if is_service(arguments.log):
        async with connect(arguments, WRITE_RETRY_SECONDS) as client:
            yield client
    else:
        async with MultiRecordLog.open(arguments.log, limits=COMMAND_LIMITS, create=create, retention=False) as log:
            log.inspection.keep_unclosed()
            yield log


@asynccontextmanager
async def open_change_target(
    arguments: argparse.Namespace, *, create: bool = False, limits_of: str | None = None
) -> AsyncIterator[Any]:
    """Open a log with its lock but without its records, or connect a client: for changes that read no record.

    limits_of: the queue whose limits are going to be compared with what it holds.
    """
    if is_service(arguments.log):
        async with connect(arguments, WRITE_RETRY_SECONDS) as client:
            yield client
        return
    with ProgressBar("reading") as progress:
        opened = await open_to_change(arguments.log, create=create, on_progress=progress)
    async with opened.log as log:
        if limits_of is not None:
            await opened.count(limits_of)
        yield log


def run_async(work: Coroutine[Any, Any, int]) -> int:
    """Run a command that talks to a service. Raises NotReadyError if the service is unreachable or not ready."""
    try:
        return asyncio.run(work)
    except Exception as error:
        if says_not_ready(error):
            raise NotReadyError(f"{error}{_advice(error)}") from error
        raise


def says_not_ready(error: Exception) -> bool:
    """Return whether *error* says that a service is unreachable or not ready."""
    return type(error).__name__ == "ServiceUnreachableError" or getattr(error, "status", None) == 503


def _advice(error: Exception) -> str:
    """Return what to do about a service that cannot be reached; "" if something responded, or the reason says it."""
    from mrecordlog_async.client.http1 import CUT_OFF, NO_TLS

    reason = getattr(error, "reason", "")
    if reason == CUT_OFF:
        return "; if the service has a certificate, write https:// instead of http://"
    if type(error).__name__ != "ServiceUnreachableError" or reason.startswith(NO_TLS) or getattr(error, "sent", False):
        return ""
    return "; start a service with `mrecordlog serve DIR`, or name the directory of the log instead of the URL"

"""What a command works on: a running service (`--url`) or a directory (`--dir`).

Reading a directory needs no lock and works beside a service; writing into one takes the lock, so it fails while a
service has it. Without either, the service at its default address is meant.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.exit_codes import NotReadyError, UsageError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.token_file import read_token

if TYPE_CHECKING:
    from mrecordlog_async.client.client import RecordLogClient

DEFAULT_URL = "http://127.0.0.1:8080"
RETRY_SECONDS = 2.0
"""A person who asks wants to know soon that nobody is there; `append` outlasts a restart."""


APPEND_RETRY_SECONDS = 30.0


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add --dir, --url and --token-file."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--dir", metavar="DIRECTORY", help="work on the files of a log")
    target.add_argument(
        "--url",
        help=f"work through a service: http://host:port or unix:/path (default: MRECORDLOG_URL or {DEFAULT_URL})",
    )
    parser.add_argument("--token-file", metavar="FILE", help="the service's token (default: MRECORDLOG_TOKEN_FILE)")


def connect(arguments: argparse.Namespace, retry_seconds: float = RETRY_SECONDS) -> RecordLogClient:
    """Return a client of the service that *arguments* name."""
    from mrecordlog_async.client.client import RecordLogClient

    url = arguments.url or os.environ.get("MRECORDLOG_URL") or DEFAULT_URL
    if not url.startswith(("http://", "https://", "unix:")):
        raise UsageError(f"--url is http://host:port or unix:/path, not {url!r}")
    return RecordLogClient(url, token=_token(arguments), retry_seconds=retry_seconds)


@asynccontextmanager
async def open_target(arguments: argparse.Namespace, *, create: bool = False) -> AsyncIterator[Any]:
    """Open what is to be changed: a log with its lock, or a client. Both have the same methods for changes."""
    if arguments.dir is not None:
        async with MultiRecordLog.open(arguments.dir, create=create) as log:
            yield log
    else:
        async with connect(arguments, APPEND_RETRY_SECONDS) as client:
            yield client


def run_async(work: Coroutine[Any, Any, int]) -> int:
    """Run a command that talks to a service; one that cannot be reached or is not ready is NotReadyError."""
    try:
        return asyncio.run(work)
    except Exception as error:
        if type(error).__name__ == "ServiceUnreachableError" or getattr(error, "status", None) == 503:
            raise NotReadyError(str(error)) from error
        raise


def _token(arguments: argparse.Namespace) -> str | None:
    path = arguments.token_file or os.environ.get("MRECORDLOG_TOKEN_FILE")
    return read_token(path) if path else None

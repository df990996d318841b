"""`mrecordlog serve DIR`: the log in a directory as an HTTP service."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from mrecordlog_async.cli.exits import UsageError


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="serve a log directory over HTTP", description=__doc__
    )
    parser.add_argument("directory", help="the log's directory; made if missing")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="port, 0 for a free one (default: %(default)s)")
    parser.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead, for this user only")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from mrecordlog_async.http.server import ExposedError, ServeSettings, serve

    settings = ServeSettings(arguments.directory, arguments.host, arguments.port, arguments.uds)
    try:
        with asyncio.Runner(loop_factory=new_event_loop()) as runner:
            return runner.run(serve(settings, on_listening=_say_address))
    except ExposedError as error:
        raise UsageError(str(error)) from None


def new_event_loop() -> Any:
    """Return what makes the event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _say_address(address: str) -> None:
    print(f"mrecordlog: listening on {address}", file=sys.stderr, flush=True)

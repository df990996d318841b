"""`mrecordlog serve DIR`: the log in a directory as an HTTP service.

Settings come from flags, then MRECORDLOG_* variables, then --config FILE, then defaults. It listens at once and answers
503 until the log is recovered; SIGTERM or Ctrl-C finish what is under way.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.exit_codes import UsageError
from mrecordlog_async.cli.logging_setup import configure
from mrecordlog_async.cli.settings import add_settings, gather
from mrecordlog_async.gc_tuning import calm_collector
from mrecordlog_async.options import Limits
from mrecordlog_async.token_file import read_private_tokens

if TYPE_CHECKING:
    from mrecordlog_async.service.options import ServiceOptions

logger = logging.getLogger("mrecordlog_async.serve")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve", help="serve a log directory over HTTP", description=__doc__
    )
    parser.add_argument(
        "directory", nargs="?", help="the log's directory, made if missing (default: MRECORDLOG_DIRECTORY)"
    )
    add_settings(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from mrecordlog_async.service.server import ExposedError, ServeSettings, serve

    values = gather(arguments)
    directory = arguments.directory or os.environ.get("MRECORDLOG_DIRECTORY")
    if not directory:
        raise UsageError("serve needs the log's directory")
    configure(values["log_format"], values["log_level"])
    settings = ServeSettings(
        directory,
        values["host"],
        values["port"],
        values["uds"],
        values["access_log"],
        _service_options(values),
        _log_options(values),
    )
    calm_collector()
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


def _service_options(values: dict[str, Any]) -> ServiceOptions:
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.security import LOOPBACK_HOSTS, is_loopback

    allowed = frozenset(values["allow_host"] or ())
    on_loopback = values["uds"] is None and is_loopback(values["host"])
    if allowed or on_loopback:
        allowed |= LOOPBACK_HOSTS
    if on_loopback:
        allowed |= {values["host"]}
    try:
        return ServiceOptions(
            body_bytes=values["body_bytes"],
            bodies_bytes=values["bodies_bytes"],
            sending_bytes=values["sending_bytes"],
            connections=values["connections"],
            tails=values["tails"],
            drain_seconds=values["drain_seconds"],
            tokens=read_private_tokens(values["token_file"]) if values["token_file"] else frozenset(),
            hosts=allowed,
            metrics_per_queue=values["metrics_per_queue"],
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _log_options(values: dict[str, Any]) -> dict[str, Any]:
    try:
        limits = Limits(
            memory_bytes=values["memory_bytes"],
            disk_bytes=values["disk_bytes"],
            pending_bytes=values["pending_bytes"],
            record_bytes=values["record_bytes"],
            queues=values["queues"],
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    from mrecordlog_async.log import SEGMENT_BYTES_MIN

    segment_bytes = values["segment_bytes"]
    if segment_bytes < SEGMENT_BYTES_MIN:
        raise UsageError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}, not {segment_bytes}")
    return {"limits": limits, "persist_policy": values["persist"], "segment_bytes": segment_bytes}


def _say_address(address: str) -> None:
    logger.info("listening on %s", address, extra={"facts": {"address": address}})

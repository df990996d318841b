"""Serve the log in a directory over HTTP.

The value of a setting comes from its option, its variable (MRECORDLOG_PORT for --port), the file that --config names or
its default, in this order. Rare settings have no option. The service listens immediately and responds with 503 until
the log is recovered. SIGTERM or Ctrl-C stops it after the running requests have finished.

  mrecordlog serve ./wal
  mrecordlog serve ./wal --host 0.0.0.0 --token-file token --memory-bytes 2GiB
  mrecordlog serve ./wal --tls-cert cert.pem --tls-key key.pem
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.shell.exit_codes import FAILED, UsageError, exit_code_of, sentence_of
from mrecordlog_async.cli.shell.explain import explain, refuse_foreign_directory
from mrecordlog_async.cli.shell.logging_setup import configure
from mrecordlog_async.cli.shell.machine_limits import disk_share, memory_share
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.settings import add_settings, gather, of_kubernetes
from mrecordlog_async.cli.shell.target import directory_argument
from mrecordlog_async.compiled import BUILD
from mrecordlog_async.errors import CorruptionError, LogLockedError, RecordLogError
from mrecordlog_async.options import Limits
from mrecordlog_async.support.event_loop import loop_factory
from mrecordlog_async.support.gc_tuning import calm_collector
from mrecordlog_async.support.heap import map_large_blocks
from mrecordlog_async.support.machine import fit_budgets, machine_memory
from mrecordlog_async.tokens import read_private_tokens

if TYPE_CHECKING:
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.tls import Certificate

logger = logging.getLogger("mrecordlog_async.serve")


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("serve", "Serve a log over HTTP", __doc__)
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        type=directory_argument,
        help="directory of the log, created if missing (default: MRECORDLOG_DIRECTORY)",
    )
    add_settings(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from mrecordlog_async.service.server import ExposedError, ServeSettings, serve

    values = gather(arguments)
    directory = arguments.directory or _directory_of_variable()
    configure(values["log_format"], values["log_level"])
    try:
        refuse_foreign_directory(directory)
        options = _service_options(values)
        settings = ServeSettings(
            directory,
            values["host"],
            values["port"],
            values["uds"],
            values["access_log"],
            values["failure_grace"],
            _certificate(values),
            options,
            _log_options(values, directory, options),
        )
        calm_collector()
        machine = machine_memory()
        map_large_blocks(machine and machine.bytes)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(serve(settings, on_listening=_say_address))
    except ExposedError as error:
        return log_end(UsageError(str(error)), directory)
    except Exception as error:
        return log_end(error, directory)


def _directory_of_variable() -> str:
    directory = os.environ.get("MRECORDLOG_DIRECTORY")
    if not directory:
        raise UsageError("serve needs the directory of the log: `mrecordlog serve DIR`, or set MRECORDLOG_DIRECTORY")
    try:
        return directory_argument(directory)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"MRECORDLOG_DIRECTORY: {error}") from None


def log_end(error: Exception, directory: str) -> int:
    """Log why the service ends, in the format of all other lines, with what to do next; return the exit code."""
    code = exit_code_of(error)
    facts: dict[str, object] = {"event": "ended", "exit_code": code, "error": type(error).__name__}
    bug = code == FAILED and not isinstance(error, RecordLogError | OSError | ValueError)
    text = sentence_of(error)
    if isinstance(error, CorruptionError):
        facts |= {"directory": directory, "segment": error.segment, "offset": error.offset}
        text = explain(error, directory)
    elif isinstance(error, LogLockedError):
        facts |= {"directory": directory, "owner_pid": error.owner_pid, "owner": error.command}
    logger.critical("%s", text, exc_info=error if bug else None, extra={"facts": facts})
    return code


def _certificate(values: dict[str, Any]) -> Certificate | None:
    from mrecordlog_async.service.tls import Certificate

    if not values["tls_cert"]:
        if values["tls_key"]:
            raise UsageError("--tls-key needs --tls-cert")
        return None
    if values["uds"] is not None:
        raise UsageError("--tls-cert is for --host and --port; a Unix socket is private to this user already")
    try:
        return Certificate(values["tls_cert"], values["tls_key"])
    except ValueError as error:
        raise UsageError(str(error)) from None


def _service_options(values: dict[str, Any]) -> ServiceOptions:
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.security import LOOPBACK_HOSTS, is_loopback

    allowed = frozenset(values["allow_host"] or ())
    on_loopback = values["uds"] is None and is_loopback(values["host"])
    if allowed or on_loopback:
        allowed |= LOOPBACK_HOSTS
    if on_loopback:
        allowed |= {values["host"]}
    given = {one.name: values[one.name] for one in fields(ServiceOptions) if one.name in values}
    try:
        tokens = read_private_tokens(values["token_file"]) if values["token_file"] else frozenset()
        return ServiceOptions(**given | {"tokens": tokens, "hosts": allowed, "name": values["name"] or ""})
    except ValueError as error:
        raise UsageError(str(error)) from None


def _log_options(values: dict[str, Any], directory: str, options: ServiceOptions) -> dict[str, Any]:
    from mrecordlog_async.options import check_segment_bytes

    disk_bytes = disk_share(values["disk_bytes"], directory)
    try:
        waiting = fit_budgets({name: values[name] for name in ("record_bytes", "pending_bytes")}, machine_memory())
        limits = Limits(
            memory_bytes=_memory_bytes(values, options, waiting["pending_bytes"], disk_bytes),
            disk_bytes=disk_bytes,
            beyond_memory=values["beyond_memory"],
            queues=values["queues_limit"],
            consumers=values["consumers_limit"],
            record_bytes=waiting["record_bytes"],
            pending_bytes=waiting["pending_bytes"],
        )
        check_segment_bytes(values["segment_bytes"])
    except ValueError as error:
        raise UsageError(str(error)) from None
    return {
        "queues": values["queues"] or {},
        "consumers": values["consumers"] or {},
        "limits": limits,
        "persist_policy": values["persist"],
        "segment_bytes": values["segment_bytes"],
        "recycle": values["recycle"],
        "retention": not values["hold_retention"],
        "verify_all": values["verify_all"],
        "lock_seconds": values["lock_seconds"],
    }


def _memory_bytes(values: dict[str, Any], options: ServiceOptions, pending_bytes: int, disk_bytes: int) -> int:
    wanted, wanted_disk_bytes = values["memory_bytes"], values["disk_bytes"]
    held = (pending_bytes, options.bodies_bytes, options.sending_bytes)
    # `Limits` compares those that were both set. A log that fits into the disk never needs more memory than that.
    is_bounded = wanted_disk_bytes is None or (wanted is None and values["beyond_memory"] == "disk")
    return memory_share(wanted, sum(held), disk_bytes if is_bounded else None)


def _say_address(address: str) -> None:
    logger.info("listening on %s (%s)", address, BUILD, extra={"facts": {"address": address, "build": BUILD}})
    if foreign := of_kubernetes():
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        logger.warning(
            "%s%s are of a Service of Kubernetes, not settings: ignored (`enableServiceLinks: false` leaves them out)",
            *(foreign[0], more),
        )

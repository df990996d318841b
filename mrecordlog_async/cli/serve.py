"""`serve`: the service of a log, its settings, and the limits that follow from the machine.

The limits of memory and of the disk are computed at every start: other programs share the volume, and a container may
get more memory. Each is printed with what it follows from.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mrecordlog_async.cli.errors import FAILED, UsageError, exit_code_of, explain, refuse_foreign_directory, sentence_of
from mrecordlog_async.cli.params import DIRECTORY, argument, command
from mrecordlog_async.cli.settings import of_kubernetes, takes_settings
from mrecordlog_async.cli.text import size
from mrecordlog_async.options import DISK_BYTES, MIB, Limits, check_segment_bytes
from mrecordlog_async.support.disk_errors import is_refusal
from mrecordlog_async.support.machine import (
    HELD,
    LEFT_BYTES_MIN,
    MEMORY_BYTES,
    PROCESS_BYTES,
    SERVICE_BYTES_MIN,
    MachineMemory,
    default_memory_bytes,
    fit_budgets,
    machine_memory,
)
from mrecordlog_async.tokens import read_private_tokens

if TYPE_CHECKING:
    from mrecordlog_async.service.options import ServiceOptions
    from mrecordlog_async.service.tls import Certificate

logger = logging.getLogger("mrecordlog_async.serve")

PLAIN = (str, int, float)

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""Replacements of characters that a terminal may obey."""

DISK_SHARE = 0.8
DISK_SHARE_MIN = 64 * MIB
"""A volume that is full already must not give a limit that no log can work with: then the disk itself refuses."""


@command()
@argument(
    "place",
    required=False,
    metavar="DIR",
    type=DIRECTORY,
    envvar="MRECORDLOG_DIRECTORY",
    help="Directory of the log, created if missing (default: MRECORDLOG_DIRECTORY).",
)
@takes_settings
def serve(place: str | None, **values: Any) -> int:
    """Serve the log in a directory over HTTP.

    The value of a setting comes from its option, its variable (MRECORDLOG_PORT for --port), the file that --config
    names or its default, in this order. Rare settings have no option. The service listens immediately and responds with
    503 until the log is recovered. SIGTERM or Ctrl-C stops it after the running requests have finished.

      mrecordlog serve ./wal
      mrecordlog serve ./wal --host 0.0.0.0 --token-file token --memory-bytes 2GiB
      mrecordlog serve ./wal --tls-cert cert.pem --tls-key key.pem
    """
    import asyncio

    from mrecordlog_async.service.server import ExposedError, ServeSettings
    from mrecordlog_async.service.server import serve as serve_log
    from mrecordlog_async.support.event_loop import loop_factory
    from mrecordlog_async.support.gc_tuning import calm_collector
    from mrecordlog_async.support.heap import map_large_blocks

    if not place:
        raise UsageError("serve needs the directory of the log: `mrecordlog serve DIR`, or set MRECORDLOG_DIRECTORY")
    configure_logging(values["log_format"], values["log_level"])
    try:
        refuse_foreign_directory(place)
        options = _service_options(values)
        settings = ServeSettings(
            place,
            values["host"],
            values["port"],
            values["uds"],
            values["access_log"],
            values["failure_grace"],
            _certificate(values),
            options,
            _log_options(values, place, options),
        )
        calm_collector()
        machine = machine_memory()
        map_large_blocks(machine and machine.bytes)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(serve_log(settings, on_listening=_say_address))
    except ExposedError as error:
        return log_end(UsageError(str(error)), place)
    except Exception as error:
        return log_end(error, place)


def log_end(error: Exception, directory: str) -> int:
    """Log why the service ends, in the format of all other lines, with what to do next; return the exit code."""
    from mrecordlog_async.errors import CorruptionError, LogLockedError, RecordLogError

    code = exit_code_of(error)
    facts: dict[str, object] = {"event": "ended", "exit_code": code, "error": type(error).__name__}
    bug = code == FAILED and not isinstance(error, RecordLogError | OSError | ValueError)
    text = sentence_of(error)
    if isinstance(error, CorruptionError):
        facts |= {"directory": directory, "segment": error.segment, "offset": error.offset}
        text = explain(error, {"directory": directory})
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
    from mrecordlog_async.compiled import BUILD

    logger.info("listening on %s (%s)", address, BUILD, extra={"facts": {"address": address, "build": BUILD}})
    if foreign := of_kubernetes():
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        logger.warning(
            "%s%s are of a Service of Kubernetes, not settings: ignored (`enableServiceLinks: false` leaves them out)",
            *(foreign[0], more),
        )


def memory_share(wanted: int | None, held_bytes: int, disk_bytes: int | None) -> int:
    """Return the limit of the memory of records, and log where it comes from.

    Args:
        wanted: The limit that was set; None for the default.
        held_bytes: All that clients can fill besides, whatever the log holds: waiting records, bodies and responses.
        disk_bytes: The limit of the disk, where that of memory is not to be above it.

    Raises:
        UsageError: The machine has too little memory for the service, and *wanted* is None.
    """
    machine, besides = machine_memory(), PROCESS_BYTES + held_bytes
    if wanted is None and machine is not None:
        _refuse_too_little(machine, besides)
    limit = default_memory_bytes(machine, held_bytes) if wanted is None else wanted
    of = "memory of unknown size" if machine is None else f"{size(machine.bytes)} ({machine.source})"
    if wanted is not None:
        why = f"as set, of {of}"
    elif limit == MEMORY_BYTES:
        why = f"the largest default, of {of}"
    else:
        why = f"half of what the process and its budgets ({size(besides)}) leave of {of}"
    if disk_bytes is not None and disk_bytes < limit:
        limit, why = disk_bytes, "the disk limit, which is less than the memory"
    facts = {"event": "memory_limit", "memory_bytes": limit, "machine_bytes": machine and machine.bytes}
    text = "memory limit %s: %s; set --memory-bytes to change it"
    logger.info(text, size(limit), why, extra={"facts": facts})
    if machine is not None and limit + besides > machine.bytes:
        logger.warning(
            "the process and its budgets (%s) and the memory limit (%s) are more than the memory (%s): the kernel may "
            "end the process; lower --memory-bytes, or give it more",
            *(size(besides), size(limit), of),
            extra={"facts": facts | {"event": "little_memory", "besides_bytes": besides}},
        )
    return limit


def _refuse_too_little(machine: MachineMemory, besides: int) -> None:
    needed = max(SERVICE_BYTES_MIN, besides + LEFT_BYTES_MIN)
    if machine.bytes < needed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in HELD)
        raise UsageError(
            f"the service needs {size(needed)} of memory and has {size(machine.bytes)} ({machine.source}); give it "
            f"more, lower {flags} if they were set, or set --memory-bytes"
        )


def disk_share(wanted: int | None, directory: str) -> int:
    """Return the limit of the disk, and log where it comes from.

    Args:
        wanted: The limit that was set; None for a part of what is free on the volume and what the log takes.
        directory: The directory of the log.
    """
    if wanted is not None:
        facts = {"event": "disk_limit", "disk_bytes": wanted}
        logger.info("disk limit %s: as set", size(wanted), extra={"facts": facts})
        return wanted
    place = os.path.abspath(directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError as error:
        if not is_refusal(error):
            raise
        logger.warning("the volume does not report its space: the disk limit is %s; set --disk-bytes", size(DISK_BYTES))
        return DISK_BYTES
    free = found.f_bavail * found.f_frsize
    taken = sum(entry.stat().st_blocks * 512 for entry in _files_in(directory))
    share = max(int(DISK_SHARE * (free + taken)), DISK_SHARE_MIN)
    why = "80 % of" if share > DISK_SHARE_MIN else "the least limit, more than 80 % of"
    logger.info(
        "disk limit %s: %s the %s that are free on the volume plus the %s that the log takes; set --disk-bytes to "
        "change it, and on each of several logs on one volume",
        *(size(share), why, size(free), size(taken)),
        extra={"facts": {"event": "disk_limit", "disk_bytes": share, "free_bytes": free, "taken_bytes": taken}},
    )
    return share


def _files_in(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


# The service's own log on standard error: a line for people, or a JSON object for machines. Both have the time, the
# level and the facts of the message, which any application that configures `logging` finds in the record, too.


def timestamp(record: logging.LogRecord) -> str:
    """Return when *record* was made, in UTC with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the facts of the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, then the facts that the message does not contain, as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on its own lines."""
        message = " ".join(record.getMessage().splitlines()).translate(_CONTROLS)
        fields = " ".join(_fields(getattr(record, "facts", {}), message))
        line = f"{timestamp(record)} {record.levelname.lower()} {message}" + (f" [{fields}]" if fields else "")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(facts: Mapping[str, object], message: str) -> Iterator[str]:
    for name, value in facts.items():
        if isinstance(value, PLAIN) and not isinstance(value, bool) and value != "" and not _says(message, name, value):
            yield f"{name}={value if isinstance(value, int | float) else json.dumps(value)}"


def _says(message: str, name: str, value: str | float) -> bool:
    """Return whether *message* contains *value*; a number only next to a word of its name, or to its unit.

    The same number may mean something else there.
    """
    if isinstance(value, str):
        return value in message
    names = {*name.split("_"), "s"} if name.endswith("seconds") else {*name.split("_")}
    words = [word.rstrip(".)") for word in re.split(r"[\s,;:(]+", message)]
    around = zip(["", *words], words, [*words[1:], ""], strict=False)
    return any(word == str(value) and (before in names or after in names) for before, word, after in around)


def configure_logging(log_format: str, level: str) -> None:
    """Write this package's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    package = logging.getLogger("mrecordlog_async")
    package.handlers = [handler]
    package.setLevel(level.upper())
    package.propagate = False

"""Settings of the service: flags, then `MRECORDLOG_*`, then a TOML file, then defaults.

One table names them all; flags, variables and keys are made from it, so they cannot differ. Sizes are written `512MiB`,
times `5s`. A key or variable that is not in the table is an error: a misspelt limit must not be ignored.

    # mrecordlog.toml
    port = 8080
    memory_bytes = "2GiB"
    persist = "interval:500ms"
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrecordlog_async.cli.exit_codes import UsageError
from mrecordlog_async.options import PersistPolicy
from mrecordlog_async.quantities import parse_seconds, parse_size

PREFIX = "MRECORDLOG_"
FOR_CLIENTS = frozenset({"URL"})
"""Variables that other commands read."""


def whole(text: str) -> int:
    """Return a whole number."""
    if not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def port(text: str) -> int:
    """Return a port, 0 for a free one."""
    if whole(text) > 65_535:
        raise ValueError(f"{text} is no port: they end at 65535")
    return whole(text)


def switch(text: str) -> bool:
    """Return whether it is on."""
    if text.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() in ("1", "true", "yes")


def persist(text: str) -> PersistPolicy:
    """Return the policy: `always`, `interval:500ms` or `never`."""
    kind, _, pause = text.partition(":")
    if kind == "interval" and pause:
        return PersistPolicy.interval(parse_seconds(pause))
    if pause or kind not in ("always", "never"):
        raise ValueError(f"{text!r} is none of always, interval:TIME, never")
    return PersistPolicy.always() if kind == "always" else PersistPolicy.never()


def names(text: str) -> tuple[str, ...]:
    """Return names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a reader for one of a few words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return read


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. default: as a person would write it, "" for none."""

    name: str
    read: Callable[[str], Any]
    default: str
    help: str


SETTINGS = (
    Setting("host", str, "127.0.0.1", "address to listen on; another than loopback needs --token-file"),
    Setting("port", port, "8080", "port, 0 for a free one"),
    Setting("uds", str, "", "listen on this Unix socket instead, for this user only"),
    Setting(
        "token_file", str, "", "file of bearer tokens, one a line, readable by its owner only; read once, at the start"
    ),
    Setting(
        "allow_host",
        names,
        "",
        "Host names to respond to, besides loopback's; comma separated; none: all, but on loopback only loopback's",
    ),
    Setting("persist", persist, "always", "when a record counts as stored: always, interval:500ms, never"),
    Setting("segment_bytes", parse_size, "1GiB", "size of a segment file"),
    Setting("memory_bytes", parse_size, "4GiB", "limit of retained records in memory; above it appends are 429"),
    Setting("disk_bytes", parse_size, "16GiB", "limit of the space that segments take"),
    Setting("pending_bytes", parse_size, "128MiB", "limit of records that wait to be written"),
    Setting("record_bytes", parse_size, "64MiB", "limit of one record"),
    Setting("queues", whole, "1000000", "limit of queues"),
    Setting("body_bytes", parse_size, "80MiB", "limit of one request body"),
    Setting("bodies_bytes", parse_size, "96MiB", "limit of all bodies being received, or waiting to be stored"),
    Setting("sending_bytes", parse_size, "96MiB", "limit of what answers being sent hold"),
    Setting("connections", whole, "4096", "limit of connections"),
    Setting("tails", whole, "1024", "limit of clients that wait for records"),
    Setting("drain_seconds", parse_seconds, "20s", "how long requests may go on after SIGTERM"),
    Setting("metrics_per_queue", switch, "false", "series for each queue in /metrics"),
    Setting("access_log", switch, "false", "a line for each request"),
    Setting("log_format", choice("text", "json"), "text", "how the service's own log is written"),
    Setting("log_level", choice("debug", "info", "warning", "error"), "info", "what is written to it"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting, and --config."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings (default: MRECORDLOG_CONFIG)")
    for setting in SETTINGS:
        shown = f" (default: {setting.default})" if setting.default else ""
        parser.add_argument(f"--{setting.name.replace('_', '-')}", metavar="…", help=setting.help + shown)


def gather(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return every setting's value from the first place that gives one. UsageError for what cannot be read."""
    variables = _variables(environment)
    path = arguments.config or variables.pop("config", None)
    file = _file(path) if path else {}
    values = {}
    for setting in SETTINGS:
        flag = getattr(arguments, setting.name)
        for text, place in (
            (flag, f"--{setting.name.replace('_', '-')}"),
            (variables.get(setting.name), PREFIX + setting.name.upper()),
            (file.get(setting.name), f"{path}: {setting.name}"),
            (setting.default, "default"),
        ):
            if text is not None:
                values[setting.name] = _read(setting, text, place)
                break
    return values


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in FOR_CLIENTS:
            continue
        if name.lower() not in _BY_NAME and name not in ("CONFIG", "DIRECTORY"):
            raise UsageError(f"{variable} is no setting; there are {', '.join(PREFIX + s.upper() for s in _BY_NAME)}")
        found[name.lower()] = text
    return found


def _file(path: str) -> dict[str, str]:
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    for name, value in content.items():
        if name not in _BY_NAME:
            raise UsageError(f"{path}: {name!r} is no setting; there are {', '.join(_BY_NAME)}")
        if not isinstance(value, str | int | float | list):
            raise UsageError(f"{path}: {name} is a text, a number, true or false, not {type(value).__name__}")
    return {name: _text(value) for name, value in content.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _read(setting: Setting, text: str, place: str) -> Any:
    if not text and not setting.default:
        return None
    try:
        return setting.read(text)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from None

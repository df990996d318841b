"""Settings of the service, from options, `MRECORDLOG_*` variables, a TOML file or their defaults, in this order.

One table lists them all; options, variables, keys and the page of the documentation are generated from it, so they
cannot differ. Rare settings have no option. Write sizes like `512MiB` and times like `5s`. A key or variable that is
not in the table is an error: a misspelt limit must not be ignored.

    # mrecordlog.toml
    port = 8080
    memory_bytes = "2GiB"
    persist = "interval:500ms"
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from mrecordlog_async.cli.errors import UsageError
from mrecordlog_async.cli.params import Value, path_of, suggest, whole
from mrecordlog_async.names import check_consumers, check_name
from mrecordlog_async.options import MIB, QUEUE_OPTIONS, PersistPolicy, QueueOptions
from mrecordlog_async.quantities import parse_seconds, parse_size
from mrecordlog_async.support.machine import BUDGETS

PREFIX = "MRECORDLOG_"
NOT_SETTINGS = frozenset({"CONFIG", "DIRECTORY", "COMPILE", "DISK_THREAD", "PURE"})
"""Variables that `serve` reads besides its settings, and those of the installation and of the room `compiled`."""

FILE = "mrecordlog.file"
"""Where a context keeps the path of the file of settings, for errors."""

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
BEYOND_MEMORY = ("disk", "refuse")


JSON = "JSON"
"""The placeholder of a setting that is a table or a list: in options and variables, it is written as JSON."""


_QUANTITIES: Mapping[str, Callable[[str], float]] = {"bytes": parse_size, "seconds": parse_seconds}
"""Parser of a limit that is written with its unit, as text."""


def persist(text: str) -> PersistPolicy:
    """Return the policy: `always`, `interval:500ms` or `never`."""
    kind, _, pause = text.partition(":")
    if kind == "interval" and pause:
        return PersistPolicy.interval(parse_seconds(pause))
    if pause or kind not in ("always", "never"):
        raise ValueError(f"{text!r} must be always, interval:TIME or never")
    return PersistPolicy.always() if kind == "always" else PersistPolicy.never()


def name(text: str) -> str:
    """Return a name that fits into a column of a table. Raises ValueError."""
    if not text.isprintable() or " " in text or len(text) > 255:
        raise ValueError(f"{text[:80]!r} is not a name: write up to 255 printable characters without spaces")
    return text


def port(text: str) -> int:
    """Return a port, 0 for a free one. Raises ValueError."""
    if whole(text) > 65_535:
        raise ValueError(f"{text} is not a port: the highest one is 65535")
    return whole(text)


def names(text: str) -> tuple[str, ...]:
    """Return names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def queues(text: str) -> dict[str, QueueOptions | None]:
    """Return the options of queues, from JSON: a list of names, or an object of options by name. Raises ValueError."""
    found = _from_json(text)
    if isinstance(found, list):
        found = {_name(name): None for name in found}
    if not isinstance(found, dict):
        raise ValueError(f"{text} must be a list of queues, or a table of their options")
    for name in found:
        check_name(name)
    return {name: None if options is None else _options(name, options) for name, options in found.items()}


def consumers(text: str) -> dict[str, tuple[str, ...]]:
    """Return names of consumers by queue or pattern, from JSON: an object of lists. Raises ValueError."""
    try:
        return check_consumers(_from_json(text))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not JSON: {error}") from None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a queue is named by a string, not {name!r}")
    return name


def _options(queue: str, options: object) -> QueueOptions:
    if not isinstance(options, dict):
        raise ValueError(f"queue {queue!r}: its options are a table such as {{max_age = '7d'}}, not {options!r}")
    for name in options.keys() - QUEUE_OPTIONS.keys():
        raise ValueError(f"queue {queue!r}: {name!r} is not an option{suggest(name, list(QUEUE_OPTIONS))}")
    try:
        return QueueOptions(**{name: _value(name, value) for name, value in options.items()})
    except ValueError as error:
        raise ValueError(f"queue {queue!r}: {error}") from None


def _value(option: str, value: object) -> Any:
    """Return *value*; of a limit that is written as text, its size or its seconds."""
    read = _QUANTITIES.get(QUEUE_OPTIONS[option].unit)
    return read(value) if read is not None and isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    read: bool for a switch, which takes no value. default: as a person would write it, "" for none. words: its only
    values; of `persist`, how they begin. is_rare: it has no option, only its variable and its key in the file.
    """

    name: str
    read: Callable[[str], Any]
    metavar: str
    default: str
    help: str
    words: tuple[str, ...] = ()
    is_rare: bool = False

    @property
    def flag(self) -> str:
        """Return its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return its environment variable."""
        return PREFIX + self.name.upper()


def _rare(name: str, read: Callable[[str], Any], metavar: str, default: str, help: str, *words: str) -> Setting:
    return Setting(name, read, metavar, default, help, words, is_rare=True)


def _budget(name: str, help: str) -> Setting:
    most = f"{BUDGETS[name] // MIB}MiB"
    return _rare(name, parse_size, "SIZE", "", f"{help} (default: {most}, less in proportion with less than 1GiB)")


SETTINGS = (
    Setting("host", str, "ADDRESS", "127.0.0.1", "address to listen on; any other than loopback needs --token-file"),
    Setting("port", port, "PORT", "8080", "port to listen on, 0 for a free one"),
    Setting("name", name, "NAME", "", "name of the service, shown to people (default: the host name)"),
    Setting("uds", path_of, "PATH", "", "listen on this Unix socket instead, for this user only"),
    Setting(
        "token_file",
        path_of,
        "FILE",
        "",
        "file of accepted bearer tokens, one per line; only its owner may be able to read it; read once, at the start",
    ),
    Setting(
        "tls_cert",
        path_of,
        "FILE",
        "",
        "serve HTTPS with this certificate (PEM, with its chain); read again when it changes",
    ),
    Setting("tls_key", path_of, "FILE", "", "private key of --tls-cert (PEM); not needed if it is in the same file"),
    Setting(
        "allow_host",
        names,
        "NAMES",
        "",
        "host names to accept in the Host header, comma separated, besides those of loopback (default: on loopback "
        "none, on other addresses every name)",
    ),
    Setting(
        "persist",
        persist,
        "POLICY",
        "always",
        "when a record counts as stored: always, interval:500ms or never",
        ("always", "interval:", "never"),
    ),
    Setting("segment_bytes", parse_size, "SIZE", "1GiB", "size of a segment file"),
    _rare("recycle", bool, "", "true", "use the file of a dead segment again for a later one (on by default)"),
    Setting(
        "memory_bytes",
        parse_size,
        "SIZE",
        "",
        "limit of the memory of the records (default: half of what the process and its budgets leave of the memory of "
        "the machine or container, at most 4GiB)",
    ),
    Setting(
        "beyond_memory",
        str,
        "WHAT",
        "disk",
        "what happens at --memory-bytes: the oldest records leave memory and are read from the disk (disk), or appends "
        "get 429 (refuse)",
        BEYOND_MEMORY,
    ),
    Setting(
        "disk_bytes",
        parse_size,
        "SIZE",
        "",
        "limit of the disk space of the log; appends above it get 429 (default: 80 percent of the free space and what "
        "the log takes, at every start)",
    ),
    _budget("pending_bytes", "limit of the records waiting to be written"),
    _budget("record_bytes", "limit of the size of a record"),
    _rare(
        "queues",
        queues,
        JSON,
        "",
        "queues to create if they do not exist: a list of names, or a table of their options by name",
    ),
    _rare(
        "consumers",
        consumers,
        JSON,
        "",
        "consumers to create if they do not exist, before the first request: a table of lists of names by queue",
    ),
    _rare("queues_limit", whole, "COUNT", "1000000", "limit of the number of queues"),
    _rare("consumers_limit", whole, "COUNT", "1000000", "limit of the number of consumers and their rules"),
    _budget("body_bytes", "limit of the size of a request body"),
    _budget("bodies_bytes", "limit of all request bodies being received or stored"),
    _budget("sending_bytes", "limit of all responses being sent"),
    _rare("connections", whole, "COUNT", "4096", "limit of the number of connections"),
    _rare("tails", whole, "COUNT", "1024", "limit of the number of clients waiting for records"),
    _rare(
        "lock_seconds",
        parse_seconds,
        "TIME",
        "25s",
        "time to wait at the start for another process that has the log open, such as the service that this one "
        "replaces; 0s: not at all",
    ),
    _rare("drain_seconds", parse_seconds, "TIME", "20s", "time for running requests to finish after SIGTERM"),
    _rare(
        "failure_grace",
        parse_seconds,
        "TIME",
        "5s",
        "once a write or sync has failed, serve reads for this long, then end with exit code 6 so that a supervisor "
        "starts the service again; 0s: until it is stopped",
    ),
    _rare(
        "stall_seconds",
        parse_seconds,
        "TIME",
        "5s",
        "report not ready once a write or sync has been under way for this long; 0s: never",
    ),
    Setting(
        "hold_retention", bool, "", "false", "remove no records because of their age; for a log restored from a copy"
    ),
    Setting(
        "verify_all",
        bool,
        "",
        "false",
        "read every segment at the start, even those whose records stay on the disk; it takes as long as reading the "
        "whole log",
    ),
    _rare("metrics_per_queue", bool, "", "false", "add metrics of each queue to /metrics"),
    _rare("access_log", bool, "", "false", "log every request"),
    _rare(
        "log_format",
        str,
        "FORMAT",
        "text",
        "format of the service's own log: text or json",
        *FORMATS,
    ),
    _rare(
        "log_level",
        str,
        "LEVEL",
        "info",
        "lowest level to log: debug, info, warning or error",
        *LEVELS,
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


class SettingOption(click.Option):
    """The option of a setting. A rare one is not read from the command line, but from its variable and the file."""

    def __init__(self, names: Sequence[str], setting: Setting) -> None:
        self.setting = setting
        self.elsewhere = f"set {setting.variable}, or {setting.name} in the file of --config" if setting.is_rare else ""
        shown = f" (default: {setting.default})" if setting.default and setting.metavar else ""
        help = setting.help[0].upper() + setting.help[1:] + shown + "."
        if setting.read is bool:
            super().__init__(names, default=setting.default == "true", envvar=setting.variable, help=help)
            return
        kind: Any = Value(setting.metavar, setting.read, setting.words)
        if setting.read is str and setting.words:
            kind = click.Choice(setting.words)
        default, metavar = setting.default or None, setting.metavar
        super().__init__(names, type=kind, metavar=metavar, default=default, envvar=setting.variable, help=help)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the command line have the option, unless it is rare."""
        if not self.setting.is_rare:
            super().add_to_parser(parser, ctx)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return its line of the help."""
        return None if self.setting.is_rare else super().get_help_record(ctx)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return its variable, unless it is one of Kubernetes."""
        text = super().resolve_envvar_value(ctx)
        return None if text is None or self.setting.variable in of_kubernetes() else text


def takes_settings(run: Callable[..., int]) -> Callable[..., int]:
    """Give a command each setting, and --config."""
    for setting in reversed(SETTINGS):
        names = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.read is bool else setting.flag
        run = click.option(names, cls=SettingOption, setting=setting)(run)
    return click.option(
        "--config",
        type=Value("FILE", path_of),
        envvar=f"{PREFIX}CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_use_file,
        help="TOML file of settings (default: MRECORDLOG_CONFIG).",
    )(run)


def _use_file(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    """Refuse misspelt variables; let click find what the file sets after options and variables."""
    if ctx.resilient_parsing:
        return
    _refuse_unknown_variables(os.environ)
    if path:
        ctx.meta[FILE] = path
        ctx.default_map = _file(path)


def of_kubernetes(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables that Kubernetes sets for a Service whose name begins with ours: they are no settings.

    For a Service `mrecordlog`, every container of the namespace gets MRECORDLOG_PORT=tcp://10.96.0.12:8080,
    MRECORDLOG_SERVICE_HOST, MRECORDLOG_PORT_8080_TCP_ADDR and others.
    """
    found = {variable: _OF_SERVICE.fullmatch(f"{variable}={text}") for variable, text in environment.items()}
    services = "|".join({address[1] for address in found.values() if address})
    # PORT itself may be a setting: it replaces the variable that the container would get.
    others = re.compile(rf"({services})(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_\w+)")
    return sorted(each for each, address in found.items() if address or (services and others.fullmatch(each)))


_OF_SERVICE = re.compile(rf"({PREFIX}(?:\w+_)?)PORT(?:_\d+_[A-Z]+)?=(?:tcp|udp|sctp)://.*")


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Raise UsageError for a variable that is no setting. An empty one is not set."""
    known = [setting.variable.removeprefix(PREFIX) for setting in SETTINGS]
    foreign = frozenset(of_kubernetes(environment))
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or variable in foreign or not text:
            continue
        if name not in known and name not in NOT_SETTINGS:
            # Compared without the prefix, which alone would make every name look like a known one.
            raise UsageError(f"{variable} is not a setting{_nearest(name, known, PREFIX)}")


def _file(path: str) -> dict[str, str]:
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    for name, value in content.items():
        if name not in _BY_NAME:
            raise UsageError(f"{path}: {name!r} is not a setting{_nearest(name, list(_BY_NAME))}")
        if not isinstance(value, str | int | float | list) and _BY_NAME[name].metavar != JSON:
            raise UsageError(f"{path}: {name} must be a string, a number, a list, true or false")
    texts = {name: _text_in_file(_BY_NAME[name], value) for name, value in content.items()}
    return {name: text for name, text in texts.items() if text}


def _text_in_file(setting: Setting, value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if setting.metavar == JSON else _text(value)


def _nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    return suggest(name, known, prefix) or f"; known: {', '.join(prefix + each for each in known)}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)

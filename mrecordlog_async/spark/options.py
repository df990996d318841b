"""The options of the data source: parsed from Spark's strings, and checked once. Pure.

Names are those a Spark user knows from other streaming sources. An unknown option is refused with the nearest known
name: a misspelt limit or `truncate` must not be ignored silently.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.quantities import parse_seconds
from mrecordlog_async.spark.checkpoint import Checkpoint

DEFAULT_SERVER = "default"
"""The name of the server where the option `servers` is a bare address."""

EARLIEST = -2
LATEST = -1

RECORDS_PER_TRIGGER = 1_000_000
BYTES_PER_TRIGGER = 256 << 20
SERVER_WAIT_SECONDS = 120.0
"""How long a stream waits for a service that it has reached before: long enough for a restart with recovery."""

_SPARK_OWN = frozenset({"checkpointlocation", "queryname", "triggeravailablenow", "asyncprogresstrackingenabled"})
"""Options that Spark's own reader and writer pass on."""

_TABLE_OPTION = "option."
"""Spark's prefix for the options of `CREATE TABLE … OPTIONS`, among owner, provider and other table properties."""

_ELSEWHERE = {
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "assign": "subscribe",
    "topic": "queue",
    "topics": "subscribe",
    "stream": "queue",
    "kafka.bootstrap.servers": "servers",
    "url": "servers",
}
"""The names of the same options in other sources."""

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Positions = Mapping[str, Mapping[str, int]]
"""server → queue → position, as `startingOffsets` and `endingOffsets` state it."""


class OptionError(RecordLogError, ValueError):
    """An option is invalid, alone or together with another one."""


@dataclass(frozen=True, slots=True)
class Server:
    """One service: the name that offsets and rows carry, and its current address."""

    name: str
    url: str = field(repr=False)  # it may hold a password


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues are read: those listed, those whose whole name matches, or all."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    def includes(self, queue: str) -> bool:
        """Return whether *queue* is subscribed."""
        if self.names is not None:
            return queue in self.names
        return self.pattern is None or re.fullmatch(self.pattern, queue) is not None


@dataclass(frozen=True, slots=True)
class Options:
    """Everything a user may set. `parse` reads Spark's option names, in camel case.

    Attributes:
        servers: services to read, or the one to write to (option `servers`); excludes *path*.
        path: a log directory on this machine, for batch reads.
        subscription: the queues to read (`subscribe`, `subscribePattern`).
        starting: where reading begins (`startingOffsets`): "earliest", "latest" or positions.
        ending: where a batch read ends (`endingOffsets`): "latest" or positions, which are not read themselves.
        records_per_trigger: records of one micro-batch at most (`maxRecordsPerTrigger`).
        bytes_per_trigger: payload bytes of one micro-batch at most (`maxBytesPerTrigger`).
        partitions_min: tasks per batch (`minPartitions`).
        records_per_partition: records of one task at most (`maxRecordsPerPartition`).
        fail_on_data_loss: fail when records were deleted unread (`failOnDataLoss`); False warns and continues.
        fail_on_server_down: fail when a server cannot be reached (`failOnServerDown`); False skips it.
        truncate: truncate the logs up to what the checkpoint has committed.
        sync_directories: directories whose file systems are synced before each truncate (`syncDirs`).
        shared_marker: file that every task must see, proof of a shared output (`sharedMarker`); set by the drain.
        read_again: positions of logs that went back and are reread (`readAgain`); set by the drain.
        pushdown: let Spark push filters on server, queue and position down (batch reads).
        payload: False reads positions without payloads.
        queue: the queue of a write whose rows have no column `queue`.
        create_queues: create missing queues when writing (`createQueues`).
        token: bearer token of the services.
        timeout_seconds: for each response of a service (`timeout`).
        retries: further attempts after a failed request.
        server_wait_seconds: how long a stream waits for a service that it has reached before (`serverWait`).
        parallelism: tasks that can run at once; None for this machine's cores.
    """

    servers: tuple[Server, ...] = ()
    path: str | None = None
    subscription: Subscription = Subscription()
    starting: str | Positions = "earliest"
    ending: str | Positions = "latest"
    records_per_trigger: int = RECORDS_PER_TRIGGER
    bytes_per_trigger: int = BYTES_PER_TRIGGER
    partitions_min: int | None = None
    records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fail_on_server_down: bool = True
    truncate: bool = False
    sync_directories: tuple[str, ...] = ()
    shared_marker: str | None = None
    read_again: dict[str, dict[str, list[int]]] | None = None
    pushdown: bool = False
    payload: bool = True
    queue: str | None = None
    create_queues: bool = True
    token: str | None = field(default=None, repr=False)
    timeout_seconds: float = 60.0
    retries: int = 5
    server_wait_seconds: float = SERVER_WAIT_SECONDS
    parallelism: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read Spark's options, whose names may have any case.

        Raises:
            OptionError: an option is unknown, malformed, or excluded by another one.
        """
        found = _of_table({name.lower(): str(value) for name, value in given.items()})
        _refuse_unknown(found)
        options = cls(
            servers=parse_servers(found["servers"]) if "servers" in found else (),
            path=_path(found),
            subscription=_subscription(found),
            starting=_offsets(found, "startingOffsets", "earliest", ("earliest", "latest")),
            ending=_offsets(found, "endingOffsets", "latest", ("latest",)),
            records_per_trigger=_whole(found, "maxRecordsPerTrigger") or RECORDS_PER_TRIGGER,
            bytes_per_trigger=_size(found, "maxBytesPerTrigger", BYTES_PER_TRIGGER),
            partitions_min=_whole(found, "minPartitions"),
            records_per_partition=_whole(found, "maxRecordsPerPartition"),
            fail_on_data_loss=_switch(found, "failOnDataLoss", True),
            fail_on_server_down=_switch(found, "failOnServerDown", True),
            truncate=_switch(found, "truncate", False),
            sync_directories=_paths(found.get("syncdirs", "")),
            shared_marker=found.get("sharedmarker"),
            read_again=json.loads(found["readagain"]) if "readagain" in found else None,
            pushdown=_switch(found, "pushdown", False),
            payload=_switch(found, "payload", True),
            queue=found.get("queue"),
            create_queues=_switch(found, "createQueues", True),
            token=found.get("token"),
            timeout_seconds=_seconds(found, "timeout", 60.0),
            retries=_whole(found, "retries", least=0, default=5) or 0,
            server_wait_seconds=_seconds(found, "serverWait", SERVER_WAIT_SECONDS, zero=True),
            parallelism=_whole(found, "parallelism"),
        )
        options._check()
        if options.truncate and _switch(found, "asyncProgressTrackingEnabled", False):
            raise OptionError(
                "truncate=true excludes asyncProgressTrackingEnabled, which writes commits late: set one, not both"
            )
        return options

    def _check(self) -> None:
        if bool(self.servers) == bool(self.path):
            raise OptionError(
                'set exactly one of the options servers ("name=http://host:port,…") and path (a log directory)'
            )
        if self.truncate and self.starting != "earliest":
            raise OptionError(
                "truncate=true requires startingOffsets=earliest: the first truncate would delete the records before "
                "the start, which nobody has read"
            )

        known = {server.name for server in self.servers} or {""}
        for name, positions in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            unknown = [] if isinstance(positions, str) else sorted(set(positions) - known)
            if unknown:
                raise OptionError(f"{name} names {unknown[0]!r}, but the option servers has no server {unknown[0]!r}")

    def check_stream_read(self) -> None:
        """Raise OptionError for options that a streaming read does not support."""
        if self.path is not None:
            raise OptionError(
                "path is for batch reads; to stream a directory, run `mrecordlog serve` on it and set servers"
            )
        if self.ending != "latest":
            raise OptionError("endingOffsets is for batch reads; remove it, a stream does not end")
        if self.pushdown:
            raise OptionError("pushdown is for batch reads; remove it")

    def check_batch_read(self) -> None:
        """Raise OptionError for options that a batch read does not support."""
        if self.truncate:
            raise OptionError("truncate=true is for streams; a batch read has no checkpoint that proves what is stored")
        if self.starting == "latest":
            raise OptionError("startingOffsets=latest is for streams; a batch read would always be empty")

    def check_write(self) -> None:
        """Raise OptionError for options that a write does not support."""
        if self.path is not None:
            raise OptionError("path cannot be written to: start `mrecordlog serve` on the directory and set servers")
        if len(self.servers) != 1:
            raise OptionError(
                f"a write goes to one server, not {len(self.servers)}: filter the rows and write once for each server"
            )


def parse_servers(text: str) -> tuple[Server, ...]:
    """Read `name=url,name=url`, or one bare url."""
    servers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = DEFAULT_SERVER, part
        scheme, place = urlsplit(url)[:2]
        if scheme not in ("http", "https") or not place:
            raise OptionError(f"servers: {_shown(url)!r} is not an http:// or https:// URL")
        servers.append(Server(name.strip(), url.strip().rstrip("/")))
    names = [server.name for server in servers]
    if not servers or len(set(names)) != len(names):
        shown = ", ".join(names)
        raise OptionError(f"servers must name at least one server, and no name twice; the names are: {shown}")
    return tuple(sorted(servers, key=lambda server: server.name))


def _of_table(found: dict[str, str]) -> dict[str, str]:
    """Return only the options if Spark passes a table's properties along with them."""
    if "provider" not in found or "owner" not in found:
        return found
    given = {name.removeprefix(_TABLE_OPTION): text for name, text in found.items() if name.startswith(_TABLE_OPTION)}
    return given | ({"path": found["path"]} if "path" in found else {})


def _path(found: Mapping[str, str]) -> str | None:
    """Return the log directory; a file:// URL may name it, no other URL."""
    path = found.get("path")
    if path is None or not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        return path
    scheme, place, plain = urlsplit(path)[:3]
    if scheme != "file" or place not in ("", "localhost"):
        raise OptionError(f"path: {path!r} is not a directory on this machine; give a local path or a file:// URL")
    return unquote(plain)


def _queue_names(text: str) -> frozenset[str]:
    """Read `a,b`, or a JSON list for names that contain commas or have blanks at either end."""
    names: object = [name.strip() for name in text.split(",") if name.strip()]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise OptionError(f'subscribe: expected queue names as a,b or ["a","b"], not {text!r}')
    return frozenset(names)


def _shown(url: str) -> str:
    """Return *url* without user and password."""
    head, slashes, rest = url.partition("://")
    place, slash, path = (rest if slashes else head).partition("/")
    return (f"{head}://" if slashes else "") + place.rpartition("@")[2] + slash + path


def _refuse_unknown(found: Mapping[str, str]) -> None:
    for name in found:
        if name not in _NAMES and name not in _SPARK_OWN:
            if name == "paths":
                raise OptionError("load() reads one log directory; read each by itself and unite the frames")
            near = difflib.get_close_matches(name, _NAMES, n=1)
            meant = _ELSEWHERE.get(name) or (_NAMES[near[0]] if near else None)
            hint = f"; did you mean {meant}?" if meant else ""
            raise OptionError(f"unknown option {name!r}{hint}")


def _paths(text: str) -> tuple[str, ...]:
    """Read paths separated by commas, or a JSON list of paths that contain commas."""
    if text.startswith("["):
        with suppress(ValueError):
            return tuple(str(path) for path in json.loads(text))
    return tuple(filter(None, text.split(",")))


def _subscription(found: Mapping[str, str]) -> Subscription:
    if "subscribe" in found and "subscribepattern" in found:
        raise OptionError("set subscribe or subscribePattern, not both")
    if "subscribe" in found:
        return Subscription(names=_queue_names(found["subscribe"]))
    pattern = found.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern: {pattern!r} is not a regular expression: {error}") from None
    return Subscription(pattern=pattern)


def _offsets(found: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str | Positions:
    """Read a word, or JSON `{server: {queue: position}}`; a position may be `[id, position]` as in a checkpoint."""
    text = found.get(name.lower(), default).strip()
    if text.lower() in words:
        return text.lower()
    try:
        parsed = json.loads(text)
        if "version" in parsed:  # an offset, copied from a checkpoint
            return Checkpoint.decode(parsed).next_positions()
        return {server: {queue: _position(at) for queue, at in queues.items()} for server, queues in parsed.items()}
    except (ValueError, TypeError, AttributeError):
        expected = ", ".join(words)
        raise OptionError(
            f'{name}: expected {expected} or JSON as {{"server": {{"queue": 7}}}}, not {text!r}'
        ) from None


def _position(at: object) -> int:
    value = at[1] if isinstance(at, list) and len(at) > 1 else at
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError
    return value


def _whole(found: Mapping[str, str], name: str, *, least: int = 1, default: int | None = None) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) < least:
        raise OptionError(f"{name}: expected a whole number of at least {least}, not {text!r}")
    return int(text)


def _size(found: Mapping[str, str], name: str, default: int) -> int:
    """Read bytes: 1000000, 256m, 256 MiB, 1g."""
    text = found.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(i?b)?", text.strip().lower())
    if match is None or int(match[1]) < 1:
        raise OptionError(f"{name}: expected bytes as 1000000, 256m or 1g, not {text!r}")
    return int(match[1]) * _SIZES[match[2]]


def _seconds(found: Mapping[str, str], name: str, default: float, *, zero: bool = False) -> float:
    text = found.get(name.lower())
    if text is None:
        return default
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}; a number without a unit is in seconds") from None
    if not seconds and not zero:
        raise OptionError(f"{name}: expected a time above 0 seconds, not {text!r}")
    return seconds


def _switch(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, not {text!r}")
    return text.strip().lower() == "true"


_NAMES = {
    name.lower(): name
    for name in (
        "servers",
        "path",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "endingOffsets",
        "maxRecordsPerTrigger",
        "maxBytesPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "failOnServerDown",
        "truncate",
        "syncDirs",
        "sharedMarker",
        "readAgain",
        "pushdown",
        "payload",
        "queue",
        "createQueues",
        "token",
        "timeout",
        "retries",
        "serverWait",
        "parallelism",
    )
}

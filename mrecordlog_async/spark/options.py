"""The options of the data source, read from Spark's strings into values and checked once. Pure.

Names are those a Spark user knows from other streaming sources. An option that does not exist is refused with the
nearest name that does: a misspelt limit or `truncate` must not be ignored in silence.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mrecordlog_async.errors import RecordLogError

DEFAULT_SERVER = "default"
"""The name of the server where the option `servers` is a bare address."""

EARLIEST = -2
LATEST = -1

RECORDS_PER_TRIGGER = 1_000_000
BYTES_PER_TRIGGER = 256 << 20
SERVER_WAIT_SECONDS = 120.0
"""How long a stream waits for a service that has answered before: as long as a restart with its recovery may take."""

_SPARK_OWN = frozenset({"checkpointlocation", "queryname", "triggeravailablenow"})
"""Options that Spark's own reader and writer hand through."""

Positions = Mapping[str, Mapping[str, int]]
"""server → queue → position, as `startingOffsets` and `endingOffsets` state it."""


class OptionError(RecordLogError, ValueError):
    """An option cannot be what it is, alone or next to another one."""


@dataclass(frozen=True, slots=True)
class Server:
    """One service: the name that offsets and rows carry, and where it is today."""

    name: str
    url: str


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues are meant: those listed, those whose whole name matches, or all."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    def includes(self, queue: str) -> bool:
        """Tell whether *queue* is meant."""
        if self.names is not None:
            return queue in self.names
        return self.pattern is None or re.fullmatch(self.pattern, queue) is not None


@dataclass(frozen=True, slots=True)
class Options:
    """Everything a user may set; the README's table says what each one does."""

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
        """Read Spark's options, whose names come in any case. Raises OptionError."""
        found = {name.lower(): str(value) for name, value in given.items()}
        _refuse_unknown(found)
        options = cls(
            servers=parse_servers(found["servers"]) if "servers" in found else (),
            path=found.get("path"),
            subscription=_subscription(found),
            starting=_offsets(found, "startingOffsets", "earliest", ("earliest", "latest")),
            ending=_offsets(found, "endingOffsets", "latest", ("latest",)),
            records_per_trigger=_whole(found, "maxRecordsPerTrigger") or RECORDS_PER_TRIGGER,
            bytes_per_trigger=_whole(found, "maxBytesPerTrigger") or BYTES_PER_TRIGGER,
            partitions_min=_whole(found, "minPartitions"),
            records_per_partition=_whole(found, "maxRecordsPerPartition"),
            fail_on_data_loss=_switch(found, "failOnDataLoss", True),
            fail_on_server_down=_switch(found, "failOnServerDown", True),
            truncate=_switch(found, "truncate", False),
            sync_directories=tuple(filter(None, found.get("syncdirs", "").split(","))),
            shared_marker=found.get("sharedmarker"),
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
        return options

    def _check(self) -> None:
        if bool(self.servers) == bool(self.path):
            raise OptionError('give the option servers ("name=http://host:port,…"), or path (a log directory): one')
        if self.truncate and self.starting != "earliest":
            raise OptionError(
                "truncate=true goes with startingOffsets=earliest only: the first truncate would delete the records "
                "before the start, which nobody has read"
            )

    def check_stream_read(self) -> None:
        """Raise OptionError for what a streaming read cannot do."""
        if self.path is not None:
            raise OptionError("a log directory (path) is read as a batch; to stream, run `mrecordlog serve` on it")
        if self.ending != "latest":
            raise OptionError("endingOffsets is for batch reads; a stream has no end")
        if self.pushdown:
            raise OptionError("pushdown is for batch reads")

    def check_batch_read(self) -> None:
        """Raise OptionError for what a batch read cannot do."""
        if self.truncate:
            raise OptionError("truncate=true is for streams: a batch read has no checkpoint that says what is stored")
        if self.starting == "latest":
            raise OptionError("startingOffsets=latest is for streams: a batch would always be empty")

    def check_write(self) -> None:
        """Raise OptionError for what a write cannot do."""
        if self.path is not None:
            raise OptionError("writing goes through a service (servers): a log directory has one writer")
        if len(self.servers) != 1:
            raise OptionError("a write goes to one server: filter the rows and write once for each")


def parse_servers(text: str) -> tuple[Server, ...]:
    """Read `name=url,name=url`, or one bare url."""
    servers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = DEFAULT_SERVER, part
        scheme, place = urlsplit(url)[:2]
        if scheme not in ("http", "https") or not place:
            raise OptionError(f"servers: {url!r} is no http:// or https:// address")
        servers.append(Server(name.strip(), url.strip().rstrip("/")))
    names = [server.name for server in servers]
    if not servers or len(set(names)) != len(names):
        raise OptionError(f"servers: {text!r} must name at least one server, and each by a name of its own")
    return tuple(sorted(servers, key=lambda server: server.name))


def _refuse_unknown(found: Mapping[str, str]) -> None:
    for name in found:
        if name not in _NAMES and name not in _SPARK_OWN:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            hint = f"; did you mean {_NAMES[near[0]]}?" if near else ""
            raise OptionError(f"there is no option {name!r}{hint}")


def _subscription(found: Mapping[str, str]) -> Subscription:
    if "subscribe" in found and "subscribepattern" in found:
        raise OptionError("give subscribe or subscribePattern, not both")
    if "subscribe" in found:
        return Subscription(names=frozenset(name.strip() for name in found["subscribe"].split(",") if name.strip()))
    pattern = found.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern: {error}") from None
    return Subscription(pattern=pattern)


def _offsets(found: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str | Positions:
    """Read a word, or JSON `{server: {queue: position}}`; a position may be `[id, position]` as in a checkpoint."""
    text = found.get(name.lower(), default).strip()
    if text.lower() in words:
        return text.lower()
    try:
        parsed = json.loads(text)
        return {server: {queue: _position(at) for queue, at in queues.items()} for server, queues in parsed.items()}
    except (ValueError, TypeError, AttributeError):
        expected = ", ".join(words)
        raise OptionError(
            f'{name}: expected {expected} or JSON as {{"server": {{"queue": 7}}}}, not {text!r}'
        ) from None


def _position(at: object) -> int:
    value = at[-1] if isinstance(at, list) else at
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


def _seconds(found: Mapping[str, str], name: str, default: float, *, zero: bool = False) -> float:
    text = found.get(name.lower(), str(default)).strip().removesuffix("s")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (0 < seconds < float("inf") or (zero and seconds == 0)):
        raise OptionError(f"{name}: expected seconds above 0, not {text!r}")
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

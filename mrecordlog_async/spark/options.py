"""The options of the data source: each one once, with its name, default, reader and meaning. Pure.

Names are those that a Spark user knows from other streaming sources. The reader of a text raises ValueError, which
shows the text and what is expected; `Options.parse` adds the name of the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import EPOCH
from mrecordlog_async.names import has_control_characters
from mrecordlog_async.quantities import parse_seconds, parse_size
from mrecordlog_async.servers.names import DNS, Endpoint, Lookup, parse_lookup
from mrecordlog_async.support.nearest import did_you_mean, nearest

DEFAULT_SERVER = "default"
"""The name of the server if the option `servers` is a bare address."""

EARLIEST, LATEST = -2, -1

GivenPositions = Mapping[str, Mapping[str, int]]
"""server → queue → position, as `startingOffsets` and `endingOffsets` state it."""

Bound = str | GivenPositions | datetime
"""Begin or end of reading: "earliest", "latest", positions, or a time."""

RECORDS, BYTES = 1_000_000, 256 << 20
"""A batch has at most this many records, and payload bytes."""

_TOKEN_OF = "token."
"""Prefix of the option that has the token of one server. Spark redacts options with `token` in their names."""

_TABLE_OPTION = "option."
"""Spark's prefix for the options of `CREATE TABLE … OPTIONS`, among owner, provider and other table properties."""

_LATE_COMMITS = "asyncprogresstrackingenabled"

_SPARK_OWN = ("checkpointlocation", "queryname", "triggeravailablenow", _LATE_COMMITS)
"""Options that Spark's own reader and writer pass on."""

_ELSEWHERE = {
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "assign": "subscribe",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "topic": "queue",
    "topics": "subscribe",
    "stream": "queue",
    "kafka.bootstrap.servers": "servers",
    "url": "servers",
}
"""The names of the same options in other sources."""

_LEFT = {
    "path": "the option path was removed: start `mrecordlog serve` on the directory, and set servers",
    "paths": "the option path was removed: start `mrecordlog serve` on each directory, and set servers",
    "checkpoint": "the option checkpoint was removed: a stream needs none; remove it",
} | dict.fromkeys(
    ("stopatend", "reportto", "sharedmarker", "readagain"),
    "this option was removed: `mrecordlog drain` set it for a query of its own, which it does not have any more",
)

_MILLISECONDS_MIN = 10**11
"""Of a time as a whole number: this is in 1973. A smaller one was meant as seconds, or as a date such as 20261122."""

_ZONE = re.compile(r"(.*\d)\s*([A-Za-z][A-Za-z0-9_+/-]*)")


class OptionError(RecordLogError, ValueError):
    """An option is invalid, alone or together with another one."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Selection of queues: those listed, those whose whole name matches, or all."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    @property
    def includes_all(self) -> bool:
        """True if every queue is subscribed."""
        return self.names is None and self.pattern is None

    def includes(self, queue: str) -> bool:
        """Return whether *queue* is subscribed."""
        if self.names is not None:
            return queue in self.names
        return self.pattern is None or re.fullmatch(self.pattern, queue) is not None


class WhenDown(Enum):
    """Behaviour of a read while a server cannot be reached."""

    FAIL = "true"
    FAIL_AT_END = "atend"
    """Skip it; a run that ends fails once the others are read."""
    SKIP = "false"


# Readers of texts.


def parse_servers(text: str) -> tuple[Endpoint | Lookup, ...]:
    """Read `name=url,name=url`, or one bare url; return the servers sorted by name.

    Raises:
        OptionError: an address is neither an http:// or https:// URL nor a DNS name, a name is empty or occurs twice,
            or there is none.
    """
    servers: list[Endpoint | Lookup] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals or "://" in name:
            name, url = DEFAULT_SERVER, part
        servers.append(_server_of(name.strip(), url.strip()))
    names = [server.name for server in servers]
    if not servers or len(set(names)) != len(names):
        shown = ", ".join(names) or "none"
        raise OptionError(f"servers must name at least one server, and each name once; the names are: {shown}")
    return tuple(sorted(servers, key=lambda server: server.name))


def _server_of(name: str, url: str) -> Endpoint | Lookup:
    if not name:
        raise OptionError(
            f"servers: ={_shown(url)} has no name before the equals sign: write name=url, or the URL alone"
        )
    if url.startswith(DNS):
        try:
            return parse_lookup(url)._replace(name=name)
        except ValueError as error:
            raise OptionError(f"servers: {error}") from None
    try:
        parsed = urlsplit(url)
        host, port = (parsed.hostname or "").encode("idna"), parsed.port
    except ValueError:  # of any part; UnicodeError is one
        raise OptionError(f"servers: {_shown(url)!r} is not a URL: check its host and its port") from None
    if parsed.scheme not in ("http", "https") or not host or port == 0:
        raise OptionError(f"servers: {_shown(url)!r} is not an http:// or https:// URL")
    return Endpoint(url.rstrip("/"), None, name)


def _shown(url: str) -> str:
    """Return *url* without user and password."""
    head, slashes, rest = url.partition("://")
    place, slash, path = (rest if slashes else head).partition("/")
    return (f"{head}://" if slashes else "") + place.rpartition("@")[2] + slash + path


def _paths(text: str) -> tuple[str, ...]:
    """Read paths separated by commas, or a JSON list of paths that contain commas."""
    if text.startswith("["):
        with suppress(ValueError):
            return tuple(str(each) for each in json.loads(text))
    return tuple(filter(None, text.split(",")))


def queue_names(text: str) -> Subscription:
    """Read `a,b`, or a JSON list for names that contain commas or have blanks at either end."""
    names: object = [name.strip() for name in text.split(",") if name.strip()]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'expected queue names as a,b or ["a","b"], not {text!r}')
    return Subscription(names=frozenset(names))


def queue_pattern(text: str) -> Subscription:
    """Read a regular expression for the whole names of queues."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return Subscription(pattern=text)


def _offsets(*words: str) -> Callable[[str], str | GivenPositions]:
    """Return a reader of one of *words*, or of positions as JSON; each may be `[id, position]` as in a checkpoint."""

    def read(text: str) -> str | GivenPositions:
        if text.strip().lower() in words:
            return text.strip().lower()
        from mrecordlog_async.spark.offsets import CheckpointError, logs_of  # it needs msgspec, a command line does not

        try:
            parsed = json.loads(text)
            if "version" in parsed:  # an offset, copied from a checkpoint
                positions: dict[str, dict[str, int]] = {}
                for each in logs_of(parsed).values():  # a server may have had several logs
                    positions.setdefault(each.server, {}).update((name, at.next) for name, at in each.queues.items())
                return positions
            return {server: {queue: _position(at) for queue, at in queues.items()} for server, queues in parsed.items()}
        except (ValueError, TypeError, AttributeError, CheckpointError):
            expected = ", ".join(words)
            raise ValueError(f'expected {expected} or JSON as {{"server": {{"queue": 7}}}}, not {text!r}') from None

    return read


def _position(at: object) -> int:
    value = at[1] if isinstance(at, list) and len(at) > 1 else at
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError
    return value


def _moment(text: str) -> datetime:
    """Read milliseconds since 1970, or a timestamp as Spark writes it. One without a zone has none yet."""
    text = text.strip()
    match = None if text[-1:] in ("Z", "z") else _ZONE.fullmatch(text)
    text, own_zone = match.groups() if match is not None else (text, None)
    try:
        if text.isdecimal() and 0 < int(text) < _MILLISECONDS_MIN:
            raise ValueError
        found = EPOCH + timedelta(milliseconds=int(text)) if text.isdecimal() else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            "expected milliseconds since 1970, or a time such as 2026-11-22T09:30:00Z, 2026-11-22 09:30:00 or "
            f"2026-11-22 09:30 Europe/Berlin, not {text!r}"
        ) from None
    return found if own_zone is None or found.tzinfo is not None else found.replace(tzinfo=_zone(own_zone))


def _zone(text: str) -> tzinfo:
    """Read a time zone: UTC, Z, +01:00 or a name such as Europe/Berlin."""
    name = text.strip()
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        if name[:1] in ("+", "-"):
            offset = datetime.fromisoformat(f"1970-01-01T00:00{name}").tzinfo
            assert offset is not None, "an offset was parsed"
            return offset
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfo raises all of them for names that are none
        raise ValueError(f"{name!r} is not a time zone such as UTC, +01:00 or Europe/Berlin") from None


def logs(text: str) -> tuple[str, ...]:
    """Read the ids of logs, or their first digits, separated by commas."""
    found = tuple(filter(None, (part.strip() for part in text.split(","))))
    for log in found:
        if not re.fullmatch(r"[0-9a-f]{8,}", log):
            raise ValueError(f"expected the id of a log, or at least its first 8 digits, not {log!r}")
    return found


def _token(text: str) -> str:
    """Read a token; refuse one that no header can hold: the error about the header would show it."""
    if has_control_characters(text):
        raise ValueError("the token holds a line break or another control character: pass token.strip()")
    return text


def name(text: str) -> str:
    """Read a name of a queue or a consumer."""
    if not text:
        raise ValueError("expected a name")
    return text


def count(text: str, least: int = 1) -> int:
    """Read a whole number of at least *least*."""
    if not text.strip().isdecimal() or int(text) < least:
        raise ValueError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def count_or_zero(text: str) -> int:
    """Read a whole number of at least 0."""
    return count(text, 0)


def size(text: str) -> int:
    """Read a size of at least 1 byte: 1000000, 256m, 256 MiB, 1g."""
    found = parse_size(text)
    if found < 1:
        raise ValueError(f"{text!r} is not a size of at least 1 byte")
    return found


def seconds_or_zero(text: str) -> float:
    """Read a time, which may be 0."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{error}; a number without a unit is in seconds") from None


def seconds(text: str) -> float:
    """Read a time above 0: 10, 10s, 500ms or 2m."""
    found = seconds_or_zero(text)
    if not found:
        raise ValueError(f"expected a time above 0 seconds, not {text!r}")
    return found


def interval(text: str) -> float:
    """Read a time of at least a millisecond, such as 10s, 500ms or 2m."""
    found = parse_seconds(text)
    if not 0.001 <= found < float("inf"):
        raise ValueError(f"{text!r} is not a time such as 10s, 500ms or 2m")
    return found


def _uuid(text: str) -> str:
    with suppress(ValueError):
        parsed = UUID(text.strip())
        if parsed.int:
            return str(parsed)
    raise ValueError(f"expected a UUID as `uuidgen` prints it, not {text!r}")


def _switch(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, not {text!r}")
    return text.strip().lower() == "true"


def _when_down(text: str) -> WhenDown:
    try:
        return WhenDown(text.strip().lower())
    except ValueError:
        raise ValueError(f"expected true, false or atEnd, not {text!r}") from None


# The table.


class Option(NamedTuple):
    """One option.

    Attributes:
        name: As Spark's users write it, in any case.
        field: Of `Options`; two options of one field exclude each other.
        read: Reads its text, and raises ValueError.
        where: Reads and writes that it is for, for the manual.
        meaning: For the manual.
        default: For the manual, if that of the field does not say it.
    """

    name: str
    field: str
    read: Callable[[str], Any]
    where: str
    meaning: str
    default: str | None = None


OPTIONS = (
    Option(
        "servers",
        "servers",
        parse_servers,
        "all",
        "`name=url,…` or one url; `dns+http://host:port` for all services behind a name",
        "none",
    ),
    Option(
        "subscribe",
        "subscription",
        queue_names,
        "read",
        'names (`a,b` or `["a","b"]`) of existing queues; an endless stream waits until they exist',
        "all",
    ),
    Option("subscribePattern", "subscription", queue_pattern, "read", "a pattern for the whole name of a queue", "all"),
    Option(
        "startingOffsets",
        "starting",
        _offsets("earliest", "latest"),
        "read",
        '`latest`, or JSON `{"server": {"queue": 7}}` with existing queues; -2 is the first position, -1 the end',
    ),
    Option(
        "startingTimestamp",
        "starting",
        _moment,
        "read",
        "begin with the first record stored at that time or later; instead of `startingOffsets`",
        "none",
    ),
    Option(
        "endingOffsets",
        "ending",
        _offsets("latest"),
        "batch read",
        "JSON as for `startingOffsets`; these positions are not read themselves",
    ),
    Option(
        "endingTimestamp",
        "ending",
        _moment,
        "batch read",
        "end before the first record stored at that time or later; instead of `endingOffsets`",
        "none",
    ),
    Option("timeZone", "time_zone", _zone, "read", "of times without one: `+01:00`, `Europe/Berlin`", "`UTC`"),
    Option("maxRecordsPerTrigger", "records_per_trigger", count, "stream", "records of one batch at most"),
    Option(
        "minRecordsPerTrigger",
        "records_min",
        count,
        "endless stream",
        "wait until a batch has this many records, or is full …",
    ),
    Option(
        "maxTriggerDelay",
        "delay_seconds",
        seconds,
        "endless stream",
        "… or the first of them has waited this many seconds",
    ),
    Option(
        "maxBytesPerTrigger",
        "bytes_per_trigger",
        size,
        "stream",
        "payload bytes of one batch at most, if that is reached first: a "
        "[size](reference/settings.md#sizes-and-times) as `256m`, `1g`",
    ),
    Option("minPartitions", "partitions_min", count, "read", "tasks per batch at least, about"),
    Option(
        "maxRecordsPerPartition",
        "records_per_partition",
        count,
        "read",
        "records of one task at most; where positions have gaps, about as many",
    ),
    Option(
        "parallelism",
        "parallelism",
        count,
        "read",
        "number of tasks for a large batch",
        "cores that the driver may use",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        _switch,
        "read",
        "false: continue without records that were deleted unread, with a warning",
    ),
    Option(
        "failOnServerDown",
        "when_down",
        _when_down,
        "read",
        "true: wait for the server, then fail (at once if it refuses to list its queues); `atEnd`: continue "
        "without it, and fail at the end of a run that ends (streams; Spark 4.0 and 4.1 do not say that a run ends, so "
        "there it never fails); false: continue without it",
        "true",
    ),
    Option("truncate", "truncate", _switch, "stream", "truncate the records that the checkpoint has committed"),
    Option(
        "syncDirs",
        "sync_directories",
        _paths,
        "stream",
        'sync these file systems (`/a,/b`, or `["/a, b"]`) before each truncate or acknowledgement; stop if a '
        "sync fails",
        "none",
    ),
    Option(
        "consumer",
        "consumer",
        name,
        "stream",
        "acknowledge the records that the checkpoint has committed, as this consumer of every queue, instead of "
        "truncating",
    ),
    Option(
        "consumerOwner",
        "consumer_owner",
        _uuid,
        "stream",
        "a UUID that alone may hold the consumer, the same at every start",
    ),
    Option("takeOver", "take_over", _switch, "stream", "take the consumer over from another owner"),
    Option("acceptWentBack", "accept_went_back", _switch, "stream", "read all of a log again that went back"),
    Option(
        "forget",
        "forget",
        logs,
        "stream",
        "ids of logs that are lost (`4f31a0c2,…`): they leave the checkpoint",
        "none",
    ),
    Option(
        "pushdown",
        "pushdown",
        _switch,
        "read",
        "only false: with filters pushed down, Spark would return too few rows for the next query of the same "
        "DataFrame or view. To fetch less, use `subscribe` and `startingOffsets`",
    ),
    Option("payload", "payload", _switch, "read", "false: positions only; no payload leaves the service"),
    Option("queue", "queue", name, "write", "the queue of all rows, if they have no column `queue`"),
    Option("createQueues", "create_queues", _switch, "write", "false: refuse rows of a queue that does not exist"),
    Option(
        "token", "token", _token, "all", "the bearer token of all servers; `token.NAME` is the one of the server NAME"
    ),
    Option(
        "timeout",
        "timeout_seconds",
        seconds,
        "all",
        "seconds that a service may be silent; a response without records may take six times as long",
    ),
    Option("retries", "retries", count_or_zero, "all", "how often a failed call is repeated"),
    Option(
        "serverWait",
        "server_wait_seconds",
        seconds_or_zero,
        "stream",
        "seconds to wait for a service that has responded before, where it is waited for",
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a user may set for a read or a write, and the defaults."""

    servers: tuple[Endpoint | Lookup, ...] = ()
    subscription: Subscription = Subscription()  # it is frozen
    starting: Bound = "earliest"
    ending: Bound = "latest"
    time_zone: tzinfo = UTC
    records_per_trigger: int = RECORDS
    records_min: int = 1
    delay_seconds: float = 60.0
    bytes_per_trigger: int = BYTES
    partitions_min: int | None = None
    records_per_partition: int | None = None
    parallelism: int | None = None
    fail_on_data_loss: bool = True
    when_down: WhenDown = WhenDown.FAIL
    truncate: bool = False
    sync_directories: tuple[str, ...] = ()
    consumer: str | None = None
    consumer_owner: str | None = None
    take_over: bool = False
    accept_went_back: bool = False
    forget: tuple[str, ...] = ()
    pushdown: bool = False
    payload: bool = True
    queue: str | None = None
    create_queues: bool = True
    token: str | None = field(default=None, repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)  # of `token.NAME`
    timeout_seconds: float = 60.0
    retries: int = 5
    server_wait_seconds: float = 120.0  # long enough for a restart with recovery

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read Spark's options, whose names may have any case.

        Raises:
            OptionError: an option is unknown, malformed, or excluded by another one.
        """
        found = _without_table_properties({name.lower(): str(value) for name, value in given.items()})
        _refuse_unknown(found)
        values, given_by = dict[str, Any](), dict[str, str]()
        for option in OPTIONS:
            if (text := found.get(option.name.lower())) is None:
                continue
            to = option.field
            if to in values:
                raise OptionError(f"set {given_by[to]} or {option.name}, not both")
            values[to], given_by[to] = _value_of(option.name, option.read, text), option.name
        values["tokens"] = _tokens(found, values.get("servers", ()))
        for bound in ("starting", "ending"):
            moment = values.get(bound)
            if isinstance(moment, datetime) and moment.tzinfo is None:
                values[bound] = moment.replace(tzinfo=values.get("time_zone", UTC))
        parsed = cls(**values)
        late = _value_of("asyncProgressTrackingEnabled", _switch, found.get(_LATE_COMMITS, "false"))
        _refuse_contradictions(parsed, late_commits=late)
        return parsed

    @property
    def all_tokens(self) -> dict[str, str]:
        """The name of a server → its token; "" is that of all others."""
        return {**self.tokens, **({"": self.token} if self.token else {})}

    def check_stream_read(self) -> None:
        """Raise OptionError for options that a streaming read does not support."""
        if self.ending != "latest":
            raise OptionError(
                "endingOffsets and endingTimestamp are for batch reads; remove them, a stream does not end"
            )

    def check_batch_read(self) -> None:
        """Raise OptionError for options that a batch read does not support."""
        if self.consumer is not None:
            raise OptionError("consumer is for streams; a batch read has no checkpoint that proves what is stored")
        if self.truncate:
            raise OptionError("truncate=true is for streams; a batch read has no checkpoint that proves what is stored")
        if self.when_down is WhenDown.FAIL_AT_END:
            raise OptionError("failOnServerDown=atEnd is for streams; a table has all servers or leaves some out")
        if self.starting == "latest":
            raise OptionError("startingOffsets=latest is for streams; a batch read would always be empty")

    def check_write(self) -> None:
        """Raise OptionError for options that a write does not support."""
        if len(self.servers) != 1 or isinstance(self.servers[0], Lookup):
            count = "all addresses of a name" if len(self.servers) == 1 else str(len(self.servers))
            raise OptionError(
                f"a write goes to one server, not {count}: filter the rows and write once for each server"
            )


def _value_of(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except OptionError:
        raise
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None


def _refuse_unknown(found: Mapping[str, str]) -> None:
    """Raise OptionError for the first name that neither this data source nor Spark has.

    A misspelt limit or `truncate` must not be ignored silently.
    """
    known = {option.name.lower(): option.name for option in OPTIONS}
    for name in found:
        if name in _LEFT:
            raise OptionError(f"{name}: {_LEFT[name]}")
        if name not in known and name not in _SPARK_OWN and not name.startswith(_TOKEN_OF):
            near = nearest(name, known)
            raise OptionError(f"unknown option {name!r}{did_you_mean(_ELSEWHERE.get(name) or (near and known[near]))}")


def _tokens(found: Mapping[str, str], servers: Sequence[Endpoint | Lookup]) -> dict[str, str]:
    """Read `token.NAME`: server → its token. Spark spells the names of options in any case.

    Raises:
        OptionError: no server has that name, or two have it, in different cases.
    """
    tokens = {}
    for option in (name for name in found if name.startswith(_TOKEN_OF)):
        names = [server.name for server in servers if server.name.lower() == option.removeprefix(_TOKEN_OF)]
        if len(names) != 1:
            why = f"the servers {' and '.join(names)}: give them" if names else "no server of this name: check"
            raise OptionError(f"{option} is for {why} names in the option servers")
        tokens[names[0]] = _value_of(option, _token, found[option])
    return tokens


def _without_table_properties(found: dict[str, str]) -> dict[str, str]:
    """Return *found*, without the properties of a table if Spark passed them along with its options."""
    if "provider" not in found or "owner" not in found:
        return found
    given = {name.removeprefix(_TABLE_OPTION): text for name, text in found.items() if name.startswith(_TABLE_OPTION)}
    return given | ({"path": found["path"]} if "path" in found else {})


def _refuse_contradictions(options: Options, *, late_commits: bool) -> None:
    """Raise OptionError for options that exclude each other. late_commits: Spark writes commits asynchronously."""
    if not options.servers:
        raise OptionError('set the option servers ("name=http://host:port,…")')
    if options.pushdown:
        # Spark plans a Python reader once per DataFrame or view. A filter that is pushed down narrows that plan, and a
        # later query without this filter would use it: nothing in Python is called then, so no reader can prevent it.
        raise OptionError(
            "pushdown=true is not supported: Spark would use what one query filtered for the next query of the same "
            "DataFrame or view, which then misses rows. Remove the option; to fetch less, set subscribe, "
            "startingOffsets or endingOffsets; filters on the DataFrame work without it"
        )
    _refuse_release(options, late_commits=late_commits)
    for server in options.servers:
        tokens = options.all_tokens
        if isinstance(server, Endpoint) and tokens.get(server.name, tokens.get("")) and urlsplit(server.url).username:
            raise OptionError(
                f"servers: the URL of server {server.name!r} has a user name, and a request cannot have a token as "
                "well: leave one out"
            )
    if options.records_min > options.records_per_trigger:
        raise OptionError(
            f"minRecordsPerTrigger ({options.records_min}) is above maxRecordsPerTrigger "
            f"({options.records_per_trigger}), which no batch reaches: lower the first, or raise the second"
        )
    starting, ending = options.starting, options.ending
    if isinstance(starting, datetime) and isinstance(ending, datetime) and starting > ending:
        raise OptionError("startingTimestamp is after endingTimestamp: nothing would be read; swap them")
    if any(isinstance(server, Lookup) for server in options.servers):
        return  # which services there are is not known yet
    known = {server.name for server in options.servers}
    for name, positions in (("startingOffsets", starting), ("endingOffsets", ending)):
        unknown = [] if isinstance(positions, str | datetime) else sorted(set(positions) - known)
        if unknown:
            raise OptionError(f"{name} names {unknown[0]!r}, but the option servers has no server {unknown[0]!r}")


def _refuse_release(options: Options, *, late_commits: bool) -> None:
    """Raise OptionError for what must not be combined with releasing records from the log."""
    if options.consumer is not None and options.truncate:
        raise OptionError("set consumer or truncate=true, not both: a consumer acknowledges instead of truncating")
    if options.consumer is None and (options.consumer_owner is not None or options.take_over):
        raise OptionError("consumerOwner and takeOver are for a stream that is a consumer: set consumer")
    if not options.truncate and options.consumer is None:
        return
    how, what = ("truncate=true", "truncate") if options.truncate else ("consumer", "acknowledgement")
    if options.starting != "earliest":
        raise OptionError(
            f"{how} requires startingOffsets=earliest: the first {what} would release the records before the "
            "start, which were never read"
        )
    if late_commits:
        raise OptionError(f"{how} excludes asyncProgressTrackingEnabled, which writes commits late: set one, not both")

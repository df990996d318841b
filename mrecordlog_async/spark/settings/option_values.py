"""How the text of one option is read: one function for each kind of value. Pure.

Each takes all options, whose names are in lower case, and the name of one as users write it. For a malformed text it
raises OptionError, which shows the text and what is expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import EPOCH
from mrecordlog_async.names import has_control_characters
from mrecordlog_async.quantities import parse_seconds, parse_size
from mrecordlog_async.servers.names import DNS, Endpoint, Lookup, parse_lookup
from mrecordlog_async.spark.settings.checkpoint import Checkpoint

DEFAULT_SERVER = "default"
"""The name of the server if the option `servers` is a bare address."""

TOKEN_OF = "token."
"""How the option begins that has the token of one server. Spark redacts options with `token` in their names."""

EARLIEST = -2
LATEST = -1

Positions = Mapping[str, Mapping[str, int]]
"""server → queue → position, as `startingOffsets` and `endingOffsets` state it."""

Bound = str | Positions | datetime
"""Where reading begins or ends: "earliest", "latest", positions, or a time."""

MILLISECONDS_MIN = 10**11
"""Of a time as a whole number: this is in 1973. A smaller one was meant as seconds, or as a date such as 20261122."""

_ZONE = re.compile(r"(.*\d)\s*([A-Za-z][A-Za-z0-9_+/-]*)")


class OptionError(RecordLogError, ValueError):
    """An option is invalid, alone or together with another one."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues are read: those listed, those whose whole name matches, or all."""

    names: frozenset[str] | None = None
    pattern: str | None = None

    @property
    def includes_all(self) -> bool:
        """Whether every queue is subscribed."""
        return self.names is None and self.pattern is None

    def includes(self, queue: str) -> bool:
        """Return whether *queue* is subscribed."""
        if self.names is not None:
            return queue in self.names
        return self.pattern is None or re.fullmatch(self.pattern, queue) is not None


def parse_servers(text: str) -> tuple[Endpoint | Lookup, ...]:
    """Read `name=url,name=url`, or one bare url; return the servers sorted by name.

    Raises:
        OptionError: an address is neither an http:// or https:// URL nor a DNS name, a name occurs twice, or there is
            none.
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
    if url.startswith(DNS):
        try:
            return parse_lookup(url)._replace(name=name)
        except ValueError as error:
            raise OptionError(f"servers: {error}") from None
    _check_url(url)
    return Endpoint(url.rstrip("/"), None, name)


def _check_url(url: str) -> None:
    try:
        parsed = urlsplit(url)
        host, port = (parsed.hostname or "").encode("idna"), parsed.port
    except ValueError:  # of any part; UnicodeError is one
        raise OptionError(f"servers: {_shown(url)!r} is not a URL: check its host and its port") from None
    if parsed.scheme not in ("http", "https") or not host or port == 0:
        raise OptionError(f"servers: {_shown(url)!r} is not an http:// or https:// URL")


def _shown(url: str) -> str:
    """Return *url* without user and password."""
    head, slashes, rest = url.partition("://")
    place, slash, path = (rest if slashes else head).partition("/")
    return (f"{head}://" if slashes else "") + place.rpartition("@")[2] + slash + path


def read_path(found: Mapping[str, str]) -> str | None:
    """Return the log directory, a path or a file:// URL; None if the option is missing."""
    path = found.get("path")
    if path is None or not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", path):
        return path
    scheme, place, plain = urlsplit(re.sub("[?#]", lambda each: quote(each[0]), path))[:3]  # they may be part of it
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


def read_paths(found: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Read paths separated by commas, or a JSON list of paths that contain commas."""
    text = found.get(name.lower(), "")
    if text.startswith("["):
        with suppress(ValueError):
            return tuple(str(path) for path in json.loads(text))
    return tuple(filter(None, text.split(",")))


def read_subscription(found: Mapping[str, str]) -> Subscription:
    """Read `subscribe` or `subscribePattern`; all queues if neither is set."""
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


def read_offsets(found: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str | Positions:
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


def read_bound(found: Mapping[str, str], offsets: str, timestamp: str, default: str, words: tuple[str, ...]) -> Bound:
    """Read where reading begins or ends: the option *timestamp* if it is set, else *offsets* (see `read_offsets`)."""
    text = found.get(timestamp.lower())
    if text is None:
        return read_offsets(found, offsets, default, words)
    if offsets.lower() in found:
        raise OptionError(f"set {offsets} or {timestamp}, not both")
    return _moment(text.strip(), timestamp, found.get("timezone", "UTC").strip())


def _moment(text: str, name: str, zone: str) -> datetime:
    """Read milliseconds since 1970, or a timestamp as Spark writes it; *zone* applies to one without a zone."""
    match = None if text[-1:] in ("Z", "z") else _ZONE.fullmatch(text)
    text, zone = match.groups() if match is not None else (text, zone)
    try:
        moment = _milliseconds(text) if text.isdecimal() else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise OptionError(
            f"{name}: expected milliseconds since 1970, or a time such as 2026-11-22T09:30:00Z, 2026-11-22 09:30:00 or "
            f"2026-11-22 09:30 Europe/Berlin, not {text!r}"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=_zone(zone))


def _milliseconds(text: str) -> datetime:
    if 0 < int(text) < MILLISECONDS_MIN:
        raise ValueError
    return EPOCH + timedelta(milliseconds=int(text))


def _zone(name: str) -> tzinfo:
    """Return a time zone: UTC, Z, +01:00 or a name such as Europe/Berlin."""
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        if name[:1] in ("+", "-"):
            offset = datetime.fromisoformat(f"1970-01-01T00:00{name}").tzinfo
            assert offset is not None, "an offset was parsed"
            return offset
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfo raises all of them for names that are none
        raise OptionError(f"{name!r} is not a time zone such as UTC, +01:00 or Europe/Berlin") from None


def _position(at: object) -> int:
    value = at[1] if isinstance(at, list) and len(at) > 1 else at
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError
    return value


def read_logs(found: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Read the ids of logs, or their first digits, separated by commas."""
    logs = tuple(filter(None, (part.strip() for part in found.get(name.lower(), "").split(","))))
    for log in logs:
        if not re.fullmatch(r"[0-9a-f]{8,}", log):
            raise OptionError(f"{name}: expected the id of a log, or at least its first 8 digits, not {log!r}")
    return logs


def read_tokens(found: Mapping[str, str], servers: Sequence[Endpoint | Lookup]) -> dict[str, str]:
    """Read `token.NAME`: server → its token. Spark spells the names of options in any case.

    Raises:
        OptionError: no server has that name, or two have it, in different cases.
    """
    tokens = {}
    for option in filter(is_token_of_one, found):
        asked = option.removeprefix(TOKEN_OF)
        names = [server.name for server in servers if server.name.lower() == asked]
        if len(names) != 1:
            why = f"the servers {' and '.join(names)}: give them" if names else "no server of this name: check"
            raise OptionError(f"{option} is for {why} names in the option servers")
        tokens[names[0]] = str(read_token(found, option))
    return tokens


def read_name(found: Mapping[str, str], option: str) -> str | None:
    """Read a name of a queue or a consumer. Raises OptionError if it is empty."""
    if found.get(option) == "":
        raise OptionError(f"{option}: expected a name")
    return found.get(option)


def read_token(found: Mapping[str, str], option: str) -> str | None:
    """Read a token. Raises OptionError for one that no header can hold; the error of http.client would show it."""
    text = found.get(option)
    if text is not None and has_control_characters(text):
        raise OptionError(f"{option}: the token holds a line break or another control character: pass token.strip()")
    return text


def is_token_of_one(option: str) -> bool:
    """Return whether *option*, in lower case, is the token of one of several servers."""
    return option.startswith(TOKEN_OF)


def read_count(found: Mapping[str, str], name: str, *, least: int = 1, default: int | None = None) -> int | None:
    """Read a whole number of at least *least*."""
    text = found.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < least:
        raise OptionError(f"{name}: expected a whole number of at least {least}, not {text!r}")
    return int(text)


def read_size(found: Mapping[str, str], name: str, default: int) -> int:
    """Read a size of at least 1 byte: 1000000, 256m, 256 MiB, 1g."""
    text = found.get(name.lower())
    if text is None:
        return default
    try:
        size = parse_size(text)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None
    if size < 1:
        raise OptionError(f"{name}: expected at least 1 byte, not {text!r}")
    return size


def read_seconds(found: Mapping[str, str], name: str, default: float, *, zero: bool = False) -> float:
    """Read a time: 10, 10s, 500ms or 2m. zero: 0 is allowed."""
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


def read_uuid(found: Mapping[str, str], name: str) -> str | None:
    """Read a UUID."""
    text = found.get(name.lower())
    if text is None:
        return None
    with suppress(ValueError):
        parsed = UUID(text.strip())
        if parsed.int:
            return str(parsed)
    raise OptionError(f"{name}: expected a UUID as `uuidgen` prints it, not {text!r}")


def read_switch(found: Mapping[str, str], name: str, default: bool) -> bool:
    """Read true or false."""
    text = found.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, not {text!r}")
    return text.strip().lower() == "true"

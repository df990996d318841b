"""The values of settings, and one function for each kind of text that they are read from. Pure.

For a malformed text a function raises ValueError, which shows the text and what is expected; the caller knows the
name of the setting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID
from zoneinfo import ZoneInfo

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.model import EPOCH
from mrecordlog_async.names import has_control_characters
from mrecordlog_async.quantities import parse_seconds, parse_size
from mrecordlog_async.servers.names import DNS, Endpoint, Lookup, parse_lookup
from mrecordlog_async.spark.settings.offset import Offset

DEFAULT_SERVER = "default"
"""The name of the server if the option `servers` is a bare address."""

TOKEN_OF = "token."
"""Prefix of the option that has the token of one server. Spark redacts options with `token` in their names."""

EARLIEST = -2
LATEST = -1

GivenPositions = Mapping[str, Mapping[str, int]]
"""server → queue → position, as `startingOffsets` and `endingOffsets` state it."""

Bound = str | GivenPositions | datetime
"""Begin or end of reading: "earliest", "latest", positions, or a time."""

MILLISECONDS_MIN = 10**11
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
    """Behaviour of a read while a server cannot be reached (see `services.outages`)."""

    FAIL = "true"
    FAIL_AT_END = "atend"
    """Skip it; a run that ends fails once the others are read."""
    SKIP = "false"


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


def path(text: str) -> str:
    """Read a directory of this machine: a path, or a file:// URL."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:", text):
        return text
    scheme, place, plain = urlsplit(re.sub("[?#]", lambda each: quote(each[0]), text))[:3]  # they may be part of it
    if scheme != "file" or place not in ("", "localhost"):
        raise ValueError(f"{text!r} is not a directory on this machine; give a local path or a file:// URL")
    return unquote(plain)


def paths(text: str) -> tuple[str, ...]:
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


def offsets(*words: str) -> Callable[[str], str | GivenPositions]:
    """Return a reader of one of *words*, or of positions as JSON; each may be `[id, position]` as in a checkpoint."""

    def read(text: str) -> str | GivenPositions:
        if text.strip().lower() in words:
            return text.strip().lower()
        try:
            parsed = json.loads(text)
            if "version" in parsed:  # an offset, copied from a checkpoint
                return Offset.decode(parsed).next_positions()
            return {server: {queue: _position(at) for queue, at in queues.items()} for server, queues in parsed.items()}
        except (ValueError, TypeError, AttributeError):
            expected = ", ".join(words)
            raise ValueError(f'expected {expected} or JSON as {{"server": {{"queue": 7}}}}, not {text!r}') from None

    return read


def _position(at: object) -> int:
    value = at[1] if isinstance(at, list) and len(at) > 1 else at
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError
    return value


def moment(text: str) -> datetime:
    """Read milliseconds since 1970, or a timestamp as Spark writes it. One without a zone has none yet."""
    text = text.strip()
    match = None if text[-1:] in ("Z", "z") else _ZONE.fullmatch(text)
    text, own_zone = match.groups() if match is not None else (text, None)
    try:
        found = _milliseconds(text) if text.isdecimal() else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            "expected milliseconds since 1970, or a time such as 2026-11-22T09:30:00Z, 2026-11-22 09:30:00 or "
            f"2026-11-22 09:30 Europe/Berlin, not {text!r}"
        ) from None
    return found if own_zone is None or found.tzinfo is not None else found.replace(tzinfo=zone(own_zone))


def _milliseconds(text: str) -> datetime:
    if 0 < int(text) < MILLISECONDS_MIN:
        raise ValueError
    return EPOCH + timedelta(milliseconds=int(text))


def zone(text: str) -> tzinfo:
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
        try:
            tokens[names[0]] = token(found[option])
        except ValueError as error:
            raise OptionError(f"{option}: {error}") from None
    return tokens


def is_token_of_one(option: str) -> bool:
    """Return whether *option*, in lower case, is the token of one of several servers."""
    return option.startswith(TOKEN_OF)


def token(text: str) -> str:
    """Read a token; refuse one that no header can hold: the error of http.client would show it."""
    if has_control_characters(text):
        raise ValueError("the token holds a line break or another control character: pass token.strip()")
    return text


def name(text: str) -> str:
    """Read a name of a queue or a consumer."""
    if not text:
        raise ValueError("expected a name")
    return text


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    return _count(text, 1)


def count_or_zero(text: str) -> int:
    """Read a whole number of at least 0."""
    return _count(text, 0)


def _count(text: str, least: int) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise ValueError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def size(text: str) -> int:
    """Read a size of at least 1 byte: 1000000, 256m, 256 MiB, 1g."""
    found = parse_size(text)
    if found < 1:
        raise ValueError(f"{text!r} is not a size of at least 1 byte")
    return found


def seconds(text: str) -> float:
    """Read a time above 0: 10, 10s, 500ms or 2m."""
    found = seconds_or_zero(text)
    if not found:
        raise ValueError(f"expected a time above 0 seconds, not {text!r}")
    return found


def seconds_or_zero(text: str) -> float:
    """Read a time, which may be 0."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{error}; a number without a unit is in seconds") from None


def interval(text: str) -> float:
    """Read a time of at least a millisecond, such as 10s, 500ms or 2m."""
    found = parse_seconds(text)
    if not 0.001 <= found < float("inf"):
        raise ValueError(f"{text!r} is not a time such as 10s, 500ms or 2m")
    return found


def uuid(text: str) -> str:
    """Read a UUID."""
    with suppress(ValueError):
        parsed = UUID(text.strip())
        if parsed.int:
            return str(parsed)
    raise ValueError(f"expected a UUID as `uuidgen` prints it, not {text!r}")


def switch(text: str) -> bool:
    """Read true or false."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"expected true or false, not {text!r}")
    return text.strip().lower() == "true"


def when_down(text: str) -> WhenDown:
    """Read true, false or atEnd."""
    try:
        return WhenDown(text.strip().lower())
    except ValueError:
        raise ValueError(f"expected true, false or atEnd, not {text!r}") from None

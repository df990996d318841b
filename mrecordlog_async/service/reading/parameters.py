"""The parameters of a request: names in its path, numbers and switches in its query. Checked once, here."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from urllib.parse import unquote_to_bytes

from mrecordlog_async.errors import ConsumerNameError, QueueNameError
from mrecordlog_async.log import MultiRecordLog
from mrecordlog_async.model import tick_of_time
from mrecordlog_async.names import check_consumer_name, check_name
from mrecordlog_async.protocol.problems import bad_request
from mrecordlog_async.service.http import HttpRequest
from mrecordlog_async.support.nearest import did_you_mean, nearest

POSITION_LIMIT = 2**63


def queue_of(request: HttpRequest) -> str:
    """Return the queue that the path names.

    It was cut from the raw path, and is percent-decoded exactly once: %2F is a character of the name, and %252F is the
    text "%2F". It is never interpreted as a path.
    """
    raw = request.names[0]
    try:
        name = unquote_to_bytes(raw).decode() if "%" in raw or not raw.isascii() else raw
    except UnicodeDecodeError:
        raise QueueNameError(raw, "is not UTF-8") from None
    check_name(name)
    return name


def consumer_of(request: HttpRequest) -> str:
    """Return the consumer that the path names, decoded as a queue is."""
    raw = request.names[1]
    try:
        name = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ConsumerNameError(raw, "is not UTF-8") from None
    check_consumer_name(name)
    return name


SINCE_PARAMETER = ("since", "first time to read, like 2026-11-22T09:30:00Z: starts with the first record stored then")


def check_query(request: HttpRequest, allowed: Collection[str]) -> None:
    """Refuse parameters that the route does not know or that appear twice: a misspelt limit must not be ignored."""
    names = [name for name, _ in request.pairs]
    for name in names:
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            meant = did_you_mean(nearest(name[:80], allowed))
            raise bad_request(f"unknown parameter {name[:80]!r}; known here: {known}{meant}", "parameter")
    if len(set(names)) != len(names):
        raise bad_request("a parameter appears twice; send it once", "parameter")


def number(request: HttpRequest, name: str, *, minimum: int = 0, limit: int = POSITION_LIMIT) -> int | None:
    """Return the parameter as a whole number in *minimum* … *limit* - 1; None if it is absent."""
    text = request.query.get(name)
    if text is None:
        return None
    # At most 19 digits fit, and int() takes quadratic time on many more.
    if len(text) <= 19 and text.isascii() and text.isdigit() and minimum <= int(text) < limit:
        return int(text)
    shown = repr(text if len(text) <= 40 else text[:37] + "...")
    raise bad_request(f"{name} must be a whole number in {minimum} … {limit - 1}, not {shown}", "parameter")


def seconds(request: HttpRequest, name: str) -> float | None:
    """Return the parameter as a number of seconds, whole or with a fraction; None if it is absent."""
    text = request.query.get(name)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,19}(\.[0-9]{1,9})?", text):
        return float(text)
    raise bad_request(f"{name} must be a number of seconds such as 30 or 0.5, not {text[:40]!r}", "parameter")


def moment(request: HttpRequest, name: str) -> datetime | None:
    """Return the parameter as a time; None if it is absent."""
    text = request.query.get(name)
    # The space was a plus, if somebody did not percent-encode it.
    return None if text is None else time_of_text(text.replace(" ", "+") if "T" in text else text, name)


def time_of_text(text: str, name: str) -> datetime:
    """Return *text*, which the request gives as *name*, as a time that a queue can be searched for."""
    try:
        time = datetime.fromisoformat(text[:40])
        if time.utcoffset() is None:
            raise ValueError(f"{text[:40]} has no zone")
        tick_of_time(time)
    except ValueError as error:
        detail = f"{name} must be a time like 2026-11-22T09:30:00Z, with a zone and not in the future: {error}"
        raise bad_request(detail, "parameter") from None
    return time


async def start_of(log: MultiRecordLog, request: HttpRequest, queue: str, *, or_next: bool = False) -> int:
    """Return the position to read *queue* from: `start`, the first record stored `since` a time, or the first one.

    *or_next*: `start` may be the word `next`.
    """
    is_next = or_next and request.query.get("start") == "next"
    start = log.next_position(queue) if is_next else number(request, "start")
    since = moment(request, "since")
    if start is not None and since is not None:
        raise bad_request("start and since exclude each other: send one of them", "parameter")
    if since is not None:
        return await log.inspection.position_at(queue, since)
    return log.first_position(queue) if start is None else start


def flag(request: HttpRequest, name: str) -> bool:
    """Return whether a switch is on: 1, true or an empty value; 0, false or absent is off."""
    text = request.query.get(name, "0").lower()
    if text in ("", "1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise bad_request(f"{name} must be 0 or 1", "parameter")


def as_text(request: HttpRequest) -> bool:
    """Return whether the client wants payloads as text instead of base64."""
    wanted = request.query.get("as", "base64")
    if wanted not in ("base64", "text"):
        raise bad_request("`as` must be base64 or text", "parameter")
    return wanted == "text"

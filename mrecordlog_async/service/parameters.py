"""What a request says: the queue in its path, numbers in its query. Checked once, here, at the door."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from aiohttp import web

from mrecordlog_async.errors import QueueNameError
from mrecordlog_async.protocol.problems import bad_request

NAME_BYTES_MAX = 255
POSITION_LIMIT = 2**63


def check_queue_name(name: str) -> str:
    """Return *name* if the service takes it: 1 to 255 bytes of UTF-8 without control characters."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise QueueNameError(name, "cannot be encoded as UTF-8") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise QueueNameError(name, f"has {size} bytes, 1 to {NAME_BYTES_MAX} are allowed")
    if not name.isprintable() and any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name):
        raise QueueNameError(name, "holds control characters")
    return name


def queue_of(request: web.Request) -> str:
    """Return the queue that the path names.

    It is cut from the path as it was sent and its percent-encoding is undone exactly once, so %2F is a character of the
    name and %252F is the text "%2F"; it is never looked at as a path.
    """
    raw = _raw_segment(request)
    if "%" not in raw and raw.isascii():
        return check_queue_name(raw)
    try:
        return check_queue_name(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        raise QueueNameError(raw, "is not UTF-8") from None


def _raw_segment(request: web.Request) -> str:
    """Cut the name where the router found it.

    A proxy before us may decide by the path as it was sent, so nothing else in it may be read in two ways: the router
    drops what follows a '#', and it undoes percent-encoding also outside the name.
    """
    path = request.raw_path.partition("?")[0]
    _, fixed, rest = path.rpartition("/v1/queues/")
    name, _, action = rest.partition("/")
    if not fixed or "#" in path or "%" in action:
        raise bad_request(
            "the path must be /v1/queues/NAME…, with only NAME percent-encoded, including its '#'", "path"
        )
    return name


def check_query(request: web.Request, allowed: Collection[str]) -> None:
    """Refuse parameters that the route does not know or that come twice: a misspelt limit must not be ignored."""
    names = [name for name, _ in request.query.items()]
    for name in names:
        if name not in allowed:
            raise bad_request(
                f"unknown parameter {name!r}; known here: {', '.join(sorted(allowed)) or 'none'}", "parameter"
            )
    if len(set(names)) != len(names):
        raise bad_request("a parameter is given twice; give it once", "parameter")


def number(request: web.Request, name: str, *, minimum: int = 0, limit: int = POSITION_LIMIT) -> int | None:
    """Return the whole number in *minimum* … *limit* - 1 that the parameter holds; None where it is not given."""
    text = request.query.get(name)
    if text is None:
        return None
    # At most 19 digits fit, and int() takes quadratic time on many more.
    if len(text) <= 19 and text.isascii() and text.isdigit() and minimum <= int(text) < limit:
        return int(text)
    shown = repr(text if len(text) <= 40 else text[:37] + "...")
    raise bad_request(f"{name} must be a whole number in {minimum} … {limit - 1}, not {shown}", "parameter")


def flag(request: web.Request, name: str) -> bool:
    """Return whether a switch is on: 1, true or an empty value; 0, false or absent is off."""
    text = request.query.get(name, "0").lower()
    if text in ("", "1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise bad_request(f"{name} must be 0 or 1", "parameter")


def as_text(request: web.Request) -> bool:
    """Return whether payloads are wanted as text instead of base64."""
    wanted = request.query.get("as", "base64")
    if wanted not in ("base64", "text"):
        raise bad_request("`as` must be base64 or text", "parameter")
    return wanted == "text"

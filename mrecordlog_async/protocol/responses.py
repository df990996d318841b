"""Responses of the service: bodies as types, refusals as the error that the log would raise or `ServiceError`."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.protocol.problems import error_in
from mrecordlog_async.support.forks import call_in_children

Response = TypeVar("Response")

PAGE_BYTES = 4_096
EXCERPT_CHARACTERS = 200
"""This much of a page that the service did not write is looked at, and shown."""

_TAG = re.compile(r"<(title|style|script)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


class ServiceError(RecordLogError):
    """The service refused a request for a reason that the log itself does not have.

    Attributes:
        status: HTTP status.
        code: Code of the problem, for programs; "unreadable" if the service did not write the response.
        detail: What happened, for people.
        problem: The whole problem document (RFC 9457).
    """

    def __init__(self, status: int, code: str, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(status, code, detail, problem)
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem or {}

    def message(self) -> str:
        """Return the detail with status and code."""
        return f"{self.detail} ({self.status} {self.code})"


class Headers(dict[str, str]):
    """The headers of a response, by names in lower case; they are found by any."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        """Return the header *name*."""
        return super().get(name.lower(), default)


class Reply(NamedTuple):
    """A whole response. repeated: an earlier attempt of the same request may have reached the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray
    repeated: bool = False


def decoded(reply: Reply, kind: type[Response]) -> Response:
    """Return the decoded body of a success; raise ServiceError if it is not a *kind*."""
    try:
        return _decoder(kind).decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServiceError(reply.status, "unreadable", f"not a response of this service: {error}") from None


def _decoder(kind: type[Response]) -> msgspec.json.Decoder[Response]:
    """Return the decoder of *kind*, which is kept.

    One thread at a time makes one: msgspec shows a struct to other threads while it still looks at its fields, and a
    thread that decodes with it then ends the process with a segmentation fault (msgspec 0.22).
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making:
            decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder


_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def _renew_lock() -> None:
    """Make the lock again in a forked child: a thread of its parent may hold the one that it has, for good."""
    global _making
    _making = threading.Lock()


call_in_children(_renew_lock)


def written_by_service(reply: Reply) -> bool:
    """Return whether the service itself wrote the refusal, and not a proxy in front of it."""
    return str(problem_in(reply).get("type", "")).startswith("urn:mrecordlog:")


def error_of(reply: Reply) -> RecordLogError:
    """Return the error that the log itself would have raised, else ServiceError."""
    problem = problem_in(reply)
    if not written_by_service(reply):
        # /readyz states a cause, and has no problem document.
        return ServiceError(reply.status, "unreadable", str(problem.get("cause") or _of_others(reply)), problem)
    detail, code = str(problem.get("detail")), str(problem.get("code"))
    return error_in(problem) or ServiceError(reply.status, code, detail, problem)


def _of_others(reply: Reply) -> str:
    """Return what a refusal means that the service did not write: a proxy did, or what else has the address."""
    if 300 <= reply.status < 400:
        return f"redirected to {reply.headers.get('Location', 'nowhere')}, which is not followed; use that address"
    if reply.status == 413:
        return (
            "a proxy in front of the service refused the body as too large; send less at once, or raise the limit of "
            "the proxy (nginx: client_max_body_size)"
        )
    if reply.status == 404:
        more = "; is the API mounted below a path? then the URL ends with it, as in http://host:port/wal"
    else:
        more = ""
    text = " ".join(_TAG.sub(" ", reply.body[:PAGE_BYTES].decode(errors="replace")).split())
    return f"another program, such as a proxy, responded instead: {text[:EXCERPT_CHARACTERS] or 'an empty page'}{more}"


def problem_in(reply: Reply) -> dict[str, Any]:
    """Return the problem document of a refusal; an empty one if it has none."""
    try:
        return msgspec.json.decode(reply.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}

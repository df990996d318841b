"""Errors as problem documents (RFC 9457), and documents as errors, from one table.

`code` is for programs, `detail` for people; facts are separate members. A response never contains paths, errno texts or
tracebacks. This module depends on no web framework.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from json import JSONDecodeError
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from mrecordlog_async.errors import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerHeldError,
    ConsumerNameError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
    CorruptionError,
    LogClosedError,
    LogFailedError,
    LogFullError,
    PositionAheadError,
    PositionInPastError,
    PositionTruncatedError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    QueueOptionsError,
    QueueSealedError,
    RecordLogError,
    RecordTooLargeError,
    RecordTruncatedError,
)
from mrecordlog_async.protocol.wire import WireError
from mrecordlog_async.support.disk_errors import has_no_room

CONTENT_TYPE = "application/problem+json"
RETRY_SECONDS = 1
QUIET_SECONDS = 60.0
LASTING_SECONDS = 600.0
DETAIL_CHARACTERS = 500
NAME_CHARACTERS = 300

IN_HTTP = (
    ("pass past_consumers=True", "pass past_consumers"),
    ("pass exist_ok=True", "pass exist_ok=1"),
    ("create it with create_consumer, or create=True", "create it with PUT, or attach with create"),
    ("create it with create_queue, or append with create=True", "create it with PUT, or append with create=1"),
    ("take_over=True", "take_over"),
    ("raise its limits with configure_queue", "raise its limits in its options"),
)
"""Advice in the errors of the log for a Python program, with the words for a request."""

_IN_JSON = {"Input data was truncated": "the body is empty, or its JSON is cut off; send one whole JSON value"}
"""Messages of the decoder of JSON, with the words for who sent the body."""

logger = logging.getLogger("mrecordlog_async.service")


class Member(NamedTuple):
    """A member of a document, and the attribute of the error that it holds. required: it is never left out."""

    name: str
    attribute: str
    required: bool


class Row(NamedTuple):
    """Form of the errors of one class."""

    status: int
    code: str
    members: tuple[Member, ...]


def _row(status: int, code: str, *members: str) -> Row:
    """Return a row. A member is written `name`, or `name=attribute`; with `?`, it is left out while it is empty."""
    split = [(one.removesuffix("?").partition("="), one.endswith("?")) for one in members]
    return Row(status, code, tuple(Member(name, attribute or name, not may) for (name, _, attribute), may in split))


TABLE: Mapping[type[RecordLogError], Row] = {
    QueueNotFoundError: _row(404, "queue_not_found", "queue"),
    QueueExistsError: _row(409, "queue_exists", "queue"),
    QueueNameError: _row(400, "queue_name", "name=queue", "reason"),
    QueueSealedError: _row(409, "queue_sealed", "queue", "next_position"),
    QueueOptionsError: _row(409, "queue_options", "queue", "reason"),
    PositionInPastError: _row(409, "position_in_past", "queue", "position", "next_position", "outcome_unknown?"),
    PositionAheadError: _row(409, "ahead", "queue", "next_position"),
    PositionTruncatedError: _row(410, "truncated", "queue", "first_position"),
    RecordTruncatedError: _row(410, "record_truncated", "queue", "position", "consumer"),
    ConsumerNotFoundError: _row(404, "consumer_not_found", "queue", "consumer"),
    ConsumerExistsError: _row(409, "consumer_exists", "queue", "consumer"),
    ConsumerNameError: _row(400, "consumer_name", "name=consumer", "reason"),
    ConsumerFencedError: _row(409, "consumer_fenced", "current_epoch", "queue", "consumer", "epoch"),
    ConsumerOwnedError: _row(409, "consumer_owned", "queue", "consumer", "owner"),
    ConsumerHeldError: _row(409, "consumer_held", "queue", "consumer", "idle_seconds", "if_idle_for"),
    ConsumerBehindError: _row(409, "consumer_behind", "consumer_position", "queue", "consumer", "position"),
    RecordTooLargeError: _row(413, "too_large", "size=size_bytes", "limit=limit_bytes", "limit_name=limit"),
    CorruptionError: _row(500, "damaged", "segment", "offset", "reason"),
    LogFullError: _row(429, "log_full", "resource", "used", "limit", "queue?", "unit?", "consumer?"),
}
"""The document of each error, and the error of each document. An attribute is the argument that the error is made from.

The states of the log have no row: a full disk, a queue without positions, a closed and a failed log.
"""

_HOLDER = ("queue", "consumer")
"""Members of a full disk's document: what holds most of it."""

_BY_CODE = {row.code: kind for kind, row in TABLE.items()} | {"queue_recreated": QueueNotFoundError}


class ProblemError(Exception):
    """A response other than success.

    Args:
        status: HTTP status.
        code: The kind of error, for programs.
        detail: What happened, for people.
        headers: Headers of the response.
        facts: Further members of the document.
    """

    def __init__(
        self, status: int, code: str, detail: str, *, headers: dict[str, str] | None = None, **facts: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.facts = facts
        self.headers = headers or {}

    def document(self) -> bytes:
        """Return the body of the response, as JSON."""
        title = HTTPStatus(self.status).phrase
        head = {"type": f"urn:mrecordlog:{self.code}", "title": title, "status": self.status, "code": self.code}
        return msgspec.json.encode(head | {"detail": self.detail} | self.facts)


class RepeatedErrors:
    """Log an error of the service once while it lasts, instead of once per request."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, float]] = {}  # code → when last logged, when last seen

    def log(self, code: str, text: str, error: BaseException) -> None:
        """Log *error* unless it occurred in the last minute; while it keeps occurring, log it every ten minutes."""
        now = self._clock()
        logged, met = self._seen.get(code, (-inf, -inf))
        if now - met >= QUIET_SECONDS or now - logged >= LASTING_SECONDS:
            logger.warning(text, error)
            logged = now
        self._seen[code] = (logged, now)


repeated_errors = RepeatedErrors()


def bad_request(detail: str, code: str = "bad_request", **facts: Any) -> ProblemError:
    """Return the problem of a request that is not valid."""
    return ProblemError(400, code, detail, **facts)


def too_large(size: int, limit: int, what: str) -> ProblemError:
    """Return the problem of something that exceeds a limit; sending it again does not help."""
    detail = f"{what}: {size} exceeds the limit of {limit}"
    return ProblemError(413, "too_large", detail, size=size, limit=limit)


def too_many(what: str, used: int, limit: int) -> ProblemError:
    """Return the problem of something that exceeds a limit now and may be accepted later."""
    return retry(429, "busy", f"too many {what}: {used} of {limit} in use", resource=what, used=used, limit=limit)


def too_many_connections(used: int, limit: int) -> ProblemError:
    """Return the problem of a connection above the limit, or of a request where the server counts no connections."""
    detail = f"too many connections: {used} of {limit} in use"
    return retry(503, "busy", detail, resource="connections", used=used, limit=limit)


def retry(status: int, code: str, detail: str, **facts: Any) -> ProblemError:
    """Return a temporary problem: the same request may succeed later."""
    return ProblemError(status, code, detail, headers={"Retry-After": str(RETRY_SECONDS)}, **facts)


def problem_of(error: Exception) -> ProblemError:
    """Return the problem of *error*; an error that is not in the table is a bug: it is logged and reported as 500."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RecordLogError):
        return _of_log(error)
    # msgspec raises UnicodeDecodeError for a key that is not UTF-8.
    if isinstance(error, WireError | msgspec.DecodeError | UnicodeDecodeError | JSONDecodeError):
        detail = _IN_JSON.get(str(error), str(error)[:DETAIL_CHARACTERS])  # it may quote a member name of 60 MB
        return bad_request(detail, "bad_body")
    if isinstance(error, OSError) and not isinstance(error, ConnectionError | TimeoutError):
        return _of_disk(error)
    logger.error("unexpected error in a request", exc_info=error)
    return ProblemError(500, "internal", "internal error; see the service's log")


def detail_of(error: RecordLogError) -> str:
    """Return what happened and what to send next."""
    detail = str(error)
    for in_python, in_http in IN_HTTP:
        detail = detail.replace(in_python, in_http)
    return detail


def _of_log(error: RecordLogError) -> ProblemError:
    detail = detail_of(error)
    match error:
        case LogFullError(resource="space"):
            holder = {name: getattr(error, name) for name in _HOLDER if getattr(error, name)}
            unit = {} if error.unit == "bytes" else {"unit": error.unit}
            return retry(507, "disk_full", detail, resource="space", **holder, **unit)
        case LogFullError(resource="positions"):
            # Permanent: positions are never assigned twice, so waiting does not help.
            detail = f"the queue has used all positions below {error.limit}; delete it, or append to another queue"
            return ProblemError(409, "log_full", detail, resource="positions", used=error.used, limit=error.limit)
        case LogClosedError():
            return retry(503, "closing", "the service is shutting down; try again", state="closing")
        case LogFailedError():
            # The cause names files of the server: the log itself has logged it.
            detail = "the log failed: it can be read, but stores nothing until the process is restarted"
            return ProblemError(503, "log_failed", detail, state="failed", written=error.written)
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        logger.error("unexpected error of the log", exc_info=error)
        return ProblemError(500, "internal", "internal error; see the service's log")
    if row.status == 429:
        return retry(row.status, row.code, detail, **_facts_of(error, row))
    return ProblemError(row.status, row.code, detail, **_facts_of(error, row))


def _facts_of(error: RecordLogError, row: Row) -> dict[str, Any]:
    """Return the members of the document of *error*, in the order of its row."""
    facts = {one.name: getattr(error, one.attribute) for one in row.members}
    for one in row.members:
        if not one.required and not facts[one.name]:
            del facts[one.name]
    if isinstance(error, LogFullError) and error.resource != "queue":
        del facts["unit"]
    if "name" in facts:  # it may have 60 MB, and whatever Python can hold as text
        facts["name"] = str(facts["name"])[:NAME_CHARACTERS].encode(errors="replace").decode()
    return facts


def error_in(problem: Mapping[str, Any], **known: Any) -> RecordLogError | None:
    """Return the error of the log that a document stands for; None if there is none, or if a fact is missing.

    Args:
        problem: The document.
        known: Facts that the sender of the request knows and the document does not repeat.
    """
    code = problem.get("code")
    if code == "disk_full":
        queue, consumer = (str(problem.get(name, "")) for name in _HOLDER)
        return LogFullError("space", queue=queue, unit=str(problem.get("unit", "bytes")), consumer=consumer)
    if code == "log_failed":
        return LogFailedError("reported by the service", problem["written"]) if "written" in problem else None
    kind = _BY_CODE.get(str(code))
    if kind is None:
        return None
    if kind is QueueNameError or kind is ConsumerNameError:
        problem = {"name": "", "reason": str(problem.get("detail")), **problem}
    return _made(kind, problem, known)


def _made(kind: type[RecordLogError], problem: Mapping[str, Any], known: Mapping[str, Any]) -> RecordLogError | None:
    parameters = inspect.signature(kind).parameters
    facts = {name: fact for name, fact in known.items() if name in parameters}
    for one in TABLE[kind].members:
        if one.name in problem:
            facts[one.attribute] = problem[one.name]
        elif one.required:
            return None
    if any(one.default is one.empty and one.name not in facts for one in parameters.values()):
        return None
    return kind(**facts)


def _of_disk(error: OSError) -> ProblemError:
    repeated_errors.log("storage_error", "storage error: %s", error)
    if has_no_room(error):
        return retry(
            507, "disk_full", "the disk is full: truncate or delete queues, or free space on it", resource="space"
        )
    return retry(503, "storage_error", "storage error; nothing was stored; see the service's log")

"""Errors as problem documents (RFC 9457), from one table.

`code` is for programs, `detail` for people; facts are separate members. A response never contains paths, errno texts or
tracebacks. This module depends on no web framework.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from http import HTTPStatus
from json import JSONDecodeError
from math import inf
from time import monotonic
from typing import Any

import msgspec

from mrecordlog_async.errors import (
    ConsumerBehindError,
    ConsumerExistsError,
    ConsumerFencedError,
    ConsumerNameError,
    ConsumerNotFoundError,
    ConsumerOwnedError,
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
)
from mrecordlog_async.protocol.wire import WireError

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
    ("take_over=True", "take_over"),
    ("raise its limits with configure_queue", "raise its limits in its options"),
)
"""What the errors of the log advise a Python program, and what that is in a request."""

logger = logging.getLogger("mrecordlog_async.service")


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
        return bad_request(str(error)[:DETAIL_CHARACTERS], "bad_body")  # it may quote a member name of 60 MB
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


def _name_facts(name: object, reason: str) -> dict[str, str]:
    """Return what is said of a name that cannot be one. It may have 60 MB, and whatever Python can hold as text."""
    return {"name": str(name)[:NAME_CHARACTERS].encode(errors="replace").decode(), "reason": reason}


def _of_consumer(error: RecordLogError) -> ProblemError | None:
    """Return the problem of an error that names a consumer or its position, None for another error."""
    detail = detail_of(error)
    match error:
        case ConsumerNotFoundError():
            return ProblemError(404, "consumer_not_found", detail, queue=error.queue, consumer=error.consumer)
        case ConsumerExistsError():
            return ProblemError(409, "consumer_exists", detail, queue=error.queue, consumer=error.consumer)
        case ConsumerNameError():
            return bad_request(detail, "consumer_name", **_name_facts(error.consumer, error.reason))
        case ConsumerFencedError():
            facts: dict[str, Any] = {"queue": error.queue, "consumer": error.consumer, "epoch": error.epoch}
            return ProblemError(409, "consumer_fenced", detail, current_epoch=error.current_epoch, **facts)
        case ConsumerOwnedError():
            facts = {"queue": error.queue, "consumer": error.consumer, "owner": error.owner}
            return ProblemError(409, "consumer_owned", detail, **facts)
        case ConsumerBehindError():
            facts = {"queue": error.queue, "consumer": error.consumer, "position": error.position}
            return ProblemError(409, "consumer_behind", detail, consumer_position=error.consumer_position, **facts)
        case PositionAheadError():
            return ProblemError(409, "ahead", detail, queue=error.queue, next_position=error.next_position)
        case PositionTruncatedError():
            return ProblemError(410, "truncated", detail, queue=error.queue, first_position=error.first_position)
    return None


def _of_log(error: RecordLogError) -> ProblemError:
    found = _of_consumer(error)
    if found is not None:
        return found
    detail = detail_of(error)
    match error:
        case QueueNotFoundError():
            return ProblemError(404, "queue_not_found", detail, queue=error.queue)
        case QueueExistsError():
            return ProblemError(409, "queue_exists", detail, queue=error.queue)
        case PositionInPastError():
            facts: dict[str, Any] = {
                "queue": error.queue,
                "position": error.position,
                "next_position": error.next_position,
            }
            if error.outcome_unknown:
                facts["outcome_unknown"] = True
            return ProblemError(409, "position_in_past", detail, **facts)
        case QueueNameError():
            return bad_request(detail, "queue_name", **_name_facts(error.queue, error.reason))
        case QueueSealedError():
            return ProblemError(409, "queue_sealed", detail, queue=error.queue, next_position=error.next_position)
        case QueueOptionsError():
            return ProblemError(409, "queue_options", detail, queue=error.queue, reason=error.reason)
        case RecordTooLargeError():
            sizes: dict[str, Any] = {"size": error.size_bytes, "limit": error.limit_bytes, "limit_name": error.limit}
            return ProblemError(413, "too_large", detail, **sizes)
        case LogFullError(resource="space"):
            return retry(507, "disk_full", detail, resource="space")
        case LogFullError(resource="positions"):
            # Permanent: positions are never assigned twice, so waiting does not help.
            detail = f"the queue has used all positions below {error.limit}; delete it, or append to another queue"
            return ProblemError(409, "log_full", detail, resource="positions", used=error.used, limit=error.limit)
        case LogFullError():
            more = {"queue": error.queue} if error.queue else {}
            more |= {"unit": error.unit} if error.resource == "queue" else {}
            return retry(429, "log_full", detail, resource=error.resource, used=error.used, limit=error.limit, **more)
        case LogClosedError():
            return retry(503, "closing", "the service is shutting down; try again", state="closing")
        case LogFailedError():
            # The cause names files of the server: the log itself has logged it.
            detail = "the log failed: it can be read, but stores nothing until the process is restarted"
            return ProblemError(503, "log_failed", detail, state="failed", written=error.written)
    logger.error("unexpected error of the log", exc_info=error)
    return ProblemError(500, "internal", "internal error; see the service's log")


def _of_disk(error: OSError) -> ProblemError:
    repeated_errors.log("storage_error", "storage error: %s", error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return retry(
            507, "disk_full", "the disk is full: truncate or delete queues, or free space on it", resource="space"
        )
    return retry(503, "storage_error", "storage error; nothing was stored; see the service's log")

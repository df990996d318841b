"""What a client makes of an answer: success, the error that the log itself would have raised, or `ServiceError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from mrecordlog_async.errors import (
    LogFailedError,
    LogFullError,
    PositionInPastError,
    QueueExistsError,
    QueueNameError,
    QueueNotFoundError,
    RecordLogError,
    RecordTooLargeError,
)


class ServiceError(RecordLogError):
    """The service refused for a reason of its own. `code` is the problem's, `problem` the whole document."""

    def __init__(self, status: int, code: str, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(status, code, detail, problem)
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem or {}

    def message(self) -> str:
        """Say what the service said."""
        return f"{self.detail} ({self.status} {self.code})"


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def check(reply: Reply) -> Reply:
    """Return a reply that tells of success; raise the error that another one tells."""
    if reply.status >= 300:
        raise error_of(reply)
    return reply


def retry_after(reply: Reply) -> float:
    """Return after how many seconds the service wants to be asked again, 0 where it does not say."""
    try:
        return min(float(reply.headers.get("Retry-After", "0")), 30.0)
    except ValueError:
        return 0.0


def error_of(reply: Reply) -> RecordLogError:
    """Return the error that the log itself would have raised, else ServiceError."""
    try:
        problem = msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.DecodeError:
        problem = {}
    detail = str(problem.get("detail", reply.body[:200].decode(errors="replace")))
    code = str(problem.get("code", "unknown"))
    try:
        match code:
            case "queue_not_found" | "queue_recreated":
                return QueueNotFoundError(problem["queue"])
            case "queue_exists":
                return QueueExistsError(problem["queue"])
            case "queue_name":
                return QueueNameError("", detail)
            case "position_in_past":
                return PositionInPastError(problem["queue"], problem["position"], problem["next_position"])
            case "log_full":
                return LogFullError(problem["resource"], problem["used"], problem["limit"])
            case "disk_full":
                return LogFullError("space")
            case "log_failed":
                return LogFailedError("the service says so", problem["written"])
            case "too_large" if "limit_name" in problem:
                return RecordTooLargeError(problem["size"], problem["limit"], problem["limit_name"])
    except KeyError:
        pass
    return ServiceError(reply.status, code, detail, problem)

"""The table of what a fleet does after each failure."""

from __future__ import annotations

import pytest

from mrecordlog_async import (
    LogFailedError,
    LogFullError,
    PositionInPastError,
    QueueNotFoundError,
    QueueSealedError,
    RecordLogError,
    RecordTooLargeError,
)
from mrecordlog_async.client import OutcomeUnknownError, ServiceError, ServiceUnreachableError
from mrecordlog_async.client.fleet.decisions import (
    Next,
    Outcome,
    Policy,
    as_raised,
    decide,
    outcome_of,
    takes_no_records,
)

UNSENT = ServiceUnreachableError("a", 0.0, "refused")
LOST = ServiceUnreachableError("a", 0.0, "reset", True)
FULL = LogFullError("memory", 9, 9)

TABLE: list[tuple[RecordLogError, Outcome]] = [
    (UNSENT, Outcome.ABSENT),
    (ServiceError(503, "closing", ""), Outcome.ABSENT),
    (ServiceError(503, "storage_error", ""), Outcome.ABSENT),
    (ServiceError(429, "busy", ""), Outcome.ABSENT),
    (ServiceError(412, "other_log", ""), Outcome.ABSENT),
    (LogFailedError("", "no"), Outcome.ABSENT),
    (FULL, Outcome.FULL),
    (LogFullError("queue", 9, 9, "q"), Outcome.FULL),
    (LogFullError("space"), Outcome.FULL),
    (LOST, Outcome.UNKNOWN),
    (OutcomeUnknownError("POST", "reset"), Outcome.UNKNOWN),
    (LogFailedError("", "unknown"), Outcome.UNKNOWN),
    (ServiceError(500, "internal", ""), Outcome.UNKNOWN),
    (ServiceError(502, "unreadable", ""), Outcome.UNKNOWN),
    (ServiceError(200, "unreadable", ""), Outcome.UNKNOWN),
    (ServiceError(401, "unauthorized", ""), Outcome.REFUSED),
    (ServiceError(307, "unknown", ""), Outcome.REFUSED),
    (LogFullError("positions", 9, 9), Outcome.REFUSED),
    (RecordTooLargeError(9, 8, "record_bytes"), Outcome.REFUSED),
    (QueueSealedError("q", 1), Outcome.REFUSED),
    (QueueNotFoundError("q"), Outcome.REFUSED),
    (PositionInPastError("q", 0, 1), Outcome.REFUSED),
]


@pytest.mark.parametrize(("error", "outcome"), TABLE, ids=lambda value: getattr(value, "code", type(value).__name__))
def test_what_a_failure_says_about_the_record(error: RecordLogError, outcome: Outcome) -> None:
    """Only what is certainly not stored may go elsewhere; each policy changes one row."""
    assert outcome_of(error) is outcome
    usual = {Outcome.ABSENT: Next.ELSEWHERE, Outcome.FULL: Next.WAIT}.get(outcome, Next.RAISE)
    assert decide(error, Policy()) is decide(error, Policy("wait")) is usual
    assert decide(error, Policy(spill=True)) is (Next.ELSEWHERE if outcome is Outcome.FULL else usual)
    assert decide(error, Policy("send_elsewhere")) is (Next.ELSEWHERE if outcome is Outcome.UNKNOWN else usual)
    assert isinstance(as_raised(error, "a"), OutcomeUnknownError) is (outcome is Outcome.UNKNOWN)


def test_a_busy_server_is_passed_over_but_not_given_up() -> None:
    """A server that is down is probed before the next attempt; one that is busy takes the next record."""
    assert takes_no_records(UNSENT) and takes_no_records(LogFailedError("", "no"))
    assert not takes_no_records(ServiceError(429, "busy", "")) and not takes_no_records(FULL)

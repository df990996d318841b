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
    AttemptOutcome,
    Next,
    Policy,
    as_raised,
    decide,
    outcome_of,
    takes_no_records,
)

UNSENT = ServiceUnreachableError("a", 0.0, "refused")
LOST = ServiceUnreachableError("a", 0.0, "reset", True)
FULL = LogFullError("memory", 9, 9)

TABLE: list[tuple[RecordLogError, AttemptOutcome]] = [
    (UNSENT, AttemptOutcome.ABSENT),
    (ServiceError(503, "closing", ""), AttemptOutcome.ABSENT),
    (ServiceError(503, "storage_error", ""), AttemptOutcome.ABSENT),
    (ServiceError(429, "busy", ""), AttemptOutcome.ABSENT),
    (ServiceError(408, "too_slow", ""), AttemptOutcome.ABSENT),
    (ServiceError(412, "other_log", ""), AttemptOutcome.ABSENT),
    (LogFailedError("", "no"), AttemptOutcome.ABSENT),
    (FULL, AttemptOutcome.FULL),
    (LogFullError("queue", 9, 9, "q"), AttemptOutcome.FULL),
    (LogFullError("space"), AttemptOutcome.FULL),
    (LOST, AttemptOutcome.UNKNOWN),
    (OutcomeUnknownError("POST", "reset"), AttemptOutcome.UNKNOWN),
    (LogFailedError("", "unknown"), AttemptOutcome.UNKNOWN),
    (ServiceError(500, "internal", ""), AttemptOutcome.UNKNOWN),
    (ServiceError(502, "unreadable", ""), AttemptOutcome.UNKNOWN),
    (ServiceError(200, "unreadable", ""), AttemptOutcome.UNKNOWN),
    (ServiceError(401, "unauthorized", ""), AttemptOutcome.REFUSED),
    (ServiceError(307, "unknown", ""), AttemptOutcome.REFUSED),
    (LogFullError("positions", 9, 9), AttemptOutcome.REFUSED),
    (RecordTooLargeError(9, 8, "record_bytes"), AttemptOutcome.REFUSED),
    (QueueSealedError("q", 1), AttemptOutcome.REFUSED),
    (QueueNotFoundError("q"), AttemptOutcome.REFUSED),
    (PositionInPastError("q", 0, 1), AttemptOutcome.REFUSED),
]


@pytest.mark.parametrize(("error", "outcome"), TABLE, ids=lambda value: getattr(value, "code", type(value).__name__))
def test_what_a_failure_says_about_the_record(error: RecordLogError, outcome: AttemptOutcome) -> None:
    """Only what is certainly not stored may go elsewhere; each policy changes one row."""
    assert outcome_of(error) is outcome
    usual = {AttemptOutcome.ABSENT: Next.ELSEWHERE, AttemptOutcome.FULL: Next.WAIT}.get(outcome, Next.RAISE)
    assert decide(error, Policy()) is decide(error, Policy("wait")) is usual
    assert decide(error, Policy(spill=True)) is (Next.ELSEWHERE if outcome is AttemptOutcome.FULL else usual)
    assert decide(error, Policy("send_elsewhere")) is (Next.ELSEWHERE if outcome is AttemptOutcome.UNKNOWN else usual)
    assert isinstance(as_raised(error, "a"), OutcomeUnknownError) is (outcome is AttemptOutcome.UNKNOWN)


def test_a_busy_server_is_passed_over_but_not_given_up() -> None:
    """A server that is down is probed before the next attempt; one that is busy takes the next record."""
    assert takes_no_records(UNSENT) and takes_no_records(LogFailedError("", "no"))
    assert not takes_no_records(ServiceError(429, "busy", "")) and not takes_no_records(FULL)
    assert not takes_no_records(ServiceError(408, "too_slow", ""))  # others may send faster

"""Decides what a fleet does after a failure at one server: try the next one, wait for this one, or raise.

| failure at a server | the record is | next |
|---|---|---|
| not connected; 503; a failed log that wrote nothing; 408; 412; 429 unless full | not there | the next server |
| full: the log, the queue or the disk (429, 507) | not there | wait for this one; with `spill` the next one |
| a lost response; a failed log that may have written; other 5xx; unreadable | perhaps there | raise |
| the same records are there already, and no response was lost | perhaps by this call | raise |
| these two, with `on_unknown="send_elsewhere"` | perhaps there | the next server |
| all else: too large, sealed, a position that is taken, a wrong token | not there | raise: it would fail again |

With `on_unknown="wait"` a lost response is settled at its own server, by repeats that the server recognizes (see
`lane`). What is still unknown after them is raised.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal, NamedTuple

from mrecordlog_async.errors import LogClosedError, LogFailedError, LogFullError, RecordLogError
from mrecordlog_async.protocol.attempts import OutcomeUnknownError, ServiceUnreachableError, lost_because
from mrecordlog_async.protocol.responses import ServiceError

OnUnknown = Literal["raise", "wait", "send_elsewhere"]


class AttemptOutcome(Enum):
    """Meaning of a failure for the record, and for its server."""

    ABSENT = auto()
    """It is certainly not stored there, and another server may take it."""
    FULL = auto()
    """It is certainly not stored there, for lack of space."""
    UNKNOWN = auto()
    """It may be stored there."""
    REFUSED = auto()
    """It is not stored there, for a reason that concerns the record or the caller."""


class Next(Enum):
    """Next step of the fleet."""

    ELSEWHERE = auto()
    WAIT = auto()
    RAISE = auto()


class Policy(NamedTuple):
    """Options that the user chose. on_unknown: see the table. spill: a full server is passed over too."""

    on_unknown: OnUnknown = "raise"
    spill: bool = False


def outcome_of(error: RecordLogError) -> AttemptOutcome:
    """Return what *error*, met by one attempt at one server, says about the record."""
    match error:
        case LogFullError(resource="positions"):
            return AttemptOutcome.REFUSED  # for good: positions are never assigned twice
        case LogFullError():
            return AttemptOutcome.FULL
        case ServiceUnreachableError():
            return AttemptOutcome.UNKNOWN if error.sent else AttemptOutcome.ABSENT
        case LogFailedError():
            return AttemptOutcome.ABSENT if error.written == "no" else AttemptOutcome.UNKNOWN
        case ServiceError(status=408 | 412 | 429 | 503):
            return AttemptOutcome.ABSENT  # a 503 that the service did not write becomes ServiceUnreachableError
        case ServiceError():
            return AttemptOutcome.REFUSED if 300 <= error.status < 500 else AttemptOutcome.UNKNOWN
        case OutcomeUnknownError():
            return AttemptOutcome.UNKNOWN
    return AttemptOutcome.REFUSED


def decide(error: RecordLogError, policy: Policy) -> Next:
    """Return what follows *error* under *policy*."""
    match outcome_of(error):
        case AttemptOutcome.ABSENT:
            return Next.ELSEWHERE
        case AttemptOutcome.FULL:
            return Next.ELSEWHERE if policy.spill else Next.WAIT
        case AttemptOutcome.UNKNOWN:
            return Next.ELSEWHERE if policy.on_unknown == "send_elsewhere" else Next.RAISE
        case AttemptOutcome.REFUSED:
            return Next.RAISE


def takes_no_records(error: RecordLogError) -> bool:
    """Return whether *error* says that its server takes no records from anybody at present."""
    if isinstance(error, ServiceError) and error.status in (408, 429):
        return False
    return outcome_of(error) is AttemptOutcome.ABSENT


def passes(error: RecordLogError) -> bool:
    """Return whether a read or an acknowledgement that met *error* may succeed later."""
    return outcome_of(error) is not AttemptOutcome.REFUSED


def as_raised(error: RecordLogError, server: str) -> RecordLogError:
    """Return the error for the caller: OutcomeUnknownError for each failure that leaves the outcome open."""
    if outcome_of(error) is not AttemptOutcome.UNKNOWN or isinstance(error, OutcomeUnknownError | LogClosedError):
        return error
    reason = lost_because(error.reason) if isinstance(error, ServiceUnreachableError) else str(error)
    unknown = OutcomeUnknownError(f"append at {server}", reason)
    unknown.__cause__ = error
    return unknown

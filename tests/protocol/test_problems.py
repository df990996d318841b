from __future__ import annotations

import logging

import msgspec
import pytest

from mrecordlog_async import errors
from mrecordlog_async.protocol.problems import TABLE, RepeatedErrors, error_in, problem_of


def test_an_error_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Clients cannot fill the service's log with it; after a minute without it, it is logged again."""
    now = 0.0
    errors = RepeatedErrors(lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            now += 1.0
            errors.log("disk_full", "refused: %s", OSError("no space"))
        assert len(caplog.records) == 1
        now += 61.0
        errors.log("disk_full", "refused: %s", OSError("no space"))
    assert len(caplog.records) == 2


NEVER_SENT = (errors.LogLockedError, errors.RecordsOnDiskError)
"""An error of opening a log, without which no service starts, and one of reads that do not wait for the disk."""

ERRORS = (
    errors.QueueNotFoundError("q"),
    errors.QueueExistsError("q"),
    errors.QueueNameError("q", "is too long"),
    errors.QueueSealedError("q", 1),
    errors.QueueOptionsError("q", "max_bytes is below what it holds"),
    errors.PositionInPastError("q", 0, 1),
    errors.PositionInPastError("q", 0, 1, True),
    errors.PositionAheadError("q", 7, 1),
    errors.PositionTruncatedError("q", 7, 9),
    errors.RecordTruncatedError("q", 7, "c"),
    errors.ConsumerNotFoundError("q", "c"),
    errors.ConsumerExistsError("q", "c"),
    errors.ConsumerNameError("c", "is too long"),
    errors.ConsumerFencedError("q", "c", 1, 2),
    errors.ConsumerOwnedError("q", "c", "00000000-0000-0000-0000-000000000001"),
    errors.ConsumerHeldError("q", "c", 2.5, 10.0),
    errors.ConsumerBehindError("q", "c", 0, 1),
    errors.RecordTooLargeError(2, 1, "max_records"),
    errors.CorruptionError("wal-00000000000000000001", 7, "a batch is damaged"),
    errors.CorruptionError("wal-00000000000000000001", None, "its gathered file cannot be read"),
    errors.LogFullError("memory", 3, 2, "q"),
    errors.LogFullError("queue", 3, 2, "q", "records"),
    errors.LogFullError("space"),
    errors.LogFullError("space", unit="inodes"),
    errors.LogFullError("positions", 3, 2),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{type(error).__name__}-{error.facts[0]}")
def test_an_error_arrives_as_it_was_raised(error: errors.RecordLogError) -> None:
    """Its class, its facts and its text, whatever the table says of them."""
    document = msgspec.json.decode(problem_of(error).document())
    found = error_in(document, position=7)
    assert (type(found), found and found.facts, str(found)) == (type(error), error.facts, str(error))


def test_every_error_of_the_log_has_a_document() -> None:
    """A new error is either in the table, or among those whose document says more than the error, or never sent."""
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__}
    others = {errors.RecordLogError, errors.LogClosedError, errors.LogFailedError, *NEVER_SENT}
    assert kinds - others == set(TABLE) == {type(error) for error in ERRORS}


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_a_document_without_a_fact_is_no_error_of_the_log(kind: type[errors.RecordLogError]) -> None:
    """A proxy, or another version, may have left it out: the document is then shown as it is."""
    row = TABLE[kind]
    whole = {"code": row.code, "detail": "", **{one.name: 1 for one in row.members}}
    assert isinstance(error_in(whole, position=7), kind)
    for one in row.members:
        less = {name: value for name, value in whole.items() if name != one.name}
        may_lack = not one.required or kind in (errors.QueueNameError, errors.ConsumerNameError)
        assert (error_in(less, position=7) is not None) == may_lack, one.name

from __future__ import annotations

import logging

import pytest

from mrecordlog_async.protocol.problems import RepeatedErrors


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

"""Requests that are refused: a line where an episode begins, a line where it ended."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mrecordlog_async.engine.intake.refusals import CALM_SECONDS
from mrecordlog_async.service.options import ServiceOptions
from mrecordlog_async.service.service import RefusedRequests
from tests.served import serving


def test_an_episode_has_a_beginning_and_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """Even where nothing calls `check`: the next refusal ends the episode before it."""
    caplog.set_level(logging.INFO, "mrecordlog_async")
    now = 0.0
    refused = RefusedRequests(lambda: now)
    for _ in range(3):
        refused.note("busy bodies", "too many bodies")
    now = CALM_SECONDS
    refused.note("busy bodies", "too many bodies")
    now = 2 * CALM_SECONDS - 1
    refused.check()
    now = 2 * CALM_SECONDS
    refused.check()
    begun, ended, again, last = [record.getMessage() for record in caplog.records]
    assert begun == again == "requests are refused: too many bodies"
    assert "3 were refused" in ended
    assert "1 were refused" in last


async def test_a_token_that_fails_is_logged_once_with_the_clients_address(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client with an old token shows in the service's log, without the token."""
    async with serving(directory, ServiceOptions(tokens=frozenset({b"0123456789abcdef"}))) as served:
        for _ in range(3):
            response = await served.call("GET", "/v1/queues", headers={"Authorization": "Bearer secret-of-yesterday"})
            assert response.status == 401
    (line,) = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert "bearer token; the first one came from 127.0.0.1" in line
    assert "yesterday" not in caplog.text

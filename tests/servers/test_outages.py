"""How long a server that is away is expected back, and how often it is looked at."""

from __future__ import annotations

from mrecordlog_async.servers.outages import EXPECTED_SECONDS, LOOK_SECONDS, RETRY_SECONDS, Absence


def test_a_server_is_expected_back_for_a_minute() -> None:
    """In this time it is looked at every second, whether or not it is missed again; after it, every ten."""
    absence = Absence()
    assert absence.is_expected(0.0)
    absence.begin(100.0)
    absence.begin(100.0 + EXPECTED_SECONDS / 2)
    assert absence.is_expected(100.0 + EXPECTED_SECONDS - 0.1)
    assert absence.pause(100.0 + EXPECTED_SECONDS - 0.1) == RETRY_SECONDS
    assert not absence.is_expected(100.0 + EXPECTED_SECONDS)
    assert absence.pause(100.0 + EXPECTED_SECONDS) == LOOK_SECONDS
    absence.end()
    absence.begin(500.0)
    assert absence.is_expected(501.0)

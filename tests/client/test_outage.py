from __future__ import annotations

import pytest

from mrecordlog_async.client.outage import QUIET_SECONDS, Outage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock: Clock) -> Outage:
    return Outage("http://x", clock)


def test_a_second_of_retries_is_silent(outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A service that comes back within a second is not worth a line."""
    outage.failed(ConnectionError("refused"), 30.0)
    clock.now = 0.9
    outage.failed(ConnectionError("refused"), 29.1)
    outage.ended()
    assert caplog.messages == []


def test_a_longer_outage_is_reported_once_and_so_is_its_end(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """However many calls retry, one line says why they wait and for how long, and one that they no longer do."""
    for clock.now in (0.0, 1.0, 1.5, 9.0):
        outage.failed(ConnectionError("refused"), 30.0 - clock.now)
    clock.now = 10.0
    outage.ended()
    outage.ended()
    assert caplog.messages == [
        "http://x: refused; trying again for up to 29 s",
        "http://x: requests succeed again, after 10.0 s",
    ]


def test_refusals_between_successes_do_not_fill_the_log(
    outage: Outage, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """While some requests succeed and others are refused, there is at most one line in half a minute."""
    for clock.now in [number * 0.6 for number in range(100)]:
        outage.failed(RuntimeError("full"), 30.0)
        if int(clock.now) % 3 == 0:
            outage.ended()
    assert 1 <= sum("full" in line for line in caplog.messages) <= clock.now / QUIET_SECONDS + 1

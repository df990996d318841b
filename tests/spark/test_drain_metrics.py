"""The server of a drain's metrics: what it listens at, and a service or a scraper that does not play along."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast
from urllib.request import urlopen

import pytest

from mrecordlog_async.servers.names import Endpoint
from mrecordlog_async.spark.drain_loop import DrainTotals
from mrecordlog_async.spark.drain_metrics import Behind, DrainLag, MetricsAddressError, metrics_served, parse_address
from mrecordlog_async.spark.log_server import LogServer, Patience
from mrecordlog_async.spark.planning import everything
from mrecordlog_async.spark.state import DrainState
from tests.spark.conftest import NewService
from tests.spark.services import ThreadedService, drain_samples, numbered


@contextmanager
def metrics_of(token: str, **services: ThreadedService) -> Iterator[str]:
    """Serve the metrics of a drain that has stored nothing; yield the address."""
    lag = DrainLag(
        lambda: [Endpoint(each.url, name=name) for name, each in services.items()],
        lambda each: LogServer(each.name, each, token, patience=Patience(5.0, 1)),
        DrainState,
        everything,
    )
    with metrics_served("0", DrainTotals(), lag) as url:
        assert url is not None
        yield url


def test_a_scrape_reports_a_service_that_refuses(new_service: NewService) -> None:
    """A wrong token is a server that is not up, alone or next to one that is."""
    service, other = new_service(), new_service("0123456789abcdef")
    service.append("q", numbered("q", 0, 3))
    with metrics_of("wrong", a=service, b=other) as url:
        found = drain_samples(url)
        assert (found["lag_records", "a"], found["server_up", "a"], found["server_up", "b"]) == (3, 1, 0)
    with metrics_of("wrong", b=other) as url:
        for _ in range(2):
            assert drain_samples(url)["server_up", "b"] == 0


class Failing:
    """A lag that is measured by a function. thread: that of the request."""

    def __init__(self, measured: Callable[[], None]) -> None:
        self._measured = measured
        self.thread: threading.Thread | None = None

    def measure(self) -> dict[str, Behind | None]:
        self.thread = threading.current_thread()
        self._measured()
        return {}

    def close(self) -> None:
        """Close nothing."""


def test_a_scraper_that_hangs_up_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """It had waited for too long. What a drain writes to standard error stays a line for each event."""
    with socket.socket() as scraper:

        def hang_up() -> None:
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
            scraper.close()

        lag = Failing(hang_up)
        with metrics_served("0", DrainTotals(), cast(DrainLag, lag)) as url:
            assert url is not None
            host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
            scraper.connect((host, int(port)))
            scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while lag.thread is None:
                time.sleep(0.001)
            lag.thread.join(60)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_metrics_are_served_over_ipv6() -> None:
    """As HOST in brackets, which is how the address is reported."""
    with metrics_served("[::1]:0", DrainTotals(), cast(DrainLag, Failing(lambda: None))) as url:
        assert url is not None and url.startswith("http://[::1]:")
        with urlopen(url, timeout=60) as response:
            assert response.status == 200


def test_addresses_are_read() -> None:
    """A port alone listens on this machine only; an address that is taken or malformed is refused."""
    assert parse_address("9100") == parse_address(":9100") == ("127.0.0.1", 9100)
    assert parse_address("0.0.0.0:9100") == ("0.0.0.0", 9100)
    for wrong in ("host", "host:", "host:x", "1:70000"):
        with pytest.raises(MetricsAddressError, match="expected HOST:PORT"):
            parse_address(wrong)

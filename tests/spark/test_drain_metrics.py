"""Metrics of a drain: what Prometheus reads of it, even while a service is down."""

from __future__ import annotations

import errno
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from mrecordlog_async.options import QueueOptions
from mrecordlog_async.spark.checkpoints.batches import SparkBatches
from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.local_lake import LocalLake
from mrecordlog_async.spark.drain.metrics import DrainMetrics, Lag, parse_address, served
from mrecordlog_async.spark.drain.progress import DrainProgress
from mrecordlog_async.spark.services.fleet import Fleet
from mrecordlog_async.spark.settings.option_values import WhenDown
from tests.spark.conftest import NewService
from tests.spark.delta_engine import DeltaEngine
from tests.spark.services import drain_samples, numbered


@contextmanager
def metrics_of(engine: DeltaEngine, progress: DrainProgress) -> Iterator[str]:
    """Serve the metrics of a drain that *engine* runs; yield the address."""
    checkpoint = LocalLake(str(engine.checkpoint_path))
    fleet = Fleet(replace(engine.source_options(), when_down=WhenDown.SKIP))
    try:
        metrics = DrainMetrics(progress, Lag(SparkBatches(checkpoint), fleet))
        with served("0", metrics) as (host, port):
            yield f"http://{host}:{port}"
    finally:
        fleet.close()
        checkpoint.close()


def test_the_lag_is_what_the_checkpoint_has_not_committed(new_service: NewService, tmp_path: Path) -> None:
    """Even of queues that the drain has not met, and of records that other consumers keep in the log."""
    service, other = new_service(), new_service()
    service.call(service.log.create_queue("q", options=QueueOptions(keep="until_acknowledged")))
    service.call(service.log.create_consumer("q", "slow"))
    service.append("q", numbered("q", 0, 50))
    engine = DeltaEngine(f"a={service.url},b={other.url}", tmp_path, consumer="lake")
    with metrics_of(engine, DrainProgress(records=7)) as url:
        found = drain_samples(f"{url}/metrics")
        assert (found["rows_total", ""], found["lag_records", "a"], found["lag_records", "b"]) == (7, 50, 0)
        engine.drain()
        service.append("new", numbered("new", 0, 3))
        service.append("q", numbered("q", 50, 60))
        found = drain_samples(f"{url}/metrics")
        assert service.positions("q")[0] == 0
        assert found["lag_records", "a"] == 13 and 0 <= found["lag_seconds", "a"] < 3_600
        assert (found["lag_seconds", "b"], found["server_up", "a"], found["server_up", "b"]) == (0, 1, 1)
        other.stop()
        found = drain_samples(f"{url}/metrics")
        assert (found["lag_records", "a"], found["server_up", "a"], found["server_up", "b"]) == (13, 1, 0)
        assert ("lag_records", "b") not in found
        other.start()
        with pytest.raises(HTTPError, match="404") as refused:
            urlopen(f"{url}/other")
        refused.value.close()


def test_a_scrape_reports_a_service_that_refuses(new_service: NewService, tmp_path: Path) -> None:
    """A wrong token is a server that is not up, alone or next to one that is."""
    service, other = new_service(), new_service("0123456789abcdef")
    service.append("q", numbered("q", 0, 3))
    with metrics_of(DeltaEngine(f"a={service.url},b={other.url}", tmp_path, token="wrong"), DrainProgress()) as url:
        found = drain_samples(f"{url}/metrics")
        assert (found["lag_records", "a"], found["server_up", "a"], found["server_up", "b"]) == (3, 1, 0)
    with metrics_of(DeltaEngine(f"b={other.url}", tmp_path, token="wrong"), DrainProgress()) as url:
        for _ in range(2):
            assert drain_samples(f"{url}/metrics")["server_up", "b"] == 0


class Failing(DrainMetrics):
    """Metrics that cannot be sent, or not be read. thread: that of the request."""

    def __init__(self, fail: Callable[[], bytes]) -> None:
        self._fail = fail
        self.thread: threading.Thread | None = None

    def render(self) -> bytes:
        self.thread = threading.current_thread()
        return self._fail()


def test_a_scraper_that_hangs_up_leaves_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """It had waited for too long. What a drain writes to standard error stays a line for each event."""
    with socket.socket() as scraper:

        def hang_up() -> bytes:
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by a reset
            scraper.close()
            return b"x"

        metrics = Failing(hang_up)
        with served("0", metrics) as address:
            scraper.connect(address)
            scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            wait_for_thread_of(metrics)
    assert capfd.readouterr().err == ""


def test_a_checkpoint_that_cannot_be_read_is_a_warning(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The scrape fails, and the drain reports why as it reports all else."""

    def fail() -> bytes:
        raise OSError(errno.EIO, "Input/output error", "/checkpoint/commits")

    metrics = Failing(fail)
    with served("0", metrics) as (host, port), pytest.raises(HTTPError, match="500") as refused:
        urlopen(f"http://{host}:{port}/metrics", timeout=60)
    refused.value.close()
    wait_for_thread_of(metrics)
    assert capfd.readouterr().err == ""
    assert "/checkpoint/commits" in caplog.text


def wait_for_thread_of(metrics: Failing) -> None:
    while metrics.thread is None:
        time.sleep(0.001)
    metrics.thread.join(60)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_metrics_are_served_over_ipv6() -> None:
    """As HOST in brackets, which is how the address is reported."""
    with (
        served("[::1]:0", Failing(lambda: b"")) as (host, port),
        urlopen(f"http://{host}:{port}/metrics", timeout=60) as response,
    ):
        assert (host, response.status) == ("[::1]", 200)


def test_addresses_are_read() -> None:
    """A port alone listens on this machine only; an address that is taken or malformed is refused."""
    assert parse_address("9100") == parse_address(":9100") == ("127.0.0.1", 9100)
    assert parse_address("0.0.0.0:9100") == ("0.0.0.0", 9100)
    for wrong in ("host", "host:", "host:x", "1:70000"):
        with pytest.raises(RefusedError, match="expected HOST:PORT"):
            parse_address(wrong)

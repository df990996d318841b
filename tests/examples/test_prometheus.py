"""The shipped alerts fire in a real Prometheus, with the shipped intervals, when a real service meets the fault."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.operated import Operated, Supervisor
from tests.prometheus import Prometheus, needs_prometheus

SECONDS = 40.0
"""A scrape, an evaluation, and time to spare on a busy machine. Only a test that fails waits this long."""


def service(directory: Path) -> Operated:
    directory.mkdir()
    return Operated(directory / "wal")


@needs_prometheus
def test_a_failed_disk_and_a_full_disk_page_somebody(tmp_path: Path) -> None:
    """One failed sync is enough, though the process that saw it is gone before Prometheus looks again."""
    with service(tmp_path / "failed") as failed, service(tmp_path / "full") as full:
        assert (failed.ready().append(b"a"), full.ready().append(b"a")) == (200, 200)
        supervisor = Supervisor(failed)
        with Prometheus(tmp_path / "prometheus", [failed.port, full.port]) as prometheus:
            for port in prometheus.wait_for_scrape([failed.port, full.port]):
                if port == failed.port:
                    (failed.control / "eio-once").touch()
                    assert failed.append(b"b") == 503
                else:
                    (full.control / "full").touch()
                    while full.append(bytes(10_000_000)) == 200:
                        pass
                    assert full.append(bytes(10_000_000)) == 507
            prometheus.wait_for("MrecordlogAppendsRefused", full.port, SECONDS)
            prometheus.wait_for("MrecordlogFailed", failed.port, SECONDS)
            was_seen_failing = f'max_over_time(mrecordlog_failed{{instance="127.0.0.1:{failed.port}"}}[5m])'
            assert prometheus.value(was_seen_failing) == 0
        failed.ready().process.send_signal(signal.SIGTERM)
        supervisor.join()
        assert supervisor.codes == [6, 0]

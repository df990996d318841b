"""The shipped alerts fire in a real Prometheus, with the shipped intervals, when a real service meets the fault.

`test_alerts.py` has Prometheus evaluate every rule; here the whole way is real: disk, process, scrape, rule.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.deep.prometheus import Prometheus, needs_prometheus
from tests.service.operated import Operated, Supervisor
from tests.serving import config, free_port

SECONDS = 100.0
"""A scrape, an evaluation, and time to spare on a busy machine. Only a test that fails waits this long."""
MIB = 1 << 20


def provoke_failed_disk(service: Operated) -> None:
    """Right after a scrape: the process ends 5 s later, and the next scrape comes after 15 s."""
    (service.control / "eio-once").touch()
    assert service.append(b"b") == 503


def provoke_full_disk(service: Operated) -> None:
    (service.control / "full").touch()
    while service.append(bytes(10 * MIB)) == 200:
        pass
    assert service.append(bytes(10 * MIB)) == 507


def provoke_hang(service: Operated) -> None:
    (service.control / "hang").touch()
    threading.Thread(target=service.append, args=(b"b",), daemon=True).start()


def provoke_kill(service: Operated) -> None:
    service.process.kill()


FAULTS = {
    "MrecordlogFailed": provoke_failed_disk,
    "MrecordlogAppendsRefused": provoke_full_disk,
    "MrecordlogDiskHangs": provoke_hang,
    "MrecordlogNotClosed": provoke_kill,
}


@contextmanager
def operated(directory: Path, *arguments: str, ready: bool = True) -> Iterator[Operated]:
    """Run a service with a supervisor that restarts it as the shipped unit says, and a record."""
    directory.mkdir()
    with Operated(directory / "wal", *arguments) as service:
        Supervisor(service)
        if ready:
            assert service.ready().append(b"a") == 200
        yield service


@needs_prometheus
def test_a_failed_a_full_and_a_hanging_disk_and_a_killed_process_page_somebody(tmp_path: Path) -> None:
    """Once is enough, even if the process that saw it is gone before Prometheus looks again."""
    with ExitStack() as running:
        services = {alert: running.enter_context(operated(tmp_path / alert)) for alert in FAULTS}
        ports = {service.port: alert for alert, service in services.items()}
        prometheus = running.enter_context(Prometheus(tmp_path / "prometheus", [*ports]))
        for port in prometheus.wait_for_scrape([*ports]):
            FAULTS[ports[port]](services[ports[port]])
        for port, alert in ports.items():
            prometheus.wait_for(alert, port, SECONDS)
        failed = services["MrecordlogFailed"].port
        seen = f'max_over_time(mrecordlog_failed{{instance="127.0.0.1:{failed}"}}[5m])'
        assert prometheus.value(seen) == 0  # no scrape saw it
        assert services["MrecordlogFailed"].append(b"c") == 200  # it was restarted


# The rules that wait for minutes.


def repeat(stop: threading.Event, work: Callable[[], object], seconds: float) -> None:
    """Do *work* at this interval until *stop* is set: the load of a fault that lasts."""
    while not stop.wait(seconds):
        work()


def connect(port: int) -> None:
    """Open three connections at once, and close them."""
    for client in [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]:
        client.close()


@needs_prometheus
@pytest.mark.nightly
@pytest.mark.timeout(2_400)
def test_alerts_that_wait_for_minutes_fire(tmp_path: Path) -> None:
    """A consumer that stands still fires after 15 minutes and 10 more; the others before that."""
    stop = threading.Event()
    with ExitStack() as running:

        def start(name: str, *arguments: str, ready: bool = True) -> Operated:
            return running.enter_context(operated(tmp_path / name, *arguments, ready=ready))

        late = start("late")
        assert late.call("PUT", "/v1/queues/q/consumers/slow")[0] in (200, 201)
        sizes = ["--memory-bytes", "1MiB", *config(tmp_path, record_bytes="512KiB", body_bytes="512KiB")]
        memory = start("memory", "--beyond-memory", "refuse", *sizes)
        assert [memory.append(bytes(300_000)) for _ in range(3)] == [200] * 3
        disk = start("disk", "--disk-bytes", "48MiB", "--segment-bytes", "32MiB")
        while (used := disk.metric("mrecordlog_disk_used_bytes") / disk.metric("mrecordlog_disk_limit_bytes")) < 0.86:
            assert disk.append(bytes(MIB)) == 200, used
        slow = start("slow")
        (slow.control / "slow").write_text("0.7")
        crowded = start("crowded", *config(tmp_path / "few", connections=2))
        restarting = start("restarting")
        (tmp_path / "unopened" / "control").mkdir(parents=True)
        (tmp_path / "unopened" / "control" / "hang").touch()
        unopened = running.enter_context(Operated(tmp_path / "unopened" / "wal"))
        down, drain = free_port(), free_port()
        services = [late, memory, disk, slow, crowded, restarting, unopened]
        ports = [service.port for service in services]
        prometheus = running.enter_context(Prometheus(tmp_path / "prometheus", [*ports, down], drain))
        loads: list[tuple[Callable[[], object], float]] = [
            (lambda: slow.append(b"b"), 0.1),
            (lambda: connect(crowded.port), 1.0),
        ]
        for work, seconds in loads:
            thread = threading.Thread(target=repeat, args=(stop, work, seconds), daemon=True)
            thread.start()
            running.callback(thread.join)
        running.callback(stop.set)  # called first: loads end before their services
        for _ in range(4):
            for _ in prometheus.wait_for_scrape([restarting.port]):
                seen = prometheus.value(f'process_start_time_seconds{{instance="127.0.0.1:{restarting.port}"}}')
                restarting.ready().process.kill()
                prometheus.wait_for_change("process_start_time_seconds", restarting.port, seen)
        prometheus.wait_for("MrecordlogRestarts", restarting.port, SECONDS)
        prometheus.wait_for("MrecordlogDown", down, 60 + SECONDS)
        prometheus.wait_for("MrecordlogNotOpen", unopened.port, 300 + SECONDS)
        prometheus.wait_for("MrecordlogDrainDown", drain, 300 + SECONDS)
        prometheus.wait_for("MrecordlogConnectionsRefused", crowded.port, 300 + SECONDS)
        prometheus.wait_for("MrecordlogMemoryNearLimit", memory.port, 600 + SECONDS)
        prometheus.wait_for("MrecordlogDiskNearLimit", disk.port, 600 + SECONDS)
        prometheus.wait_for("MrecordlogCommitsSlow", slow.port, 600 + 60 + SECONDS)
        prometheus.wait_for("MrecordlogConsumerLate", late.port, 900 + 600 + SECONDS)

"""The demo finds that the log keeps its promise, and would report it if the log did not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrecordlog_async.cli.demo.ledger import DemoVerdict, Ledger
from mrecordlog_async.cli.demo.service import ServiceProcess
from mrecordlog_async.client.client import RecordLogClient
from tests.cli.running import mrecordlog
from tests.served import serving


def test_nothing_is_lost_or_doubled_under_kills() -> None:
    """A real service is killed repeatedly under load; the exit code is the verdict."""
    ran = mrecordlog("demo", "--seconds", 2.5, "--kill-every", 0.5, "--producers", 32, "--queues", 4, "--json")
    facts = json.loads(ran.out)
    assert (ran.code, facts["good"], facts["lost"], facts["doubled"]) == (0, True, 0, 0)
    assert facts["kills"] >= 2
    assert facts["found"] == facts["acknowledged"] > 0
    assert "watch it: http://127.0.0.1:" in ran.err


def test_a_service_that_ends_is_reported_with_its_reason(tmp_path: Path) -> None:
    """Its last lines say why it could not open the log; nobody waits for it, and no log is said to be kept."""
    (tmp_path / "file").touch()
    ran = mrecordlog("demo", "--keep", tmp_path / "file")
    assert ran.code == 5
    assert "the service ended: " in ran.err and f"{tmp_path / 'file'}/wal: Not a directory" in ran.err
    assert "is kept" not in ran.err


async def test_settings_in_the_environment_are_not_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of another service, or a log level, neither shuts the demo out nor makes it wait for ever."""
    monkeypatch.setenv("MRECORDLOG_TOKEN_FILE", str(tmp_path / "token"))
    service = ServiceProcess(str(tmp_path / "wal"), 0)
    await service.start()
    await service.kill()
    assert service.address.startswith("http://127.0.0.1:")


def test_a_log_of_another_run_is_refused(tmp_path: Path) -> None:
    """Its records would count as doubled. It stays as it is."""
    (tmp_path / "wal").mkdir()
    ran = mrecordlog("demo", "--keep", tmp_path)
    assert (ran.code, ran.out, f"{tmp_path}/wal exists" in ran.err) == (2, "", True)
    assert not list((tmp_path / "wal").iterdir())


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("when", ["it starts", "it serves"])
def test_a_signal_ends_the_service_too(tmp_path: Path, when: str, number: signal.Signals, times: int) -> None:
    """No process goes on in the background, no directory is left, and nothing is printed."""
    command = [sys.executable, "-m", "mrecordlog_async", "demo"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipe, port = subprocess.PIPE, 0
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as process:
        assert process.stderr is not None
        if when == "it starts":
            while not list(tmp_path.iterdir()):
                time.sleep(0.001)
        else:
            port = int(process.stderr.readline().strip().rpartition(b":")[2])
        for _ in range(times):
            process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert [line for line in process.stderr.read().splitlines() if b"watch it: " not in line] == []
    if port:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--producers", "--queues"])
def test_a_demo_that_stores_nothing_is_refused(option: str) -> None:
    """It would have nothing to lose, and nothing to show."""
    ran = mrecordlog("demo", option, 0)
    assert (ran.code, ran.out, ran.err) == (2, "", f"mrecordlog: {option} must be at least 1\n")


def test_a_service_that_cannot_listen_is_reported_with_its_reason() -> None:
    """The port belongs to another program."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ran = mrecordlog("demo", "--port", server.getsockname()[1])
    assert ran.code == 5
    assert "the service ended: " in ran.err and "Address already in use" in ran.err


async def test_a_lost_and_a_doubled_record_break_the_promise(directory: Path) -> None:
    """The demo detects a lost and a doubled record, which are produced here on purpose."""
    async with serving(directory) as served, RecordLogClient(served.url) as client:
        ledger = Ledger(record_bytes=64)
        await served.log.create_queue("q")
        for number in range(3):
            payload = ledger.payload(0, number)
            position = await served.log.append_record("q", None, payload)
            assert position is not None
            ledger.note("q", position, payload)
        await served.log.append_record("q", None, ledger.payload(0, 1))
        ledger.note("q", 9, ledger.payload(0, 9))
        verdict = await ledger.check(client, ServiceProcess("", 0))
    assert (verdict.acknowledged, verdict.found, verdict.lost, verdict.doubled) == (4, 3, 1, 1)
    assert not verdict.good
    assert verdict.sentence().startswith("PROMISE BROKEN: ")


@pytest.mark.parametrize("failures", [["queue q: it failed"], []])
def test_a_run_that_did_nothing_or_failed_is_not_good(failures: list[str]) -> None:
    """No record acknowledged proves nothing."""
    acknowledged = 5 if failures else 0
    verdict = DemoVerdict(acknowledged, acknowledged, 0, 0, 0, 1, [0.1], failures)
    assert not verdict.good

"""`mrecordlog serve` as a person, systemd and an orchestrator use it."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from mrecordlog_async.cli import serve as machine_limits
from mrecordlog_async.cli.errors import UsageError
from mrecordlog_async.cli.serve import TextFormatter, disk_share
from mrecordlog_async.cli.settings import persist
from mrecordlog_async.options import GIB, MIB, Limits
from mrecordlog_async.service.watching.systemd import notify
from tests import warm
from tests.serving import TIMEOUT_SECONDS, Process


def run(
    *arguments: str, stdin: bytes = b"", environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return warm.run(arguments, stdin, environment={**os.environ, **(environment or {})}, cwd=cwd)


def ask(process: Process, path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=TIMEOUT_SECONDS)
    connection.request("GET", path, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    """SIGTERM, Ctrl-C and a closed terminal close the log; the next start finds a clean end and recovers nothing."""
    with Process(tmp_path / "wal") as process:
        code, told = process.stop(number)
        assert code == 0
        assert f"info {signal.Signals(number).name} received: finishing requests, then closing" in told
        assert re.search(r"^[\d-]{10}T[\d:]{8}\.\d{3}Z info \S*/wal: closed; 0 records appended", told, re.MULTILINE)
    assert (tmp_path / "wal" / "CLOSED").exists()


def test_a_tail_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Open streams end with an event when the service shuts down."""
    with Process(tmp_path / "wal") as process:
        assert run("append", process.address, "q", "--create", stdin=b"a").returncode == 0
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/v1/queues/q/tail")
        stream = connection.getresponse()
        assert stream.readline().startswith(b"id: 0-")
        assert process.stop()[0] == 0
        assert b"event: end\ndata: closing\n" in stream.read()


def test_a_second_service_on_the_directory_is_refused(tmp_path: Path) -> None:
    """It exits with code 4, the owner's pid and what to do; the first service keeps running."""
    with Process(tmp_path / "wal", cold=True) as process:
        assert process.process is not None
        at_once = {"MRECORDLOG_LOCK_SECONDS": "0s"}
        done = run("serve", str(tmp_path / "wal"), "--port", "0", environment=at_once)
        assert done.returncode == 4
        assert b" serve " in done.stderr.rpartition(b"process %d (" % process.process.pid)[2]
        assert ask(process, "/readyz") == 200


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    """No traceback, exit code 1."""
    with Process(tmp_path / "wal") as process:
        done = run("serve", str(tmp_path / "other"), "--port", str(process.port))
        assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
        assert b"in use; choose another" in done.stderr


def test_damage_ends_it_with_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service never starts with damaged data."""
    directory = tmp_path / "wal"
    assert run("append", str(directory), "q", "--create", stdin=b"hello").returncode == 0
    (segment,) = directory.glob("wal-*[0-9]")
    content = bytearray(segment.read_bytes())
    content[content.index(b"hello")] ^= 1
    segment.write_bytes(content)
    done = run("serve", str(directory), "--port", "0")
    assert (done.returncode, b"Traceback" in done.stderr) == (3, False)
    assert segment.name.encode() in done.stderr
    assert f"`mrecordlog verify {directory}`, then run `mrecordlog repair {directory}`".encode() in done.stderr
    monkeypatch.setenv("MRECORDLOG_LOG_FORMAT", "json")
    last = run("serve", str(directory), "--port", "0").stderr.splitlines()[-1]
    line = json.loads(last)
    assert (line["level"], line["exit_code"], line["segment"]) == ("critical", 3, segment.name)
    assert line["directory"] == str(directory) and line["time"].endswith("Z")


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """The path and the reason, exit code 1."""
    (tmp_path / "file").write_bytes(b"")
    done = run("serve", str(tmp_path / "file"), "--port", "0")
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert str(tmp_path / "file").encode() in done.stderr


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    """A service that other machines can reach requires a token."""
    done = run("serve", str(tmp_path / "wal"), "--host", "0.0.0.0", "--port", "0")
    assert (done.returncode, b"--token-file" in done.stderr) == (2, True)
    assert not (tmp_path / "wal").exists()


def test_a_token_file_is_needed_by_clients_too(tmp_path: Path) -> None:
    """Both sides use the same file. Other users must not be able to read it, and short tokens are refused."""
    tokens = tmp_path / "tokens"
    tokens.write_text("# ours\n\n0123456789abcdef0123  # the drain's\n0123456789abcdef#0 # holds a #\n")
    assert run("serve", str(tmp_path / "wal"), "--token-file", str(tokens)).returncode == 2
    tokens.chmod(0o600)
    with Process(tmp_path / "wal", ["--token-file", str(tokens)]) as process:
        refused = run("ls", process.address)
        assert (refused.returncode, b"--token-file, or MRECORDLOG_TOKEN_FILE" in refused.stderr) == (1, True)
        assert run("ls", process.address, "--token-file", str(tokens)).returncode == 0
        assert run("ls", process.address, environment={"MRECORDLOG_TOKEN_FILE": str(tokens)}).returncode == 0
    for content in ("short\n", "# none\n", "0123456789abcdef 0123456789abcdef\n"):
        tokens.write_text(content)
        assert run("serve", str(tmp_path / "wal"), "--token-file", str(tokens)).returncode == 2
    missing = run("serve", str(tmp_path / "wal"), "--token-file", str(tmp_path / "none"))
    assert (missing.returncode, str(tmp_path / "none").encode() in missing.stderr) == (2, True)


def test_other_names_of_this_machine_are_allowed_when_named(tmp_path: Path) -> None:
    """On loopback only known Host names are accepted."""
    with Process(tmp_path / "wal", ["--allow-host", "wal.local, other"]) as process:
        assert ask(process, "/healthz", Host="wal.local:80") == 200
        assert ask(process, "/healthz", Host="evil.example") == 421


def test_a_unix_socket_is_for_its_user_only(tmp_path: Path) -> None:
    """The socket has mode 0600. One left by a killed service is replaced, one in use is not; the service removes it."""
    path = tmp_path / "socket"
    with Process(tmp_path / "wal", ["--uds", str(path)]) as process:
        assert path.stat().st_mode & 0o777 == 0o600
        process.kill()
        assert path.exists()
        process.start()
        assert run("append", f"unix:{path}", "q", "--create", stdin=b"a").returncode == 0
        assert run("serve", str(tmp_path / "other"), "--uds", str(path)).returncode == 1
        assert process.stop()[0] == 0
        assert not path.exists()


def test_a_socket_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """The system's own message has neither the path nor what to do; the log is not created."""
    path = tmp_path / ("x" * 120)
    ended = run("serve", str(tmp_path / "wal"), "--uds", str(path))
    assert ended.returncode == 1
    said = f"cannot listen on unix:{path}: AF_UNIX path too long; choose another path with --uds"
    assert said.encode() in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_url_in_the_variable_of_the_directory_is_refused(tmp_path: Path) -> None:
    """As on the command line: a directory of that name would be created."""
    environment = {"MRECORDLOG_DIRECTORY": "http://127.0.0.1:8080"}
    ended = run("serve", "--uds", "no/such/directory", environment=environment, cwd=tmp_path)
    assert ended.returncode == 2
    assert b"MRECORDLOG_DIRECTORY: 'http://127.0.0.1:8080' is a URL, and this command needs the files" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_the_socket_of_the_next_service_stays(tmp_path: Path) -> None:
    """A service that waits for its last request has given its path away: another one may listen there by then."""
    path = tmp_path / "socket"
    with Process(tmp_path / "wal", ["--uds", str(path)]) as process, socket.socket(socket.AF_UNIX) as last:
        assert process.process is not None
        last.settimeout(TIMEOUT_SECONDS)
        last.connect(str(path))
        last.sendall(b"POST /v1/queues/q/records?create=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n")
        last.sendall(b"Expect: 100-continue\r\n\r\n")
        assert last.recv(100).startswith(b"HTTP/1.1 100 ")
        process.process.send_signal(signal.SIGTERM)
        while listens(path):
            time.sleep(0.01)
        path.unlink(missing_ok=True)  # as `serve` does
        with socket.socket(socket.AF_UNIX) as following:
            following.bind(str(path))
            last.sendall(b"a")
            assert last.recv(100).startswith(b"HTTP/1.1 200 ")
            process.process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.process.returncode == 0
            assert path.exists()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    """The message says what is there: nobody listens on it, whom one could stop."""
    path = tmp_path / "notes"
    path.touch() if kind == "file" else path.symlink_to(tmp_path / "nothing")
    ended = run("serve", str(tmp_path / "wal"), "--uds", str(path))
    assert ended.returncode == 2
    assert f"{path}: this is not a socket; choose another path, or remove it".encode() in ended.stderr
    assert path.is_symlink() or path.is_file()


def test_a_line_of_text_has_every_fact_that_its_message_does_not_say() -> None:
    """A digit of another number is not the exit code."""
    facts = {"event": "ended", "exit_code": 2, "path": "/etc/token-2"}
    record = logging.makeLogRecord({"msg": "cannot read /etc/token-2: 127.0.0.2", "facts": facts})
    line = TextFormatter().format(record)
    assert line.endswith('cannot read /etc/token-2: 127.0.0.2 [event="ended" exit_code=2]')


@pytest.mark.parametrize(
    ("message", "fact", "left_out"),
    [
        ("the disk did not respond within 1 s", {"exit_code": 1}, False),
        ("recovered: 3 records (50 bytes) in 1 segments", {"batches": 3}, False),
        ("recovered: 3 records (50 bytes) in 1 segments", {"records": 3}, True),
        ("recovered: 3 records (50 bytes) in 1 segments", {"bytes": 50}, True),
        ("the process ends with code 6 to be restarted", {"exit_code": 6}, True),
        ("the disk is slow: a sync took 2.5 s; it responds again", {"seconds": 2.5}, True),
    ],
)
def test_a_number_of_the_message_is_not_taken_for_another_fact(
    message: str, fact: dict[str, float], left_out: bool
) -> None:
    """A fact is left out of a line of text only where the message says of what it is the number."""
    line = TextFormatter().format(logging.makeLogRecord({"msg": message, "facts": fact}))
    assert line.endswith(message) is left_out


def test_settings_come_from_flags_then_variables_then_the_file(tmp_path: Path) -> None:
    """A flag overrides a variable, which overrides the file."""
    config = tmp_path / "mrecordlog.toml"
    sizes = 'memory_bytes = "1MiB"\nrecord_bytes = 1000\npending_bytes = "100KiB"\n'
    config.write_text(f'persist = "never"\nlog_format = "json"\n{sizes}')
    arguments = ["--config", str(config), "--memory-bytes", "3MiB"]
    process = Process(tmp_path / "wal", arguments)
    process.start({"MRECORDLOG_MEMORY_BYTES": "2MiB", "MRECORDLOG_RECORD_BYTES": "2000"})
    try:
        process.wait_ready()
        connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/v1/stats", headers={"Connection": "close"})
        assert json.loads(connection.getresponse().read())["usage"]["memory_limit_bytes"] == 3 * 1024 * 1024
        assert run("append", process.address, "q", "--create", stdin=bytes(2_000)).returncode == 0
        assert run("append", process.address, "q", stdin=bytes(2_001)).returncode == 1
        code, told = process.stop()
        assert code == 0
        events = [json.loads(line).get("event") for line in told.splitlines()]
        assert [event for event in events if event] == ["opened", "signal", "closed"]
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        ((), {}, b"directory"),
        (("--memory-bytes", "5XB"), {}, b"--memory-bytes: '5XB'"),
        (("--port", "-1"), {}, b"--port"),
        (("--port", "65536"), {}, b"--port"),
        (("--persist", "sometimes"), {}, b"--persist"),
        ((), {"MRECORDLOG_RECORD_BYTES": "3GiB"}, b"record_bytes"),
        (("--memory-bytes", "2GiB", "--disk-bytes", "1GiB", "--beyond-memory", "disk"), {}, b"memory_bytes"),
        (("--disk-bytes", "0"), {}, b"disk_bytes"),
        ((), {"MRECORDLOG_BODY_BYTES": "1GiB"}, b"bodies_bytes"),
        (("--tails", "5"), {}, b"unknown option --tails: set MRECORDLOG_TAILS, or tails in the file of --config"),
        (("--no-recycle",), {}, b"set MRECORDLOG_RECYCLE, or recycle in the file of --config"),
        (("--segment-bytes", "1"), {}, b"segment_bytes"),
        (("--token-file", "/nonexistent"), {}, b"/nonexistent"),
        (("--config", "/nonexistent.toml"), {}, b"/nonexistent.toml"),
        ((), {"MRECORDLOG_PRT": "1"}, b"MRECORDLOG_PRT"),
    ],
)
def test_settings_that_make_no_sense_are_usage_errors(
    tmp_path: Path, arguments: tuple[str, ...], environment: dict[str, str], told: bytes
) -> None:
    """The message names the setting; nothing is served and nothing is created."""
    directory = [] if told == b"directory" else [str(tmp_path / "wal")]
    done = run("serve", *directory, *arguments, environment=environment)
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "wal").exists()


def test_the_disk_limit_of_a_small_volume_is_not_called_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """64 MiB are not 80 % of 6 MiB: such a log meets the end of the disk before its limit."""
    monkeypatch.setattr(machine_limits, "DISK_SHARE", 0.0)
    with caplog.at_level(logging.INFO, "mrecordlog_async.serve"):
        assert disk_share(None, str(tmp_path)) == 64 << 20
    assert "disk limit 64.0 MiB: the least limit, more than 80 % of the " in caplog.text


def test_the_disk_limit_follows_the_volume_unless_it_is_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """80 % of what is free and what the log takes, computed at every start and printed; memory fits into it."""
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "wal-0").write_bytes(bytes(8 << 20))
    with caplog.at_level(logging.INFO, "mrecordlog_async.serve"):
        share = disk_share(None, str(tmp_path / "wal"))
    found = os.statvfs(tmp_path)
    capacity = found.f_blocks * found.f_frsize
    (facts,) = (record.facts for record in caplog.records)  # type: ignore[attr-defined]  # the log's own
    assert share == facts["disk_bytes"] == int(0.8 * (facts["free_bytes"] + facts["taken_bytes"])) < capacity
    assert 8 << 20 <= facts["taken_bytes"] < 9 << 20  # a file system may add a block for its own map of the file
    assert "80 %" in caplog.text and "--disk-bytes" in caplog.text
    assert disk_share(None, str(tmp_path / "not" / "there")) > 0  # the log is created later
    with socket.create_server(("127.0.0.1", 0)) as taken:  # it ends at once
        port = str(taken.getsockname()[1])
        done = [run("serve", str(tmp_path / "log"), "--port", port, *more) for more in ((), ("--disk-bytes", "1GiB"))]
    assert [b"80 %" in each.stderr for each in done] == [True, False]
    assert b"disk limit 1.0 GiB: as set" in done[1].stderr


def test_a_memory_limit_above_the_disk_limit_is_refused_where_records_leave_memory() -> None:
    """Both were set, and records could never leave memory; one that was not set follows the other."""
    with pytest.raises(ValueError, match=r"memory_bytes \(2097152\) is above disk_bytes"):
        Limits(memory_bytes=2 * MIB, disk_bytes=MIB, beyond_memory="disk")
    assert Limits(memory_bytes=2 * MIB, disk_bytes=MIB).memory_bytes == 2 * MIB  # memory is never reached
    assert Limits(memory_bytes=32 * GIB, beyond_memory="disk").memory_bytes == 32 * GIB  # the disk has its default
    assert Limits(disk_bytes=MIB, beyond_memory="disk").memory_bytes is None


def test_unknown_keys_of_the_file_are_usage_errors(tmp_path: Path) -> None:
    """A misspelt limit is not ignored."""
    config = tmp_path / "mrecordlog.toml"
    for content in ("memry_bytes = 1\n", "port = [\n", "[serve]\nport = 1\n"):
        config.write_text(content)
        assert run("serve", str(tmp_path / "wal"), "--config", str(config)).returncode == 2


@pytest.mark.parametrize("text", ["interval", "interval:0", "always:1", "", "fsync"])
def test_policies_that_are_none(text: str) -> None:
    """Only the three policies are accepted."""
    with pytest.raises((ValueError, UsageError)):
        persist(text)


def test_systemd_is_told_when_it_is_ready(tmp_path: Path) -> None:
    """Type=notify: READY=1 comes after recovery, STOPPING=1 before the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(TIMEOUT_SECONDS)
        process = Process(tmp_path / "wal")
        process.start({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        try:
            told = listener.recv(1000)
            while b"READY=1" not in told:
                assert b"STATUS=" in told
                told = listener.recv(1000)
            assert ask(process, "/readyz") == 200
            assert process.stop()[0] == 0
            assert b"STOPPING=1" in listener.recv(1000)
        finally:
            process.kill()


def test_systemd_is_told_of_a_path_that_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of a failure names the file; the task that reports it must survive that."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        notify("STATUS=failed: " + os.fsdecode(b"/wal\xff"))
        assert listener.recv(1000) == b"STATUS=failed: /wal\\udcff"


def consumers_of(process: Process, queue: str) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=TIMEOUT_SECONDS)
    connection.request("GET", f"/v1/queues/{queue}/consumers")
    listed = json.load(connection.getresponse())["consumers"]
    connection.close()
    return {one["consumer"]: one["position"] for one in listed}


def test_declared_queues_and_consumers_exist_when_it_is_ready(tmp_path: Path) -> None:
    """A new service has them before the first request, and a restart after `kill -9` finds them where they were."""
    config = tmp_path / "mrecordlog.toml"
    config.write_text('[queues.audit]\nkeep = "until_acknowledged"\n\n[consumers]\naudit = ["search", "archive"]\n')
    directory = tmp_path / "wal"
    with Process(directory, ["--config", str(config)]) as process:
        assert consumers_of(process, "audit") == {"search": 0, "archive": 0}
        assert run("append", process.address, "audit", "--lines", stdin=b"a\nb\n").returncode == 0
        took = run("consume", process.address, "audit", "--consumer", "search", "--once", "--exec", "true")
        assert took.returncode == 0, took.stderr
    with Process(directory, ["--config", str(config)]) as process:
        assert consumers_of(process, "audit") == {"search": 2, "archive": 0}


def test_consumers_of_an_unknown_queue_end_it_with_what_to_do(tmp_path: Path) -> None:
    """A misspelt name is not ignored: the service does not start."""
    declared = {"MRECORDLOG_CONSUMERS": '{"audti": ["search"]}'}
    done = run("serve", str(tmp_path / "wal"), "--port", "0", environment=declared)
    assert done.returncode != 0
    assert b"queue 'audti' does not exist; add it to queues=" in done.stderr


def test_variables_of_a_service_of_kubernetes_do_not_stop_the_service(tmp_path: Path) -> None:
    """They are named with what leaves them out, and the port is that of the option."""
    variables = {"MRECORDLOG_PORT": "tcp://10.96.0.12:8080", "MRECORDLOG_SERVICE_HOST": "10.96.0.12"}
    process = Process(tmp_path / "wal")
    try:
        process.start(variables)
        process.wait_ready()
        code, printed = process.stop()
    finally:
        process.kill()
    assert code == 0
    assert "MRECORDLOG_PORT and 1 more are of a Service of Kubernetes" in printed
    assert "`enableServiceLinks: false`" in printed

"""The commands that read and write records, through a service and in files."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.cli import streams
from mrecordlog_async.cli.main import main
from tests import warm
from tests.cli.running import build, mrecordlog, three_queues
from tests.cli.test_serve import run
from tests.served import Served
from tests.serving import Process, free_port


def test_lines_come_back_as_they_went_in(target: str) -> None:
    """A file that is appended line by line and printed again is unchanged."""
    lines = b"".join(b"%d \xff%s\n" % (number, b"x" * (number % 50)) for number in range(5_000)) + b"\n\nlast\n"
    done = run("append", target, "q", "--lines", "--create", stdin=lines)
    assert (done.returncode, done.stdout) == (0, b"q: 5,003 records stored, up to position 5002\n")
    assert run("cat", target, "q").stdout == lines
    assert run("cat", target, "q", "--start", "5002").stdout == b"last\n"
    assert run("cat", target, "q", "--start", "5000", "--limit", "1").stdout == lines.splitlines(keepends=True)[5000]
    (record,) = run("cat", target, "q", "--start", "1", "--stop", "2", "--json").stdout.splitlines()
    shown = json.loads(record)
    age = datetime.now(UTC) - datetime.fromisoformat(shown.pop("time"))
    assert timedelta(0) <= age < timedelta(hours=1)
    assert shown == {"position": 1, "payload": base64.b64encode(b"1 \xffx").decode()}
    assert run("cat", target, "q", "--start", "1h", "--limit", "1").stdout == lines.splitlines(keepends=True)[0]
    assert run("cat", target, "q", "--start", "2999-01-01").returncode == 2


def test_a_record_is_all_of_standard_input(target: str) -> None:
    """Without --lines the input is one record; if it is sent again with its position, it is stored once."""
    assert run("append", target, "q", "--create", stdin=b"a\nb").stdout == b"q: 1 record stored, up to position 0\n"
    again = run("append", target, "q", "--position", "0", stdin=b"a\nb")
    assert again.stdout == b"q: position 0 already holds this record\n"
    other = run("append", target, "q", "--position", "0", stdin=b"other")
    assert (other.returncode, b"already taken" in other.stderr) == (1, True)


def test_ls_says_whether_a_log_is_drained(target: str) -> None:
    """Before a log is removed, a script asks whether a queue still holds a record: 1 and the queues, or 0."""
    run("append", target, "empty", "--create", stdin=b"one")
    run("truncate", target, "empty", "0")
    assert run("ls", target, "--drained").returncode == 0
    run("append", target, "full", "--create", stdin=b"one")
    done = run("ls", target, "--drained")
    assert (done.returncode, [line.split()[0] for line in done.stdout.splitlines()]) == (1, [b"queue", b"full"])
    run("truncate", target, "full", "0")
    drained = run("ls", target, "--drained", "--json")
    assert (drained.returncode, drained.stdout) == (0, b"")


def test_ls_shows_queues(target: str) -> None:
    """ls prints a table, or one JSON object per line."""
    run("append", target, "q", "--lines", "--create", stdin=b"a\nbb\n")
    assert run("ls", target).stdout.splitlines()[1].split()[:5] == [b"q", b"0", b"2", b"2", b"3"]
    shown = json.loads(run("ls", target, "--json").stdout)
    assert shown["next_position"] == 2
    assert datetime.now(UTC) - datetime.fromisoformat(shown["oldest_time"]) < timedelta(hours=1)


def test_truncate_drops_up_to_and_including(target: str) -> None:
    """A position that was never assigned is refused: in a shell it is a typing error."""
    run("append", target, "q", "--lines", "--create", stdin=b"a\nb\nc\n")
    assert run("truncate", target, "q", "1").stdout == b"q: 2 records removed\n"
    assert run("cat", target, "q").stdout == b"c\n"
    wrong = run("truncate", target, "q", "3")
    assert (wrong.returncode != 0, b"has not been assigned yet" in wrong.stderr) == (True, True)


def test_unknown_queues_are_said(target: str) -> None:
    """A queue is not created by accident; the message names it."""
    run("append", target, "q", "--create", stdin=b"a")
    for command, *arguments in (["append", "nope"], ["cat", "nope"], ["truncate", "nope", "0"]):
        done = run(command, target, *arguments)
        assert (done.returncode, b"'nope' does not exist" in done.stderr) == (1, True)


def test_files_are_read_beside_a_service_and_not_written(tmp_path: Path) -> None:
    """cat and ls need no lock; append and truncate fail with exit code 4 while a service has the directory."""
    wal = str(tmp_path / "wal")
    with Process(tmp_path / "wal") as process:
        run("append", process.address, "q", "--create", stdin=b"a")
        assert run("cat", wal, "q").stdout == b"a\n"
        assert run("ls", wal).stdout.splitlines()[1].split()[0] == b"q"
        assert run("append", wal, "q", stdin=b"b").returncode == 4
        assert run("truncate", wal, "q", "0").returncode == 4


def test_a_service_that_is_not_there_is_exit_code_5() -> None:
    """The message names the address that did not respond."""
    unused_port = free_port()
    done = run("ls", f"http://127.0.0.1:{unused_port}")
    assert (done.returncode, str(unused_port).encode() in done.stderr) == (5, True)


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    """Contradictory options are rejected before anything is done."""
    wal = str(tmp_path / "wal")
    for arguments in (
        ["cat", wal, "q", "--follow", "--stop", "1"],
        ["cat", wal, "q", "--follow", "--limit", "1"],
        ["append", wal, "q", "--lines", "--position", "1"],
        ["append", wal],
        ["ls", "localhost:8080"],
        ["truncate", wal, "q", "x"],
        [],
    ):
        assert run(*arguments).returncode == 2, arguments


@pytest.mark.usefixtures("interruptible")
def test_follow_shows_records_as_they_come(tmp_path: Path) -> None:
    """--follow prints new records until Ctrl-C, and exits with the code that shells expect."""
    with Process(tmp_path / "wal") as process:
        run("append", process.address, "q", "--create", stdin=b"one")
        command = ["cat", process.address, "q", "--follow"]
        with warm.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"one\n"
            run("append", process.address, "q", stdin=b"two")
            assert following.stdout.readline() == b"two\n"
            following.send_signal(signal.SIGINT)
            _, told = following.communicate(timeout=60)
            assert (following.returncode, told) == (130, b"")


@asynccontextmanager
async def following(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    """Follow "q" in a directory from another process; yield the process and its output."""
    command = ["-m", "mrecordlog_async", "cat", str(directory), "q", "--follow"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=PIPE, stderr=PIPE)
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.usefixtures("interruptible")
async def test_follow_reads_a_directory_beside_its_writer(directory: Path) -> None:
    """Without a service, it prints the retained records and then new ones, across segments, until Ctrl-C."""
    async with MultiRecordLog.open(directory, segment_bytes=32_768) as log:
        await log.create_queue("q")
        await log.append_records("q", None, [b"one", b"two"])
        await log.truncate("q", 0)
        async with following(directory) as (process, output):
            assert await output.readline() == b"two\n"
            for number in range(12):
                payload = b"%d" % number * 8_000
                position = await log.append_record("q", None, payload)
                assert await output.readline() == payload + b"\n"
                assert position is not None
                await log.truncate("q", position)
            assert log.stats().rolls > 1
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130


async def test_follow_ends_after_the_last_record_of_a_sealed_queue(directory: Path) -> None:
    """Nothing can come any more, so the command does not wait for it."""
    async with MultiRecordLog.open(directory, queues=["q"]) as log:
        await log.append("q", b"one")
        async with following(directory) as (process, output):
            assert await output.readline() == b"one\n"
            await log.append("q", b"two")
            await log.seal_queue("q")
            assert await output.read() == b"two\n"
            assert await process.wait() == 0


async def test_follow_ends_with_its_queue(directory: Path) -> None:
    """A recreated queue is a different queue; following a missing queue is reported."""
    async with MultiRecordLog.open(directory) as log:
        await log.create_queue("q")
        await log.append_record("q", None, b"one")
        async with following(directory) as (process, output):
            assert await output.readline() == b"one\n"
            await log.delete_queue("q")
            await log.create_queue("q")
            await log.append_record("q", None, b"another")
            assert await output.read() == b""
            assert await process.wait() == 0
        await log.delete_queue("q")
        async with following(directory) as (process, _):
            assert await process.wait() == 1


@pytest.mark.usefixtures("interruptible")
def test_append_ends_on_ctrl_c_while_nothing_comes(tmp_path: Path) -> None:
    """A silent pipe does not block Ctrl-C; what was stored is reported."""
    with Process(tmp_path / "wal") as process:
        command = ["append", process.address, "q", "--create", "--lines"]
        with warm.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as appending:
            assert appending.stdin is not None
            for lines, stored in ((b"a\nb\n", b"a\nb\n"), (b"c\nhalf", b"a\nb\nc\n")):
                appending.stdin.write(lines)
                appending.stdin.flush()
                while run("cat", process.address, "q").stdout != stored:
                    pass
            appending.send_signal(signal.SIGINT)
            assert appending.wait(60) == 130
            assert appending.stderr is not None
            # It knows of "b": it sent "c" after that. Of "c" it may have been about to learn.
            assert re.search(
                rb"(2 lines stored, up to position 1|3 lines stored, up to position 2)\n", appending.stderr.read()
            )
        assert run("cat", process.address, "q").stdout == b"a\nb\nc\n"


def interrupt_unread(pipe: tuple[int, int], held: int, *words: str) -> tuple[int, bytes]:
    """Interrupt a command once *pipe*, its output, holds this many bytes; return its exit code and standard error."""
    reading, writing = pipe
    with warm.start(words, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        while int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), sys.byteorder) < held:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(60)
        finally:
            process.kill()
            os.close(reading)
        assert process.stderr is not None
        return code, process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system how much a pipe holds")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("command", [("cat",), ("consume", "--consumer", "c", "--once")], ids=lambda words: words[0])
def test_ctrl_c_ends_a_command_whose_output_nobody_reads(tmp_path: Path, command: tuple[str, ...]) -> None:
    """As in a pager that shows the first page: no write is waited for, and only the exit code says it."""
    wal = str(tmp_path / "wal")
    reading, writing = os.pipe()
    holds = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    for size in (holds - 500, 5_000, holds):  # the second one waits in Python's buffer, the third one for the pipe
        run("append", wal, "q", "--create", stdin=bytes(size))
    assert interrupt_unread((reading, writing), holds - 500, command[0], wal, "q", *command[1:]) == (130, b"")


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system how much a pipe holds")
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("command", [("cat", "q"), ("cat", "q", "--follow"), ("dump",)], ids=" ".join)
def test_ctrl_c_ends_a_command_of_a_service_whose_output_nobody_reads(tmp_path: Path, command: tuple[str, ...]) -> None:
    """The first one, though the event loop does not run while a write waits."""
    reading, writing = os.pipe()
    holds = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    with Process(tmp_path / "wal") as process:
        run("append", process.address, "q", "--create", stdin=bytes(10 * holds))
        words = (command[0], process.address, *command[1:])
        assert interrupt_unread((reading, writing), holds // 2, *words) == (130, b"")


@pytest.mark.usefixtures("interruptible")
def test_load_ends_on_ctrl_c_while_nothing_comes(tmp_path: Path) -> None:
    """The first one ends it, as append; the lines that came before are stored."""
    with Process(tmp_path / "wal") as process:
        with warm.start(["load", process.address], stdin=subprocess.PIPE) as loading:
            assert loading.stdin is not None
            loading.stdin.write(b'{"queue": "q", "text": "stored"}\n{"queue": "then"}\n')
            loading.stdin.flush()
            while b"then" not in run("ls", process.address).stdout:
                pass
            loading.send_signal(signal.SIGINT)
            try:
                assert loading.wait(60) == 130
            finally:
                loading.kill()
        assert run("cat", process.address, "q").stdout == b"stored\n"


async def test_what_cannot_be_appended_is_refused_before_the_input_is_read(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody may be typing it, and it would be lost."""

    def read() -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(streams, "read_input", read)
    for log, queue, why in (
        (served.url, "missing", "queue 'missing' does not exist; --create creates it"),
        (str(tmp_path / "missing"), "q", "--create creates it"),
        (str(tmp_path), "q", "--create creates it"),
    ):
        assert await asyncio.to_thread(main, ["append", log, queue]) == 1
        assert why in capsys.readouterr().err
    for log in (served.url, str(tmp_path / "missing")):
        assert await asyncio.to_thread(main, ["append", log, "x" * 70_000, "--create"]) == 1
        assert "is 70000 bytes long" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["wal"]


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """`mrecordlog cat LOG q | head -1` ends quietly."""
    wal = str(tmp_path / "wal")
    run("append", wal, "q", "--create", "--lines", stdin=b"line\n" * 200_000)
    script = f"{sys.executable} -m mrecordlog_async cat {wal} q | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"line\n", b"")


def test_a_closed_terminal_is_no_error(tmp_path: Path) -> None:
    """A window that is closed while a command writes has nobody to read a complaint, as a closed pipe."""
    wal = build(tmp_path / "wal", three_queues)
    controller, terminal = os.openpty()
    os.close(controller)
    done = subprocess.run(
        [sys.executable, "-m", "mrecordlog_async", "ls", str(wal)], stdout=terminal, stderr=PIPE, timeout=60
    )
    os.close(terminal)
    assert (done.returncode, done.stderr) == (0, b"")


def test_one_wide_name_moves_no_line_but_its_own(tmp_path: Path) -> None:
    """Letters of two columns count as two, and a very long name does not push the numbers of all others away."""

    async def fill(log: MultiRecordLog) -> None:
        for name in ("orders", "注文", "x" * 100):
            await log.append(name, b"abc", create=True)

    head, orders, long, wide = mrecordlog("ls", build(tmp_path / "wal", fill)).out.splitlines()
    assert orders.index(" 0 ") == head.index("first") + 3 == 45
    assert wide.index(" 0 ") == 43  # on a terminal 45
    assert long.startswith("x" * 100 + "      0 ")

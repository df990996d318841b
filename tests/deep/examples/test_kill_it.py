"""`examples/kill_it.py` finds that the log keeps its promise, and would report it if the log did not."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async import MultiRecordLog
from tests.deep.examples.test_examples import EXAMPLES, run
from tests.programs import load_program
from tests.serving import TIMEOUT_SECONDS


def test_nothing_is_lost_or_doubled_under_kills(tmp_path: Path) -> None:
    """Real writers are killed under load; the exit code is the verdict, and the log stays where it was asked for."""
    done = run(sys.executable, str(EXAMPLES / "kill_it.py"), "3", str(tmp_path / "wal"))
    assert (done.returncode, done.stderr) == (0, "")
    *kills, verdict = done.stdout.splitlines()
    found = re.fullmatch(r"promise kept: killed (\d+) times; acknowledged ([\d,]+), lost 0, stored twice 0", verdict)
    assert found is not None and int(found[1]) == len(kills) > 0 and int(found[2].replace(",", "")) > 0
    again = run(sys.executable, str(EXAMPLES / "kill_it.py"), "3", str(tmp_path / "wal"))
    assert (again.returncode, "exists; name a directory that does not exist yet" in again.stderr) == (1, True)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_it_with_the_verdict_so_far() -> None:
    """The writer gets no Ctrl-C, and is killed with the program."""
    command = [sys.executable, "-u", str(EXAMPLES / "kill_it.py"), "600"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("killed   1 ")
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert printed.splitlines()[-1].startswith("promise kept: killed ")


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_while_a_writer_starts_leaves_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process exists, and nobody knows of it yet."""
    program, start, started = load_program(EXAMPLES / "kill_it.py"), subprocess.Popen, list[subprocess.Popen[str]]()

    def interrupted(*args: Any, **kwargs: Any) -> subprocess.Popen[str]:
        started.append(start(*args, **kwargs))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    try:
        assert program.kill_it(600, str(tmp_path / "wal")) == 0
        assert [each.poll() for each in started] == [-signal.SIGKILL]
    finally:
        started[0].kill()


def test_a_writer_that_ends_by_itself_is_no_kill(tmp_path: Path) -> None:
    """Its own error says why: here it cannot create the log."""
    (tmp_path / "file").touch()
    done = run(sys.executable, str(EXAMPLES / "kill_it.py"), "3", str(tmp_path / "file" / "wal"))
    assert done.returncode == 1
    assert "Not a directory" in done.stderr and done.stderr.endswith("the writer ended by itself; its error is above\n")


async def test_lost_and_doubled_records_are_found(tmp_path: Path) -> None:
    """A record that is missing, one that was replaced by another, and one that is there twice."""
    program = load_program(EXAMPLES / "kill_it.py")
    async with MultiRecordLog.open(tmp_path / "wal", queues=program.QUEUES) as log:
        await log.append_records("red", None, [b"a", b"b", b"b"])
    nothing: dict[str, list[tuple[int, str]]] = {queue: [] for queue in program.QUEUES}
    reported = nothing | {"red": [(0, "a"), (1, "x"), (3, "d")]}
    assert await asyncio.to_thread(program.losses, str(tmp_path / "wal"), reported) == (2, 1)
    reported["red"] = [(0, "a"), (1, "b")]
    assert await asyncio.to_thread(program.losses, str(tmp_path / "wal"), reported) == (0, 1)


def test_the_disk_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each number of callers, then the disk alone; no file is left."""
    program = load_program(EXAMPLES / "measure_disk.py")
    monkeypatch.setattr(program, "ROUNDS", 2)
    monkeypatch.setattr(program, "SECONDS", 0.2)
    asyncio.run(program.measure(str(tmp_path)))
    head, *rows, disk = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["callers", "appends/s"]
    assert [row.split()[0] for row in rows] == ["1", "10", "100", "1,000"]
    assert all(float(row.split()[1].replace(",", "")) > 0 for row in rows)
    assert re.fullmatch(r"the disk alone, 4 KiB and a sync: p50 [\d.]+ ms, p99 [\d.]+ ms", disk)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "words"), [("kill_it", ["soon"]), ("measure_disk", []), ("measure_disk", ["--help"])])
def test_wrong_arguments_show_the_usage(name: str, words: list[str], tmp_path: Path) -> None:
    """The text at the top of the file; nothing is created."""
    done = run(sys.executable, str(EXAMPLES / f"{name}.py"), *words, cwd=tmp_path)
    assert (done.returncode, f"python examples/{name}.py" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())

"""A command that the warm process forks is like one that Python starts: what it reads, prints and returns."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm

COLD = pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])


@COLD
def test_input_output_directory_and_variables_are_those_of_the_command(tmp_path: Path, cold: bool) -> None:
    """It reads its own standard input, in its own directory, with its own variables, and prints to its own files."""
    dumped = '{"queue": "q", "position": 0, "text": "é"}\n'
    stored = warm.run(["load", "wal"], dumped, cwd=tmp_path, cold=cold)
    assert (stored.returncode, (tmp_path / "wal").is_dir()) == (0, True)
    shown = warm.run(["cat", "wal", "q", "--json"], b"", cwd=tmp_path, cold=cold)
    assert (shown.returncode, b'"position":0' in shown.stdout.replace(b" ", b""), shown.stderr) == (0, True, b"")
    variables = os.environ | {"MRECORDLOG_PORT": "seven"}
    refused = warm.run(["serve", "wal"], "", cwd=tmp_path, environment=variables, cold=cold)
    assert (refused.returncode, refused.stdout, "MRECORDLOG_PORT" in refused.stderr) == (2, "", True)


@COLD
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_signal_reaches_the_command_alone(tmp_path: Path, number: int, code: int, cold: bool) -> None:
    """It ends with the code that shells expect, or with the signal, and the next one runs."""
    warm.run(["append", "wal", "q", "--create"], "one", cwd=tmp_path, cold=cold)
    follow = ["cat", "wal", "q", "--follow"]
    with warm.start(follow, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cold=cold) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        assert process.poll() is None
        process.send_signal(number)
        assert (process.wait(60), process.poll()) == (code, code)
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert warm.run(["--version"], "").returncode == 0


@COLD
def test_output_that_cannot_be_written_fails_the_command(cold: bool) -> None:
    """What is left in a buffer when a command ends is written, and it says so if that fails."""
    with open("/dev/full", "wb") as full, warm.start(["--version"], stdout=full, stderr=-1, cold=cold) as process:
        _, said = process.communicate()
    assert process.returncode == 1
    assert said == b"mrecordlog: standard output: No space left on device; what was printed is incomplete\n"


def test_variables_that_python_reads_when_it_starts_have_it_started() -> None:
    """A process that runs already cannot obey them."""
    with warm.start(["--version"], environment=os.environ | {"PYTHONIOENCODING": "latin-1"}, stdout=-1) as process:
        process.communicate()
    assert not isinstance(process, warm.Forked)
    with warm.start(["--version"], stdout=-1) as process:
        process.communicate()
    assert isinstance(process, warm.Forked)

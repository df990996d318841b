"""Completion offers commands, options and values that exist."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.cli.main import build_parser
from mrecordlog_async.cli.shell import lookups
from mrecordlog_async.cli.shell.completed_word import BREAKS, LINE, SHELL, completed_words, split
from tests import warm
from tests.cli.running import build, mrecordlog
from tests.service.operated import Operated

SHELLS = {
    "bash": "\nCOMP_LINE={line}; COMP_POINT={at}; COMP_WORDS=($COMP_LINE{empty})"
    "\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))"
    '\n_mrecordlog; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "\ncomplete -C {line}",
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine find out what it can."""
    monkeypatch.setattr(lookups, "SECONDS", 60.0)


def completed(shell: str, line: str) -> list[str]:
    """Ask *shell* what it would offer for the last word of *line*; `mrecordlog` is the one under test."""
    empty = ' ""' if line.endswith(" ") else ""
    ask = SHELLS[shell].format(line=shlex.quote(line), at=len(line), empty=empty)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [shell, "-c", mrecordlog("completion", shell).out + ask],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path, "XDG_CONFIG_HOME": "/nonexistent"},
    )
    return [found.partition("\t")[0] for found in ran.stdout.splitlines() if found]


async def some_queues(log: MultiRecordLog) -> None:
    for queue in ("orders", "orders:eu", "my queue", "it's"):
        await log.create_queue(queue)
    await log.create_consumer("orders", "billing")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return build(tmp_path / "wal", some_queues)


@pytest.fixture(params=["directory", "service"])
def log(request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """The LOG to write in a line: the directory, or a service of it."""
    if request.param == "directory":
        yield str(directory)
        return
    with Operated(directory) as service:
        service.ready()
        yield f"http://127.0.0.1:{service.port}"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_options_and_values(shell: str, directory: Path) -> None:
    """The first word is a command, a word with a dash an option; queues come from the log that the line names."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert "verify" in completed(shell, "mrecordlog ver")
    assert completed(shell, "mrecordlog repair --ap") == ["--apply"]
    assert set(completed(shell, "mrecordlog configure ./wal orders --keep ")) == {
        "until_truncated",
        "until_acknowledged",
    }
    while not (queues := completed(shell, f"mrecordlog cat {directory} ord")):
        pass  # nothing is offered if the machine takes longer than a second
    assert set(queues) == {"orders", "orders:eu"}
    assert completed(shell, f"mrecordlog ls {directory}/") != ["orders"]


def test_queues_and_consumers_of_a_log_complete(log: str) -> None:
    """In place of QUEUE and CONSUMER, whether they are arguments or options."""

    def offered(line: str) -> list[str]:
        return completed_words(build_parser(), {LINE: f"mrecordlog {line}", SHELL: "fish"})

    assert sorted(offered(f"cat {log} ")) == ["it's", "my queue", "orders", "orders:eu"]
    assert offered(f"append --lines {log} m") == ["my queue"]
    assert offered(f"consume {log} orders --exec 'cat {{}}' --consumer b") == ["billing"]
    assert offered(f"consumers {log} orders --seek ") == ["billing"]
    assert offered(f"consumers {log} orders --seek billing ") == []
    assert offered(f"truncate {log} orders ") == []
    assert offered(f"ls {log} ") == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("serve --persist ", ["always", "interval:", "never"]),
        ("serve --log-level=d", ["debug"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("lake ", ["show"]),
        ("ls h", ["http://127.0.0.1:8080"]),
        ("ls ", []),
        ("verify /et", []),
        ("nosuchcommand ", []),
    ],
)
def test_values_that_are_known_beforehand_complete(line: str, offered: list[str]) -> None:
    """Paths are left to the shell."""
    assert completed_words(build_parser(), {LINE: f"mrecordlog {line}"}) == offered


def test_names_are_quoted_as_the_shell_inserts_them(directory: Path) -> None:
    """bash takes a colon for the end of a word, so what precedes it stays in the line."""

    def offered(word: str) -> list[str]:
        line = {LINE: f"mrecordlog cat {directory} {word}", BREAKS: " \"'><=;|&(:"}
        return completed_words(build_parser(), line)

    assert offered("my") == ["'my queue'"] and offered("'my") == ["my queue"]
    assert offered("my\\ q") == ["'my queue'"] and offered("it") == ["'it'\"'\"'s'"]
    assert offered("orders:") == ["eu"]
    assert split("mrecordlog cat ./a\\") == (["mrecordlog", "cat", "./a"], "")


def test_a_log_that_cannot_be_read_completes_nothing(tmp_path: Path) -> None:
    """Neither a message nor a traceback gets into the line that is being typed."""
    for log in (tmp_path / "nowhere", "http://127.0.0.1:1"):
        ran = warm.run([], b"", environment=os.environ | {LINE: f"mrecordlog cat {log} o"})
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_every_shell_gets_every_command() -> None:
    """zsh uses the script of bash; fish has a line for each command."""
    assert "bashcompinit" in mrecordlog("completion", "zsh").out
    fish = mrecordlog("completion", "fish").out
    assert "-a repair -d 'Read around the damage in a log and, with --apply, write what is left as a new log.'" in fish
    assert "-l drained" in fish

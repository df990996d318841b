"""Completion offers commands, options and values that exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrecordlog_async import MultiRecordLog
from mrecordlog_async.cli.completion import VARIABLE, split
from tests import warm
from tests.cli.running import build, mrecordlog
from tests.service.operated import Operated

SHELLS = ("bash", "zsh", "fish")
ASK = {
    "bash": """{script}
COMP_LINE={line}; COMP_POINT={at}; COMP_WORDS=($COMP_LINE{empty}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_mrecordlog_completion; printf "%s\\n" "${{COMPREPLY[@]}}"
""",
    "fish": "{script}\ncomplete -C {line}",
    # zsh completes only in its editor: what its script would hand to the editor is printed instead.
    "zsh": """compdef() {{ : }}
_path_files() {{ : }}
compadd() {{ print -l -- "${{(@P)@[-1]}}" }}
_describe() {{ print -l -- "${{(@P)3}}" }}
{script}
words=({line}{empty}); CURRENT=$#words
_mrecordlog_completion
""",
}


def completed(shell: str, line: str) -> list[str]:
    """Ask *shell* what it would offer for the last word of *line*; `mrecordlog` is the one under test."""
    empty = ' ""' if line.endswith(" ") else ""
    script = mrecordlog("completion", shell).out
    quoted = line if shell == "zsh" else shlex.quote(line)
    ask = ASK[shell].format(script=script, line=quoted, at=len(line), empty=empty)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [shell, *(("-f",) if shell == "zsh" else ()), "-c", ask],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path, "XDG_CONFIG_HOME": "/nonexistent"},
    )
    return [re.sub(r":[A-Z].*", "", found.partition("\t")[0]) for found in ran.stdout.splitlines() if found]


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


def offered(line: str) -> list[str]:
    """Return what the command offers for the last word of *line*, as fish gets it."""
    environment = {"COMP_LINE": f"mrecordlog {line}", VARIABLE: "fish_complete"}
    ran = warm.run([], b"", environment=os.environ | environment)
    assert (ran.returncode, ran.stderr) == (0, b"")
    return [found.partition("\t")[0] for found in ran.stdout.decode().splitlines()]


def test_queues_and_consumers_of_a_log_complete(log: str) -> None:
    """In place of QUEUE and CONSUMER, whether they are arguments or options."""
    while not (queues := offered(f"cat {log} ")):
        pass  # nothing is offered if the machine takes longer than a second
    assert sorted(queues) == ["it's", "my queue", "orders", "orders:eu"]
    assert offered(f"append --lines {log} m") == ["my queue"]
    assert offered(f"consume {log} orders --exec 'cat {{}}' --consumer b") == ["billing"]
    assert offered(f"consumers {log} orders --seek ") == ["billing"]
    assert offered(f"dump {log} orders my") == ["my queue"]
    assert offered(f"truncate {log} orders ") == []
    assert offered(f"ls {log} ") == []


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("serve --persist ", ["always", "interval:", "never"]),
        ("serve --log-level=d", ["debug"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("lake ", ["show"]),
        ("ls h", ["http://127.0.0.1:8080"]),
        ("ls ", []),
        ("consumers --delete ", []),
        ("verify /et", []),
        ("nosuchcommand ", []),
    ],
)
def test_values_that_are_known_beforehand_complete(line: str, known: list[str]) -> None:
    """Paths are left to the shell."""
    assert offered(line) == known


def test_names_are_quoted_as_the_shell_inserts_them(directory: Path) -> None:
    """bash takes a colon for the end of a word, so what precedes it stays in the line."""

    def inserted(word: str) -> list[str]:
        """Return what replaces the end of the word."""
        line = {"COMP_LINE": f"mrecordlog cat {directory} {word}", "COMP_BREAKS": " \"'><=;|&(:"}
        ran = warm.run([], b"", environment=os.environ | line | {VARIABLE: "bash_complete"})
        found: list[str] = ran.stdout.decode().splitlines()
        return found

    while not inserted("my"):
        pass  # nothing is offered if the machine takes longer than a second
    assert inserted("my") == ["'my queue'"] and inserted("'my") == ["my queue"]
    assert inserted("my\\ q") == ["'my queue'"] and inserted("it") == ["'it'\"'\"'s'"]
    assert inserted("orders:") == ["eu"]
    assert split("mrecordlog cat ./a\\") == (["mrecordlog", "cat", "./a"], "")


def test_a_log_that_cannot_be_read_completes_nothing(tmp_path: Path) -> None:
    """Neither a message nor a traceback gets into the line that is being typed."""
    for log in (tmp_path / "nowhere", "http://127.0.0.1:1"):
        ran = warm.run(
            [], b"", environment=os.environ | {"COMP_LINE": f"mrecordlog cat {log} o", VARIABLE: "bash_complete"}
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_a_name_keeps_its_comma_and_its_help_is_no_part_of_it(tmp_path: Path) -> None:
    """fish gets one name a line; commands come with what they do."""

    async def fill(log: MultiRecordLog) -> None:
        await log.create_queue("a,b")

    directory = build(tmp_path / "wal", fill)
    while not (found := offered(f"cat {directory} ")):
        pass  # nothing is offered if the machine takes longer than a second
    assert found == ["a,b"]
    environment = {"COMP_LINE": "mrecordlog verif", VARIABLE: "fish_complete"}
    assert warm.run([], b"", environment=os.environ | environment).stdout == b"verify\tVerify every byte of a log\n"

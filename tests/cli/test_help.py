"""Help fits a terminal, and costs no import that a command needs when it runs."""

from __future__ import annotations

import re
import subprocess
import sys

import click
import pytest

from mrecordlog_async.cli.main import COMMANDS, GROUPS, cli, main
from tests.compatibility.surface import hooks
from tests.docs.blocks import ROOT

LOADED_AT_START = ("asyncio", "mrecordlog_async.engine", "mrecordlog_async.log", "mrecordlog_async.maintenance")
OPTIONS_MAX = 95


def helped(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the help of a command."""
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def test_help_lists_every_command_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is listed under one heading, with one sentence."""
    text = helped(capsys)
    headings = [text.index(f"{title}:") for title in GROUPS]
    assert headings == sorted(headings)
    for name, (_, summary) in COMMANDS.items():
        assert len(re.findall(rf"^  {name} +{summary}", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_prose_of_a_help_fits_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only examples, which can be pasted, are wider; help contains no Markdown."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = helped(capsys, *filter(None, [name])).splitlines()
    assert [line for line in lines if len(line) > 80 and "mrecordlog " not in line] == []
    assert lines[0].startswith(f"Usage: mrecordlog {name}".rstrip())


@pytest.mark.parametrize(
    "name", ["append", "cat", "ls", "configure", "truncate", "delete", "consume", "consumers", "top", "dump", "load"]
)
def test_the_log_is_the_first_argument(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first argument is a directory or a URL, the second is the queue."""
    words = helped(capsys, name).splitlines()[0].removeprefix(f"Usage: mrecordlog {name} ").split()
    assert words[0].startswith("LOG") and words[-1] == "[options]"
    assert not any("QUEUE" in word for word in words[2:])


def test_every_option_of_every_command_is_counted() -> None:
    """Pairs of command and option, each once: more than this nobody reads."""
    counted = hooks().options_of
    assert sum(len(counted(name)) for name in COMMANDS) <= OPTIONS_MAX


def test_every_option_has_a_sentence() -> None:
    """It says what the option changes, and ends with a full stop."""
    for name in COMMANDS:
        for param in hooks().command(name).params:
            if isinstance(param, click.Option):
                assert param.help is not None and re.fullmatch(r'[A-Z"].*\.', param.help), (name, param.opts)


@pytest.mark.parametrize("words", ["--help", "cat --help", "drain --help", "nosuch", "ls --jsn", "--version"])
def test_what_no_command_has_to_do_imports_little(words: str) -> None:
    """`--help`, a typing error and each Tab press start as fast as Python and click."""
    program = "import sys; from mrecordlog_async.cli.main import main; main(); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert not {*ran.stdout.splitlines()[-1].split()}.intersection(LOADED_AT_START)


def test_the_bare_name_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Who types it wants to know what there is. The exit code is that of wrong usage, for a script that lost a word."""
    shown = helped(capsys)
    assert main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (shown, "")


@pytest.mark.parametrize(("words", "same"), [(["help"], []), (["help", "ls"], ["ls"])])
def test_help_is_a_command_too(words: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As in git and cargo: `mrecordlog help`, `mrecordlog help ls`."""
    assert main(words) == 0
    assert capsys.readouterr().out == helped(capsys, *same) != ""


def test_the_table_of_commands_names_what_the_modules_have() -> None:
    """A command that is listed can be imported."""
    ctx = click.Context(cli)
    assert [cli.get_command(ctx, name) for name in COMMANDS].count(None) == 0

"""Completion offers the commands and options that exist."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.running import mrecordlog

ASK = "\nCOMP_WORDS=(mrecordlog {words}); COMP_CWORD={index}; _mrecordlog; echo ${{COMPREPLY[@]}}"


def completed(*words: str) -> list[str]:
    """Ask bash what it would offer for the last word."""
    script = mrecordlog("completion", "bash").out + ASK.format(words=" ".join(words), index=len(words))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_and_options() -> None:
    """The first word is a command, and a word with a dash is one of its options."""
    assert completed("ver") == ["verify"]
    assert completed("import-quickwit", "--a") == ["--accept-damage"]
    assert "--pins" in completed("inspect", "--")


def test_every_shell_gets_every_command() -> None:
    """zsh uses the script of bash; fish has a line for each command."""
    assert "bashcompinit" in mrecordlog("completion", "zsh").out
    fish = mrecordlog("completion", "fish").out
    assert "-a repair -d 'Read around the damage in a log and, with --apply, write what is left as a new log.'" in fish
    assert "-l pins" in fish

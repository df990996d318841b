"""Finds the blocks of code in README and docs, and runs them as a reader would, next to a service if they need one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS, Example, OutputChecker
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"
STEPS = (README, TUTORIAL)
"""Pages that are followed from top to bottom in one directory: they have separate tests."""
RUN = ("python", "bash", "console")
SHOWN = ("text",)

_BLOCK = re.compile(r"(?:^ *<!-- ((?:(?!-->).)*) -->\n)?^( *)```(\w*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
_SERVICE = "localhost:8080"


@dataclass(frozen=True, slots=True)
class Block:
    """A block, its language, and the comment above it."""

    language: str
    text: str
    note: str

    @property
    def reason(self) -> str:
        """Why it is not run, "" where it is."""
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else ""

    @property
    def needs_service(self) -> bool:
        return not self.reason and _SERVICE in self.text


def blocks(page: Path) -> list[Block]:
    """Return all blocks of *page*, in order, those in lists too."""
    return [Block(language, dedent(text), note) for note, _, language, text in _BLOCK.findall(page.read_text())]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Reader:
    """Runs the blocks of one page in one directory, as a reader would."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self._directory = directory
        self._address = url.removeprefix("http://") if url else _SERVICE

    def run(self, block: Block) -> str:
        """Run *block* and return what it printed. Fail if it fails, or if a session's output differs."""
        if block.language == "python":
            return self._succeed([sys.executable, "-W", "error", "-c", self._addressed(block.text)])
        if block.language == "bash":
            return self._succeed(["bash", "-ec", _COMMANDS + self._addressed(block.text)])
        return self._session(self._addressed(block.text))

    def _addressed(self, text: str) -> str:
        return text.replace(_SERVICE, self._address)

    def _session(self, text: str) -> str:
        checker, printed = OutputChecker(), ""
        for command, expected in steps(text):
            printed = self._succeed(["bash", "-c", _COMMANDS + command])
            difference = checker.output_difference(Example("", expected), printed, ELLIPSIS)
            assert checker.check_output(expected, printed, ELLIPSIS), f"$ {command}{difference}"
        return printed

    def _succeed(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self._directory,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=1_000,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        return done.stdout


_COMMANDS = f"""\
mrecordlog() {{ "{sys.executable}" -m mrecordlog_async "$@"; }}
python() {{ "{sys.executable}" "$@"; }}
curl() {{ command curl --silent --show-error --fail "$@"; }}
"""


def steps(session: str) -> Iterator[tuple[str, str]]:
    """Yield (command, output) of a console session; lines with ">" continue a command."""
    for step in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        lines = step.splitlines(keepends=True)
        more = next((at for at, line in enumerate(lines[1:], 1) if not re.match(r">( |$)", line)), len(lines))
        yield lines[0] + "".join(line[2:] or "\n" for line in lines[1:more]), "".join(lines[more:])

"""Every command of the tour is run, and prints what the tour shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from doctest import ELLIPSIS, Example, OutputChecker
from pathlib import Path

from tests.said import at_any_speed

ROOT = Path(__file__).parents[3]
TOUR = (ROOT / "examples" / "tour.md").read_text()


def steps() -> list[tuple[str, str]]:
    """Return (command, output) of the console blocks, in order; lines with "> " continue a command."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", TOUR, re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = step.splitlines(keepends=True)
            more = next((at for at, line in enumerate(lines[1:], 1) if not line.startswith("> ")), len(lines))
            command = lines[0] + "".join(line[2:] for line in lines[1:more])
            found.append((command, "".join(lines[more:])))
    return found


def test_the_tour_prints_what_it_shows(tmp_path: Path) -> None:
    """A reader who types the commands sees the same output."""
    mrecordlog = f'mrecordlog() {{ "{sys.executable}" -m mrecordlog_async "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    checker = OutputChecker()
    assert len(steps()) > 12
    for command, expected in steps():
        done = subprocess.run(
            ["bash", "-c", mrecordlog + command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        assert at_any_speed(done.stderr) == ""
        difference = checker.output_difference(Example("", expected), done.stdout, ELLIPSIS)
        assert checker.check_output(expected, done.stdout, ELLIPSIS), f"$ {command}{difference}"

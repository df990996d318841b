"""What the README shows runs, and its commands are the ones that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("program", [program for program in PROGRAMS if "asyncio.run(" in program])
def test_programs_of_the_readme_run(program: str, tmp_path: Path) -> None:
    """A reader can paste what stands there and see it work."""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 b'two coffees'\n"


@pytest.mark.parametrize("program", [program for program in PROGRAMS if "asyncio.run(" not in program])
def test_parts_of_applications_in_the_readme_can_be_pasted(program: str, tmp_path: Path) -> None:
    """Names, imports and calls in the shown parts exist; nothing is opened before an application starts."""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ci_runs_the_readmes_test_command() -> None:
    """What CI runs is what a reader is told to run."""
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest"
    assert f"    {command}\n" in README
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()

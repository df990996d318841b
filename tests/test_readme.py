"""The README's commands and programs are the real ones, and it stays short. `tests/deep/docs` follows it to its end."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from typing import Any

from tests.docs.blocks import README, ROOT, blocks

TEXT = README.read_text()


FIRST = re.findall(r"^    (python3 -m venv .*) && (.*)$", TEXT, re.MULTILINE)[0]
"""The first command: an installation, and what it starts."""
(PROGRAM,) = (block.text for block in blocks(README) if block.language == "python")


def test_the_readme_shows_the_program_that_its_command_starts() -> None:
    """What a reader sees is what runs."""
    assert "--app-dir examples fastapi_ingest:app " in FIRST[1]
    assert (ROOT / "examples" / "fastapi_ingest.py").read_text() == PROGRAM


def test_the_readme_declares_the_consumers_that_it_runs() -> None:
    """Any other would keep the records for ever: here, that of its drain."""
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    assert names["consumers"] == {"clicks": re.findall(r"--consumer (\w+)", TEXT)}


def test_the_readme_installs_what_it_uses() -> None:
    """The extras that its commands name exist, and bring what its programs import; uvicorn is named itself."""
    named = set(re.findall(r"pip install -e '\.\[([\w,]+)\]'", TEXT))
    assert named == {"fastapi", "dev", "spark,java"}
    assert set(",".join(named).split(",")) <= set(
        distribution("mrecordlog_async").metadata.get_all("Provides-Extra") or ()
    )
    assert "uvicorn" in FIRST[0]


def test_ci_runs_the_readmes_test_command() -> None:
    """CI runs the command that the README gives."""
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest"
    assert f"    {command}\n" in TEXT
    assert f"    {command}\n" in (ROOT / "CONTRIBUTING.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_stays_short() -> None:
    """A newcomer sees the command first, what it stored on the first screen, and one next step for each purpose."""
    assert len(TEXT.splitlines()) <= 90
    assert len(TEXT.partition("python3 -m venv")[0].splitlines()) <= 10
    assert len(TEXT.partition('{\\"event\\": 1}')[0].splitlines()) <= 30
    assert len(re.findall(r"\]\((?!https?:|docs/images/)", TEXT)) <= 9
    steps = re.findall(r"^\* (\w+) it\b", TEXT.partition("## Next")[2], re.MULTILINE)
    assert steps == ["Embed", "Run", "Drain", "Operate"]

"""The README's commands are the real ones, and it stays short. It works from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.docs.blocks import README, ROOT, Block, blocks
from tests.docs.session import Session

TEXT = README.read_text()


@pytest.mark.skipif(which("curl") is None, reason="curl is not installed")
def test_the_readme_works_from_top_to_bottom(tmp_path: Path) -> None:
    """A reader who types everything in one directory, in order, sees what is printed here. Only pip is not run."""
    session = Session(tmp_path, ports=("8000", "8080"))
    try:
        printed = dict(_followed(session))
    finally:
        session.end()
    assert list(printed) == ["app.py", "first.py", "send.py", *(["show.py"] if find_spec("pyspark") else [])]
    assert printed["app.py"] == '{"position":0}\n'
    assert printed["first.py"].startswith("0 b'two coffees'\n")
    assert '"payload":"two coffees"' in printed["first.py"]  # the service reads it back, and truncates it
    assert "one tea" not in printed["send.py"]
    if "show.py" in printed:
        assert "one tea" in printed["show.py"] or "6F 6E 65 20 74" in printed["show.py"]


def _followed(session: Session) -> Iterator[tuple[str, str]]:
    """Do the steps; yield each program with what it and the commands up to the next one print."""
    program, printed = "", ""
    for block in blocks(README):
        if "spark" in block.text and find_spec("pyspark") is None:
            continue
        if block.note.startswith("file: "):
            if program:
                yield program, printed
            program, printed = block.note.removeprefix("file: "), ""
        printed += session.do(block)
        if block.note.startswith("file: ") and f"run it with `.venv/bin/python {program}`" in TEXT:
            printed += session.do(Block("bash", f".venv/bin/python {program}", ""))
    yield program, printed


def test_the_readme_installs_what_it_uses() -> None:
    """The extras that its commands name exist, and bring what its programs import; uvicorn is named itself."""
    named = set(re.findall(r"pip install -e '\.\[([\w,]+)\]'", TEXT))
    assert named == {"server,fastapi", "dev", "spark,java"}
    assert set(",".join(named).split(",")) <= set(
        distribution("mrecordlog_async").metadata.get_all("Provides-Extra") or ()
    )
    assert "uvicorn" in TEXT.partition(".venv/bin/uvicorn")[0]


def test_ci_runs_the_readmes_test_command() -> None:
    """CI runs the command that the README gives."""
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest -n auto --dist loadfile"
    assert f"    {command}\n" in TEXT
    assert f"    {command}\n" in (ROOT / "CONTRIBUTING.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_stays_short() -> None:
    """The README has what a newcomer needs first, and the endpoint runs on its first screen; the rest is in docs."""
    assert len(TEXT.splitlines()) <= 170
    assert len(TEXT.partition('{"position":0}')[0].splitlines()) <= 46

"""The README's commands are the real ones, and it stays short. It works from top to bottom."""

from __future__ import annotations

import re
from asyncio import sleep, timeout
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from mrecordlog_async.fastapi import log_of
from tests.docs.blocks import README, ROOT, Block, blocks, with_worker
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
    assert list(printed) == ["app.py", "first.py", *(["show.py"] if find_spec("pyspark") else [])]
    assert printed["app.py"] == '{"position":0}\n'
    assert printed["first.py"].startswith("0 b'two coffees'\n")
    assert '"payload":"two coffees"' in printed["first.py"]  # the service reads it back
    if "show.py" in printed:
        assert "two coffees" in printed["show.py"] or "74 77 6F 20 63" in printed["show.py"]


async def test_the_worker_of_the_readme_delivers_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It replaces one line of the program, gets the records of an earlier run, and they are deleted."""
    monkeypatch.chdir(tmp_path)
    endpoint, worker = (block.text for block in blocks(README) if "lifespan(" in block.text)
    async with _application(endpoint) as names:
        await log_of(names["app"]).append("clicks", b"stored before")
    async with _application(with_worker(endpoint, worker)) as names, timeout(60):
        while log_of(names["app"]).first_position("clicks") == 0:
            await sleep(0.01)
    assert "stored before" in capsys.readouterr().out


@asynccontextmanager
async def _application(program: str) -> AsyncIterator[dict[str, Any]]:
    names: dict[str, Any] = {"__name__": "app"}
    exec(program, names)
    async with names["app"].router.lifespan_context(names["app"]):
        yield names


def _followed(session: Session) -> Iterator[tuple[str, str]]:
    """Do the steps; yield each program with what it and the commands up to the next one print."""
    program, printed = "", ""
    for block in blocks(README):
        if block.note.startswith("in ") or ("spark" in block.text and find_spec("pyspark") is None):
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

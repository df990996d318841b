"""The README's commands and programs are the real ones, and it stays short. `tests/deep/docs` follows it to its end."""

from __future__ import annotations

import re
from asyncio import sleep, timeout
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from mrecordlog_async.fastapi import log_of
from tests.docs.blocks import README, ROOT, blocks, with_worker

TEXT = README.read_text()


FIRST = re.findall(r"^    (python3 -m venv .*) && (.*)$", TEXT, re.MULTILINE)[0]
"""The first command: an installation, and what it starts."""


def test_the_readme_shows_the_program_that_its_command_starts() -> None:
    """What a reader sees is what runs."""
    assert "--app-dir examples fastapi_ingest:app " in FIRST[1]
    assert _programs()[0] == (ROOT / "examples" / "fastapi_ingest.py").read_text()


async def test_the_worker_of_the_readme_delivers_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It replaces one line of the program, and gets the records of an earlier run; the lake still does, too."""
    monkeypatch.chdir(tmp_path)
    endpoint, worker = _programs()
    async with _application(endpoint) as names:
        await log_of(names["app"]).append("clicks", b"stored before")
    async with _application(with_worker(endpoint, worker)) as names, timeout(60):
        log = log_of(names["app"])
        while log.consumers("clicks")["delivery"].position == 0:
            await sleep(0.01)
        assert [payload for _, payload in log.range("clicks")] == [b"stored before"]
        async with log.consumer("clicks", "lake") as lake:
            await lake.acknowledge(0)
        assert list(log.range("clicks")) == []
    assert "stored before" in capsys.readouterr().out


def _programs() -> list[str]:
    return [block.text for block in blocks(README) if block.language == "python"]


@asynccontextmanager
async def _application(program: str) -> AsyncIterator[dict[str, Any]]:
    names: dict[str, Any] = {"__name__": "app"}
    exec(program, names)
    async with names["app"].router.lifespan_context(names["app"]):
        yield names


def test_the_readme_installs_what_it_uses() -> None:
    """The extras that its commands name exist, and bring what its programs import; uvicorn is named itself."""
    named = set(re.findall(r"pip install -e '\.\[([\w,]+)\]'", TEXT))
    assert named == {"server,fastapi", "dev", "spark,java"}
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
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.partition("python3 -m venv")[0].splitlines()) <= 10
    assert len(TEXT.partition('{\\"event\\": 1}')[0].splitlines()) <= 30
    assert len(re.findall(r"\]\((?!https?:|docs/images/)", TEXT)) <= 10

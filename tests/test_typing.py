"""The types that an application sees: strict type checkers accept what the pages show, and infer what is returned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks

PROGRAM = """
from typing import assert_type

from mrecordlog_async import MultiRecordLog, RecordLog
from mrecordlog_async.client import RecordLogClient


async def work(log: RecordLog) -> None:
    assert_type(await log.append("q", b"a", create=True), int)
    async with log.consumer("q", "c") as consumer:
        async for batch in consumer.batches():
            await consumer.acknowledge(batch)


async def use_both(log: MultiRecordLog, client: RecordLogClient) -> None:
    await work(log)
    await work(client)


async def use(log: MultiRecordLog, client: RecordLogClient, position: int | None) -> None:
    assert_type(await log.append_record("q", None, b"a"), int)
    assert_type(await log.append_record("q", None, b"a", create=True), int)
    assert_type(await log.append_record("q", 7, b"a"), int | None)
    assert_type(await log.append_record("q", position, b"a"), int | None)
    assert_type(await log.append("q", b"a"), int)
    assert_type(await log.append("q", b"a", 7), int | None)
    assert_type(await log.append_records("q", None, [b"a"]), int | None)
    assert_type(await client.append_record("q", None, b"a"), int)
    assert_type(await client.append_record("q", position, b"a"), int | None)
    assert_type(await client.append("q", b"a"), int)
    await log.truncate("q", await log.append("q", b"a"))
    await log.append("q", "text")  # type: ignore[call-overload]
    log.append("q", b"a")  # type: ignore[unused-coroutine]
"""


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """Write down what users write: the examples that need no Spark, the blocks of the pages, and PROGRAM."""
    pages = (ROOT / "README.md", ROOT / "docs" / "frameworks.md", ROOT / "docs" / "client.md")
    texts = {
        f"{page.stem.lower()}_{number}": block.text
        for page in pages
        for number, block in enumerate(blocks(page))
        if block.language == "python" and "spark" not in block.text
    }
    for name in ("aiohttp_ingest", "fastapi_ingest", "worker", "two_consumers", "graceful_shutdown"):
        texts[name] = (ROOT / "examples" / f"{name}.py").read_text()
    for name, text in {**texts, "user": PROGRAM}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return [str(path) for path in sorted(tmp_path.iterdir())]


def test_programs_of_the_pages_and_of_users_are_clean_under_mypy_strict(programs: list[str]) -> None:
    """A record that was appended without a position has one; a str payload and a forgotten await are reported."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_programs_are_clean_under_pyright_strict(programs: list[str], tmp_path: Path) -> None:
    """Nothing that the package returns is of an unknown type; the two mistakes in PROGRAM are found here too."""
    rules = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr

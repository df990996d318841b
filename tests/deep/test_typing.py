"""The types that an application sees: strict type checkers accept what the pages show, and infer what is returned.

They check programs next to an installed wheel, as they do for users: without its type marker it would have no types.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deep.built import build, install
from tests.docs.blocks import ROOT, blocks

PROGRAM = """
from typing import assert_type

from mrecordlog_async import Batch, MultiRecordLog, Record, RecordLog
from mrecordlog_async.client import BlockingRecordLogClient, RecordLogClient


async def work(log: RecordLog) -> None:
    assert_type(await log.append("q", b"a", create=True), int)
    async with log.consumer("q", "c") as consumer:
        async for batch in consumer.batches():
            assert_type(batch.payloads(), list[bytes])
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


async def read(log: MultiRecordLog, client: RecordLogClient) -> None:
    for record in log.range("q", limit=10):
        assert_type(record, Record)
        assert_type(record.payload, bytes)
    async for batch in log.tail("q").batches(max_records=10):
        assert_type(batch, Batch)
    async for record in client.tail("q"):
        assert_type(record, Record)


def block(client: BlockingRecordLogClient) -> None:
    assert_type(client.append("q", b"a"), int)
    assert_type(client.append_records("q", None, [b"a"]), int | None)
    for record in client.range("q"):
        assert_type(record, Record)
    with client.consumer("q", "c") as consumer:
        for batch in consumer.batches():
            consumer.acknowledge(batch)
"""
PAGES = ("README", *(f"docs/{page}" for page in ("library", "frameworks", "client", "consumers", "recipes")))
EXAMPLES = ("aiohttp_ingest", "fastapi_ingest", "worker", "two_consumers", "kill_it", "measure_disk", "import_quickwit")
UNTYPED = ("spark", "uvicorn_worker", "pyarrow", "deltalake", "opentelemetry")
"""Packages without types: what is derived from them has none."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel where the packages of this environment are found too; return the Python."""
    place = tmp_path_factory.mktemp("typing")
    (wheel,) = build(place, "--wheel").glob("*.whl")
    return install(wheel, place / "environment", extras=True)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Write down what users write: the examples that need no Spark, the blocks of the pages, and PROGRAM."""
    texts = {
        f"{Path(page).name.lower()}_{number}": block.text
        for page in PAGES
        for number, block in enumerate(blocks(ROOT / f"{page}.md"))
        if block.language == "python" and not any(name in block.text for name in UNTYPED)
    }
    for name in EXAMPLES:
        texts[name] = (ROOT / "examples" / f"{name}.py").read_text()
    for name, text in {**texts, "user": PROGRAM}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_programs_of_the_pages_and_of_users_are_clean_under_mypy_strict(programs: Path, python: Path) -> None:
    """A record that was appended without a position has one; a str payload and a forgotten await are reported."""
    command = [sys.executable, "-m", "mypy", "--strict", "--enable-error-code", "unused-coroutine"]
    command += ["--python-executable", str(python), *(path.name for path in sorted(programs.glob("*.py")))]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_programs_are_clean_under_pyright_strict(programs: Path, python: Path) -> None:
    """Nothing that the package returns is of an unknown type; the two mistakes in PROGRAM are found here too."""
    rules = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}
    (programs / "pyrightconfig.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", str(python), "--project", str(programs)]
    done = subprocess.run(command, cwd=programs, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr

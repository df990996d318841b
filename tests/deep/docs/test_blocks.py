"""What README and docs show runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.docs.blocks import PAGES, ROOT, RUN, SHOWN, STEPS, Block, Reader, blocks, name_of
from tests.serving import Process


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with Process(tmp_path / "wal") as service:
        yield service.address


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A block runs, or shows output, or states why it is not run."""
    for block in blocks(page):
        assert block.language in RUN + SHOWN, block.text
        assert not block.note.startswith("not run") or block.reason


def _runnable(page: Path) -> list[Block]:
    return [] if page in STEPS else [block for block in blocks(page) if block.language in RUN and not block.reason]


def _of_spark(block: Block) -> bool:
    return (block.language == "python" and "spark" in block.text) or "mrecordlog drain" in block.text


def _pages(*, service: bool) -> list[Path]:
    return [page for page in PAGES if _runnable(page) and any(b.needs_service for b in _runnable(page)) == service]


@pytest.mark.parametrize("page", _pages(service=False), ids=name_of)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    """A reader who types the blocks of a page, one after another, sees them work."""
    reader = Reader(tmp_path)
    for block in _runnable(page):
        reader.run(block)


@pytest.mark.parametrize("page", _pages(service=True), ids=name_of)
def test_pages_run_next_to_a_service(page: Path, url: str, tmp_path: Path) -> None:
    """A reader who has started the service sees the blocks of a page work. Blocks of Spark have a separate test."""
    if which("curl") is None:
        pytest.skip("curl is not installed")
    for number, block in enumerate(_runnable(page)):
        if not _of_spark(block):
            work = tmp_path / str(number)
            work.mkdir()
            Reader(work, url).run(block)


@pytest.mark.parametrize("page", [p for p in PAGES if any(map(_of_spark, _runnable(p)))], ids=name_of)
def test_blocks_of_spark_run(page: Path, url: str, tmp_path: Path) -> None:
    """The Python blocks of a page are one program; they run next to a service, and a drain after them."""
    if which("curl") is None or find_spec("pyspark") is None:
        pytest.skip("curl or pyspark is not installed")
    reader = Reader(tmp_path, url)
    reader.run(Block("bash", "curl -X POST 'localhost:8080/v1/queues/q/records?create=1' --data-binary one", ""))
    found = [block for block in _runnable(page) if _of_spark(block)]
    reader.run(Block("python", "\n".join(block.text for block in found if block.language == "python"), ""))
    for block in found:
        if block.language == "bash":
            reader.run(block)


@pytest.mark.parametrize("file", [*PAGES, *sorted((ROOT / "examples").rglob("*.py"))], ids=name_of)
def test_every_server_that_is_started_bounds_its_end(file: Path) -> None:
    """Without a limit, uvicorn waits at SIGTERM for a body that never arrives, and aiohttp for a minute."""
    for line in file.read_text().splitlines():
        if re.search(r"uvicorn (--[\w-]+ \S+ )*\w+:app\b", line) and "pkill" not in line:
            assert "--timeout-graceful-shutdown 10" in line
        for call in re.findall(r"run_app\((?:[^()]|\([^()]*\))*\)", line):
            assert "shutdown_timeout=10" in call
        if "uvicorn.Config(" in line:
            assert "timeout_graceful_shutdown=10" in line

"""A reader who follows the README from top to bottom sees what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.docs.blocks import README, ROOT, Block, blocks
from tests.docs.session import Session
from tests.test_readme import FIRST


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A reader in a checkout. The README names no port, and uvicorn listens at 8000."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    found = Session(tmp_path, ports=("8000",))
    yield found
    found.end()


def test_the_readme_works_from_top_to_bottom(session: Session) -> None:
    """A reader who types everything, without waiting for anything, sees what is printed here. Only pip is not run."""
    if which("curl") is None:
        pytest.skip("curl is not installed")
    serve = f"{FIRST[1]} --port 8000"
    store, read, *lake = [block for block in blocks(README) if block.language != "python"]
    session.start(serve)
    session.do(store)
    session.start(serve)
    assert session.do(read)
    if find_spec("pyspark"):
        printed = "".join(map(session.do, map(_without_pip, lake)))
        assert "1 row in 1 file" in printed
        assert printed.endswith("\n[{'position': 0, 'event': 1}]\n")


def _without_pip(block: Block) -> Block:
    install = re.compile(r"^\S+pip install \S+ \S+ && ", re.MULTILINE)
    assert install.search(block.text)
    return replace(block, text=install.sub("", block.text))

"""A reader who follows the tutorial step by step sees what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pytest

from tests.docs.blocks import TUTORIAL, blocks
from tests.docs.session import Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    directory = tmp_path / "my clicks"  # a path with a space, as people have
    directory.mkdir()
    found = Session(directory)
    yield found
    found.end()


def test_the_tutorial_works(session: Session) -> None:
    """From FastAPI over two consumers to Parquet and Delta, over a kill too: it prints what the page shows."""
    if which("curl") is None or find_spec("pyspark") is None:
        pytest.skip("curl or pyspark is not installed")
    steps = [block for block in blocks(TUTORIAL) if not block.reason]
    assert len(steps) > 10 and re.search("pkill -9", "".join(block.text for block in steps))
    for block in steps:
        session.do(block)

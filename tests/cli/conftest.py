"""What tests of several commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import Process


@pytest.fixture(params=["service", "directory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the log to work on: a running service, or the files."""
    if request.param == "directory":
        yield str(tmp_path / "wal")
        return
    with Process(tmp_path / "wal") as process:
        yield process.address

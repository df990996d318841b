"""Tests here run long without hanging: some take a minute, and a machine may be busy with other things."""

from __future__ import annotations

from pathlib import Path

import pytest

HANGS_AFTER_SECONDS = 1_800


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of the tests below this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_SECONDS))

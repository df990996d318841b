"""Tests here run long without hanging: some take a minute, and a machine may be busy with other things.

Those with the mark `nightly` run with `--nightly` alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HANGS_AFTER_SECONDS = 1_800


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise the timeout of the tests below this folder, and leave those of the night to the night."""
    if not config.getoption("--nightly"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_SECONDS))

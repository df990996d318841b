"""What works with which extra installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("mrecordlog_async.protocol", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.protocol.wire", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.protocol.schemas", ["aiohttp", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.fastapi", ["aiohttp", "prometheus_client", "uvloop"]),
        ("mrecordlog_async.client", ["prometheus_client", "fastapi", "uvloop", "pyarrow"]),
        ("mrecordlog_async.service.server", ["fastapi", "uvloop", "pyarrow", "pyspark", "rich"]),
        (
            "mrecordlog_async.cli.main",
            ["aiohttp", "msgspec", "prometheus_client", "uvloop", "pyarrow", "pyspark", "rich"],
        ),
    ],
)
def test_a_room_needs_only_its_own_extra(module: str, without: list[str]) -> None:
    """Importing it works where the packages of the other extras are not installed."""
    script = f"import sys; sys.modules.update(dict.fromkeys({without!r})); import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["mrecordlog_async", "mrecordlog_async.client", "mrecordlog_async.service"])
def test_the_package_hands_out_what_it_promises(name: str) -> None:
    """Every name in `__all__` exists."""
    module = importlib.import_module(name)
    assert all(getattr(module, name) is not None for name in module.__all__)

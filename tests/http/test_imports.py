"""What works with which extra installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("mrecordlog_async.http", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.http.wire", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.http.messages", ["aiohttp", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.http.fastapi", ["aiohttp", "prometheus_client", "uvloop"]),
        ("mrecordlog_async.http.client", ["prometheus_client", "fastapi", "uvloop", "pyarrow"]),
        ("mrecordlog_async.http.server", ["fastapi", "uvloop", "pyarrow", "pyspark", "rich"]),
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


def test_the_package_hands_out_what_it_promises() -> None:
    """Every name in `__all__` is there; a wrong one is an AttributeError."""
    from mrecordlog_async import http

    assert all(getattr(http, name) is not None for name in http.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = http.nothing

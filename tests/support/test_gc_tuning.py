"""The cycle collector of a process that serves a log."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from mrecordlog_async.support.gc_tuning import calm_collector
loop = []
loop.append(loop)
calm_collector()
print(gc.get_freeze_count() > 1_000, gc.get_threshold())
"""


def test_a_calm_collector_leaves_alone_what_was_there_at_the_start() -> None:
    """Modules and classes are frozen, and a collection comes after 20,000 new objects instead of 700."""
    said = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert said.stdout == "True (20000, 20, 100)\n"

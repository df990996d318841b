"""The session in the docstring of the package works when it is copied; other modules have such tests of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import mrecordlog_async


def test_the_session_of_the_package_runs(tmp_path: Path) -> None:
    """What `help(mrecordlog_async)` shows opens a log, stores a record and truncates it."""
    block = "\n".join(line for line in (mrecordlog_async.__doc__ or "").splitlines() if line.startswith("    "))
    assert "append_record" in block
    program = f"""
import asyncio
from mrecordlog_async import MultiRecordLog

async def session():
{block}
    assert log.state.value == 'closed' and position == 0

asyncio.run(session())
"""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr

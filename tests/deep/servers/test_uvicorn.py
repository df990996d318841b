"""uvicorn with several workers: all of them open the log of the application, and one may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mrecordlog_async.embedding import LOCK_SECONDS, SIBLING_SECONDS
from tests.serving import free_port

APP = """
from fastapi import FastAPI
from mrecordlog_async.fastapi import lifespan
app = FastAPI(lifespan=lifespan("./wal"))
"""


def test_several_workers_end_and_say_what_to_do(tmp_path: Path) -> None:
    """They do not wait for each other as for the process before: none of them will end."""
    (tmp_path / "app.py").write_text(APP)
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "4", "--port", str(free_port())]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert f"waiting for it to end, for up to {SIBLING_SECONDS:g} s" in done.stderr, done.stderr
    assert f"for up to {LOCK_SECONDS:g} s" not in done.stderr
    assert "Use one worker" in done.stderr and "run `mrecordlog serve`" in done.stderr

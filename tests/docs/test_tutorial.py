"""A reader who follows the tutorial step by step sees what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.serving import free_port

from .blocks import ROOT, TUTORIAL, Block, Reader, blocks


class Session:
    """Saves files and starts services as the tutorial says; runs everything else as on any page."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = port
        self._url = f"http://localhost:{port}"
        self._services: list[subprocess.Popen[bytes]] = []

    def do(self, block: Block) -> None:
        text = block.text.replace("8080", str(self._port))
        if block.note.startswith("file: "):
            (self._directory / block.note.removeprefix("file: ")).write_text(text)
        elif block.note == "background":
            self._start(text)
        else:
            text = text.replace("pkill -9 -f 'uvicorn app:app'", f"kill -9 {self._services[-1].pid}")
            Reader(self._directory).run(Block(block.language, text, block.note))

    def _start(self, command: str) -> None:
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment["PYTHONPATH"] = str(ROOT)
        assert command.rstrip().endswith("&"), "a reader types more commands in the same shell"
        words = command.rstrip().removesuffix("&").split()
        service = subprocess.Popen(words, cwd=self._directory, env=environment)
        self._services.append(service)
        while service.poll() is None:
            try:
                urlopen(f"{self._url}/wal/readyz").close()
                return
            except HTTPError as error:
                error.close()
            except (URLError, ConnectionError):
                pass
            time.sleep(0.05)
        raise AssertionError(f"it ended with {service.returncode}: {command}")

    def end(self) -> None:
        for service in self._services:
            service.send_signal(signal.SIGTERM)
            service.wait()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    directory = tmp_path / "my clicks"  # a path with a space, as people have
    directory.mkdir()
    found = Session(directory, free_port())
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

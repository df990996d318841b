"""A reader who follows a page from top to bottom in one directory: saves files, starts services, runs commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.serving import free_port

from .blocks import ROOT, Block, Reader


class Session:
    """Saves files and starts services as the page says; runs everything else as on any page.

    The ports that the page names are replaced by free ones. `.venv` is the environment of the tests.
    """

    def __init__(self, directory: Path, ports: Sequence[str] = ("8080",)) -> None:
        self._directory = directory
        self._ports = {port: str(free_port()) for port in ports}
        self._services: list[subprocess.Popen[bytes]] = []
        (directory / ".venv").symlink_to(sys.prefix)

    def do(self, block: Block) -> str:
        """Do what the block is for; return what it printed."""
        text = block.text
        for named, port in self._ports.items():
            text = text.replace(named, port)
        if block.note.startswith("file: "):
            (self._directory / block.note.removeprefix("file: ")).write_text(text)
        elif block.note == "background":
            self._start(text)
        else:
            if self._services:
                text = text.replace("pkill -9 -f 'uvicorn app:app'", f"kill -9 {self._services[-1].pid}")
            return Reader(self._directory).run(Block(block.language, text, block.note))
        return ""

    def _start(self, command: str) -> None:
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment["PYTHONPATH"] = str(ROOT)
        assert command.rstrip().endswith("&"), "a reader types more commands in the same shell"
        words = command.rstrip().removesuffix("&").split()
        service = subprocess.Popen(words, cwd=self._directory, env=environment)
        self._services.append(service)
        port = re.findall(r"--port (\d+)", command)[0]
        while service.poll() is None:
            if any(_is_ready(f"http://localhost:{port}{path}readyz") for path in ("/wal/", "/")):
                return
            time.sleep(0.05)
        raise AssertionError(f"it ended with {service.returncode}: {command}")

    def end(self) -> None:
        """Stop the services."""
        for service in self._services:
            service.send_signal(signal.SIGTERM)
            service.wait()


def _is_ready(url: str) -> bool:
    try:
        urlopen(url).close()
        return True
    except HTTPError as error:
        error.close()
    except (URLError, ConnectionError):
        pass
    return False

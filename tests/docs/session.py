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

_KILL = re.compile(r"pkill -9 -f (?:'[^']+'|\S+)")
"""How a page kills its service: a test must not kill those of other programs."""


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
            assert text.rstrip().endswith("&"), "a reader types more commands in the same shell"
            self._wait_ready(self.start(text.rstrip().removesuffix("&")), text)
        else:
            killed = self._services[-1] if _KILL.search(text) else None
            if killed is not None:
                text = _KILL.sub(f"kill -9 {killed.pid}", text)
            printed = Reader(self._directory).run(Block(block.language, text, block.note))
            if killed is not None:
                killed.wait()  # the port and the directory are free for the next one
            return printed
        return ""

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Start a service, which may not listen yet."""
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment["PYTHONPATH"] = str(ROOT)
        for named, port in self._ports.items():
            command = command.replace(named, port)
        service = subprocess.Popen(command.split(), cwd=self._directory, env=environment)
        self._services.append(service)
        return service

    def _wait_ready(self, service: subprocess.Popen[bytes], command: str) -> None:
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

"""A real Prometheus with the files of examples/deploy: only ports, the token and the places of files are changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.serving import free_port

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
INSTALL = "is not installed (Debian: apt-get install prometheus)"

needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"prometheus {INSTALL}")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=f"promtool {INSTALL}")


def configuration(directory: Path, services: Sequence[int], drain: int) -> str:
    """Return the shipped `prometheus.yml` for the services at these ports, with its files in *directory*."""
    text = (DEPLOY / "prometheus.yml").read_text()
    targets = json.dumps([f"127.0.0.1:{port}" for port in services])
    changes = {
        '["127.0.0.1:8080"]': targets,
        '["127.0.0.1:9108"]': f'["127.0.0.1:{drain}"]',
        "/etc/prometheus/mrecordlog-token": str(directory / "token"),
        "[/etc/prometheus/mrecordlog.rules.yml]": f"[{DEPLOY / 'mrecordlog.rules.yml'}]",
    }
    for shipped, changed in changes.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, changed)
    return text


class Prometheus:
    """The server, scraping and evaluating at the shipped intervals. As a context, it runs."""

    def __init__(self, directory: Path, services: Sequence[int], drain: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._directory = directory
        (directory / "token").write_text("0123456789abcdef0123456789abcdef\n")
        (directory / "prometheus.yml").write_text(configuration(directory, services, drain or free_port()))

    def __enter__(self) -> Prometheus:
        command = [
            "prometheus",
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self._directory / "output").open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an API call; None while the server starts."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except (urllib.error.URLError, ConnectionError):
            assert self._process.poll() is None, (self._directory / "output").read_text()
            return None

    def value(self, query: str) -> float | None:
        """Return the value of the one series that *query* selects now; None if it selects none."""
        found = self.ask("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def firing(self) -> set[tuple[str, str]]:
        """Return the name and the instance of every alert that fires."""
        found = self.ask("alerts") or {"alerts": []}
        alerts = cast("list[dict[str, Any]]", found["alerts"])
        return {
            (one["labels"]["alertname"], one["labels"].get("instance", ""))
            for one in alerts
            if one["state"] == "firing"
        }

    def wait_for(self, alert: str, port: int, seconds: float) -> None:
        """Wait until *alert* fires for the service at *port*, at most this many *seconds*."""
        deadline = time.monotonic() + seconds
        while (alert, f"127.0.0.1:{port}") not in self.firing():
            assert time.monotonic() < deadline, (alert, self.ask("alerts"))
            time.sleep(0.1)

    def wait_for_change(self, metric: str, port: int, before: float | None) -> None:
        """Wait until a scrape of the service at *port* finds another value of *metric*."""
        while self.value(f'{metric}{{instance="127.0.0.1:{port}"}}') in (before, None):
            time.sleep(0.2)

    def wait_for_scrape(self, ports: Sequence[int]) -> Iterator[int]:
        """Yield each of *ports* right after the first scrape of its service: the next one is 15 s away."""
        waiting = list(ports)
        while waiting:
            for port in waiting:
                if self.value(f'mrecordlog_failed{{instance="127.0.0.1:{port}"}}') is not None:
                    waiting.remove(port)
                    yield port
                    break
            time.sleep(0.05)

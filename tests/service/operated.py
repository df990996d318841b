"""A service as its operator has it: a real process, its log, its exit code, `/metrics`, and what restarts it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests import warm
from tests.serving import free_port

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
FAILED, STUCK = "The log has failed: ", "the disk has not finished a commit for "
DAMAGED, NEARLY_FULL = " met damaged records on the disk", " % of the disk limit is used"
"""Sentences of the page."""
TIMEOUT_SECONDS = 60.0
"""Only a test that fails waits this long."""


class Operated:
    """`mrecordlog serve` with a disk that obeys the files in `control` (see `faulty_serve`)."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        port: int = 0,
        preexec: Callable[[], None] | None = None,
        cold: bool = False,
    ) -> None:
        """Start it. cold: with its own command line in the list of processes (see `tests.warm`)."""
        self.directory = directory
        self.control = directory.parent / "control"
        self.control.mkdir(exist_ok=True)
        self.port = port or free_port()
        self.lines: list[dict[str, Any]] = []
        self.is_over = False
        self._arguments = arguments
        self._preexec = preexec
        self._cold = cold or preexec is not None
        self._changed = threading.Condition()
        self.start()

    def start(self) -> None:
        """Start the process. Its lines are added to those of the process before it."""
        serve = ["serve", str(self.directory), "--port", str(self.port), *self._arguments]
        self.process = warm.start(
            [str(self.control), *serve],
            program="tests.faulty_serve",
            environment=os.environ | {"MRECORDLOG_LOG_FORMAT": "json"},
            cold=self._cold,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self._preexec,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()

    def __enter__(self) -> Operated:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        for file in self.control.iterdir():
            file.unlink()
        self.process.kill()
        self.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            with self._changed:
                self.lines.append(json.loads(line))  # every line of the process is JSON
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
        process.stderr.close()

    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines]

    def line(self, pattern: str) -> dict[str, Any]:
        """Wait for a line whose message matches *pattern*."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines if re.search(pattern, line["message"])), None)

        with self._changed:
            assert self._changed.wait_for(found, TIMEOUT_SECONDS), (pattern, self.messages())
        line = found()
        assert line is not None
        return line

    def wait(self, seconds: float | None = TIMEOUT_SECONDS) -> int:
        """Wait for the end of the process; return its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(TIMEOUT_SECONDS)
        return code

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request; (0, b"") if nothing listens or the process ends meanwhile."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def ready(self) -> Operated:
        """Wait until records are accepted."""
        self.line("listening on")
        while (status := self.call("GET", "/readyz")[0]) != 200:
            assert status in (0, 503) and self.process.poll() is None, self.messages()
            time.sleep(0.02)
        return self

    def append(self, payload: bytes) -> int:
        """Append to the queue `q`; return the status."""
        return self.call("POST", "/v1/queues/q/records?create=1", payload)[0]

    def records(self) -> dict[int, str]:
        """Return the records of `q` by position."""
        status, body = self.call("GET", "/v1/queues/q/records?as=text")
        assert status == 200
        records = [json.loads(line) for line in body.splitlines() if line]
        return {record["position"]: record["payload"] for record in records}

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.call("GET", "/v1/stats")[1])
        return found

    def page(self) -> str:
        """Return what the page shows of the log's state: `state.js` makes it of these members of the statistics."""
        stats = self.stats()
        failed = f"{FAILED}{stats['failure']}" if stats["failure"] else ""
        stuck = STUCK if stats["under_way_seconds"] > 1 else ""
        damaged, usage = stats["damaged"].get("segment"), stats["usage"]
        used = usage["disk_bytes"] * 100 // usage["disk_limit_bytes"]
        more = (
            f"{damaged} read{'s' * (damaged > 1)}{DAMAGED}" if damaged else f"{used}{NEARLY_FULL}" if used >= 85 else ""
        )
        return f"{stats['state']} {failed or stuck or more}".strip()

    def metric(self, text: str) -> float:
        """Return the value of a series as a query names it: `name` or `name{label="value"}`."""
        name, _, label = text.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', label))
        for family in text_string_to_metric_families(self.call("GET", "/metrics")[1].decode()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        raise AssertionError(f"{text} is not in /metrics")


class Supervisor:
    """Restarts a service by the rules of the shipped unit: on failure, but not after the codes that it names."""

    def __init__(self, service: Operated) -> None:
        unit = (DEPLOY / "mrecordlog.service").read_text()
        assert "\nRestart=on-failure\n" in unit
        found = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
        assert found is not None
        self.codes: list[int] = []
        self._final = {0, *map(int, found[1].split())}
        self._service = service
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self.codes.append(self._service.wait(None))
            if self.codes[-1] in self._final or self._service.is_over:
                return
            self._service.start()

    def join(self) -> None:
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()


def wait_until(condition: Callable[[], object]) -> None:
    """Poll until *condition* is true: for states that no line announces."""
    while not condition():
        time.sleep(0.02)

"""Services and drains as processes that a campaign can kill, stop and start again. Linux only: it reads /proc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.request import urlopen

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests import warm
from tests.serving import free_port
from tests.spark import small_java
from tests.spark.stops import PLACE, Stops

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 900.0
"""Only what is stuck waits this long: two Sparks that start beside a load of 28 needed more than five minutes."""
STORE_SECONDS = 0.2
"""A table in a store is looked at this often."""

MASTER = "local[2,3]"
ROOTED = {"PYTHONPATH": str(ROOT)}


class Process:
    """A program in a separate session, with what it prints in a file; it can be started again."""

    def __init__(self, command: list[str], messages: Path, environment: dict[str, str] | None = None) -> None:
        self._command, self._messages = command, messages
        self._environment = {**os.environ, **ROOTED, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        assert self.process is None
        with open(self._messages, "ab") as messages:
            self._begun = messages.tell()
            self.process = self._started(messages)

    def _started(self, messages: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, stdout=messages, stderr=messages, env=self._environment, start_new_session=True
        )

    def wait(self) -> None:
        """Wait until it does its work; nothing is known of a program in general."""

    @property
    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        assert self.process is not None
        return self.process.poll()

    def said(self) -> str:
        """Return what it has printed since its last start."""
        with open(self._messages, "rb") as messages:
            messages.seek(self._begun)
            return messages.read().decode(errors="replace")

    def members(self) -> dict[int, str]:
        """Return the processes of its session that run: id → command line."""
        assert self.process is not None
        return session_of(self.process.pid)

    def stop(self) -> None:
        """Stop all its processes where they are."""
        self._signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill all its processes, and wait until they have ended; nothing if it was not started."""
        if self.process is None:
            return
        wait_until(lambda: not self._signal(signal.SIGKILL), "the processes are still there")
        self.process.wait()
        self.process = None

    def terminate(self) -> int:
        """Request an end; return the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(DEADLINE_SECONDS)
        self.kill()
        return code

    def _signal(self, number: signal.Signals) -> dict[int, str]:
        assert self.process is not None
        self.process.poll()
        found = self.members()
        for each in found:
            _signal(each, number)
        return found


class ServiceProcess(Process):
    """A service of the log in *directory*, always at the same address. more: further arguments of `serve`."""

    def __init__(self, name: str, directory: Path, messages: Path, *more: str) -> None:
        self.name, self.directory = name, directory
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(["serve", str(directory), "--port", str(port), *more], messages)

    def _started(self, messages: BinaryIO) -> subprocess.Popen[bytes]:
        return warm.start(self._command, stdout=messages, stderr=messages, start_new_session=True)

    def bytes_on_disk(self) -> int:
        """Return how many payload bytes have left its memory; 0 while it does not respond."""
        try:
            with urlopen(f"{self.url}/v1/stats", timeout=10) as response:
                return int(json.loads(response.read())["usage"]["disk_only_bytes"])
        except OSError:
            return 0

    def wait(self) -> None:
        """Wait until it serves."""

        def serves() -> bool:
            assert self.ended is None, self.said()
            return "http://" in self.said()

        wait_until(serves, "the service does not start")


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve a log in its own process; yield its address."""
    service = ServiceProcess("a", directory, directory.with_suffix(".txt"))
    start([service])
    try:
        yield service.url
    finally:
        service.kill()


class DrainProcess(Process):
    """A drain that can be stopped before its steps.

    module: what to run instead of the drain itself: `stopping_drain` or `stream_job`. more: further arguments.
    python: the Python of an environment with another Spark (see `versions`). master: of Spark. settings: of Spark.
    storage: the options of the store that has the table.
    """

    def __init__(
        self,
        module: str,
        servers: dict[str, str],
        output: Path | str,
        place: Path,
        *more: str,
        python: str = sys.executable,
        master: str = MASTER,
        settings: Mapping[str, str] | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.output, self.storage, self.stops = output, dict(storage or {}), Stops(place / "stops")
        command = [python, "-m", module, "drain", "--every", "300ms", "--output", str(output), *more]
        command += [] if "--no-spark" in more else ["--master", master]
        for name, url in servers.items():
            command += ["--server", f"{name}={url}"]
        for name, value in self.storage.items():
            command += ["--storage-option", f"{name}={value}"]
        place_of_stops = {PLACE: str(self.stops.place)}
        in_executors = {f"spark.executorEnv.{name}": each for name, each in {**ROOTED, **place_of_stops}.items()}
        java = [
            small_java.OPTIONS,
            *(f"-D{name}={each}" for name, each in {**in_executors, **(settings or {})}.items()),
        ]
        super().__init__(command, place / "messages.txt", {"SPARK_SUBMIT_OPTS": " ".join(java), **place_of_stops})

    def use_master(self, url: str) -> None:
        """Run on this Spark from the next start on."""
        self._command[self._command.index("--master") + 1] = url

    def start(self) -> None:
        """Start it; it stops nowhere until the campaign wants that."""
        self.stops.release()
        super().start()

    def batches(self) -> int:
        """Return how many versions the table has, including those whose entries were deleted."""
        if self.storage:
            time.sleep(STORE_SECONDS)
            with suppress(DeltaError):
                return DeltaTable(str(self.output), storage_options=self.storage).version()
            return 0
        entries = Path(self.output, "_delta_log")
        names = [path.stem for path in entries.glob("*.json")] if entries.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=0)

    def wait_for_batches(self, more: int) -> None:
        """Wait until it has committed *more* batches than now."""
        wanted, still = self.batches() + more, self.still_runs()
        while self.batches() < wanted:
            still()
            time.sleep(0.01)

    def stopped_at(self, step: str) -> int:
        """Wait until one of its processes has come to *step*, and stays there; return the process's id."""
        self.stops.want(step)
        return self.stops.wait(self.still_runs(f"it does not come to the step {step!r}"))

    def still_runs(self, complaint: str = "it commits nothing") -> Callable[[], None]:
        """Return a function that raises AssertionError if the drain has ended, or after a long time."""
        deadline = time.monotonic() + DEADLINE_SECONDS

        def check() -> None:
            assert self.ended is None, f"the drain ended by itself: {self.said()[-2_000:]}"
            assert time.monotonic() < deadline, f"{complaint}: {self.said()[-2_000:]}"

        return check

    def java(self) -> int:
        """Return the id of the Java process."""
        return self._member(lambda line: line.partition(" ")[0].endswith("java"))

    def source(self) -> int:
        """Return the id of the data source's Python process."""
        return self._member(lambda line: "python_streaming_source_runner" in line)

    def _member(self, fits: Callable[[str], bool]) -> int:
        return next((each for each, line in self.members().items() if fits(line)), 0)


def start(processes: list[Process]) -> None:
    """Start programs, and wait until all of them do their work."""
    for process in processes:
        process.start()
    for process in processes:
        process.wait()


def end_process(process: int) -> None:
    """Kill one process; one that has ended already is fine."""
    if process:
        _signal(process, signal.SIGKILL)


def session_of(session: int) -> dict[int, str]:
    """Return the processes of a session that run: id → command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            # After the name, which may contain anything: state, parent, group, session.
            state, _, _, number = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state not in "ZX":
                found[int(path.name)] = command_line(int(path.name))
        except (OSError, ValueError):
            continue  # it has ended
    return found


def command_line(process: int) -> str:
    """Return the command line of *process*; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool], complaint: str) -> None:
    """Wait for a limited time. Raises AssertionError."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, complaint
        time.sleep(0.01)


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)

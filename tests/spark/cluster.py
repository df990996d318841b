"""A Spark cluster of several processes on this machine, and a way to stop one of its tasks in the middle.

One master and two workers of one core each, as `spark-class` starts them; each worker starts an executor as a separate
process. They need what they would need on separate machines. Linux only: the owner of a connection is read from
/proc.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyspark

from tests.spark import small_java

DEADLINE_SECONDS = 400
"""Only a test that fails waits this long."""

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True, slots=True)
class Cluster:
    """url: what `--master` takes. workers: their process ids."""

    url: str
    workers: tuple[int, ...]
    environment: dict[str, str]

    def executor_of(self, port: int) -> int:
        """Return the id of the executor whose process is connected from *port*."""
        process = _holder(_inode(port))
        while (parent := _parent(process)) not in self.workers:
            assert parent > 1, f"port {port} belongs to no executor"
            process = parent
        return process


@contextmanager
def cluster(
    place: Path, environment: dict[str, str], hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")
) -> Iterator[Cluster]:
    """Start a master, and workers at *hosts*, with files in *place*; at the end, kill them and what they started."""
    environment = environment | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(place / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": small_java.OPTIONS,  # they start, and do little else
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    with ExitStack() as processes:
        _daemon(processes, place / "master.txt", environment, "master.Master", "--host", hosts[0])
        url = wait_for(r"spark://127.0.0.1:\d+", place / "master.txt")
        workers = []
        for number, host in enumerate(hosts):
            files = [
                "--host",
                host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(place / f"worker-{number}"),
                url,
            ]
            workers.append(_daemon(processes, place / f"worker-{number}.txt", environment, "worker.Worker", *files))
        for number in range(len(hosts)):
            wait_for("Successfully registered with master", place / f"worker-{number}.txt")
        yield Cluster(url, tuple(workers), environment)


def _daemon(processes: ExitStack, messages: Path, environment: dict[str, str], name: str, *arguments: str) -> int:
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--port", "0", "--webui-port", "0", *arguments]
    with open(messages, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    processes.callback(end, process)
    return process.pid  # spark-class becomes the JVM: it execs it


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything it started."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    process.wait(DEADLINE_SECONDS)


def wait_for(pattern: str, messages: Path) -> str:
    """Wait until *pattern* appears in a file that another process writes; return it."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := re.search(pattern, messages.read_text(errors="replace"))):
        assert time.monotonic() < deadline, f"{pattern} does not appear in {messages}"
        time.sleep(0.02)
    return found[0]


class Gate:
    """A proxy that forwards everything to a service, but stops in the middle of its nth response to `/v1/fetch`.

    When it stops, it sets `held`, and `port` is the response's destination; `open` makes it continue.
    """

    def __init__(self, url: str, stop_at: int) -> None:
        self.held = threading.Event()
        self.port = 0
        self._service = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        self._stop_at = stop_at
        self._fetches = 0
        self._counting = threading.Lock()
        self._opened = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self) -> None:
        """Continue."""
        self._opened.set()

    def close(self) -> None:
        """Accept no more connections."""
        self._opened.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                reader, (_, port) = self._listener.accept()
                threading.Thread(target=self._serve, args=(reader, port), daemon=True).start()

    def _serve(self, reader: socket.socket, port: int) -> None:
        """Forward one request and its response at a time."""
        with reader, socket.create_connection(self._service) as service, suppress(OSError):
            stop = threading.Event()
            answers = threading.Thread(target=self._answer, args=(service, reader, port, stop), daemon=True)
            answers.start()
            while request := reader.recv(65_536):
                if request.startswith(b"POST /v1/fetch") and self._is_the_one():
                    stop.set()
                service.sendall(request)
            service.shutdown(socket.SHUT_RDWR)
            answers.join()

    def _answer(self, service: socket.socket, reader: socket.socket, port: int, stop: threading.Event) -> None:
        with suppress(OSError):
            while answer := service.recv(65_536):
                if stop.is_set() and not self.held.is_set():
                    reader.sendall(answer[: len(answer) // 2])
                    answer = answer[len(answer) // 2 :]
                    self.port = port
                    self.held.set()
                    self._opened.wait(DEADLINE_SECONDS)
                reader.sendall(answer)
            reader.shutdown(socket.SHUT_RDWR)

    def _is_the_one(self) -> bool:
        with self._counting:
            self._fetches += 1
            return self._fetches == self._stop_at


# Processes, as /proc shows them.


def _inode(port: int) -> str:
    """Return the inode of the socket bound to *port*."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
            return f"socket:[{fields[9]}]"
    raise AssertionError(f"nobody is connected from port {port}")


def _holder(inode: str) -> int:
    """Return the process that has the socket open."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            for handle in os.listdir(process / "fd"):
                if _is_link_to(process / "fd" / handle, inode):
                    return int(process.name)
    raise AssertionError(f"nobody has {inode} open")


def _is_link_to(handle: Path, inode: str) -> bool:
    try:
        return os.readlink(handle) == inode
    except OSError:
        return False  # closed meanwhile


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def descendants(process: int) -> list[int]:
    """Return the processes that *process* has started, and those that these have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(entry.name)] = _parent(int(entry.name))
    found, family = list[int](), {process}
    while children := [child for child, parent in parents.items() if parent in family and child not in family]:
        found += children
        family.update(children)
    return found
